"""Scenarios through Tailwise's own simulator, and the same with one planted mistake."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tailwise.bars.bars import Bars
from tailwise.features.table import FeatureTable
from tailwise.market.costs import NO_COSTS, CostConfig
from tailwise.market.env_config import ExposureAction, MarketEnvConfig
from tailwise.market.records import EVENTS
from tailwise.market.simulator import Simulator
from tailwise.market.tables import SymbolTable
from tests.market.engines_common import CASH, Account, Fill, Floats, Integers, Scenario


@dataclass(frozen=True)
class Trip:
    """A position from its entry to its exit, prices before costs; `kind` of the exit where the engine tells it."""

    entry_bar: int
    units: float
    entry_price: float
    exit_bar: int
    exit_price: float
    kind: str = ""

    def level(self, fraction: float) -> float:
        """Price at which the position has gained `fraction` of its entry price."""
        return self.entry_price * (1 + fraction * (1 if self.units > 0 else -1))


def table_of_bars(bars: Bars) -> SymbolTable:
    """The bars with one feature that nobody reads."""
    nothing = np.zeros((len(bars.close), 1), dtype=np.float32)
    return SymbolTable.from_bars(bars, FeatureTable(nothing, ("nothing",), 0))


def simulator(bars: Bars, costs: CostConfig, *, tolerance: float = 0.0, **settings: Any) -> Simulator:
    """One account from the first bar on, every change an order, everything reported."""
    config = MarketEnvConfig(
        action=ExposureAction(low=-3.0, high=3.0),
        tolerance=tolerance,
        initial_cash=CASH,
        start="first",
        report=True,
        **settings,
    )
    made = Simulator([table_of_bars(bars)], config, costs, accounts=1)
    made.seed(0)
    made.reset()
    return made


def step(made: Simulator, exposure: float) -> Any:
    """Ledger record of one bar."""
    result = made.step(np.array([exposure]), autoreset=False)
    assert result.ledger is not None
    assert not result.terminated[0]
    return result.ledger[0]


def whole_units(fee_bps: float, half_spread_bps: float = 0.0) -> CostConfig:
    """Fee and half-spread only, positions in whole units."""
    return NO_COSTS.model_copy(
        update={
            "taker_fee_bps": fee_bps,
            "maker_fee_bps": fee_bps,
            "half_spread_bps": half_spread_bps,
            "lot_size": 1.0,
        }
    )


def exposure_of(units: float, held: float, equity: float, price: float, rate: float) -> float:
    """The exposure whose order at `price` ends at `units`: what is held, after the order's own costs, per equity."""
    return units * price / (equity - rate * abs(units - held) * price)


def run_ours(scenario: Scenario) -> Account:
    """The simulator speaks exposures; each is computed so that the fill gives exactly the units of the scenario."""
    bars = scenario.bars
    costs = whole_units(scenario.fee_bps, scenario.half_spread_bps)
    made = simulator(bars, costs, fill="close" if scenario.at_close else "next_open")
    equity, held, curve, fills = CASH, 0.0, [CASH], []
    for t in range(len(bars.close) - 1):
        price = bars.close[t] if scenario.at_close else bars.open[t + 1]
        before = equity + held * (price - bars.close[t])
        units = float(scenario.units[t])
        ledger = step(made, exposure_of(units, held, before, price, costs.taker_rate))
        if ledger["order_units"] != 0.0:
            traded = float(ledger["order_units"])
            paid = float(ledger["order_price"]) + float(ledger["spread"]) / traded
            fills.append(Fill(t, traded, paid, float(ledger["fee"])))
        equity, held = float(ledger["equity"]), float(ledger["units"])
        curve.append(equity)
    return Account(np.array(curve), tuple(fills))


def run_all_in(bars: Bars, wanted: Any, fee_bps: float, exposure: float) -> Account:
    """The simulator sizes by itself: `exposure` x equity while wanted[t], flat otherwise.

    What whole units leave over is less than the tolerance. Without one, a fall of the price would let it buy one more.
    """
    made = simulator(bars, whole_units(fee_bps), tolerance=0.01)
    curve, fills = [CASH], []
    for t in range(len(bars.close) - 1):
        ledger = step(made, exposure if wanted[t] else 0.0)
        if ledger["order_units"] != 0.0:
            fills.append(Fill(t, float(ledger["order_units"]), float(ledger["order_price"]), float(ledger["fee"])))
        curve.append(float(ledger["equity"]))
    return Account(np.array(curve), tuple(fills))


def run_stops(
    bars: Bars, units: Integers, fee_bps: float, *, stop_loss: float, take_profit: float
) -> tuple[list[Trip], Floats]:
    """Enters units[t] when flat and leaves by stop or take-profit only: (trips, equity [T])."""
    costs = whole_units(fee_bps)
    made = simulator(bars, costs, stop_loss=stop_loss, take_profit=take_profit)
    equity, held, curve, trips = CASH, 0.0, [CASH], []
    entry: tuple[int, float] = (0, 0.0)
    for t in range(len(bars.close) - 1):
        price = bars.open[t + 1]
        before = equity + held * (price - bars.close[t])
        wanted = held if held != 0.0 else float(units[t])
        ledger = step(made, exposure_of(wanted, held, before, price, costs.taker_rate))
        if ledger["order_units"] != 0.0:
            entry = (t + 1, float(ledger["order_price"]))
        if ledger["event"] != 0:
            kind, closed = EVENTS[int(ledger["event"])], -float(ledger["exit_units"])
            trips.append(Trip(entry[0], closed, entry[1], t + 1, float(ledger["exit_price"]), kind))
        equity, held = float(ledger["equity"]), float(ledger["units"])
        curve.append(equity)
    return trips, np.array(curve)


# ------------------------------------------------------------------------------------------------ planted mistakes


def fee_twice(scenario: Scenario) -> Account:
    return run_ours(replace(scenario, fee_bps=2 * scenario.fee_bps))


def fee_never(scenario: Scenario) -> Account:
    return run_ours(replace(scenario, fee_bps=0.0))


def filled_at_the_seen_close(scenario: Scenario) -> Account:
    return run_ours(replace(scenario, at_close=True))


def one_bar_late(scenario: Scenario) -> Account:
    late = np.concatenate(([0], scenario.units[:-1]))
    account = run_ours(replace(scenario, units=late))
    # Told as if it had been on time, so that the price must give it away and not the number of the bar.
    return Account(account.equity, tuple(replace(fill, decided=fill.decided - 1) for fill in account.fills))


def fee_on_entries_only(scenario: Scenario) -> Account:
    """Charges what opens or adds and lets closing orders go free."""
    account = run_ours(scenario)
    held, refunds, fills = 0.0, np.zeros(len(account.equity)), []
    for fill in account.fills:
        leaves = abs(held + fill.units) < abs(held)
        if leaves:
            refunds[fill.decided + 1 :] += fill.fee
        fills.append(replace(fill, fee=0.0) if leaves else fill)
        held += fill.units
    return Account(account.equity + refunds, tuple(fills))


MISTAKES = (fee_twice, fee_never, filled_at_the_seen_close, one_bar_late, fee_on_entries_only)
