"""A trained policy as a NautilusTrader strategy, for its backtests and its venues. All that is imported of it is here.

The policy decides at the close of a bar on what the venue says is held and worth. Its target waits for the first trade
after that close; then the order is sized at that trade's price, as the simulator sizes at the open, and sent to the
market. Where a venue fills at that price with the same fees, equity is that of `evaluate` but for rounded money.

The engine of NautilusTrader has no fills at the next open of its own: `venue_data` puts a trade at each open before its
bar, and `run_backtest` is the recipe with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
from nautilus_trader.backtest.engine import BacktestEngine, BacktestEngineConfig
from nautilus_trader.backtest.models import MakerTakerFeeModel
from nautilus_trader.config import LoggingConfig
from nautilus_trader.model.currencies import USD
from nautilus_trader.model.data import Bar, BarType, TradeTick
from nautilus_trader.model.enums import AccountType, AggressorSide, OmsType, OrderSide
from nautilus_trader.model.identifiers import InstrumentId, Symbol, TradeId, Venue
from nautilus_trader.model.instruments import Equity
from nautilus_trader.model.objects import Money, Price, Quantity
from nautilus_trader.trading.strategy import Strategy

from tailwise.bars.bars import Bars
from tailwise.bars.frequency import Frequency
from tailwise.core.errors import ConfigError, NotBuiltError
from tailwise.live.desk import Desk
from tailwise.live.feeds import raw_bar
from tailwise.live.lines import RawBar, check_bar, inside_its_range
from tailwise.live.states import State
from tailwise.market.action_kinds import action_kind
from tailwise.market.costs import CostConfig
from tailwise.market.orders import desired_units, large_enough, whole_lots
from tailwise.market.records import make_rules
from tailwise.run.decide import Decider, market_of

DIGITS = 8  # of prices in a backtest
TICK_AFTER_OPEN = 1_000_000  # ns
PLENTY = 1_000_000_000  # units behind every price of a backtest, so that no order moves it
_FEW = 0.5  # of the smallest amount that an instrument trades: less is rounding


class PolicyStrategy(Strategy):  # type: ignore[misc]  # compiled, without annotations
    """Follows the targets of a policy in one instrument.

    symbol, frequency  of the bars, in the words of the run
    since              open time in ns: the account begins at the first close at or after it, or as soon as it can
    """

    def __init__(
        self,
        trader: Decider,
        instrument: Any,
        bar_type: Any,
        frequency: Frequency,
        *,
        symbol: str,
        since: int | None = None,
        deterministic: bool | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        require_orders_alone(trader)
        market, _ = market_of(trader)
        self.desk = Desk(trader, [symbol], frequency, deterministic=deterministic, seed=seed)
        self.traded, self.bar_type, self.since = instrument, bar_type, since
        self.target: float | None = None  # exposure that waits for the next trade
        self._rules = make_rules(market, costs_of(trader))[0]
        self._bar_ns = frequency.bar_ns
        self._smallest = instrument.size_increment.as_double()
        self._peak, self._bars_held, self._side = 0.0, 0, 0.0

    def warm_up(self, bars: Bars) -> None:
        """Show bars from before, so that the features are complete at the first bar of the venue."""
        for i in range(len(bars)):
            self.desk.show([raw_bar(bars, i)])

    def on_start(self) -> None:
        """Subscribe to the bars and to the trades that come between them."""
        self.subscribe_bars(self.bar_type)
        self.subscribe_trade_ticks(self.traded.id)

    def on_bar(self, bar: Any) -> None:
        """Decide at a close; bars are stamped with the time of their close."""
        numbers = [one.as_double() for one in (bar.open, bar.high, bar.low, bar.close, bar.volume)]
        shown = RawBar(self.desk.symbols[0], bar.ts_event - self._bar_ns, *numbers)
        check_bar(shown, where=f"bar of {self.traded.id}")
        shown = inside_its_range(shown)
        desk = self.desk
        if desk.begun:
            desk.show([shown])
        else:
            desk.show([shown])
            if not desk.ready or (self.since is not None and bar.ts_event < self.since):
                return
            desk.begin()
        self._hold_what_is_held(bar.close)
        self.target = float(desk.place(State.RUNNING).target[0])

    def on_trade_tick(self, tick: Any) -> None:
        """Send the order that waits, sized at the price of this trade."""
        if self.target is None:
            return
        target, self.target = self.target, None
        price, held = tick.price.as_double(), self.held()
        wanted = desired_units(target, self.equity(tick.price), price, held, self._rules)
        if not large_enough(wanted, held, price, self._rules):
            return
        change = whole_lots(wanted, self._smallest) - held
        if abs(change) < _FEW * self._smallest:
            return
        side = OrderSide.BUY if change > 0 else OrderSide.SELL
        self.submit_order(self.order_factory.market(self.traded.id, side, self.traded.make_qty(abs(change))))

    def held(self) -> float:
        """Units that the venue says are held; negative: sold."""
        return float(self.portfolio.net_position(self.traded.id))

    def equity(self, price: Any) -> float:
        """What the account at the venue is worth at this price."""
        account, units = self.portfolio.account(self.traded.id.venue), self.held()
        balance = account.balance_total(self.traded.quote_currency).as_double()
        if account.type == AccountType.CASH:
            return float(balance + units * price.as_double())
        gain = self.portfolio.unrealized_pnl(self.traded.id, price).as_double() if units else 0.0
        return float(balance + gain)

    def _hold_what_is_held(self, close: Any) -> None:
        """Let the policy see the venue's account at this close."""
        units, equity = self.held(), self.equity(close)
        side = float(np.sign(units))
        self._bars_held = 0 if side == 0 else self._bars_held + 1 if side == self._side else 1
        self._side, self._peak = side, max(self._peak, equity)
        positions = self.cache.positions_open(instrument_id=self.traded.id) if units else []
        entry = float(positions[0].avg_px_open) if len(positions) == 1 else None
        self.desk.account.hold(units, equity, entry, self._peak, self._bars_held)


