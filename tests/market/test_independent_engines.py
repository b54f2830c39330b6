"""Fills, fees and equity agree with two engines that other people wrote, on the same real bars. See docs/engines.md."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tailwise.bars.bars import Bars
from tailwise.bars.builtin import nasdaq, sp500
from tests.market.engines_common import (
    CASH,
    ONE_BASIS_POINT,
    PRICE,
    Account,
    Scenario,
    Tolerance,
    equity_difference,
    first_difference,
    ladder,
    restless,
    trend,
)
from tests.market.engines_ours import MISTAKES, run_all_in, run_ours, run_stops

WHY = "an independent engine of the extra 'engines': pip install '.[engines]'"


@dataclass(frozen=True)
class Engine:
    run: Callable[..., Account]
    tolerance: Tolerance


def engine_named(name: str) -> Engine:
    """The engine, or a visible skip where its package is missing."""
    if name == "nautilus":
        pytest.importorskip("nautilus_trader", reason=f"nautilus_trader is {WHY}")
        from tests.market import engines_nautilus

        return Engine(engines_nautilus.run_nautilus, engines_nautilus.TOLERANCE)
    engines_backtesting = backtesting_module()
    return Engine(engines_backtesting.run_backtesting, engines_backtesting.TOLERANCE)


def backtesting_module() -> Any:
    pytest.importorskip("backtesting", reason=f"backtesting is {WHY}")
    from tests.market import engines_backtesting

    return engines_backtesting


@pytest.fixture(scope="module")
def sp() -> Bars:
    return sp500()


@pytest.fixture(scope="module")
def nq() -> Bars:
    return nasdaq()


def scenario_named(name: str, sp: Bars, nq: Bars) -> Scenario:
    """Twenty years where orders are few, shorter where there is one at every bar."""
    made = {
        "S&P long and flat": lambda: Scenario(name, sp, trend(sp, 300, short=False), fee_bps=2.0),
        "S&P long and short": lambda: Scenario(name, sp, trend(sp, 200, short=True), fee_bps=1.0),
        "NASDAQ long and short": lambda: Scenario(name, nq, trend(nq, 100, short=True), fee_bps=5.0),
        "S&P every bar": lambda: _short(name, sp.slice(3500, 5031), largest=400, fee_bps=1.0),
        "NASDAQ every bar": lambda: _short(name, nq.slice(0, 1500), largest=150, fee_bps=2.0),
        "NASDAQ at the close": lambda: replace(_short(name, nq.slice(0, 600), largest=150, fee_bps=2.0), at_close=True),
    }
    return made[name]()


def _short(name: str, bars: Bars, *, largest: int, fee_bps: float) -> Scenario:
    return Scenario(name, bars, restless(bars, largest, seed=11), fee_bps=fee_bps)


SCENARIOS = (
    "S&P long and flat",
    "S&P long and short",
    "NASDAQ long and short",
    "S&P every bar",
    "NASDAQ every bar",
    "NASDAQ at the close",
)
ENGINES = ("nautilus", "backtesting")


@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_fill_fee_and_close_agrees(name: str, engine_name: str, sp: Bars, nq: Bars) -> None:
    """Rejects a simulator that is only consistent with itself and with a reference by the same authors."""
    engine = engine_named(engine_name)
    scenario = scenario_named(name, sp, nq)
    ours, theirs = run_ours(scenario), engine.run(scenario)
    assert len(ours.fills) >= 300
    assert first_difference(ours, theirs, engine.tolerance) is None
    assert equity_difference(ours, theirs)[-1] < ONE_BASIS_POINT
    assert abs(ours.equity[-1] / CASH - 1) > 0.01  # not the agreement of accounts that stayed where they began


@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_planted_mistakes_break_the_agreement(
    mistake: Callable[[Scenario], Account], engine_name: str, sp: Bars, nq: Bars
) -> None:
    """Both the check of every fill and the bare final equity within one basis point tell each mistake."""
    engine = engine_named(engine_name)
    scenario = scenario_named("NASDAQ every bar", sp, nq)
    scenario = replace(scenario, bars=scenario.bars.slice(0, 500), units=scenario.units[:500])
    theirs = engine.run(scenario)
    assert first_difference(run_ours(scenario), theirs, engine.tolerance) is None
    wrong = mistake(scenario)
    assert first_difference(wrong, theirs, engine.tolerance) is not None
    assert equity_difference(wrong, theirs)[-1] > ONE_BASIS_POINT


def test_nautilus_left_to_itself_fills_at_the_seen_close(sp: Bars, nq: Bars) -> None:
    """Rejects a comparison whose other side was configured until it agreed: without the tick at the open it does not
    fill at the open, and the same check says so."""
    engine = engine_named("nautilus")
    scenario = scenario_named("NASDAQ at the close", sp, nq)
    at_open = replace(scenario, at_close=False)
    theirs = engine.run(at_open, untouched=True)
    assert first_difference(run_ours(scenario), theirs, engine.tolerance) is None
    difference = first_difference(run_ours(at_open), theirs, engine.tolerance)
    assert difference is not None and difference.startswith("price of the fill")


def test_spread_through_quotes(nq: Bars) -> None:
    """Half-spread on every order is what buying at the ask and selling at the bid costs. Rejects a spread that is paid
    once per round trip, whole instead of half, or not at all.

    Nautilus takes its fee from the price with the spread inside, we take it from the price before: a fee differs by at
    most the half-spread as a fraction of itself.
    """
    engine = engine_named("nautilus")
    bars = nq.slice(0, 1000)
    scenario = Scenario("spread", bars, restless(bars, 150, seed=12), fee_bps=2.0, half_spread_bps=2.5)
    theirs = engine.run(scenario)
    tolerance = replace(engine.tolerance, equity=ONE_BASIS_POINT, fee=1.01 * 2.5e-4)
    ours = run_ours(scenario)
    assert len(ours.fills) >= 900
    assert first_difference(ours, theirs, tolerance) is None
    for half in (0.0, 1.25, 5.0):
        wrong = run_ours(replace(scenario, half_spread_bps=half))
        assert first_difference(wrong, theirs, tolerance) is not None
        assert equity_difference(wrong, theirs)[-1] > ONE_BASIS_POINT


def test_spread_of_backtesting_is_paid_by_entries_only(sp: Bars) -> None:
    """Where nothing is ever sold, its spread at the entry is our half-spread; where positions are closed the engines
    differ by exactly our half-spread on what is closed."""
    engine = engine_named("backtesting")
    tolerance = replace(engine.tolerance, equity=1e-7, fee=1.01 * 2.5e-4)
    bars = sp.slice(1500, 4000)
    buys = Scenario("ladder", bars, ladder(bars, step=15), fee_bps=2.0, half_spread_bps=2.5)
    ours, theirs = run_ours(buys), engine.run(buys, spread_bps=2.5)
    assert len(ours.fills) >= 40
    assert first_difference(ours, theirs, tolerance) is None

    switches = Scenario("switches", bars, trend(bars, 300, short=False), fee_bps=2.0, half_spread_bps=2.5)
    ours, theirs = run_ours(switches), engine.run(switches, spread_bps=2.5)
    closed = sum(2.5e-4 * -fill.units * bars.open[fill.decided + 1] for fill in ours.fills if fill.units < 0)
    opened = sum(2.5e-4 * fill.units * bars.open[fill.decided + 1] for fill in ours.fills if fill.units > 0)
    missing = theirs.equity[-1] - ours.equity[-1]
    assert closed > 100 * ONE_BASIS_POINT * CASH
    assert missing == pytest.approx(closed - 2.0e-4 * opened, rel=1e-6)  # its fee is taken on the spread too


@pytest.mark.parametrize("index", ["sp500", "nasdaq"])
def test_sizes_from_equity_agree_with_backtesting(index: str, sp: Bars, nq: Bars) -> None:
    """All equity, whole units, sized at the price of the fill after its own fee. Rejects sizing at the price that the
    decision saw, and sizing that forgets the fee."""
    engines_backtesting = backtesting_module()
    bars = sp if index == "sp500" else nq
    wanted = trend(bars, 1, short=False) == 1
    everything = 1 - sys.float_info.epsilon  # a size of 1 would mean one unit there
    theirs, results = engines_backtesting.run_all_in_backtesting(bars, wanted, 3.0, everything)
    ours = run_all_in(bars, wanted, 3.0, everything)
    assert len(ours.fills) >= 300
    assert first_difference(ours, theirs, engines_backtesting.TOLERANCE) is None
    assert ours.fills[-1].units < 0  # flat at the end: its own sum of commissions counts every fill
    assert results["Commissions [$]"] == pytest.approx(sum(fill.fee for fill in ours.fills), rel=1e-9)

    entries = [fill for fill in ours.fills if fill.units > 0]
    equity = [theirs.equity[fill.decided] for fill in entries]
    prices = {
        "open with fee": [bars.open[fill.decided + 1] * 1.0003 for fill in entries],
        "seen close with fee": [bars.close[fill.decided] * 1.0003 for fill in entries],
        "open without fee": [bars.open[fill.decided + 1] for fill in entries],
    }
    sizes = {rule: [float(e // p) for e, p in zip(equity, price, strict=True)] for rule, price in prices.items()}
    units = [fill.units for fill in entries]
    assert [rule for rule in sizes if sizes[rule] == units] == ["open with fee"]


STOP_LOSS, TAKE_PROFIT = 0.02, 0.025


@pytest.mark.parametrize("index", ["sp500", "nasdaq"])
def test_stops_and_take_profits_agree_with_backtesting(index: str, sp: Bars, nq: Bars) -> None:
    """Same bars and same prices of all exits, gaps included. Rejects stops that are filled at their level through a gap
    and take-profits that win over stops in a bar that holds both.

    One documented difference: a bar that opens beyond the take-profit and reaches the stop later is an exit at the open
    here, since the open comes first; backtesting looks at stops first and sells at the stop.
    """
    engines_backtesting = backtesting_module()
    bars, fee_bps = (sp if index == "sp500" else nq), 2.0
    units = entries_between_the_exits(bars, trend(bars, 100, short=True))
    theirs, equity = engines_backtesting.run_stops_backtesting(
        bars, units, fee_bps, stop_loss=STOP_LOSS, take_profit=TAKE_PROFIT
    )
    ours, curve = run_stops(bars, units, fee_bps, stop_loss=STOP_LOSS, take_profit=TAKE_PROFIT)
    kinds = Counter(trip.kind for trip in ours)
    assert set(kinds) == {"stop_loss", "take_profit"}
    assert min(kinds.values()) >= 300

    expected = list(theirs)
    for number, trip in enumerate(theirs):
        if opens_beyond_profit(trip, bars) and trip.exit_price == pytest.approx(trip.level(-STOP_LOSS), rel=1e-12):
            gain = trip.units * (bars.open[trip.exit_bar] - trip.exit_price)
            fee = fee_bps * 1e-4 * abs(trip.units) * (bars.open[trip.exit_bar] - trip.exit_price)
            equity[trip.exit_bar :] += gain - fee
            expected[number] = replace(trip, exit_price=bars.open[trip.exit_bar])
    assert sum(a != b for a, b in zip(expected, theirs, strict=True)) == (2 if index == "nasdaq" else 0)
    assert first_other_trip(ours, expected) is None
    np.testing.assert_allclose(curve, equity, rtol=1e-9)

    through_gap = [replace(t, exit_price=t.level(-STOP_LOSS)) if t.kind == "stop_loss" else t for t in ours]
    assert first_other_trip(through_gap, expected) is not None
    friendly = [replace(t, exit_price=t.level(TAKE_PROFIT)) if holds_both(t, bars) else t for t in ours]
    assert first_other_trip(friendly, expected) is not None


def entries_between_the_exits(bars: Bars, units: Any) -> Any:
    """Backtesting refuses a bracket that does not hold the last close; then neither engine enters."""
    entry = np.append(bars.open[1:], bars.close[-1])
    return np.where(np.abs(bars.close / entry - 1) < 0.9 * min(STOP_LOSS, TAKE_PROFIT), units, 0)


def opens_beyond_profit(trip: Any, bars: Bars) -> bool:
    open_, level = bars.open[trip.exit_bar], trip.level(TAKE_PROFIT)
    return bool(trip.entry_bar < trip.exit_bar and (open_ > level if trip.units > 0 else open_ < level))


def holds_both(trip: Any, bars: Bars) -> bool:
    """The exit was a stop and the bar reaches the take-profit as well."""
    bar, level = trip.exit_bar, trip.level(TAKE_PROFIT)
    return trip.kind == "stop_loss" and bool(bars.high[bar] > level if trip.units > 0 else bars.low[bar] < level)


def first_other_trip(ours: Any, theirs: Any) -> str | None:
    """The first trip with another bar, size or price, as a sentence; None when all agree."""
    for mine, other in zip(ours, theirs, strict=False):
        same = (mine.entry_bar, mine.units, mine.exit_bar) == (other.entry_bar, other.units, other.exit_bar)
        prices = ((mine.entry_price, other.entry_price), (mine.exit_price, other.exit_price))
        if not same or any(abs(p - q) > PRICE * q for p, q in prices):
            return f"{mine}, other {other}"
    return None if len(ours) == len(theirs) else f"{len(ours)} trips, other {len(theirs)}"
