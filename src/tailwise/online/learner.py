"""Online learning beside a paper session: bars in, and now and then another policy out.

Everything follows from the bars from before, the ticks of the session's journal and the settings. A session that was
killed is therefore continued by playing its ticks again; trainings that were finished are not repeated. At any time
there is at most one challenger, in one of these phases:

    training    on the newest bars, aside
    contest     its accounts and those of the deployed policy, side by side on bars that neither has learnt from
    probation   it decides, and its predecessor goes on beside it, ready to take over again
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tailwise.bars.bars import Bars
from tailwise.core.errors import CheckpointError, ConfigError, DataError
from tailwise.live.journal import TickLine, read_journal
from tailwise.live.lines import RawBar
from tailwise.live.paper import policy_digest
from tailwise.live.session import Session, Terms
from tailwise.online.audit import Audit
from tailwise.online.drift import FEWEST, HORIZON, DriftMonitor
from tailwise.online.jobs import POLICY, ChallengerJob, Worker, facts_of
from tailwise.online.promotion import PURSES, Contest
from tailwise.online.settings import LearnSettings
from tailwise.online.shadow import Shadow
from tailwise.online.window import RecentBars
from tailwise.run.decide import market_of
from tailwise.run.policy import Trader

Floats = npt.NDArray[np.float64]
Hidden = list[list[Tensor]]
CHALLENGERS = "challengers"
SCHEDULE, DRIFT = "schedule", "drift"  # why a training begins, and the purse that its contest is paid from
_SAFETY = 1.5  # largest move that is bet on, over the largest one of the window
_DEVIATIONS = 3.0  # of a random walk over a probation, at which it is no chance any more
_OUTDATED = "the market has drifted since it was trained"
_DAY = 86_400_000_000_000  # ns


@dataclass(frozen=True)
class Tick:
    """One tick of a session. bars: by symbol; equity [G]: of the accounts that had a bar, None for the others."""

    n: int
    time: int
    bars: dict[str, RawBar]
    equity: tuple[float | None, ...]

    @classmethod
    def of_session(cls, session: Session) -> Tick:
        """The newest one."""
        assert session.time is not None
        bars = {name: bar for name, bar in session.last.items() if bar.time == session.time}
        equity = tuple(
            desk.account.equity if any(name in bars for name in desk.symbols) else None for desk in session.desks
        )
        return cls(session.ticks, session.time, bars, equity)

    @classmethod
    def of_line(cls, line: TickLine) -> Tick:
        """One that stands in a journal."""
        bars = {
            name: RawBar(name, line.time, *numbers)
            for desk in line.desks
            if desk is not None
            for name, numbers in desk.bars.items()
        }
        return cls(line.n, line.time, bars, tuple(None if desk is None else desk.equity for desk in line.desks))


@dataclass(frozen=True)
class Deployed:
    """A policy that decides. number: of the challenger it was, 0: the run's; digest: of its weights."""

    trader: Trader
    number: int
    digest: str
    folder: Path


