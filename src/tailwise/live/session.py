"""A paper session: ticks of bars through the accounts, guards in between, and the journal that it continues from.

One tick: the bars that opened at one time are complete; the waiting orders were filled at their opens; the accounts are
valued; the policy decides at their close; the state of the session leaves what it leaves; the line is written. Nothing
sends a real order.
"""

from __future__ import annotations

import math
import os
import time as wall_time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from tailwise.bars.frequency import Frequency
from tailwise.core.errors import CheckpointError
from tailwise.live.desk import Desk, Placed
from tailwise.live.journal import (
    STATE_EVERY,
    BeginLine,
    EventLine,
    Journal,
    Resumed,
    StateLine,
    TickLine,
    check_arrays,
    pack,
    resumed_from,
    unpack,
)
from tailwise.live.lines import PositionReport, RawBar, inside_its_range
from tailwise.live.settings import LiveGuards
from tailwise.live.states import Machine, State
from tailwise.live.status import StatusFile
from tailwise.market.account import AccountStep
from tailwise.run.decide import Decider
from tailwise.run.decision import show

Bars = Mapping[str, RawBar]
KILL = "KILL"
_MUST_AGREE = (
    "policy",
    "features",
    "config",
    "symbols",
    "bar_ns",
    "periods_per_year",
    "calendar",
    "since",
    "seed",
    "deterministic",
)


@dataclass(frozen=True)
class Terms:
    """What a session is. symbols in the order of the run; groups: those of each account; since: first bar that is
    traded, ns, None: as soon as the features are complete. header: what the journal begins with."""

    symbols: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    frequency: Frequency
    since: int | None
    header: dict[str, Any]


@dataclass(frozen=True)
class Ticked:
    """What became of a tick. equity and target: of each account that trades; state: of the session."""

    time: int
    equity: tuple[float, ...]
    placed: tuple[Placed | None, ...]
    state: State


