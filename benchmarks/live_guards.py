"""Each guard of a live session on a feed that is written for it, and a feed of hostile lines.

A guard fires when the session gives its reason, and holds when every decision made while it does leaves no more than
its state allows: reduce-only what is held or less of it, flat nothing, stopped no decision at all.
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.live_world import Script, session_of, ticks
from tailwise.bars.bars import Bars
from tailwise.live.feeds import BarsFeed, StreamFeed, raw_bar
from tailwise.live.journal import JOURNAL, EventLine, read_journal
from tailwise.live.lines import PositionReport, RawBar, Refused, Said
from tailwise.live.paper import Paper
from tailwise.live.session import KILL, Ticked
from tailwise.live.states import RULES, State
from tailwise.run.policy import Trader

BEFORE = 60  # bars that warm up and begin a session
_ROUNDING = 1e-9  # of an exposure


class Scene:
    """A session that trades after BEFORE bars, and the bars that follow."""

    def __init__(
        self, trader: Trader, bars: Bars, folder: Path, *, clock: Callable[[], float] | None = None, **guards: Any
    ) -> None:
        self.folder = folder
        self.session = session_of(trader, [bars], folder, clock=clock, **guards)
        self.session.open()
        self.paper = Paper(self.session, told=self._note)
        self.target = 0.0  # of the newest decision
        self.paper.run(BarsFeed([bars.slice(0, BEFORE)]))
        self.rest = [raw_bar(bars, i) for i in range(BEFORE, len(bars))]

    def _note(self, tick: Ticked) -> None:
        placed = tick.placed[0]
        self.target = 0.0 if placed is None else float(placed.target[0])

    @property
    def units(self) -> float:
        """What is held."""
        return float(self.session.desks[0].account.units[0])

    def play(self, *said: Said | None, live: bool = False) -> None:
        """Let the feed say this."""
        self.paper.run(Script(said, live=live))

    def next(self, count: int = 1) -> list[RawBar]:
        """Take the next bars of the undisturbed feed."""
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def play_until_holding(self) -> None:
        """Play bars until a position is held that the waiting target keeps on its side."""
        while not self.units * self.target > 0:
            self.play(*self.next())


# ---------------------------------------------------------------------- one script for each reason
def stale_feed(trader: Trader, bars: Bars, folder: Path) -> Scene:
    """Bars in time, then one that comes 100 s after it was due."""
    now = [0.0]
    scene = Scene(trader, bars, folder, clock=lambda: now[0], stale_seconds=60.0)
    scene.play_until_holding()
    length = scene.session.terms.frequency.bar_ns
    for late in (0.0, 0.0, 100.0):
        (bar,) = scene.next()
        now[0] = (bar.time + length) / 1e9 + late
        scene.play(None, bar, live=True)
    return scene


def gap(trader: Trader, bars: Bars, folder: Path) -> Scene:
    """Four bars are missing, and the feed has no history."""
    scene = Scene(trader, bars, folder)
    scene.play_until_holding()
    scene.next(4)
    scene.play(*scene.next())
    return scene


def trading_hours(trader: Trader, bars: Bars, folder: Path) -> Scene:
    """Hours in which no bar of an hour opens."""
    scene = Scene(trader, bars, folder, hours=("23:58-23:59",))
    scene.play(*scene.next(30))
    return scene


def bad_lines(trader: Trader, bars: Bars, folder: Path) -> Scene:
    """Ten lines in a row that say nothing, then a bar."""
    scene = Scene(trader, bars, folder)
    scene.play_until_holding()
    scene.play(*[Refused("no JSON")] * 10, *scene.next())
    return scene


def absurd_price(trader: Trader, bars: Bars, folder: Path) -> Scene:
    """A bar a thousand times as high, then the feed as if nothing had been."""
    scene = Scene(trader, bars, folder)
    scene.play_until_holding()
    (bar,) = scene.next()
    wild = replace(bar, open=bar.open * 1e3, high=bar.high * 1e3, low=bar.low * 1e3, close=bar.close * 1e3)
    scene.play(wild, bar, *scene.next(20))
    return scene


def unexplained_position(trader: Trader, bars: Bars, folder: Path) -> Scene:
    """The venue holds more than the account explains; the feed goes on."""
    scene = Scene(trader, bars, folder)
    scene.play_until_holding()
    scene.play(PositionReport(bars.symbol, 2 * scene.units + 1), *scene.next(5))
    return scene


def ruined(trader: Trader, bars: Bars, folder: Path) -> Scene:
    """Within a bar the price goes to nothing, or to a hundred times, whichever the position cannot bear."""
    scene = Scene(trader, bars, folder, largest_move=20.0)
    scene.play_until_holding()
    (bar,) = scene.next()
    end = bar.open * (1e-5 if scene.target > 0 else 100.0)
    scene.play(replace(bar, close=end, low=min(bar.low, end), high=max(bar.high, end)), *scene.next(5))
    return scene


def kill_file(trader: Trader, bars: Bars, folder: Path) -> Scene:
    """Somebody puts the file there while a position is held."""
    scene = Scene(trader, bars, folder)
    scene.play_until_holding()
    (folder / KILL).touch()
    scene.play(*scene.next(5))
    return scene


SCRIPTS: dict[str, Callable[[Trader, Bars, Path], Scene]] = {
    one.__name__: one
    for one in (stale_feed, gap, trading_hours, bad_lines, absurd_price, unexplained_position, ruined, kill_file)
}


@dataclass(frozen=True)
class Fired:
    """What became of a guard: decisions made while its reason held, and those that left more than its state allows."""

    name: str
    given: bool
    decisions: int
    broken: int

    @property
    def holds(self) -> bool:
        """Whether it fired and held; a session that is stopped makes no decision."""
        stops = RULES[self.name].state is State.STOPPED
        return self.given and self.broken == 0 and (self.decisions == 0) == stops


def fire(name: str, trader: Trader, bars: Bars, folder: Path) -> Fired:
    """Play the script of a reason and read in the journal what it did."""
    scene = SCRIPTS[name](trader, bars, folder)
    scene.session.close()
    given = (
        any(isinstance(line, EventLine) and line.what.startswith(f"{name}:") for line in read_journal(folder / JOURNAL))
        or name in scene.session.machine.reasons
    )
    decisions = broken = 0
    for tick in ticks(folder):
        desk = tick["desks"][0]
        if name not in tick["reasons"] or desk["target"] is None:
            continue
        decisions += 1
        close = desk["bars"][bars.symbol][3]
        broken += not leaves_what_it_may(
            State[tick["state"]], desk["units"][0] * close / desk["equity"], desk["target"][0]
        )
    return Fired(name, given, decisions, broken)


def leaves_what_it_may(state: State, held: float, target: float) -> bool:
    """Whether a state allows this target where `held` is held, in multiples of equity."""
    if state is State.REDUCE_ONLY:
        return min(held, 0.0) - _ROUNDING <= target <= max(held, 0.0) + _ROUNDING
    return state is State.RUNNING or target == 0.0


# ---------------------------------------------------------------------- hostile lines
LINES = 1000
_BROKEN = [
    b"{", b"[]", b"null", b"7", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"time": 1e400}', b'{"time": NaN}',
    b'{"open": 1}', b'{"position": "all"}', b'{"position": 1e308, "symbol": "OTHER"}', b'{"a": 1, "a": 2}',
]  # fmt: off
_TIMES = ["1970-01-01", "9999-01-01", -1, 2**63, [], "2020-13-01", "2020-01-01T00:00:00+05:00"]


def line_of(bar: RawBar, **changes: Any) -> bytes:
    """A bar as a feed writes it; changes: keys that say something else, or with ... nothing."""
    known: dict[str, Any] = {"time": str(np.datetime64(bar.time, "ns")) + "Z"}
    known |= {name: getattr(bar, name) for name in ("open", "high", "low", "close", "volume")} | changes
    return json.dumps({name: value for name, value in known.items() if value is not ...}).encode()


def hostile_line(dice: random.Random, before: RawBar, bar: RawBar) -> bytes:
    """A line that must change nothing, between two bars."""
    price, prices = dice.choice(["open", "high", "low", "close"]), ("open", "high", "low", "close")
    good = line_of(bar)
    return dice.choice(
        [
            lambda: dice.choice(_BROKEN),
            lambda: good[: dice.randrange(1, len(good) - 1)],
            lambda: line_of(bar, **{price: dice.choice([1e308, 0, -1, "1", None, True, 1e-300])}),
            lambda: line_of(bar, time=dice.choice(_TIMES)),
            lambda: line_of(bar, high=bar.low * 0.9, low=bar.high * 1.1),
            lambda: line_of(bar, **{dice.choice(["time", *prices]): ...}),
            lambda: line_of(bar, volume=dice.choice([-1, 1e300, "a", None])),
            lambda: line_of(bar, **{"x" * dice.randrange(1, 70_000): 1}),
            lambda: line_of(bar, **{name: getattr(bar, name) * dice.choice([1e6, 1e-6]) for name in prices}),
            lambda: line_of(before),
            lambda: line_of(before, close=before.open),
        ]
    )()


def hostile_feed(dice: random.Random, bars: list[RawBar]) -> Iterator[bytes]:
    """The bars with LINES hostile lines between them, as evenly as it goes."""
    for k, bar in enumerate(bars[1:], start=1):
        for _ in range(LINES * k // (len(bars) - 1) - LINES * (k - 1) // (len(bars) - 1)):
            yield hostile_line(dice, bars[k - 1], bar)
        yield line_of(bar)


@dataclass(frozen=True)
class Survived:
    """After the hostile lines: bars that were lost or changed, the largest |target| and |exposure| of any decision."""

    refused: int
    passed_over: int
    lost: int
    largest_target: float
    largest_exposure: float


def survive(trader: Trader, bars: Bars, folder: Path, seed: int = 5) -> Survived:
    """Feed the hostile lines through a pipe and compare with the bars that were sent."""
    scene = Scene(trader, bars, folder, bad_lines=1_000_000)
    sent = scene.next(200)
    scene.play(sent[0])
    lines = list(hostile_feed(random.Random(seed), sent))
    reading, writing = os.pipe()
    writer = threading.Thread(target=_write, args=(writing, b"\n".join(lines)))
    writer.start()
    scene.paper.run(StreamFeed(reading, scene.session.terms.symbols, idle=0.2))
    os.close(reading)
    writer.join()
    scene.session.close()
    played = {tick["time"]: tick["desks"][0] for tick in ticks(folder)}
    lost = sum(bar.time not in played or played[bar.time]["bars"][bars.symbol][:5] != bar.to_list()[:5] for bar in sent)
    targets = [abs(one["target"][0]) for one in played.values() if one["target"] is not None]
    exposures = [abs(one["units"][0]) * one["bars"][bars.symbol][3] / one["equity"] for one in played.values()]
    progress = scene.paper.progress
    return Survived(progress.refused, progress.late + progress.repeated, lost, max(targets), max(exposures))


def _write(descriptor: int, data: bytes) -> None:
    """In pieces that do not end where lines do, until a session that is over no longer reads."""
    with suppress(BrokenPipeError):
        while data:
            data = data[os.write(descriptor, data[:7919]) :]
    os.close(descriptor)
