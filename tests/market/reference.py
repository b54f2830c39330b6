"""The market simulator once more: one account, plain Python, decimal numbers, nothing clever.

It is the specification in executable form and shares no code with the engine. Read `step` from top to bottom: that is
the order of events. `wrong_simulators.py` overrides single methods to get simulators that people really write; the
tests assert that each of them is told apart from the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal, getcontext
from typing import Any

getcontext().prec = 50

ZERO, ONE, BPS = Decimal(0), Decimal(1), Decimal("1e-4")
INFINITY = Decimal("Infinity")
BANKRUPT = Decimal("0.01")


def exact(value: float) -> Decimal:
    """The decimal number that this float is, without rounding."""
    return Decimal(float(value))


@dataclass(frozen=True)
class Bar:
    open: Decimal
    high: Decimal
    low: Decimal
    close: Decimal
    volume: Decimal
    dividend: Decimal = ZERO
    funding: Decimal = ZERO


@dataclass(frozen=True)
class Settings:
    """All amounts as fractions (not bps), annual rates as annual rates."""

    taker: Decimal = ZERO
    maker: Decimal = ZERO
    half_spread: Decimal = ZERO
    slippage: Decimal = ZERO
    impact: Decimal = ZERO
    borrow: Decimal = ZERO
    loan: Decimal = ZERO
    cash_rate: Decimal = ZERO
    funding: Decimal = ZERO
    liquidation: Decimal = ZERO
    periods_per_year: Decimal = Decimal(252)
    latency: int = 0
    lot: Decimal = ZERO
    minimum_notional: Decimal = ZERO
    tolerance: Decimal = ZERO
    fill_at_open: bool = True
    stop_loss: Decimal = INFINITY
    take_profit: Decimal = INFINITY
    maintenance: Decimal = Decimal("0.25")
    initial_cash: Decimal = Decimal(100_000)

    def order_costs(self, units: Decimal, price: Decimal, volume: Decimal, *, resting: bool) -> dict[str, Decimal]:
        """What trading `units` costs, by name; an order that rests in the book pays the maker's fee alone."""
        notional = abs(units) * price
        if resting:
            return {"fee": notional * self.maker}
        participation = abs(units) / volume if volume > 0 else ONE
        return {
            "fee": notional * self.taker,
            "spread": notional * self.half_spread,
            "slippage": notional * self.slippage,
            "impact": notional * self.impact * participation.sqrt(),
        }


@dataclass
class Parts:
    """Everything that changed equity in one step."""

    price_pnl: Decimal = ZERO
    fee: Decimal = ZERO
    spread: Decimal = ZERO
    slippage: Decimal = ZERO
    impact: Decimal = ZERO
    borrow: Decimal = ZERO
    funding: Decimal = ZERO
    liquidation: Decimal = ZERO
    interest: Decimal = ZERO
    dividends: Decimal = ZERO

    def change_of_equity(self) -> Decimal:
        gains = self.price_pnl + self.interest + self.dividends
        trading = self.fee + self.spread + self.slippage + self.impact + self.liquidation
        return gains - trading - self.borrow - self.funding


@dataclass
class Result:
    parts: Parts
    equity: Decimal
    units: Decimal
    reward: Decimal
    terminated: bool
    shortfall: Decimal
    event: str
    order_units: Decimal
    guards: frozenset[str] = frozenset()  # those that changed a target or an order