class Session:
    """Accounts, state machine and journal of one folder; `open` continues what the journal holds."""

    def __init__(
        self,
        trader: Decider,
        terms: Terms,
        folder: Path,
        guards: LiveGuards,
        *,
        clock: Callable[[], float] = wall_time.time,
        deployed: Callable[[str], Decider] | None = None,
    ) -> None:
        """deployed: finds a policy that replaced the run's, by its digest; None: nothing may replace it."""
        self.deployed, self._find = str(terms.header["policy"]), deployed
        self.trader, self.terms, self.folder, self.guards, self._clock = trader, terms, folder, guards, clock
        seed, deterministic = terms.header["seed"], terms.header["deterministic"]
        self.desks = [
            Desk(trader, names, terms.frequency, seed=seed, deterministic=deterministic) for names in terms.groups
        ]
        self.machine, self.journal = Machine(), Journal(folder)
        self.bar_ns = terms.frequency.bar_ns
        self.state_every = STATE_EVERY  # ticks between two states in the journal
        self.ticks = 0  # since the beginning of trading
        self.time: int | None = None  # of the newest tick, ns
        self.last: dict[str, RawBar] = {}  # newest bar of each symbol
        self.status = StatusFile(folder)
        self._shown: tuple[Any, ...] | None = None  # what the status file says
        self._arrived: float | None = None  # wall time of the newest tick, None: there was none
        self._refused = 0  # lines in a row before the next bar
        self._laws: list[dict[str, Any] | None] = [None] * len(self.desks)
        self._placed: list[Placed | None] = [None] * len(self.desks)
        self._targets: dict[int, Any] = {}  # newest one of each account
        self._kill = os.fspath(folder / KILL)
        self._take_as_it_is = False  # a price that somebody has looked at
        self._began = False  # whether an account has been seen trading, which it does from then on

    # ---------------------------------------------------------------- beginning and going on

    def open(self, acknowledge: Sequence[str] = ()) -> int:
        """Read the journal, continue where it ends, open it; how many ticks were found."""
        found = resumed_from(self.journal.path)
        known = bool(found.part)
        if found.first is not None:
            self._check_header(found.first)
        if known:
            self._continue(found.part)
            self._take_over(found)
        # Killed before the first state: whatever stands there is decided again, and must not stand there twice.
        self.journal.open(begin_again=not known)
        if not known:
            self.journal.write({**self.terms.header, "kind": "begin", "format": 1}, sync=True)
        if not os.path.exists(self._kill):
            self._cleared("kill_file")
        for name in self.machine.acknowledge(acknowledge):
            self._take_as_it_is |= name == "absurd_price"
            self._event(f"{name} was acknowledged")
        return self.ticks

    def _check_header(self, first: Any) -> None:
        """The guard against another model: a journal is continued by what began it, or not at all."""
        if not isinstance(first, BeginLine):
            raise CheckpointError(f"{self.journal.path}: it does not begin with a line 'begin'; it is no journal.")
        for name in _MUST_AGREE:
            mine, theirs = self.terms.header[name], getattr(first, name)
            if mine != theirs:
                raise CheckpointError(
                    f"{self.journal.path} was begun with another {name.replace('_', ' ')} ({str(theirs)[:60]}, "
                    f"now {str(mine)[:60]}). Nothing was traded. Continue it with the run and the options that it was "
                    "begun with, or begin a new session with --out."
                )

    def _continue(self, lines: Sequence[Any]) -> None:
        """Restore the newest state and play the ticks after it again, which must decide what stands there."""
        stored, *others = lines
        assert isinstance(stored, StateLine)
        where = str(self.journal.path)
        if len(stored.arrays) != len(self.desks) or not set(stored.last) <= set(self.terms.symbols):
            raise CheckpointError(f"{where}: a state holds other accounts or symbols; it is damaged.")
        if stored.policy is not None:
            if self._find is None:
                raise CheckpointError(
                    f"{where}: a policy that was trained in this session decides now; go on with --learn. Nothing was "
                    "traded."
                )
            self.deployed, self.trader = stored.policy, self._find(stored.policy)
            for desk in self.desks:
                desk.follow(self.trader)
        for desk, packed in zip(self.desks, stored.arrays, strict=True):
            arrays = unpack(packed, source=where)
            check_arrays(arrays, desk.get_state(), source=where)
            desk.set_state(arrays)
        self.ticks, self.time = stored.n, stored.time
        self.last = {name: RawBar(name, one.time, *one.bar) for name, one in stored.last.items()}
        self.machine = Machine(dict(stored.reasons))
        for line in others:
            if isinstance(line, TickLine):
                self._again(line)
            elif isinstance(line, EventLine):
                self.machine = Machine(dict(line.reasons))

    def _again(self, line: TickLine) -> None:
        """Play a tick of the journal again."""
        given = {name for one in line.desks if one is not None for name in one.bars}
        if len(line.desks) != len(self.desks) or not given or not given <= set(self.terms.symbols):
            raise CheckpointError(f"{self.journal.path}: tick {line.n} has other accounts or symbols; it is damaged.")
        if self.time is not None and line.time <= self.time:
            raise CheckpointError(f"{self.journal.path}: tick {line.n} is not after the one before; it is damaged.")
        bars = {
            name: RawBar(name, line.time, *numbers)
            for one in line.desks
            if one is not None
            for name, numbers in one.bars.items()
        }
        self.machine = Machine(dict(line.reasons))
        made = self._play(line.time, bars, State[line.state])
        for now, before in zip(made, line.desks, strict=True):
            if (now is None) != (before is None) or (now is not None and not _same(now, before)):
                when = show(np.datetime64(line.time, "ns"))
                raise CheckpointError(
                    f"{self.journal.path}: at {when} the journal says something else than this policy does on the same "
                    "bars; it was changed, or made with other versions. Nothing was traded."
                )

    def _take_over(self, found: Resumed) -> None:
        """What waits since the newest tick, and when that was, for the status until the next one."""
        for k, one in found.desks.items():
            if k >= len(self.desks) or any(
                len(row) != len(self.desks[k].symbols) for row in (one.wanted, one.target) if row is not None
            ):
                raise CheckpointError(f"{self.journal.path}: a tick has other accounts or symbols; it is damaged.")
            waits = one.wanted is not None and one.target is not None
            self._placed[k] = Placed(np.array(one.wanted), np.array(one.target)) if waits else None
            self._targets[k] = one.target
        self._arrived = found.wall

    def close(self) -> None:
        """Close the journal; what was begun can be continued."""
        try:
            if self._arrived is not None:
                self._write_status(ended=True)
        finally:
            self.journal.close()

    # ---------------------------------------------------------------- ticks

    def tick(self, time: int, bars: Bars, *, due: float | None = None) -> Ticked:
        """The bars that opened at `time`, ns, are complete. due: wall time at which they should have been here."""
        bars = {name: inside_its_range(bar) for name, bar in bars.items()}
        first = not self.trading
        self._judge(time, bars, due)
        state = self.machine.state
        made = self._play(time, bars, state)
        if self.trading:
            self._write_tick(time, state, made)
            if first or self.ticks % self.state_every == 0:
                self._write_state()
        if self.trading:
            self._arrived = self._clock()
            self.show_status()
        placed = tuple(None if one is None else self._placed[k] for k, one in enumerate(made))
        return Ticked(time, tuple(desk.account.equity for desk in self.desks if desk.begun), placed, state)

    def deploy(self, trader: Decider, digest: str, hidden: Sequence[Sequence[Tensor]]) -> None:
        """Let another policy decide from the next close on; hidden: its states for each account. Written at once."""
        self.trader, self.deployed = trader, digest
        for desk, own in zip(self.desks, hidden, strict=True):
            desk.follow(trader, own)
        self._event(f"the policy {digest[:12]} decides from now on")
        self._write_state()

    @property
    def trading(self) -> bool:
        """Whether an account has begun."""
        self._began = self._began or any(desk.begun for desk in self.desks)
        return self._began

    def _play(self, time: int, bars: Bars, state: State) -> list[dict[str, Any] | None]:
        """Move every account that has a bar; what happened, for the journal."""
        made: list[dict[str, Any] | None] = []
        for k, desk in enumerate(self.desks):
            own = [bars.get(name) for name in desk.symbols]
            if all(bar is None for bar in own):
                made.append(None)
                continue
            if not desk.begun and desk.ready and self.terms.since is not None and time >= self.terms.since:
                self._begin(k, state, self.time or time)  # no bar between the last close and `since` was due
            step = desk.show(own)
            if step is None and self._may_begin(desk, time):
                self._begin(k, state, time)
            elif step is not None and step.ruined:
                self.machine.give("ruined", "The account is at its floor.")
                self._placed[k] = None
            elif step is not None:
                self._place(k, state, time)
            made.append(self._record(desk, own, step, self._placed[k]))
        self.time = time
        self.last |= bars
        self.ticks += self.trading
        return made

    def _may_begin(self, desk: Desk, time: int) -> bool:
        since = self.terms.since
        return desk.ready and (since is None or time + self.bar_ns >= since)

    def _begin(self, k: int, state: State, time: int) -> None:
        self.desks[k].begin()
        self._place(k, state, time)

    def _place(self, k: int, state: State, time: int) -> None:
        if self.status.due():
            self._laws[k] = {**self.desks[k].forecast(self.trader).to_json(), "time": time}
        self._placed[k] = self.desks[k].place(state)

    def _record(
        self, desk: Desk, bars: Sequence[RawBar | None], step: AccountStep | None, placed: Placed | None
    ) -> dict[str, Any]:
        ledger: Mapping[str, Any] = {} if step is None else step.ledger
        return {
            "bars": {bar.symbol: bar.to_list() for bar in bars if bar is not None},
            "ledger": _what_is_not_0(ledger),
            "equity": desk.account.equity,
            "units": desk.account.units.reshape(-1).tolist(),
            "wanted": None if placed is None else placed.wanted.tolist(),
            "target": None if placed is None else placed.target.tolist(),
            "guards": list(desk.account.guards_now()) if desk.begun else [],
        }

    def _write_tick(self, time: int, state: State, made: Sequence[dict[str, Any] | None]) -> None:
        moved = any(one is not None and "order_units" in one["ledger"] for one in made)
        changed = moved or any(one is not None and one["target"] != self._targets.get(k) for k, one in enumerate(made))
        self._targets |= {k: one["target"] for k, one in enumerate(made) if one is not None}
        self.journal.write(
            {
                "kind": "tick",
                "n": self.ticks,
                "time": time,
                "wall": self._clock(),
                "state": state.name,
                "reasons": self.machine.to_json(),
                "desks": made,
            },
            sync=changed,
        )

    def _write_state(self) -> None:
        self.journal.write(
            {
                "kind": "state",
                "n": self.ticks,
                "time": self.time,
                "last": {name: {"time": bar.time, "bar": bar.to_list()} for name, bar in self.last.items()},
                "arrays": [pack(desk.get_state()) for desk in self.desks],
                "reasons": self.machine.to_json(),
                **({} if self.deployed == self.terms.header["policy"] else {"policy": self.deployed}),
            },
            sync=True,
        )

    # ---------------------------------------------------------------- status

    def show_status(self) -> None:
        """Say what there is now to whoever looks on, at most once a second and only what is new."""
        if self._arrived is not None and self.status.due() and self._shown != (self.ticks, *self.machine.reasons):
            self._write_status(ended=False)

    def _write_status(self, *, ended: bool) -> None:
        self._shown = (self.ticks, *self.machine.reasons)
        self.status.write(
            {
                "state": self.machine.state.word,
                "reasons": self.machine.sentences(),
                "ticks": self.ticks,
                "time": self.time,
                "bar_ns": self.bar_ns,
                "wall": self._arrived,
                "open": not ended,
                "accounts": [
                    {
                        "symbols": list(desk.symbols),
                        "equity": desk.account.equity,
                        "exposure": desk.account.exposure().tolist(),
                        "units": desk.account.units.reshape(-1).tolist(),
                        "wanted": None if placed is None else placed.wanted.tolist(),
                        "target": None if placed is None else placed.target.tolist(),
                        "guards": list(desk.account.guards_now()) if desk.begun else [],
                        "forecast": law,
                    }
                    for desk, placed, law in zip(self.desks, self._placed, self._laws, strict=True)
                ],
            }
        )

    # ---------------------------------------------------------------- guards

    def refuses(self, bar: RawBar) -> str | None:
        """Why a bar is not traded on although its numbers could be a bar's; None: it is."""
        before = self.last.get(bar.symbol)
        if before is None:
            return None
        moves = (math.log(bar.open / before.close), math.log(bar.close / before.close))
        worst = max(moves, key=abs)
        if abs(worst) <= self.guards.largest_move:
            return None
        if self._take_as_it_is:  # acknowledged, for one such move
            self._take_as_it_is = False
            return None
        sentence = f"{bar.symbol} moved from {before.close:g} to {before.close * math.exp(worst):g} in one bar."
        self._give("absurd_price", sentence)
        return sentence

    def _judge(self, time: int, bars: Bars, due: float | None) -> None:
        """Guards that look at a tick before the decision at its close."""
        if not self.trading:
            return
        bar, guards = self.bar_ns, self.guards
        gone = self._clock() - due if due is not None else 0.0
        if guards.stale_seconds is not None and gone > guards.stale_seconds:
            self._give("stale_feed", f"The newest bar came {gone:.0f} s after it was due.")
        else:
            self._cleared("stale_feed")
        missing = 0 if self.time is None else guards.missing(self.time, time, bar, self.terms.frequency.calendar)
        if missing > 0:
            self._give("gap", f"{missing} bars are missing before {show(np.datetime64(time, 'ns'))}.")
        else:
            self._cleared("gap")
        if guards.open_at(time + bar):
            self._cleared("trading_hours")
        else:
            self._give("trading_hours", f"Orders of now would be filled outside {', '.join(guards.hours)} UTC.")
        if self._refused < guards.bad_lines:  # else the decision at this close is the first one after them
            self._cleared("bad_lines")
        self._refused = 0
        self.look_for_kill()

    def look_for_kill(self) -> None:
        """Go flat while the kill file is there."""
        if os.access(self._kill, os.F_OK):  # looked at in every tick: without an exception where it is not there
            self._give("kill_file", f"{self._kill} is there.")
        else:
            self._cleared("kill_file")

    def waited(self, due: float) -> None:
        """Nothing came so far, and the next bar was due at this wall time."""
        late = self._clock() - due
        if self.guards.stale_seconds is not None and late > self.guards.stale_seconds:
            self._give("stale_feed", f"The next bar was due {self.guards.stale_seconds:g} s ago or longer.")

    def refused(self, count: int, reason: str) -> None:
        """So many lines in a row said nothing that could be used."""
        self._refused = count
        if count >= self.guards.bad_lines:
            self._give("bad_lines", f"{self.guards.bad_lines} lines in a row were refused; one says: {reason[:200]}.")

    def compare_position(self, report: PositionReport) -> None:
        """A venue says what is held; what this account does not explain stops the session."""
        desk = next(one for one in self.desks if report.symbol in one.symbols)
        held = float(desk.account.units.reshape(-1)[desk.symbols.index(report.symbol)]) if desk.begun else 0.0
        if abs(report.units - held) > self.guards.position_tolerance * max(abs(held), 1.0):
            self._give(
                "unexplained_position", f"{report.units:g} {report.symbol} are held, and {held:g} are explained."
            )

    def is_over(self) -> bool:
        """Whether the session ends: it is stopped, or flat by the kill file with nothing left to close."""
        if self.machine.state is State.STOPPED:
            return True
        if "kill_file" not in self.machine.reasons:
            return False
        return all(not desk.begun or not desk.account.units.any() for desk in self.desks)

    def _give(self, name: str, sentence: str) -> None:
        if self.machine.give(name, sentence):
            self._event(f"{name}: {sentence}")

    def _cleared(self, *names: str) -> None:
        if not self.machine.reasons:
            return
        for name in self.machine.clear(*names):
            self._event(f"{name} no longer holds")

    def _event(self, what: str) -> None:
        if self.trading:
            reasons = self.machine.to_json()
            self.journal.write({"kind": "event", "wall": self._clock(), "what": what, "reasons": reasons}, sync=True)


def _what_is_not_0(ledger: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a ledger that say something, as plain values; numpy's `any` of a number takes a microsecond."""
    plain = {name: value if type(value) in (float, int) else value.tolist() for name, value in ledger.items()}
    return {name: one for name, one in plain.items() if (any(one) if type(one) is list else one)}


def _same(now: Mapping[str, Any], before: Any) -> bool:
    """Whether a tick played again decides and is worth what the journal says."""
    return bool(
        now["equity"] == before.equity
        and now["units"] == before.units
        and now["wanted"] == before.wanted
        and now["target"] == before.target
    )
