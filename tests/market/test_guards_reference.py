"""Engine and reference agree with guards too; a live account under `AccountGuards` gets the engine's orders."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tailwise.market.account_guards import AccountGuards, Exposure, Money, Units
from tailwise.market.costs import NO_COSTS, CostConfig
from tailwise.market.env_config import GuardsConfig
from tailwise.market.guard_arrays import BAR_MEMORY, GUARDS, check_bars, guard_names, make_bar_limits
from tailwise.market.tables import MarketTable, SymbolTable
from tests.market.reference import ZERO
from tests.market.reference_guards import GuardedReference
from tests.market.strategies import bars_from
from tests.market.test_reference import World, worlds
from tests.market.worlds import TOO_CLOSE, exposure_config, first_disagreement, simulator_of

HOUR = np.timedelta64(3600 * 10**9, "ns")


def timed(table: SymbolTable, steps: list[int], hours: int = 6) -> SymbolTable:
    """Bars of `hours`, each opening `steps` of them after the one before."""
    start = np.datetime64("2024-03-01T00:00", "ns")
    return replace(table, time=start + np.cumsum(steps) * hours * HOUR, bar=hours * HOUR)


@st.composite
def guarded_worlds(draw: Any) -> World:
    table, config, costs, targets = draw(worlds())

    def maybe(*values: Any) -> Any:
        return draw(st.sampled_from([None, *values]))

    guards = GuardsConfig(
        max_exposure=maybe(0.4, 1.3),
        order_fraction=maybe(0.07, 0.6),
        order_units=maybe(3.3, 700.3),
        order_notional=maybe(900.0, 39_500.0),
        daily_turnover=maybe(0.3, 1.7),
        daily_loss=maybe(0.003, 0.02),
        drawdown=maybe(0.01, 0.05),
        on_halt=draw(st.sampled_from(["reduce_only", "flatten"])),
        stale_bars=maybe(2.0),
        absurd_gap=maybe(0.02),
        absurd_move=maybe(0.03),
        absurd_volatility=maybe(1.5),
        volatility_bars=draw(st.sampled_from([2, 5])),
        absurd_flat_bars=maybe(1),
    )
    steps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 3, 5]), min_size=len(table.close), max_size=len(table.close)))
    return timed(table, steps), config.model_copy(update={"guards": guards}), costs, targets


@given(guarded_worlds())
@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_engine_equals_the_guarded_reference(world: World) -> None:
    """Everything that is compared without guards, and which guards acted, at every step."""
    difference, narrowest = first_disagreement(*world)
    assume(narrowest > TOO_CLOSE)
    assert difference is None, difference


def scripted(seed: int, latency: int = 0) -> World:
    """A market of 6-hour bars with gaps of time, two guards of each kind on and everything else too."""
    rng = np.random.default_rng(seed)
    bars = 40
    moves = [(gap, body, abs(up), abs(down)) for gap, body, up, down in rng.normal(0, 0.015, (bars, 4))]
    table = timed(bars_from(moves, rng.uniform(1e4, 1e6, bars).tolist(), 4), rng.choice([1, 1, 1, 4], bars).tolist())
    guards = GuardsConfig(
        max_exposure=1.5,
        order_fraction=None if seed % 3 else 0.9,
        order_units=None if seed % 3 else 1500.3,
        daily_turnover=2.5,
        daily_loss=0.03,
        drawdown=0.12,
        on_halt="reduce_only" if seed % 2 else "flatten",
        stale_bars=3.0,
        absurd_volatility=2.5,
        volatility_bars=8,
        absurd_gap=0.04,
    )
    config = exposure_config(stop_loss=0.05, tolerance=0.01, guards=guards)
    targets = rng.choice([-2.0, -1.0, 0.0, 0.5, 1.0, 1.7], bars - 1).tolist()
    return table, config, CostConfig(latency=latency, lot_size=0.5 * (seed % 2)), targets


def test_scripted_worlds_exercise_every_guard_and_agree() -> None:
    seen: set[str] = set()
    for seed in range(24):
        table, config, costs, targets = scripted(seed, latency=seed % 2)
        difference, narrowest = first_disagreement(table, config, costs, targets)
        assert difference is None, f"seed {seed}: {difference}"
        assert narrowest > TOO_CLOSE
        simulator = simulator_of(table, config, costs)
        for target in targets:
            step = simulator.step(np.array([target]), autoreset=False)
            if step.terminated[0] or step.truncated[0]:
                break
        seen |= {name for name, count in simulator.guard_counts().items() if count}
    assert seen == set(GUARDS)


# ---------------------------------------------------------------------- guards that people really write
class HaltsForget(GuardedReference):
    """Lifts the halt as soon as the loss is made good."""

    def watch(self, equity: Decimal) -> None:
        self.halted.clear()
        super().watch(equity)


class ExitsAreNoTurnover(GuardedReference):
    """Counts only the policy's own orders."""

    def trade(self, units: Decimal, price: Decimal, volume: Decimal, parts: Any, *, resting: bool = False) -> None:
        before = self.turnover
        super().trade(units, price, volume, parts, resting=resting)
        if units == -(self.units - units) and self.units == 0:
            self.turnover = before


class DayBeginsAtOpen(GuardedReference):
    """Measures the daily loss from the equity after the gap."""

    def before_fill(self, last_equity: Decimal, equity: Decimal) -> None:
        super().before_fill(equity, equity)


