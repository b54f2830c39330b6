"""Scenarios through `backtesting` (backtesting.py): positions in units, commission per side, fills at the next open."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
from backtesting import Backtest, Strategy

from tailwise.bars.bars import Bars
from tests.market.engines_common import CASH, Account, Fill, Floats, Scenario, Tolerance
from tests.market.engines_ours import Trip

# It counts in floats as we do. Fees are read off its equity of a million, which carries 1e-10 of it in rounding.
TOLERANCE = Tolerance(equity=1e-9, money=1e-5, fee=1e-9)
MARGIN = 0.1  # of the notional; never binds here, and so no order is refused


def frame_of(bars: Bars) -> pd.DataFrame:
    columns = {"Open": bars.open, "High": bars.high, "Low": bars.low, "Close": bars.close, "Volume": bars.volume}
    return pd.DataFrame(columns, index=pd.DatetimeIndex(bars.time))


def run_engine(
    bars: Bars, strategy: type[Strategy], fee_bps: float, *, margin: float = MARGIN, **settings: Any
) -> tuple[pd.Series, Any]:
    """(results, the broker at the end). Trades that are open at the end stay open and are marked."""
    brokers = []

    class Remembered(strategy):  # type: ignore[valid-type,misc]
        def init(self) -> None:
            brokers.append(self._broker)

    engine = Backtest(frame_of(bars), Remembered, cash=CASH, commission=fee_bps * 1e-4, margin=margin, **settings)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some trades remain open")
        warnings.filterwarnings("error", message=".*Broker canceled")
        results = engine.run()
    return results, brokers[0]


def run_backtesting(scenario: Scenario, *, spread_bps: float = 0.0) -> Account:
    """One order per change of position. `spread_bps` is charged by this engine inside the price of entries only."""
    bars = scenario.bars

    class ToUnits(Strategy):
        def init(self) -> None:
            pass

        def next(self) -> None:
            change = int(scenario.units[len(self.data) - 1]) - self.position.size
            if change > 0:
                self.buy(size=change)
            elif change < 0:
                self.sell(size=-change)

    results, broker = run_engine(
        bars, ToUnits, scenario.fee_bps, spread=spread_bps * 1e-4, trade_on_close=scenario.at_close
    )
    equity = results["_equity_curve"]["Equity"].to_numpy()
    return account_of(bars, equity, [*broker.closed_trades, *broker.trades], at_close=scenario.at_close)


def account_of(bars: Bars, equity: Floats, trades: list[Any], *, at_close: bool = False) -> Account:
    """Fills per decision. A turn is two trades here (one closed, one opened); reductions split a trade in two."""
    delay = 0 if at_close else 1
    traded: dict[int, float] = {}
    value: dict[int, float] = {}

    def add(bar: int, units: float, price: float) -> None:
        traded[bar - delay] = traded.get(bar - delay, 0.0) + units
        value[bar - delay] = value.get(bar - delay, 0.0) + units * price

    for trade in trades:
        add(trade.entry_bar, trade.size, trade.entry_price)
        if trade.exit_bar is not None:
            add(trade.exit_bar, -trade.size, trade.exit_price)
    fills, held = [], 0.0
    for decided in sorted(traded):
        units = traded[decided]
        price = value[decided] / units
        # Commissions are stored per trade, not per fill: what is missing from the gain of the bar was the fee.
        gain = held * (bars.close[decided + 1] - bars.close[decided]) + units * (bars.close[decided + 1] - price)
        fee = gain - (equity[decided + 1] - equity[decided])
        fills.append(Fill(decided, units, price, fee))
        held += units
    return Account(np.asarray(equity), tuple(fills))


def run_all_in_backtesting(bars: Bars, wanted: Any, fee_bps: float, fraction: float) -> tuple[Account, pd.Series]:
    """The engine sizes by itself: `fraction` of what the account can pay, fee included, at the price of the fill."""

    class AllIn(Strategy):
        def init(self) -> None:
            pass

        def next(self) -> None:
            if wanted[len(self.data) - 1]:
                if not self.position:
                    self.buy(size=fraction)
            elif self.position:
                self.position.close()

    results, broker = run_engine(bars, AllIn, fee_bps, margin=1.0)
    equity = results["_equity_curve"]["Equity"].to_numpy()
    return account_of(bars, equity, [*broker.closed_trades, *broker.trades]), results


def run_stops_backtesting(
    bars: Bars, units: Any, fee_bps: float, *, stop_loss: float, take_profit: float
) -> tuple[list[Trip], Floats]:
    """Enters units[t] when flat with both exits attached. It wants their prices with the order, before the open of the
    fill is known; the test may look ahead, so that both engines measure them from the price of the entry."""

    class Bracket(Strategy):
        def init(self) -> None:
            pass

        def next(self) -> None:
            t = len(self.data) - 1
            size = int(units[t])
            if self.position or size == 0 or t + 1 >= len(bars.open):
                return
            entry, side = bars.open[t + 1], 1 if size > 0 else -1
            exits = {"sl": entry * (1 - side * stop_loss), "tp": entry * (1 + side * take_profit)}
            (self.buy if size > 0 else self.sell)(size=abs(size), **exits)

    results, broker = run_engine(bars, Bracket, fee_bps)
    trips = [
        Trip(trade.entry_bar, trade.size, trade.entry_price, trade.exit_bar, trade.exit_price)
        for trade in sorted(broker.closed_trades, key=lambda trade: trade.entry_bar)
    ]
    return trips, results["_equity_curve"]["Equity"].to_numpy()
