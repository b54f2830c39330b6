"""Guards of a live session: each fires on a scripted feed, holds, and lets go as its page says; hostile lines fail."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailwise.bars.bars import Bars
from tailwise.core.errors import ConfigError
from tailwise.live.feeds import BarsFeed, FileFeed, LineSplitter, StreamFeed, raw_bar
from tailwise.live.journal import JOURNAL
from tailwise.live.lines import LONGEST_LINE, PositionReport, RawBar, Refused, read_line
from tailwise.live.paper import Paper, guards_of, ticks_in
from tailwise.live.session import KILL, Session
from tailwise.live.settings import LiveGuards
from tailwise.live.states import RULES, Machine, State, allowed
from tests.live.markets import trader_of
from tests.live.test_paper import session_of

pytestmark = pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")  # the runs are far too small
HOUR = 3_600_000_000_000
TRADER = "lstm"


class Said:
    """A feed that says what a test wants it to say."""

    def __init__(self, what: Sequence[Any], *, live: bool = False, kept: Sequence[RawBar] = ()) -> None:
        self.what, self.live, self.kept = what, live, kept

    def said(self) -> Any:
        yield from self.what

    def history(self, symbol: str, after: int, before: int) -> list[RawBar]:
        return [bar for bar in self.kept if bar.symbol == symbol and after < bar.time < before]


@pytest.fixture(scope="module")
def market() -> tuple[Any, Bars]:
    trader = trader_of(TRADER)
    return trader, trader.market().dataset.bars[0]


def begun(
    market: tuple[Any, Bars], folder: Path, *, rows: int = 60, **guards: Any
) -> tuple[Session, Paper, list[RawBar]]:
    """A session that trades since the features are complete, after so many bars; and the bars that follow."""
    trader, bars = market
    session = session_of(trader, [bars], folder, **guards)
    session.open()
    paper = Paper(session)
    paper.run(BarsFeed([bars.slice(0, rows)]))
    return session, paper, [raw_bar(bars, i) for i in range(rows, len(bars))]


def moved(bar: RawBar, **changes: Any) -> RawBar:
    from dataclasses import replace

    return replace(bar, **changes)


def held_then_targets(folder: Path) -> list[tuple[float, float, str]]:
    """(units, target, state) of every tick."""
    return [
        (one["desks"][0]["units"][0], one["desks"][0]["target"][0], one["state"]) for one in ticks_in(folder / JOURNAL)
    ]


def test_states_leave_what_they_say() -> None:
    wanted, held = np.array([0.9, -0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.6, 0.0])
    assert allowed(State.RUNNING, wanted, held).tolist() == wanted.tolist()
    assert allowed(State.REDUCE_ONLY, wanted, held).tolist() == [0.4, 0.0, 0.3, 0.0]
    assert allowed(State.FLAT, wanted, held).tolist() == [0.0] * 4
    machine = Machine()
    machine.give("gap", "x")
    machine.give("kill_file", "x")
    assert machine.state is State.FLAT
    assert machine.clear("gap", "kill_file") == ["gap", "kill_file"] and machine.state is State.RUNNING
    machine.give("unexplained_position", "x")
    assert machine.clear("unexplained_position") == [] and machine.state is State.STOPPED
    assert machine.acknowledge(["unexplained_position"]) == ["unexplained_position"]
    with pytest.raises(ConfigError, match="no such reason"):
        machine.acknowledge(["weather"])
    assert all(rule.resume for rule in RULES.values())


def test_a_reason_and_its_way_back_are_one_sentence() -> None:
    """The text of a refused line ends as it likes. Rejects two sentences that run into one another."""
    machine = Machine()
    machine.give("bad_lines", "10 lines in a row were refused; one says: line 7: this is not valid JSON")
    machine.give("gap", "2 bars are missing before 2024-05-01.")
    lines, gap = machine.sentences()
    assert lines.endswith("this is not valid JSON; clears by itself with the second bar that is in order.")
    assert gap.endswith("2024-05-01; clears by itself with the next bar that is in order.")


def test_a_gap_is_filled_from_the_history_of_the_feed_or_reduces(market: Any, tmp_path: Path) -> None:
    """Filled: every tick of the undisturbed session. Not filled: the decision at the close after the gap adds nothing,
    the one after that is free. Rejects a session that trades over a gap, and one that plays filled bars late."""
    _, _, rest = begun(market, tmp_path / "whole")
    session, paper, _ = begun(market, tmp_path / "filled")
    kept = rest[10:14]
    paper.run(Said([*rest[:10], *rest[14:30]], kept=kept))
    whole, undisturbed, _ = begun(market, tmp_path / "undisturbed")
    undisturbed.run(Said(rest[:30]))
    assert paper.progress.filled == 4
    assert list(ticks_in(tmp_path / "filled" / JOURNAL)) == list(ticks_in(tmp_path / "undisturbed" / JOURNAL))
    gone, paper, _ = begun(market, tmp_path / "gone")
    paper.run(Said([*rest[:10], *rest[14:30]]))
    told = held_then_targets(tmp_path / "gone")
    states = [state for _, _, state in told]
    assert states.count("REDUCE_ONLY") == 1
    at = states.index("REDUCE_ONLY")
    tick = list(ticks_in(tmp_path / "gone" / JOURNAL))[at]["desks"][0]
    exposure = tick["units"][0] * tick["bars"]["SYNTHETIC-AR1"][3] / tick["equity"]
    assert abs(tick["target"][0]) <= abs(exposure) + 1e-12 and tick["target"][0] * exposure >= 0
    for one in (session, whole, gone):
        one.close()


def test_the_kill_file_closes_and_ends_and_its_removal_goes_on(market: Any, tmp_path: Path) -> None:
    session, paper, rest = begun(market, tmp_path)
    held = next(k for k in range(200) if (paper.run(Said([rest[k]])), session.desks[0].account.units.any())[1])
    (tmp_path / KILL).touch()
    paper.run(Said(rest[held + 1 :]))
    assert session.machine.state is State.FLAT and not session.desks[0].account.units.any()
    told = held_then_targets(tmp_path)
    assert [target for _, target, state in told if state == "FLAT"] == [0.0, 0.0]  # closed at the next open, then over
    ticks = session.ticks
    session.close()
    (tmp_path / KILL).unlink()
    trader, bars = market
    again = session_of(trader, [bars], tmp_path)
    assert again.open() == ticks and again.machine.state is State.RUNNING
    Paper(again).run(BarsFeed([bars.slice(0, 300)]))
    assert held_then_targets(tmp_path)[-1][2] == "RUNNING" and again.ticks > ticks
    again.close()


def test_an_unexplained_position_stops_until_somebody_has_looked(market: Any, tmp_path: Path) -> None:
    session, paper, rest = begun(market, tmp_path)
    paper.run(Said(rest[:20]))
    units = float(session.desks[0].account.units[0])
    symbol = rest[0].symbol
    paper.run(Said([PositionReport(symbol, units), rest[20]]))
    assert session.machine.state is State.RUNNING  # explained
    paper.run(Said([PositionReport(symbol, units * 1.01 + 1.0), *rest[21:25]]))
    assert session.machine.state is State.STOPPED and session.time == rest[20].time
    session.close()
    trader, bars = market
    still = session_of(trader, [bars], tmp_path)
    still.open()
    Paper(still).run(Said(rest[21:25]))
    assert still.time == rest[20].time  # stopped across a restart
    still.close()
    again = session_of(trader, [bars], tmp_path)
    again.open(["unexplained_position"])
    Paper(again).run(Said(rest[21:25]))
    assert again.time == rest[24].time and again.machine.state is State.RUNNING
    again.close()


def test_an_absurd_price_is_refused_until_somebody_says_that_it_is_real(market: Any, tmp_path: Path) -> None:
    session, paper, rest = begun(market, tmp_path)
    paper.run(Said(rest[:5]))
    equity = session.desks[0].account.equity
    wild = moved(rest[5], high=1e9, close=1e9)
    paper.run(Said([wild]))
    assert session.time == rest[4].time and session.desks[0].account.equity == equity
    assert session.machine.state is State.REDUCE_ONLY and paper.progress.refused == 1
    split = [
        moved(bar, open=bar.open * 10, high=bar.high * 10, low=bar.low * 10, close=bar.close * 10) for bar in rest[5:8]
    ]
    paper.run(Said(split[:1]))
    assert session.time == rest[4].time
    session.close()
    trader, bars = market
    again = session_of(trader, [bars], tmp_path)
    again.open(["absurd_price"])
    Paper(again).run(Said(split))
    assert again.time == split[-1].time and again.machine.state is State.RUNNING
    again.close()


def test_a_stale_feed_reduces_until_it_is_in_time_again(market: Any, tmp_path: Path) -> None:
    """Bars arrive when they are complete, then one 100 s late, then in time. By a clock of the test."""
    trader, bars = market
    now = [0.0]
    session = session_of(trader, [bars], tmp_path, stale_seconds=60.0)
    session._clock = lambda: now[0]
    session.open()
    paper = Paper(session)
    paper.run(BarsFeed([bars.slice(0, 60)]))
    rest = [raw_bar(bars, i) for i in range(60, 70)]
    length = session.terms.frequency.bar_ns

    def timed() -> Any:
        for k, bar in enumerate(rest):
            now[0] = (bar.time + length) / 1e9
            if k == 4:
                now[0] += 100.0
                yield None  # nothing came for so long
                assert session.machine.state is State.REDUCE_ONLY
            yield bar

    paper.run(Said(list(rest[:0]), live=True))
    feed = Said([], live=True)
    feed.said = timed  # type: ignore[method-assign]
    paper.run(feed)
    states = [state for _, _, state in held_then_targets(tmp_path)][-10:]
    assert states == ["RUNNING"] * 4 + ["REDUCE_ONLY"] + ["RUNNING"] * 5
    session.close()


def test_outside_trading_hours_nothing_is_added(market: Any, tmp_path: Path) -> None:
    guards = guards_of(["hours=[09:30-16:00]"])
    assert guards.open_at(int(9.5 * HOUR)) and guards.open_at(16 * HOUR - 1)
    assert not guards.open_at(16 * HOUR) and not guards.open_at(30 * HOUR)
    assert LiveGuards().open_at(3 * HOUR)
    with pytest.raises(ConfigError, match="write UTC times"):
        guards_of(["hours=[16:00-09:30]"])
    with pytest.raises(ConfigError, match="stale_second"):
        guards_of(["stale_second=3"])
    session, paper, rest = begun(market, tmp_path, hours=("23:58-23:59",))  # bars of an hour
    paper.run(Said(rest[:30]))
    told = held_then_targets(tmp_path)
    assert {state for _, _, state in told[1:]} == {"REDUCE_ONLY"}
    first = told[0][1]  # the decision with which it began came before any hour was looked at
    assert all(abs(target) <= abs(first) + 0.1 for _, target, _ in told[1:])
    session.close()


LINES = [
    b"", b"{", b"[]", b"null", b"7", b'"x"', b"\xff\xfe", b"{" * 500, b"[" * 100_000, b'{"time": 1e400}',
    b'{"time": NaN}', b'{"time": "now", "open": 1, "high": 1, "low": 1, "close": 1, "volume": 1}',
    b'{"open": 1}', b'{"position": "all"}', b'{"position": 1e308, "symbol": "OTHER"}', b'{"a": 1, "a": 2}',
]  # fmt: off


def hostile(rng: random.Random, bar: RawBar) -> bytes:
    """One line that must change nothing, made from a bar that is still to come."""
    good: dict[str, Any] = {"time": str(np.datetime64(bar.time, "ns")) + "Z", **vars(bar)}
    good = {key: good[key] for key in ("time", "open", "high", "low", "close", "volume")}
    kind = rng.randrange(9)
    if kind == 0:
        return rng.choice(LINES)
    if kind == 1:
        text = json.dumps(good)
        return text[: rng.randrange(1, len(text) - 1)].encode()
    if kind == 2:
        good[rng.choice(["open", "high", "low", "close"])] = rng.choice([1e308, 0, -1, "1", None, True, 1e-300])
    elif kind == 3:
        good["time"] = rng.choice(
            ["1970-01-01", "9999-01-01", -1, 2**63, [], "2020-13-01", "2020-01-01T00:00:00+05:00"]
        )
    elif kind == 4:
        good["high"], good["low"] = good["low"] * 0.9, good["high"] * 1.1
    elif kind == 5:
        del good[rng.choice(list(good))]
    elif kind == 6:
        good["volume"] = rng.choice([-1, 1e300, "a", None])
    elif kind == 7:
        good["x" * rng.randrange(1, 70_000)] = 1
    else:
        factor = rng.choice([1e6, 1e-6])
        good |= {name: good[name] * factor for name in ("open", "high", "low", "close")}
    return json.dumps(good).encode()


def test_a_thousand_hostile_lines_lose_nothing_and_order_nothing_absurd(market: Any, tmp_path: Path) -> None:
    """Between the bars of a feed on a pipe stand broken JSON, numbers that are none, times that go back, repeated bars,
    late corrections and absurd prices. The ticks are those of the clean feed, but for the states that the guards gave;
    no target is beyond what the policy may hold, and every order is the target's."""
    rng = random.Random(5)
    _, _, rest = begun(market, tmp_path / "clean")
    rest = rest[:200]
    session, paper, _ = begun(market, tmp_path / "hostile", bad_lines=1_000_000)
    lines: list[bytes] = []
    for k, bar in enumerate(rest):
        lines += [hostile(rng, bar) for _ in range(4)]
        if k:
            before = rest[k - 1]
            lines.append(_line(before))
            lines.append(_line(moved(before, close=before.open)))
        lines.append(_line(bar))
    reading, writing = os.pipe()
    writer = threading.Thread(target=_write, args=(writing, lines, rng))
    writer.start()
    feed = StreamFeed(reading, session.terms.symbols, idle=0.2)
    paper.run(feed)
    writer.join()
    os.close(reading)
    assert paper.progress.refused > 600 and paper.progress.late >= 199
    assert session.time == rest[-1].time and paper.progress.bars == 60 + len(rest)
    clean, undisturbed, _ = begun(market, tmp_path / "again")
    undisturbed.run(Said(rest))
    theirs = list(ticks_in(tmp_path / "again" / JOURNAL))
    mine = list(ticks_in(tmp_path / "hostile" / JOURNAL))
    assert [one["time"] for one in mine] == [one["time"] for one in theirs]
    assert [one["desks"][0]["bars"] for one in mine] == [one["desks"][0]["bars"] for one in theirs]
    for one in mine:
        desk = one["desks"][0]
        assert abs(desk["target"][0]) <= 1.2 and np.isfinite(desk["equity"]) and desk["equity"] > 0
        assert abs(desk["units"][0]) * desk["bars"][rest[0].symbol][3] <= 1.5 * desk["equity"]
    session.close()
    clean.close()