class SizeInLots(GuardedReference):
    """Takes a limit in units for one in lots of 100."""

    def largest_order(self, equity: Decimal, price: Decimal) -> Decimal:
        return super().largest_order(equity, price) * 100


class TurnoverStopsClosing(GuardedReference):
    """Locks the position in when the day's turnover is used up."""

    def within_size(self, wanted: Decimal, equity: Decimal, price: Decimal) -> Decimal:
        if self.turnover_left() == ZERO:
            return self.units
        return super().within_size(wanted, equity, price)


class BelievesEverything(GuardedReference):
    """Trades on bars that it has flagged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.unbelieved = [set() for _ in self.bars]
        self.unbelieved_at_open = [set() for _ in self.bars]


class SeesTheNextBar(GuardedReference):
    """Judges the bar of the fill by its close, which the order cannot know."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.unbelieved_at_open = self.unbelieved


WRONG = (
    HaltsForget,
    ExitsAreNoTurnover,
    DayBeginsAtOpen,
    SizeInLots,
    TurnoverStopsClosing,
    BelievesEverything,
    SeesTheNextBar,
)


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_wrong_guards_are_told_apart(kind: type[GuardedReference]) -> None:
    differences = [first_disagreement(*scripted(seed, latency=seed % 2), kind=kind)[0] for seed in range(24)]
    assert any(difference is not None for difference in differences)


# ---------------------------------------------------------------------- the live account
@pytest.mark.parametrize("seed", range(6))
def test_a_live_account_gets_the_orders_of_the_engine(seed: int) -> None:
    """LEDGER L3. The live class sees one bar after the other and must come to the engine's orders, bit for bit."""
    table, config, costs, targets = scripted(seed)
    simulator = simulator_of(table, config, costs)
    assert table.time is not None and table.bar is not None
    live = AccountGuards(config, costs, bar=table.bar, time=table.time[0], equity=Money(config.initial_cash))
    account = simulator.state.records

    def close_bar(t: int) -> None:
        prices = (table.open[t], table.high[t], table.low[t], table.close[t])
        live.close_bar(table.time[t], *prices, equity=account["equity"][0], peak=account["peak"][0])

    close_bar(0)
    orders = 0
    for t, target in enumerate(targets):
        units, cash, equity = (float(account[name][0]) for name in ("units", "cash", "equity"))
        peak, price = float(account["peak"][0]), float(table.open[t + 1])
        decision = live.decision(
            Exposure(target), units=Units(units), equity=Money(equity), close=Money(float(table.close[t]))
        )
        assert decision.low <= decision.high
        dividend = 0.0 if table.dividends is None else float(table.dividends[t + 1])
        now = Money(cash + units * dividend + units * price)
        live.open_bar(table.time[t + 1], price, last_equity=Money(equity), equity=now, peak=Money(peak))
        called = units != 0 and now <= config.maintenance_margin * abs(units) * price
        order = live.order(decision.target, units=Units(units), equity=now, price=Money(price))
        step = simulator.step(np.array([target]), autoreset=False)
        assert step.ledger is not None
        entry = step.ledger[0]
        if not called:
            assert entry["order_units"] == order.units
            assert set(guard_names(int(entry["guard"]))) == set(decision.guards) | set(order.guards)
            orders += order.units != 0
        for amount, at in (("order_units", "order_price"), ("exit_units", "exit_price")):
            live.filled(Units(float(entry[amount])), Money(float(entry[at])))
        close_bar(t + 1)
        if step.terminated[0] or step.truncated[0]:
            break
    assert orders > 3 and sum(live.counts.values()) > 3


# ---------------------------------------------------------------------- bars are judged by what came before
def test_flags_of_a_bar_depend_on_nothing_later() -> None:
    """Rejects a volatility of the whole series: the flags of the first bars stay when the future changes."""
    table, config, costs, _ = scripted(3)
    built = MarketTable.build([table], costs)

    def flags(bars: Any, time: Any) -> list[int]:
        out = np.zeros(len(bars), dtype=np.int8)
        limits = make_bar_limits(config.guards, int(built.bar_ns[0]))
        check_bars(np.zeros(1, dtype=BAR_MEMORY), time.astype(np.int64), bars, limits, out)
        return list(out.tolist())

    whole = flags(built.bars, built.time)
    assert any(whole)
    for cut in (5, 17, 30):
        changed = built.bars.copy()
        for name in ("open", "high", "low", "close"):
            changed[name][cut:] *= 3.0
        assert flags(built.bars[:cut], built.time[:cut]) == whole[:cut]
        assert flags(changed, built.time)[:cut] == whole[:cut]
        assert flags(changed, built.time)[cut:] != whole[cut:]


def test_an_order_as_large_as_the_limit_is_a_tie() -> None:
    """A short position as large as the largest order, closed again: what is left of the target is a difference that
    cancels, and the last bit decides. Rejects a distance relative to that difference, which calls the tie clear."""
    moves = [(0.0, 0.0, 0.0, 0.0), (0.0, 0.0078125, 0.0, 0.0), *[(0.0, 0.0, 0.0, 0.0)] * 4]
    table = timed(bars_from(moves, [0.0] * 6, 2), [1] * 6)
    config = exposure_config(initial_cash=1000.0, guards=GuardsConfig(order_units=3.3))
    assert first_disagreement(table, config, NO_COSTS, [-1.0, 0.0])[1] < TOO_CLOSE
