"""The benchmark of live sessions: every guard has a script that it fires on, and a guard that lets go is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import live_guards
from benchmarks.live_guards import SCRIPTS, Fired, fire, hostile_feed, leaves_what_it_may, survive
from benchmarks.live_latency import one_second_bars
from benchmarks.live_page import chromium, looks, session_in
from benchmarks.live_world import trader_of
from tailwise.bars.bars import Bars
from tailwise.live import session
from tailwise.live.feeds import raw_bar
from tailwise.live.lines import RawBar, read_line
from tailwise.live.states import RULES, State


@pytest.fixture(scope="module")
def market() -> tuple[Any, Bars]:
    trader = trader_of("LSTM")
    return trader, trader.market().dataset.bars[0]


def test_every_reason_has_a_script() -> None:
    assert set(SCRIPTS) == set(RULES)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_guard_fires_and_holds(name: str, market: Any, tmp_path: Path) -> None:
    found = fire(name, *market, tmp_path)
    assert found.holds, found


def test_a_state_that_leaves_everything_is_noticed(
    market: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrong version: reduce-only and flat leave what the policy wants."""
    monkeypatch.setattr("tailwise.live.desk.allowed", lambda state, wanted, held: wanted)
    broken = [fire(name, *market, tmp_path / name) for name in ("trading_hours", "absurd_price", "kill_file")]
    assert not any(one.holds for one in broken), broken


def test_a_guard_that_is_cleared_before_the_decision_is_noticed(
    market: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrong version: a reason goes with the bar that it should speak at."""
    proper = session.Session._judge

    def hasty(self: session.Session, *arguments: Any) -> None:
        proper(self, *arguments)
        self._cleared("gap", "bad_lines")

    monkeypatch.setattr(session.Session, "_judge", hasty)
    assert not any(fire(name, *market, tmp_path / name).holds for name in ("gap", "bad_lines"))


def test_what_a_state_may_leave() -> None:
    assert leaves_what_it_may(State.REDUCE_ONLY, 0.5, 0.2) and leaves_what_it_may(State.REDUCE_ONLY, -0.5, -0.5)
    assert not leaves_what_it_may(State.REDUCE_ONLY, 0.5, 0.6) and not leaves_what_it_may(State.REDUCE_ONLY, 0.5, -0.1)
    assert leaves_what_it_may(State.FLAT, 0.5, 0.0) and not leaves_what_it_may(State.FLAT, 0.5, 0.1)
    assert not Fired("ruined", True, 1, 0).holds and Fired("ruined", True, 0, 0).holds
    assert not Fired("gap", True, 0, 0).holds and not Fired("gap", False, 1, 0).holds


def test_hostile_lines_lose_nothing(market: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong version: a session that believes prices of any size, and loses bars that follow one."""
    found = survive(*market, tmp_path / "proper")
    assert found.lost == 0 and found.refused > 600 and found.passed_over > 100
    assert found.largest_target <= 1.0 and found.largest_exposure <= 1.5
    monkeypatch.setattr(session.Session, "refuses", lambda self, bar: None)
    believed = survive(*market, tmp_path / "believing")
    assert believed.lost > 0


def test_the_hostile_feed_is_as_long_as_it_says() -> None:
    import random

    bars = one_second_bars(50)
    several = [raw_bar(bars, i) for i in range(50)]
    lines = list(hostile_feed(random.Random(1), several))
    assert len(lines) == live_guards.LINES + 49
    good = [one for one in lines if isinstance(read_line(one, ("SECONDS",), where="x"), RawBar)]
    assert 49 < len(good) < 49 + 400  # absurd prices, repeated bars and late corrections are bars by themselves


def test_one_second_bars_open_where_the_last_one_closed() -> None:
    bars = one_second_bars(1000)
    assert np.array_equal(bars.open[1:], bars.close[:-1]) and bars.frequency.bar_ns == 10**9
    assert (bars.high >= np.maximum(bars.open, bars.close)).all() and (bars.low > 0).all()


@pytest.mark.slow
def test_the_page_shows_a_session_that_goes_on(tmp_path: Path) -> None:
    """Desktop and phone, light and dark: equity, state, reason and three charts, nothing wider than the window."""
    executable = chromium()
    if executable is None:
        pytest.skip("no Chromium, or no playwright, is installed here (Debian: make browser)")
    with session_in(tmp_path / "run"):
        seen = list(looks(tmp_path / "run", executable))
    assert len(seen) == 4 and all(one.good for one in seen), seen