def costs_of(trader: Decider) -> CostConfig:
    """The costs that the policy was trained with."""
    return trader.config.costs or CostConfig()


def require_orders_alone(trader: Decider) -> None:
    """Refuse what needs more than one market order per bar of one instrument."""
    market, _ = market_of(trader)
    if action_kind(market.action).portfolio:
        raise NotBuiltError("a portfolio is one account with several instruments; this strategy trades one.")
    odd = {
        "costs.latency": costs_of(trader).latency > 0,
        "env.fill: close": market.fill != "next_open",
        "env.stop_loss": market.stop_loss is not None,
        "env.take_profit": market.take_profit is not None,
        "env.guards": market.guards.active,
    }
    for name, used in odd.items():
        if used:
            raise ConfigError(
                f"this policy was trained with {name}, which the simulator does inside a bar or between decision and "
                "order, and this strategy does not; train without it, or set it up at the venue and for a new policy."
            )


# ---------------------------------------------------------------------- backtests
@dataclass
class VenueResult:
    """What a backtest came to. time: closes datetime64[ns] [T] and equity [T] at them, from the first decision on;
    fills: (close time in ns of the decision's bar, units, price, commission) of every fill."""

    time: npt.NDArray[np.datetime64]
    equity: npt.NDArray[np.float64]
    fills: list[tuple[int, float, float, float]] = field(default_factory=list)


class _Recorded(PolicyStrategy):
    """Notes equity at every close and every fill."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.times: list[int] = []
        self.curve: list[float] = []
        self.fills: list[tuple[int, float, float, float]] = []

    def on_bar(self, bar: Any) -> None:
        super().on_bar(bar)
        if self.desk.begun:
            self.times.append(bar.ts_event)
            self.curve.append(self.equity(bar.close))

    def on_order_filled(self, event: Any) -> None:
        sign = 1.0 if event.order_side == OrderSide.BUY else -1.0
        units, price = sign * event.last_qty.as_double(), event.last_px.as_double()
        self.fills.append((self.times[-1], units, price, event.commission.as_double()))


def run_backtest(trader: Decider, bars: Bars, *, since: int | None = None, seed: int | None = None) -> VenueResult:
    """Trade bars in NautilusTrader's engine: a margin account, the taker fee of the run, fills at the next open."""
    market, _ = market_of(trader)
    instrument = stock(bars.symbol, taker_fee_bps=costs_of(trader).taker_fee_bps)
    bar_type = BarType.from_str(f"{instrument.id}-1-DAY-LAST-EXTERNAL")  # a name: bars come stamped, none is built
    engine = BacktestEngine(BacktestEngineConfig(logging=LoggingConfig(bypass_logging=True)))
    engine.add_venue(
        instrument.id.venue,
        oms_type=OmsType.NETTING,
        account_type=AccountType.MARGIN,
        base_currency=USD,
        starting_balances=[Money(market.initial_cash, USD)],
        default_leverage=Decimal(20),
        fee_model=MakerTakerFeeModel(),
        bar_execution=False,
        trade_execution=True,
    )
    engine.add_instrument(instrument)
    engine.add_data(venue_data(bars, instrument, bar_type))
    strategy = _Recorded(trader, instrument, bar_type, bars.frequency, symbol=bars.symbol, since=since, seed=seed)
    engine.add_strategy(strategy)
    engine.run()
    engine.dispose()
    times = np.array(strategy.times, dtype="int64").astype("datetime64[ns]")
    return VenueResult(times, np.array(strategy.curve), strategy.fills)


def stock(symbol: str, *, taker_fee_bps: float, venue: str = "SIM") -> Any:
    """An instrument that is traded in whole units with this fee; the provider of test instruments has none."""
    name, fee = Symbol(symbol), Decimal(str(taker_fee_bps)) / 10_000
    return Equity(
        instrument_id=InstrumentId(name, Venue(venue)),
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


def venue_data(bars: Bars, instrument: Any, bar_type: Any) -> list[Any]:
    """Bars stamped at their closes, each after a trade at its open."""
    plenty, length = Quantity.from_int(PLENTY), bars.frequency.bar_ns
    data: list[Any] = []
    for i, start in enumerate(bars.time.astype("int64").tolist()):
        first, end = start + TICK_AFTER_OPEN, start + length
        opened = Price(bars.open[i], DIGITS)
        data.append(TradeTick(instrument.id, opened, plenty, AggressorSide.NO_AGGRESSOR, TradeId(str(i)), first, first))
        prices = (Price(values[i], DIGITS) for values in (bars.open, bars.high, bars.low, bars.close))
        data.append(Bar(bar_type, *prices, Quantity(bars.volume[i], 0), end, end))
    return data
