"""`tailwise paper`: a feed through a session, from the first bar to the end of the feed, the kill file or a signal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tailwise.bars.bars import Bars
from tailwise.bars.frequency import SECOND, Frequency, bars_per_year
from tailwise.core.errors import ConfigError, DataError
from tailwise.evaluate.opened_run import Team
from tailwise.features.spec import FeatureSpec
from tailwise.live.feeds import Feed, raw_bar
from tailwise.live.journal import JOURNAL, BeginLine, read_journal
from tailwise.live.lines import PositionReport, RawBar, Refused, Said, moment_of
from tailwise.live.session import Session, Terms, Ticked
from tailwise.live.settings import LiveGuards
from tailwise.market.action_kinds import action_kind
from tailwise.run.decide import Decider, market_of
from tailwise.run.policy_files import policy_tensors

Bundle = dict[str, RawBar]


@dataclass(frozen=True)
class Beginning:
    """How a session begins. since: first bar that is traded; deterministic, seed: None: as the run says."""

    since: str | None = None
    deterministic: bool | None = None
    seed: int | None = None


@dataclass
class Progress:
    """What came in so far. refused: lines that said nothing usable; late: bars of times that were over; repeated: bars
    that said the same again."""

    bars: int = 0
    refused: int = 0
    late: int = 0
    repeated: int = 0
    filled: int = 0
    why: str = ""  # of the newest refused line


def terms_of(
    trader: Decider,
    symbols: Sequence[str],
    frequency: Frequency,
    beginning: Beginning,
    folder: Path,
    *,
    run: str = "",
    checkpoint: str = "",
) -> Terms:
    """What the session in `folder` is; one that has begun keeps the beginning that its journal names."""
    market, spec = market_of(trader)
    portfolio = action_kind(market.action).portfolio
    known = list(spec.windows)
    if portfolio and list(symbols) != known:
        raise DataError(f"the account holds {', '.join(known)}; the feed must have all of them.")
    since = beginning.since if beginning.since is not None else _written(folder)
    stamp = None if since is None else moment_of(since, where="--since")
    header = {
        "run": run,
        "checkpoint": checkpoint,
        "policy": policy_digest(trader),
        "features": _digest(spec.to_json()),
        "config": _digest(trader.config.model_dump(mode="json")),
        "symbols": list(symbols),
        "bar_ns": frequency.bar_ns,
        "periods_per_year": float(frequency.periods_per_year),
        "calendar": frequency.calendar,
        "since": since,
        "seed": trader.config.seed if beginning.seed is None else beginning.seed,
        "deterministic": trader.deterministic if beginning.deterministic is None else beginning.deterministic,
    }
    groups = (tuple(symbols),) if portfolio else tuple((name,) for name in symbols)
    return Terms(tuple(symbols), groups, frequency, stamp, header)


def _written(folder: Path) -> str | None:
    """`since` of the session that is there."""
    path = folder / JOURNAL
    first = next(iter(read_journal(path)), None) if path.exists() else None
    return first.since if isinstance(first, BeginLine) else None


def policy_digest(trader: Decider) -> str:
    """sha256 (hex) of the weights and normalisers of all models."""
    digest = hashlib.sha256()
    for model in trader.models:
        for name, tensor in sorted(policy_tensors(model).items()):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(tensor.numpy()).tobytes())
    return digest.hexdigest()


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def frequency_of(trader: Decider, history: Sequence[Bars], periods_per_year: float | None) -> Frequency:
    """Of the bars that will come: that of the bars from before, else by what the features were fitted on."""
    _, spec = market_of(trader)
    if history:
        found = history[0].frequency
        spec.check_frequency(history[0].symbol, found)
        return found
    calendar = next(iter(spec.windows.values())).calendar
    stated = periods_per_year if periods_per_year is not None else getattr(trader.config.data, "periods_per_year", None)
    rate = stated if stated is not None else _usual_rate(spec, calendar)
    return Frequency(np.timedelta64(spec.bar, "ns"), rate, calendar, "as the features were fitted")


def _usual_rate(spec: FeatureSpec, calendar: Any) -> float:
    day = 86_400 * SECOND
    if calendar == "exchange" and spec.bar < day:
        raise ConfigError(
            "how many bars a year has depends on the hours of the exchange; give bars from before with --bars, or "
            "state --periods-per-year."
        )
    return bars_per_year(np.zeros(0, dtype=np.int64), spec.bar, calendar)[0]


class Paper:
    """Feeds a session. told: called after every tick."""

    def __init__(self, session: Session, *, told: Callable[[Ticked], None] = lambda _: None) -> None:
        self.session, self.progress, self._told = session, Progress(), told
        self._waiting: dict[int, Bundle] = {}  # bars of a time that is not complete yet
        self._in_a_row = 0  # refused lines
        self._known = session.time  # what was there before: a feed that begins again says it again

    def warm_up(self, history: Sequence[Bars]) -> None:
        """Show bars from before; a session that continues has seen them."""
        rows = [(int(t), k, i) for k, one in enumerate(history) for i, t in enumerate(one.time.astype("int64"))]
        for _, k, i in sorted(rows):
            self._take(raw_bar(history[k], i))
        self._flush(None)

    def run(self, feed: Feed) -> Progress:
        """Until the feed ends or the session does."""
        session = self.session
        if session.is_over():
            return self.progress
        for said in feed.said():
            if said is None:
                self._idle(feed)
            else:
                self._hear(said, feed)
            if session.is_over():
                break
        else:
            self._flush(None)
        return self.progress

    def _idle(self, feed: Feed) -> None:
        self.session.look_for_kill()
        self.session.show_status()
        due = self._due()
        if feed.live and due is not None:
            self.session.waited(due)

    def _hear(self, said: Said, feed: Feed) -> None:
        if isinstance(said, PositionReport):
            self.session.compare_position(said)
            return
        if isinstance(said, Refused):
            self._refuse(said.reason)
            return
        before = self.session.last.get(said.symbol)
        if before is not None and said.time > before.time + self.session.bar_ns and self.session.trading:
            for filled in feed.history(said.symbol, before.time, said.time):
                self.progress.filled += 1
                self._take(filled)
        due = self._due() if feed.live else None
        self._take(said, due)

    def _refuse(self, reason: str) -> None:
        self.progress.refused += 1
        self.progress.why = reason
        self._in_a_row += 1
        self.session.refused(self._in_a_row, reason)

    def _due(self) -> float | None:
        """Wall time in seconds at which the bar after the newest one is complete."""
        time, bar = self.session.time, self.session.bar_ns
        return None if time is None or not self.session.trading else (time + 2 * bar) / SECOND

    def _take(self, bar: RawBar, due: float | None = None) -> None:
        """Put a bar beside the others of its time; play the times that are complete."""
        session = self.session
        before = session.last.get(bar.symbol)
        if session.time is not None and bar.time <= session.time:
            if bar == before or (self._known is not None and bar.time <= self._known):
                self.progress.repeated += 1
            else:
                self.progress.late += 1  # it corrects or adds to what has been decided on: the past stays as it was
            return
        odd = session.refuses(bar)
        if odd is not None:
            self._refuse(odd)
            return
        self.progress.bars += 1
        self._in_a_row = 0
        self._waiting.setdefault(bar.time, {})[bar.symbol] = bar
        if len(session.terms.symbols) == len(self._waiting[bar.time]):
            self._flush(bar.time, due)
        elif len(self._waiting) > 1:
            self._flush(max(self._waiting) - 1, due)

    def _flush(self, until: int | None, due: float | None = None) -> None:
        """Play the waiting times up to this one, in their order; None: all."""
        for time in sorted(self._waiting):
            if until is not None and time > until:
                return
            self._told(self.session.tick(time, self._waiting.pop(time), due=due))
            if self.session.is_over():
                return


def summary_of(paper: Paper, team: Team | None = None) -> dict[str, Any]:
    """What a session came to, as plain values."""
    session, progress = paper.session, paper.progress
    begun = [desk for desk in session.desks if desk.begun]
    return {
        "run_dir": None if team is None else str(team.run),
        "folder": str(session.folder),
        "state": session.machine.state.word,
        "reasons": session.machine.sentences(),
        "ticks": session.ticks,
        "newest": None if session.time is None else str(np.datetime64(session.time, "ns")),
        "accounts": [
            {
                "symbols": list(desk.symbols),
                "equity": desk.account.equity,
                "exposure": desk.account.exposure().tolist(),
                "units": desk.account.units.reshape(-1).tolist(),
                "guards": desk.account.guard_counts(),
            }
            for desk in begun
        ],
        "bars": progress.bars,
        "refused": progress.refused,
        "late": progress.late,
        "repeated": progress.repeated,
        "filled": progress.filled,
    }


def guards_of(overrides: Iterable[str]) -> LiveGuards:
    """The guards, with what differs from the defaults as KEY=VALUE."""
    from tailwise.core.config import apply_overrides, parse

    return parse(LiveGuards, apply_overrides({}, list(overrides)), source="--guard")


def ticks_in(path: Path) -> Iterator[dict[str, Any]]:
    """The ticks of a journal as plain values, oldest first."""
    from tailwise.live.journal import TickLine

    for line in read_journal(path):
        if isinstance(line, TickLine):
            yield line.model_dump(exclude={"wall"})