class Learner:
    """Sees every tick of a session, once, in its order.

    before   bars from before the session, of every symbol
    worker   does the trainings
    """

    def __init__(
        self,
        trader: Trader,
        terms: Terms,
        folder: Path,
        settings: LearnSettings,
        before: Sequence[Bars],
        worker: Worker,
        *,
        trust: bool = False,
    ) -> None:
        market, spec = market_of(trader)
        missing = [name for name in terms.symbols if name not in {one.symbol for one in before}]
        if missing:
            raise DataError(f"online learning needs bars from before for {missing[0]}; give them with --bars.")
        self.terms, self.folder, self.settings, self.worker, self._trust = terms, folder, settings, worker, trust
        self.audit = Audit(folder)
        self.deployed = Deployed(trader, 0, policy_digest(trader), self._folder_of(0) / POLICY)
        self._span = 2.0 * market.largest_exposure
        self._warm_up, self._fewest = spec.warm_up, trader.config.run.rollout_steps + 1  # of a rollout and what follows
        self._length = settings.window + spec.warm_up
        self._past = {one.symbol: one for one in before if one.symbol in terms.symbols}
        self._windows: dict[str, RecentBars] = {}
        self._worth: list[float | None] = [None] * len(terms.groups)
        self._returns: deque[float] = deque(maxlen=settings.drift_reference)  # of the deployed policy, since it decides
        self._reference: int | None = min(FEWEST, settings.drift_reference)  # returns at which it is taken next
        self._monitor: DriftMonitor | None = None
        self._times: deque[int] = deque(maxlen=HORIZON)  # of the ticks that had a return, ns
        self._since_training = 0
        self._changed: int | None = None  # when the mean changed by the newest alarm, ns; windows begin there
        self._since_change = 0  # ticks
        self._due = False  # whether an alarm asks for a training before its time
        self._why = SCHEDULE  # of the next training
        self._purse = SCHEDULE  # that pays for the newest challenger: why it was trained
        self._contests = Counter[str]()  # that each purse has paid for
        self._number = 0  # of the newest challenger
        self._day, self._trainings, self._promotions = -1, 0, 0
        self._ready_at: int | None = None  # tick at which a training must be done
        self._challenger: Deployed | None = None
        self._contest: Contest | None = None
        self._pair: tuple[Shadow, Shadow] | None = None  # challenger and deployed; promoted and predecessor
        self._age = 0  # bars of the contest or the probation
        self._before: Deployed | None = None  # predecessor during a probation
        self._behind = self._gain = self._peak = 0.0
        self._limits = (0.0, 0.0)  # of a probation: behind the predecessor, below the highest equity
        self.change: Hidden | None = None  # what `deployed` goes on with, where it has just changed

    def begin(self, ticks: int, sync: Callable[[], None]) -> None:
        """Before the first tick; ticks: that stand in the journal already; sync: brings the journal to the disk."""
        if ticks and not self.audit.begun:
            raise CheckpointError(
                f"{self.folder}: its {ticks:,} ticks were made without --learn, and {self.audit.path.name} begins with "
                "a session. Go on without --learn, or begin a new session with --learn and another --out."
            )
        self.audit.known, self.audit.sync = ticks, sync
        self.audit.write("begun", 0, 0, policy=self.deployed.digest, settings=self.settings.model_dump(mode="json"))
        if not self.deployed.folder.exists():  # where trainings find it
            self.deployed.folder.parent.mkdir(parents=True, exist_ok=True)
            self.deployed.trader.save(self.deployed.folder)

    # ---------------------------------------------------------------- ticks

    def see(self, tick: Tick) -> None:
        """One more tick. Afterwards `change` says whether another policy is deployed."""
        self.change = None
        if not self._windows:
            begin, length, frequency = tick.time, self._length, self.terms.frequency
            self._windows = {
                name: RecentBars(self._past[name], begin, length, frequency) for name in self.terms.symbols
            }
        for name, bar in tick.bars.items():
            self._windows[name].add(bar)
        value = self._account(tick)
        self._since_training += 1
        self._since_change += 1
        if tick.time // _DAY != self._day:
            self._day, self._trainings, self._promotions = tick.time // _DAY, 0, 0
        if value is not None:
            self._watch_drift(tick, value)
        if self._pair is not None:
            new, old = (shadow.step(tick.bars) for shadow in self._pair)
            self._age += 1
            if self._before is not None:
                self._on_probation(tick, new, old, 0.0 if value is None else value)
            else:
                self._in_contest(tick, new, old)
        elif self._ready_at is not None:
            if tick.n >= self._ready_at:
                self._begin_contest(tick)
        elif self._may_train():
            self._begin_training(tick)

    def _account(self, tick: Tick) -> float | None:
        """Mean log-return of the session's accounts in this tick; None before there are two values."""
        moves = []
        for k, equity in enumerate(tick.equity):
            before = self._worth[k]
            if equity is not None and equity > 0:
                moves += [] if before is None else [float(np.log(equity / before))]
                self._worth[k] = equity
        return float(np.mean(moves)) if moves else None

    def _watch_drift(self, tick: Tick, value: float) -> None:
        self._times.append(tick.time)
        self._returns.append(value)
        if self._monitor is not None and self._monitor.look(value):
            self._changed, self._due, self._why = self._times[-self._monitor.since], True, DRIFT
            self._since_change = self._monitor.since
            self._note("drift", tick, rate=self.settings.drift_rate, since=self._monitor.since)
            self._forget_reference()
            self._drop_outdated(tick)
            return
        if self._reference is not None and len(self._returns) >= self._reference:
            self._calibrate_drift(tick)

    def _calibrate_drift(self, tick: Tick) -> None:
        """Take all returns of the deployed policy for its reference, unless they seem to be falling; again when there
        are twice as many."""
        if self._monitor is not None and self._monitor.level > 0:
            return
        reference, most = np.array(self._returns), self.settings.drift_reference
        self._reference = min(2 * len(reference), most) if len(reference) < most else None
        if not np.ptp(reference) > 0:
            if self._reference is None:
                self._forget_reference()
            return
        seed = int(self.terms.header["seed"])
        self._monitor = DriftMonitor.of(reference, rate=self.settings.drift_rate, seed=seed)
        limit = self._monitor.threshold
        self._note("watching drift", tick, rate=self.settings.drift_rate, threshold=limit, reference=len(reference))

    def _forget_reference(self) -> None:
        """Begin to measure drift anew."""
        self._monitor = None
        self._returns.clear()
        self._reference = min(FEWEST, self.settings.drift_reference)

    def _drop_outdated(self, tick: Tick) -> None:
        """A challenger from before the drift makes way for one that has seen it."""
        if self._contest is not None:
            self._drop(tick, _OUTDATED, self._contest)

    # ---------------------------------------------------------------- training

    def _usable(self) -> int | None:
        """Newest bars of each symbol that a training may use, None while there are too few: all of the window or, after
        an alarm of drift, those since the estimated change and what features need before them. A symbol that gives no
        more bars holds nothing up for longer than a window."""
        windows = self._windows.values()
        if self._changed is not None:
            since = min(window.since(self._changed) for window in windows)
            if since < self.settings.window and self._since_change < self.settings.window:
                enough = since >= max(self.settings.fresh * self.settings.window, self._fewest)
                count = since + self._warm_up
                return count if enough and all(len(window) >= count for window in windows) else None
            self._changed = None
            if not self._due:  # the training that the alarm asked for is still paid from its purse
                self._why = SCHEDULE
        return self._length if all(window.full for window in windows) else None

    def _may_train(self) -> bool:
        due = self._due or self._since_training >= self.settings.every
        return due and self._trainings < self.settings.trainings_per_day

    def _begin_training(self, tick: Tick) -> None:
        count = self._usable()
        if count is None:
            return
        bars = tuple(window.bars(count) for window in self._windows.values())
        self._since_training, self._trainings, self._due = 0, self._trainings + 1, False
        why = self._why
        if self._changed is None:
            self._why = SCHEDULE
        still = max(float(np.mean(np.diff(one.close) == 0)) if len(one) > 1 else 1.0 for one in bars)
        if still >= self.settings.still:
            self._note("not trained", tick, why=f"{still:.0%} of the bars of a symbol did not move")
            return
        self._number += 1
        settings, self._purse = self.settings, why
        if self._purse == DRIFT:
            settings = settings.model_copy(update={"kl": settings.kl_after_drift})
        out = self._folder_of(self._number)
        job = ChallengerJob(self.deployed.folder, bars, settings, self._number, out, self._trust)
        self._ready_at = tick.n + settings.lead
        digests = [one.data_hash()[:16] for one in bars]
        self._note("training", tick, challenger=self._number, why=self._purse, window=count, bars=digests)
        self.worker.begin(job)

    def _folder_of(self, number: int) -> Path:
        return self.folder / CHALLENGERS / f"{number:04d}"

    def find(self, digest: str) -> Trader:
        """The policy with this digest, of the run or of a challenger."""
        from tailwise.run.agent import load

        if digest == self.deployed.digest:
            return self.deployed.trader
        for folder in sorted((self.folder / CHALLENGERS).glob(f"[0-9]*/{POLICY}")):
            trader = load(folder, trust=self._trust)
            if policy_digest(trader) == digest:
                return trader
        raise CheckpointError(
            f"{self.folder / CHALLENGERS} has no policy {digest[:12]}, which decides in this session; restore it."
        )

    # ---------------------------------------------------------------- contest

    def _begin_contest(self, tick: Tick) -> None:
        from tailwise.run.agent import load

        self.worker.finish()
        folder = self._folder_of(self._number)
        self._ready_at = None
        trader = load(folder / POLICY, trust=self._trust)
        challenger = Deployed(trader, self._number, policy_digest(trader), folder / POLICY)
        self._note("trained", tick, challenger=self._number, digest=challenger.digest[:16], **facts_of(folder))
        if challenger.digest == self.deployed.digest:
            self._note("dropped", tick, challenger=self._number, why="it is the deployed policy, unchanged")
            return
        if self._due:
            self._note("dropped", tick, challenger=self._number, why=_OUTDATED)
            return
        bars = [window.bars() for window in self._windows.values()]
        pair = tuple(Shadow(one, self.terms, bars) for one in (trader, self.deployed.trader))
        if not all(shadow.begun and not shadow.ruined for shadow in pair) or not len(pair[1].past):
            self._note("dropped", tick, challenger=self._number, why="its accounts could not begin on the newest bars")
            return
        move = max(float(np.abs(np.diff(np.log(one.close))).max()) for one in bars)
        bound = self.settings.bound or _SAFETY * self._span * move
        self._contests[self._purse] += 1
        self._contest = Contest.begin(
            self._contests[self._purse],
            alpha=self.settings.alpha / PURSES,
            margin=self.settings.margin,
            level=float(np.quantile(pair[1].past.mean(axis=1), self.settings.tail)),
            bound=bound,
        )
        self._challenger, self._pair, self._age = challenger, (pair[0], pair[1]), 0
        self._limits = self._limits_of(pair[0].past.mean(axis=1), pair[1].past.mean(axis=1))
        needed, level = self._contest.needed, self._contest.level
        paid = {"purse": self._purse, "place": self._contest.number}
        self._note("contest", tick, challenger=self._number, bound=bound, needed=needed, level=level, **paid)

    def _limits_of(self, new: Floats, old: Floats) -> tuple[float, float]:
        """Those that are set, else what chance alone hardly does in a probation, by the returns on the window."""
        settings = self.settings
        over = _DEVIATIONS * float(np.sqrt(settings.patience))
        count = min(len(new), len(old))
        behind = over * float(np.std(new[-count:] - old[-count:]))
        return settings.roll_back or behind, settings.drawdown or over * float(np.std(new))

    def _in_contest(self, tick: Tick, new: Floats, old: Floats) -> None:
        assert self._contest is not None and self._challenger is not None and self._pair is not None
        self._contest = self._contest.after(new, old)
        why = self._contest.promoted_by
        if why is not None and self._promotions < self.settings.promotions_per_day:
            contest = self._contest
            self._promotions += 1
            self._before, self._contest, self._age = self.deployed, None, 0
            self._behind = self._gain = self._peak = 0.0
            self._deploy(self._challenger, self._pair[0].hidden())
            limits = dict(zip(("roll_back", "drawdown"), self._limits, strict=True))
            self._note(
                "promoted", tick, challenger=self._challenger.number, why=why, **limits, **self._evidence(contest)
            )
            return
        ended = None
        if self._pair[0].ruined:
            ended = "its account came to its floor"
        elif self._contest.hopeless:
            ended = "a bar lost more than its evidence allows for"
        elif self._age >= self.settings.patience and not self._contest.leans_to_it:
            ended = f"no evidence within {self.settings.patience:,} bars"
        if ended is not None:
            self._drop(tick, ended, self._contest)

    def _drop(self, tick: Tick, why: str, contest: Contest) -> None:
        assert self._challenger is not None
        number = self._challenger.number
        self._challenger = self._contest = self._pair = None
        self._note("dropped", tick, challenger=number, why=why, **self._evidence(contest))

    def _evidence(self, contest: Contest) -> dict[str, float]:
        """For the audit."""
        return {
            "better": contest.better.value,
            "as_good": contest.as_good.value,
            "safer": contest.safer.value,
            "bars": contest.better.count,
        }

    # ---------------------------------------------------------------- probation

    def _on_probation(self, tick: Tick, new: Floats, old: Floats, value: float) -> None:
        assert self._before is not None and self._pair is not None
        self._behind += float(np.mean(old - new))
        self._gain += value
        self._peak = max(self._peak, self._gain)
        settings, fall = self.settings, self._peak - self._gain
        limits = (
            ("behind its predecessor", self._behind, self._limits[0]),
            ("below its highest equity", fall, self._limits[1]),
        )
        broken = next(
            (f"{size:.4g} {what}, the limit is {most:.4g}" for what, size, most in limits if size > most), None
        )
        number, kept = self.deployed.number, self._pair[1]
        if broken is not None or self._pair[0].ruined:
            before, self._before, self._pair, self._challenger = self._before, None, None, None
            self._deploy(before, kept.hidden())
            why = broken or "its account came to its floor"
            self._note("rolled back", tick, challenger=number, to=before.number, why=why)
        elif self._age >= settings.patience:
            self._before = self._pair = self._challenger = None
            self._note("kept", tick, challenger=number, bars=self._age)

    def _deploy(self, policy: Deployed, hidden: Hidden) -> None:
        self.deployed, self.change = policy, hidden
        self._forget_reference()  # what the other policy earned is none for this one
        self._since_training, self._due, self._why = 0, False, SCHEDULE

    def _note(self, kind: str, tick: Tick, **facts: Any) -> None:
        self.audit.write(kind, tick.n, tick.time, **facts)