def _line(bar: RawBar) -> bytes:
    return json.dumps(
        {
            "time": str(np.datetime64(bar.time, "ns")) + "Z",
            "open": bar.open,
            "high": max(bar.high, bar.open, bar.close),
            "low": min(bar.low, bar.open, bar.close),
            "close": bar.close,
            "volume": bar.volume,
        }
    ).encode()


def _write(descriptor: int, lines: list[bytes], rng: random.Random) -> None:
    """In pieces that do not end where lines do."""
    data = b"\n".join(lines)
    while data:
        size = rng.randrange(1, 30_000)
        os.write(descriptor, data[:size])
        data = data[size:]
    os.close(descriptor)


def test_lines_in_a_row_that_say_nothing_reduce(market: Any, tmp_path: Path) -> None:
    session, paper, rest = begun(market, tmp_path, bad_lines=3)
    paper.run(Said([Refused("a"), Refused("b")]))
    assert session.machine.state is State.RUNNING
    paper.run(Said([Refused("c")]))
    assert session.machine.state is State.REDUCE_ONLY
    paper.run(Said(rest[:1]))
    assert session.machine.state is State.REDUCE_ONLY  # the first decision after them adds nothing
    paper.run(Said(rest[1:2]))
    assert session.machine.state is State.RUNNING
    assert [state for _, _, state in held_then_targets(tmp_path)][-2:] == ["REDUCE_ONLY", "RUNNING"]
    session.close()


