"""Scenarios through `nautilus_trader`: a margin account, market orders from a bar handler, maker-taker fees.

Left to itself the engine fills such an order at the close of the bar that the handler has just seen. To fill at the
next open it gets, besides the bars, one tick per bar at the open, and orders that travel for a microsecond: the order
then waits for the tick. A trade tick fills both sides at the open; a quote fills buys at the ask and sells at the bid.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
from nautilus_trader.backtest.engine import BacktestEngine, BacktestEngineConfig
from nautilus_trader.backtest.models import LatencyModel, MakerTakerFeeModel
from nautilus_trader.config import LoggingConfig
from nautilus_trader.model.currencies import USD
from nautilus_trader.model.data import Bar, BarType, QuoteTick, TradeTick
from nautilus_trader.model.enums import AccountType, AggressorSide, OmsType, OrderSide
from nautilus_trader.model.identifiers import InstrumentId, Symbol, TradeId, Venue
from nautilus_trader.model.instruments import Equity
from nautilus_trader.model.objects import Money, Price, Quantity
from nautilus_trader.trading.strategy import Strategy

from tests.market.engines_common import CASH, Account, Fill, Integers, Scenario, Tolerance

# Notional, then fee, and every realised gain are rounded to cents: half a cent per fee and the fee of half a cent, and
# a random walk of cents in the equity.
TOLERANCE = Tolerance(equity=1e-6, money=0.005 + 0.005 * 0.001, fee=1e-9)
DIGITS = 8  # of prices; the bars have six
TICK_AFTER_OPEN = 1_000_000  # ns
SECOND = 1_000_000_000  # ns
LATENCY = 1_000  # ns
VENUE = Venue("SIM")
PLENTY = 1_000_000_000  # units behind every price, so that no order moves it


class ToUnits(Strategy):
    """At each close: note the equity, then order the difference between the scenario's units and the position."""

    def __init__(self, instrument: Equity, bar_type: BarType, units: Integers) -> None:
        super().__init__()
        self.wanted, self.bar_type, self.traded = units, bar_type, instrument
        self.bar = -1
        self.curve: list[float] = []
        self.fills: list[Fill] = []

    def on_start(self) -> None:
        self.subscribe_bars(self.bar_type)

    def on_bar(self, bar: Bar) -> None:
        self.bar += 1
        held = float(self.portfolio.net_position(self.traded.id))
        balance = self.portfolio.account(VENUE).balance_total(USD).as_double()
        unrealised = self.portfolio.unrealized_pnl(self.traded.id, bar.close).as_double() if held else 0.0
        self.curve.append(balance + unrealised)
        change = int(self.wanted[self.bar]) - int(held)
        if change:
            side = OrderSide.BUY if change > 0 else OrderSide.SELL
            self.submit_order(self.order_factory.market(self.traded.id, side, Quantity.from_int(abs(change))))

    def on_order_filled(self, event: Any) -> None:
        sign = 1 if event.order_side == OrderSide.BUY else -1
        units, price = sign * event.last_qty.as_double(), event.last_px.as_double()
        self.fills.append(Fill(self.bar, units, price, event.commission.as_double()))


def run_nautilus(scenario: Scenario, *, untouched: bool = False) -> Account:
    """`untouched` leaves out tick and latency, however the scenario wants its fills."""
    at_close = scenario.at_close or untouched
    instrument = _instrument(scenario)
    bar_type = BarType.from_str(f"{instrument.id}-1-DAY-LAST-EXTERNAL")
    engine = BacktestEngine(BacktestEngineConfig(logging=LoggingConfig(bypass_logging=True)))
    engine.add_venue(
        VENUE,
        oms_type=OmsType.NETTING,
        account_type=AccountType.MARGIN,
        base_currency=USD,
        starting_balances=[Money(CASH, USD)],
        default_leverage=Decimal(20),
        fee_model=MakerTakerFeeModel(),
        latency_model=None if at_close else LatencyModel(base_latency_nanos=LATENCY),
        bar_execution=at_close,
        trade_execution=not at_close,
    )
    engine.add_instrument(instrument)
    engine.add_data(_data(scenario, instrument, bar_type, ticks=not at_close))
    strategy = ToUnits(instrument, bar_type, scenario.units)
    engine.add_strategy(strategy)
    engine.run()
    engine.dispose()
    # A scenario that ends with an order at the last close is filled there by `bar_execution`; ours has no bar after it.
    last = len(scenario.units) - 1
    return Account(np.array(strategy.curve), tuple(fill for fill in strategy.fills if fill.decided < last))


def _instrument(scenario: Scenario) -> Equity:
    fee = Decimal(str(scenario.fee_bps)) / 10_000
    name = Symbol(scenario.bars.symbol)
    return Equity(
        instrument_id=InstrumentId(name, VENUE),
        raw_symbol=name,
        currency=USD,
        price_precision=DIGITS,
        price_increment=Price(10.0**-DIGITS, DIGITS),
        lot_size=Quantity.from_int(1),
        margin_init=Decimal("0.05"),
        margin_maint=Decimal("0.02"),
        maker_fee=fee,
        taker_fee=fee,
        ts_event=0,
        ts_init=0,
    )


def _data(scenario: Scenario, instrument: Equity, bar_type: BarType, *, ticks: bool) -> list[Any]:
    """Bars stamped a second before the end of their day; at the beginning of the day a tick with the open."""
    bars, plenty, half = scenario.bars, Quantity.from_int(PLENTY), scenario.half_spread_bps * 1e-4
    opens = bars.time.astype("datetime64[ns]").astype(np.int64)
    length = int(bars.frequency.bar / np.timedelta64(1, "ns"))
    data: list[Any] = []
    for t, start in enumerate(opens.tolist()):
        first, end = start + TICK_AFTER_OPEN, start + length - SECOND
        if ticks and half > 0.0:
            bid, ask = Price(bars.open[t] * (1 - half), DIGITS), Price(bars.open[t] * (1 + half), DIGITS)
            data.append(QuoteTick(instrument.id, bid, ask, plenty, plenty, first, first))
        elif ticks:
            price = Price(bars.open[t], DIGITS)
            data.append(
                TradeTick(instrument.id, price, plenty, AggressorSide.NO_AGGRESSOR, TradeId(str(t)), first, first)
            )
        prices = (Price(values[t], DIGITS) for values in (bars.open, bars.high, bars.low, bars.close))
        data.append(Bar(bar_type, *prices, plenty, end, end))
    return data