class Learning:
    """A learner beside a session: `after` every tick, `go_on` once after the session was opened."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self._told = learner, 0

    def go_on(self, session: Session) -> None:
        """Play the ticks that the journal has; afterwards the session decides with the policy that it should."""
        change: Hidden | None = None
        self.learner.begin(session.ticks, session.journal.sync)
        for line in read_journal(session.journal.path):
            if not isinstance(line, TickLine):
                continue
            self.learner.see(Tick.of_line(line))
            change = self.learner.change
        if self.learner.audit.replaying:
            raise CheckpointError(
                f"{self.learner.audit.path} goes on behind the end of the journal; they do not belong together."
            )
        self._told = len(self.learner.audit.lines)
        if session.deployed != self.learner.deployed.digest:
            if change is None:
                raise CheckpointError(
                    f"{session.folder}: the journal and the log of online learning name different policies; they do "
                    "not belong together."
                )
            self._deploy(session, change)

    def after(self, session: Session) -> list[str]:
        """The session has made a tick; what happened, for people."""
        if not session.trading:
            return []
        self.learner.see(Tick.of_session(session))
        if self.learner.change is not None:
            self._deploy(session, self.learner.change)
        news = self.learner.audit.lines[self._told :]
        self._told += len(news)
        return [sentence_of(line) for line in news]

    def summary(self) -> dict[str, Any]:
        """What happened, as plain values."""
        counts = Counter(line["kind"] for line in self.learner.audit.lines if line["kind"] != "begun")
        deployed = self.learner.deployed
        return {
            "deployed": deployed.number,
            "policy": deployed.digest,
            "counts": dict(counts),
            "audit": str(self.learner.audit.path),
        }

    def _deploy(self, session: Session, hidden: Hidden) -> None:
        session.deploy(self.learner.deployed.trader, self.learner.deployed.digest, hidden)


def sentence_of(line: Mapping[str, Any]) -> str:
    """An entry of the audit for people."""
    time = str(np.datetime64(int(line["time"]), "ns").astype("datetime64[s]")).replace("T", " ")
    facts = {key: value for key, value in line.items() if key not in ("kind", "n", "time", "bars")}
    listed = ", ".join(f"{key} {_short(value)}" for key, value in facts.items() if value is not None)
    return f"{time} learn: {line['kind']}{': ' if listed else ''}{listed}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def settings_of(overrides: Sequence[str]) -> LearnSettings:
    """The settings, with what differs from the defaults as KEY=VALUE."""
    from tailwise.core.config import apply_overrides, parse

    settings = parse(LearnSettings, apply_overrides({}, list(overrides)), source="--learning")
    if settings.lead >= settings.every:
        raise ConfigError(f"--learning: lead {settings.lead} must be shorter than every {settings.every}.")
    return settings