def test_a_line_that_is_too_long_is_refused_and_not_kept() -> None:
    splitter = LineSplitter()
    found = []
    for _ in range(40):
        found += list(splitter.lines(b"x" * 10_000))
        assert len(splitter._rest) <= LONGEST_LINE
    found += list(splitter.lines(b'x\n{"position": 2.5}\n'))
    assert len(found) == 2
    assert isinstance(read_line(found[0], ("A",), where="line 1"), Refused)
    assert read_line(found[1], ("A",), where="line 2") == PositionReport("A", 2.5)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_growing_file_is_read_as_it_grows(market: Any, tmp_path: Path, ending: str) -> None:
    """Rows are added, in pieces that end inside of a row; each bar is said once, when its row is complete."""
    _, bars = market
    path = tmp_path / f"feed.{ending}"
    expected = [raw_bar(bars, i) for i in range(20)]
    rows = [
        _line(bar) if ending == "jsonl" else ",".join(map(repr, [bar.time // 10**6, *bar.to_list()[:5]])).encode()
        for bar in expected
    ]
    head = b"" if ending == "jsonl" else b"Date,Open,High,Low,Close,Volume\n"
    data = head + b"\n".join(rows) + b"\n"
    path.write_bytes(data[:100])
    grown = [100]

    def grow(_: float) -> None:
        grown[0] += 333
        with open(path, "ab") as file:
            file.write(data[grown[0] - 333 : grown[0]])

    feed = FileFeed(path, (bars.symbol,), symbol=bars.symbol, follow=True, pause=grow)
    found: list[RawBar] = []
    for said in feed.said():
        if isinstance(said, RawBar):
            found.append(said)
        assert not isinstance(said, Refused)
        if len(found) == 20:
            break
    assert [bar.time for bar in found] == [bar.time for bar in expected]
    assert [bar.close for bar in found] == [bar.close for bar in expected]


def test_the_page_has_every_guard_and_every_reason() -> None:
    """docs/live.md. Rejects a guard or a reason that was added without a row, and a state that is told wrongly."""
    page = (Path(__file__).parents[2] / "docs" / "live.md").read_text(encoding="utf-8")
    assert [name for name in LiveGuards.model_fields if f"| `{name}` |" not in page] == []
    told = [name for name, rule in RULES.items() if f"| `{name}` | {rule.state.word} |" in page]
    assert told == list(RULES)
    assert all(("--acknowledge" in rule.resume) == rule.latched for name, rule in RULES.items() if name != "ruined")


def test_a_parquet_file_is_read_again_when_it_was_written_anew(market: Any, tmp_path: Path) -> None:
    """Twice with more bars, once broken in between: each bar is said once, in its order."""
    from tailwise.bars.bars import load_bars, save_bars
    from tailwise.live.feeds import ParquetFeed

    _, bars = market
    path = tmp_path / "feed.parquet"
    save_bars(bars.slice(0, 100), path)
    steps = iter([lambda: path.write_bytes(b"PAR1 half of it"), lambda: save_bars(bars.slice(0, 140), path)])
    feed = ParquetFeed(path, lambda: load_bars(path, symbol=bars.symbol), pause=lambda _: next(steps)())
    feed.go_on_after(int(bars.time[29].astype("int64")))
    found: list[RawBar] = []
    refused = 0
    for said in feed.said():
        refused += isinstance(said, Refused)
        if isinstance(said, RawBar):
            found.append(said)
        if len(found) == 110:
            break
    assert found == [raw_bar(bars, i) for i in range(30, 140)] and refused == 1