@dataclass
class Reference:
    """An account that starts flat at the close of bars[first]."""

    bars: Sequence[Bar]
    settings: Settings
    first: int = 0
    cash: Decimal = ZERO
    units: Decimal = ZERO
    entry: Decimal = ZERO
    equity: Decimal = ZERO
    t: int = 0
    waiting: list[Decimal] = field(default_factory=list)
    narrowest: Decimal = INFINITY  # smallest relative distance between two numbers that were compared
    acted: set[str] = field(default_factory=set)  # guards that changed something in this step

    def __post_init__(self) -> None:
        self.cash = self.equity = self.settings.initial_cash
        self.t = self.first
        self.waiting = [ZERO] * self.settings.latency

    # ------------------------------------------------------------------ one step
    def step(self, target: Decimal) -> Result:
        """Decide `target` (a multiple of equity) at the close of bar t, live until the close of bar t+1."""
        s, before, bar = self.settings, self.bars[self.t], self.bars[self.t + 1]
        parts, event, order = Parts(), "none", ZERO
        equity_before = self.equity
        self.acted = set()
        self.waiting.append(self.decided(target))
        due = self.waiting.pop(0)

        # 1. The position lives through the gap until the moment of the fill.
        price, volume = self.fill_price_and_volume(before, bar)
        parts.price_pnl += self.units * (price - before.close)
        if s.fill_at_open:
            self.receive_dividend(bar, parts)

        # 2. A margin call comes first and cancels the order; else the order is filled.
        equity_now = self.cash + self.units * price
        self.before_fill(equity_before, equity_now)
        if self.units != 0 and self.at_most(equity_now, s.maintenance * abs(self.units) * price):
            self.liquidate(price, volume, parts)
            event = "liquidation"
        else:
            order = self.order(due, equity_now, price)
            if order != 0:
                self.trade(order, price, volume, parts)

        self.after_fill(equity_before)

        # 3. One bar of financing on what is held now.
        self.finance(price, bar, parts)
        if not s.fill_at_open:
            self.receive_dividend(bar, parts)

        # 4. Inside the bar: forced and resting exits.
        exit_event, exit_price = self.exit_inside(bar)
        if exit_event != "none":
            event = exit_event
            parts.price_pnl += self.units * (exit_price - price)
            if event == "liquidation":
                self.liquidate(exit_price, bar.volume, parts)
            else:
                self.trade(-self.units, exit_price, bar.volume, parts, resting=event == "take_profit")

        # 5. Mark to market at the close.
        parts.price_pnl += self.units * (bar.close - price)
        self.equity = self.mark(bar)
        self.t += 1
        self.after_mark()
        floor = BANKRUPT * s.initial_cash
        ruined = self.at_most(self.equity, floor)
        reward = (max(self.equity, floor) / equity_before).ln()
        shortfall = max(floor - self.equity, ZERO)
        return Result(parts, self.equity, self.units, reward, ruined, shortfall, event, order, frozenset(self.acted))

    # ------------------------------------------------------------------ where guards stand, if there are any
    def decided(self, target: Decimal) -> Decimal:
        return target

    def before_fill(self, last_equity: Decimal, equity: Decimal) -> None:
        return

    def after_fill(self, last_equity: Decimal) -> None:
        return

    def after_mark(self) -> None:
        return

    # ------------------------------------------------------------------ the pieces
    def fill_price_and_volume(self, before: Bar, bar: Bar) -> tuple[Decimal, Decimal]:
        return (bar.open, bar.volume) if self.settings.fill_at_open else (before.close, before.volume)

    def receive_dividend(self, bar: Bar, parts: Parts) -> None:
        parts.dividends += self.units * bar.dividend
        self.cash += self.units * bar.dividend

    def order(self, target: Decimal, equity: Decimal, price: Decimal) -> Decimal:
        """Signed units to trade so that the exposure is `target` after fee, spread and slippage of this order."""
        wanted = self.wanted_units(target, equity, price)
        return wanted - self.units if self.is_sent(wanted, price) else ZERO

    def wanted_units(self, target: Decimal, equity: Decimal, price: Decimal) -> Decimal:
        s = self.settings
        if target == 0:
            return ZERO
        if self.at_most(abs(target - self.units * price / equity), s.tolerance):
            return self.units
        # wanted * price = target * (equity - rate * |wanted - units| * price); buying and selling apart:
        rate = s.taker + s.half_spread + s.slippage
        if target * equity / price > self.units:
            wanted = target * (equity / price + rate * self.units) / (1 + target * rate)
        else:
            wanted = target * (equity / price - rate * self.units) / (1 - target * rate)
        return self.whole_lots(wanted)

    def whole_lots(self, units: Decimal) -> Decimal:
        """Rounded towards zero."""
        lot = self.settings.lot
        if lot == 0 or units % lot == 0:
            return units
        lots = abs(units) / lot + Decimal("1e-9")
        self.compared(lots, lots.to_integral_value())
        return int(lots) * lot * (1 if units > 0 else -1)

    def is_sent(self, wanted: Decimal, price: Decimal) -> bool:
        if wanted == 0 or wanted == self.units:
            return wanted != self.units
        return self.at_most(self.settings.minimum_notional, abs(wanted - self.units) * price)

    def trade(self, units: Decimal, price: Decimal, volume: Decimal, parts: Parts, *, resting: bool = False) -> None:
        costs = self.settings.order_costs(units, price, volume, resting=resting)
        for name, cost in costs.items():
            setattr(parts, name, getattr(parts, name) + cost)
        self.cash -= units * price
        self.pay(sum(costs.values(), ZERO))
        before, after = self.units, self.units + units
        if after == 0:
            self.entry = ZERO
        elif before * after <= 0:
            self.entry = price
        elif abs(after) > abs(before):
            self.entry = (before * self.entry + units * price) / after
        self.units = after

    def pay(self, cost: Decimal) -> None:
        self.cash -= cost

    def liquidate(self, price: Decimal, volume: Decimal, parts: Parts) -> None:
        penalty = abs(self.units) * price * self.settings.liquidation
        self.trade(-self.units, price, volume, parts)
        parts.liquidation += penalty
        self.cash -= penalty

    def finance(self, price: Decimal, bar: Bar, parts: Parts) -> None:
        s = self.settings
        year = 1 / s.periods_per_year
        short = max(-self.units, ZERO) * price
        own_cash = self.cash - short
        parts.borrow += short * s.borrow * year
        parts.funding += self.units * price * (bar.funding + s.funding)
        parts.interest += own_cash * (s.cash_rate if own_cash > 0 else s.loan) * year
        self.cash += parts.interest - parts.borrow - parts.funding

    def exit_inside(self, bar: Bar) -> tuple[str, Decimal]:
        """First the open, then the worst case: adverse levels before the take-profit."""
        s = self.settings
        if self.units == 0:
            return "none", ZERO
        long = self.units > 0
        sign = ONE if long else -ONE
        stop = self.entry * (1 - sign * s.stop_loss)
        profit = self.entry * (1 + sign * s.take_profit)
        margin_call = -self.cash / (self.units * (1 - sign * s.maintenance))
        adverse, favourable = (bar.low, bar.high) if long else (bar.high, bar.low)

        def reached(price: Decimal, level: Decimal) -> bool:  # in the adverse direction
            return self.at_most(price, level) if long else self.at_most(level, price)

        def passed(price: Decimal, level: Decimal) -> bool:  # in the favourable direction
            return not (self.at_most(price, level) if long else self.at_most(level, price))

        if reached(bar.open, margin_call):
            return "liquidation", bar.open
        if reached(bar.open, stop):
            return "stop_loss", self.price_of_gapped_stop(bar.open, stop)
        if passed(bar.open, profit):
            return "take_profit", bar.open
        down = self.adverse_exit(adverse, stop, margin_call, reached)
        up = ("take_profit", profit) if passed(favourable, profit) else ("none", ZERO)
        return self.first_of(down, up)

    def adverse_exit(self, extreme: Decimal, stop: Decimal, margin_call: Decimal, reached: Any) -> tuple[str, Decimal]:
        nearer_is_margin_call = margin_call >= stop if self.units > 0 else margin_call <= stop
        if nearer_is_margin_call and reached(extreme, margin_call):
            return "liquidation", margin_call
        if reached(extreme, stop):
            return "stop_loss", stop
        return "none", ZERO

    def first_of(self, down: tuple[str, Decimal], up: tuple[str, Decimal]) -> tuple[str, Decimal]:
        return down if down[0] != "none" else up

    def price_of_gapped_stop(self, open_: Decimal, stop: Decimal) -> Decimal:
        return open_

    def mark(self, bar: Bar) -> Decimal:
        return self.cash + self.units * bar.close

    # ------------------------------------------------------------------ comparisons
    def at_most(self, left: Decimal, right: Decimal) -> bool:
        """left <= right, remembering how close the call was: floats may decide a tie the other way."""
        self.compared(left, right)
        return left <= right

    def compared(self, left: Decimal, right: Decimal, scale: Decimal = ZERO) -> None:
        """Remember how close a call was; `scale`: of the numbers whose difference one side is, and which may cancel."""
        size = max(abs(left), abs(right), scale)
        if left.is_finite() and right.is_finite() and size > 0:
            self.narrowest = min(self.narrowest, abs(left - right) / size)
