"""The portfolio simulator once more: one account, several assets, plain Python, decimal numbers, nothing clever.

It shares no code with the engine. Where the engine solves an equation in closed form, this file bisects; where the
engine lays assets on a table, this file asks a dictionary. Read `step` from top to bottom: that is the order of events.
The classes at the end are simulators that people really write; the tests tell them from the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from tests.market.reference import BANKRUPT, INFINITY, ONE, ZERO, Bar, Parts, Settings

BISECTIONS = 150  # halves an interval to less than fifty digits can tell


@dataclass(frozen=True)
class Asset:
    """Bars by time; decisions may want the asset from `first_valid` on."""

    bars: dict[int, Bar]
    first_valid: int
    periods_per_year: Decimal

    @property
    def last(self) -> int:
        return max(self.bars)


@dataclass
class Position:
    units: Decimal = ZERO
    entry: Decimal = ZERO
    price: Decimal = ONE  # the last price that was seen

    @property
    def value(self) -> Decimal:
        return self.units * self.price


@dataclass
class PortfolioResult:
    parts: Parts
    equity: Decimal
    units: list[Decimal]
    orders: list[Decimal]
    events: list[str]
    reward: Decimal
    terminated: bool
    shortfall: Decimal
    margin_call: bool
    guards: frozenset[str]


class PortfolioReference:
    """An account that starts flat at the close of clock time `first`."""

    def __init__(
        self,
        assets: Sequence[Asset],
        settings: Settings,
        clock_per_year: Decimal,
        bounds: Sequence[tuple[Decimal, Decimal]],
        gross: Decimal,
        first: int = 0,
    ) -> None:
        self.assets, self.settings, self.clock_per_year = assets, settings, clock_per_year
        self.bounds, self.gross = bounds, gross
        self.clock = sorted({time for asset in assets for time in asset.bars})  # the union of all times
        self.t = first
        self.cash = self.last_equity = settings.initial_cash
        self.positions = [Position() for _ in assets]
        for position, asset in zip(self.positions, assets, strict=True):
            seen = [time for time in asset.bars if time <= self.clock[first]]
            if seen:
                position.price = asset.bars[max(seen)].close
        self.waiting = [[ZERO] * len(assets) for _ in range(settings.latency)]
        self.narrowest = INFINITY  # smallest relative distance between two numbers that were compared

    # ------------------------------------------------------------------ one step
    def step(self, weights: Sequence[Decimal]) -> PortfolioResult:
        """Decide `weights` at the close of clock time t, live until the close of clock time t+1."""
        s, now, then = self.settings, self.clock[self.t], self.clock[self.t + 1]
        everyone = range(len(self.assets))
        before = [asset.bars.get(now) for asset in self.assets]
        bars = [asset.bars.get(then) for asset in self.assets]
        self.parts, self.margin_call = Parts(), False
        self.orders, self.events = [ZERO for _ in everyone], ["none" for _ in everyone]
        self.acted: set[str] = set()  # guards that changed something in this step
        equity_before = self.last_equity
        self.waiting.append(self.limited(weights, now))
        due = self.waiting.pop(0)

        # 1. Positions live through the gap until the moment of the fill.
        tradable = bars if s.fill_at_open else before
        if s.fill_at_open:
            for a in everyone:
                self.move_price(a, bars[a], "open")
                self.receive_dividend(a, bars[a])

        # 2. A margin call comes first and cancels all orders; else they are filled.
        self.before_fill(equity_before)
        if self.called():
            self.liquidate(tradable, {a: self.positions[a].price for a in everyone})
        else:
            self.fill(due, tradable)
        self.after_fill(equity_before)

        # 3. One bar of financing on what is held now.
        self.finance(bars)
        if not s.fill_at_open:
            for a in everyone:
                self.receive_dividend(a, bars[a])

        # 4. Inside the bar: forced and resting exits.
        for a in everyone:
            self.move_price(a, bars[a], "open")
        self.exits(bars)

        # 5. Mark to market at the close; a history that ends is settled there.
        for a in everyone:
            self.move_price(a, bars[a], "close")
            bar = bars[a]
            if bar is not None and then == self.assets[a].last != self.clock[-1] and self.positions[a].units != 0:
                self.leave(a, "settlement", bar.close, bar)
        self.last_equity = self.equity()
        self.after_mark()
        self.t += 1
        floor = BANKRUPT * s.initial_cash
        return PortfolioResult(
            parts=self.parts,
            equity=self.last_equity,
            units=[position.units for position in self.positions],
            orders=self.orders,
            events=self.events,
            reward=(max(self.last_equity, floor) / equity_before).ln(),
            terminated=self.at_most(self.last_equity, floor),
            shortfall=max(floor - self.last_equity, ZERO),
            margin_call=self.margin_call,
            guards=frozenset(self.acted),
        )

    # ------------------------------------------------------------------ what guards change; see reference_guards.py
    def before_fill(self, last_equity: Decimal) -> None:
        """The moment of the fill has come."""

    def after_fill(self, last_equity: Decimal) -> None:
        """The orders of the moment have been filled."""

    def after_mark(self) -> None:
        """The equity at the close is known."""

    def within_guards(self, wanted: dict[int, Decimal], equity: Decimal, after: Decimal) -> dict[int, Decimal]:
        """Units that the guards leave of the wanted ones; equity before and after the orders."""
        return wanted

    # ------------------------------------------------------------------ the account
    def equity(self) -> Decimal:
        return self.cash + sum((position.value for position in self.positions), ZERO)

    def margin(self, values: Sequence[Decimal]) -> Decimal:
        """What equity must exceed while positions of these values are held."""
        return self.settings.maintenance * sum(map(abs, values), ZERO)

    def called(self) -> bool:
        values = [position.value for position in self.positions]
        return any(values) and self.at_most(self.equity(), self.margin(values))

    def move_price(self, a: int, bar: Bar | None, name: str) -> None:
        """The asset is worth another price now; without a bar it keeps its last one."""
        if bar is not None:
            self.move_to(a, getattr(bar, name))

    def move_to(self, a: int, price: Decimal) -> None:
        position = self.positions[a]
        self.parts.price_pnl += position.units * (price - position.price)
        position.price = price

    def receive_dividend(self, a: int, bar: Bar | None) -> None:
        if bar is not None:
            amount = self.positions[a].units * bar.dividend
            self.parts.dividends += amount
            self.cash += amount

    # ------------------------------------------------------------------ orders
    def limited(self, weights: Sequence[Decimal], now: int) -> list[Decimal]:
        """Clipped, 0 outside the asset's history, then scaled down to the gross limit."""
        allowed = []
        for weight, (low, high), asset in zip(weights, self.bounds, self.assets, strict=True):
            over = now >= asset.last != self.clock[-1]
            allowed.append(min(max(weight, low), high) if now >= asset.first_valid and not over else ZERO)
        total = sum(map(abs, allowed), ZERO)
        return [weight * self.gross / total for weight in allowed] if total > self.gross else allowed

    def fill(self, weights: Sequence[Decimal], tradable: Sequence[Bar | None]) -> None:
        s, equity = self.settings, self.equity()
        can = [a for a in range(len(weights)) if tradable[a] is not None]
        stuck = sum((abs(p.value) for a, p in enumerate(self.positions) if a not in can), ZERO)
        wanted = sum((abs(weights[a]) for a in can), ZERO)
        scale = self.scale(equity, stuck, wanted)
        targets = {}
        for a in can:
            target, value = weights[a] * scale, self.positions[a].value
            if target == 0 or not self.at_most(abs(target - value / equity), s.tolerance):
                targets[a] = target
        after = self.equity_after(equity, targets)
        units_of = {a: self.whole_lots(target * after / self.positions[a].price) for a, target in targets.items()}
        for a, units in self.within_guards(units_of, equity, after).items():
            position, bar = self.positions[a], tradable[a]
            assert bar is not None
            traded = units - position.units
            if units != 0 and not self.at_most(s.minimum_notional, abs(traded) * position.price):
                continue
            self.orders[a] = traded
            if traded != 0:
                self.trade(a, traded, position.price, bar.volume)

    def whole_lots(self, units: Decimal) -> Decimal:
        if self.settings.lot == 0 or units % self.settings.lot == 0:
            return units
        lots = abs(units) / self.settings.lot + Decimal("1e-9")
        self.compared(lots, lots.to_integral_value())
        return int(lots) * self.settings.lot * (1 if units > 0 else -1)

    def scale(self, equity: Decimal, stuck: Decimal, wanted: Decimal) -> Decimal:
        """What the weights are multiplied with, because exposure that cannot be traded uses up the gross limit."""
        room = self.room(equity, stuck)
        return room / wanted if wanted > room and stuck > 0 else ONE

    def room(self, equity: Decimal, stuck: Decimal) -> Decimal:
        return max(self.gross - stuck / equity, ZERO)

    def equity_after(self, equity: Decimal, targets: dict[int, Decimal]) -> Decimal:
        """The equity E' that is left when all orders have paid fee, spread and slippage on their way to target x E'."""
        s = self.settings
        rate = s.taker + s.half_spread + s.slippage

        def too_high(after: Decimal) -> bool:
            costs = sum((rate * abs(target * after - self.positions[a].value) for a, target in targets.items()), ZERO)
            return after > equity - costs

        return bisect(too_high, ZERO, equity)

    def trade(self, a: int, units: Decimal, price: Decimal, volume: Decimal, *, resting: bool = False) -> None:
        position = self.positions[a]
        costs = self.settings.order_costs(units, price, volume, resting=resting)
        for name, cost in costs.items():
            setattr(self.parts, name, getattr(self.parts, name) + cost)
        self.cash -= units * price + sum(costs.values(), ZERO)
        before, after = position.units, position.units + units
        if after == 0:
            position.entry = ZERO
        elif before * after <= 0:
            position.entry = price
        elif abs(after) > abs(before):
            position.entry = (before * position.entry + units * price) / after
        position.units = after

    # ------------------------------------------------------------------ financing
    def finance(self, bars: Sequence[Bar | None]) -> None:
        """Borrow and funding by the asset, where it has a bar; interest by the account."""
        s = self.settings
        shorts = ZERO
        for asset, position, bar in zip(self.assets, self.positions, bars, strict=True):
            short = max(-position.value, ZERO)
            shorts += short
            if bar is not None:
                self.parts.borrow += short * s.borrow / asset.periods_per_year
                self.parts.funding += position.value * (bar.funding + s.funding)
        own_cash = self.cash - shorts
        self.parts.interest += self.interest_rate(own_cash) * own_cash / self.clock_per_year
        self.cash += self.parts.interest - self.parts.borrow - self.parts.funding

    def interest_rate(self, own_cash: Decimal) -> Decimal:
        return self.settings.cash_rate if own_cash > 0 else self.settings.loan

    # ------------------------------------------------------------------ exits
    def leave(self, a: int, event: str, price: Decimal, bar: Bar) -> None:
        units = self.positions[a].units
        self.move_to(a, price)
        self.trade(a, -units, price, bar.volume, resting=event == "take_profit")
        self.events[a] = event

    def liquidate(self, bars: Sequence[Bar | None], prices: dict[int, Decimal]) -> None:
        """Everything that has a bar is closed; each pays the penalty."""
        self.margin_call = True
        for a, bar in enumerate(bars):
            units = self.positions[a].units
            if bar is None or units == 0:
                continue
            self.leave(a, "liquidation", prices[a], bar)
            penalty = abs(units) * prices[a] * self.settings.liquidation
            self.parts.liquidation += penalty
            self.cash -= penalty

    def exits(self, bars: Sequence[Bar | None]) -> None:
        """The open, then the way of all prices together to their adverse extremes, then the favourable extremes."""
        opens = {a: self.positions[a].price for a in range(len(bars))}
        if self.called():
            self.liquidate(bars, opens)
            return
        held = {a: bar for a, bar in enumerate(bars) if bar is not None and self.positions[a].units != 0}
        levels = {a: self.levels(a) for a in held}
        for a, bar in held.items():
            stop, profit = levels[a]
            if self.beyond(a, bar.open, stop):
                self.leave(a, "stop_loss", self.gapped_stop(bar.open, stop), bar)
            elif self.passed(a, bar.open, profit):
                self.leave(a, "take_profit", bar.open, bar)
        if self.fall(bars, held, levels, opens):
            return
        for a, bar in held.items():
            favourable = bar.high if self.positions[a].units > 0 else bar.low
            if self.positions[a].units != 0 and self.passed(a, favourable, levels[a][1]):
                self.leave(a, "take_profit", levels[a][1], bar)

    def fall(
        self,
        bars: Sequence[Bar | None],
        held: dict[int, Bar],
        levels: dict[int, tuple[Decimal, Decimal]],
        opens: dict[int, Decimal],
    ) -> bool:
        """Move from the opens (moment 0) to the adverse extremes (moment 1); True when a margin call ends it."""
        extremes = dict(opens)
        for a, bar in held.items():
            extremes[a] = self.extreme(a, bar)
        stops: dict[int, Decimal] = {}
        for a in held:
            if self.positions[a].units != 0 and self.beyond(a, extremes[a], levels[a][0]):
                stops[a] = (levels[a][0] - opens[a]) / (extremes[a] - opens[a])
        moment = ZERO
        while True:
            call = self.moment_of_call(opens, extremes, moment)
            first = min(stops, key=lambda a: stops[a], default=None)
            if call is not None and (first is None or self.at_most(call, stops[first])):
                self.liquidate(bars, self.prices_at(call, opens, extremes))
                return True
            if first is None:
                return False
            moment = stops.pop(first)
            self.leave(first, "stop_loss", levels[first][0], held[first])

    def extreme(self, a: int, bar: Bar) -> Decimal:
        return bar.low if self.positions[a].units > 0 else bar.high

    def prices_at(self, moment: Decimal, opens: dict[int, Decimal], ends: dict[int, Decimal]) -> dict[int, Decimal]:
        return {a: opens[a] + moment * (ends[a] - opens[a]) for a in opens}

    def moment_of_call(
        self, opens: dict[int, Decimal], extremes: dict[int, Decimal], earliest: Decimal
    ) -> Decimal | None:
        """When equity meets the maintenance margin on the way, not before `earliest`; None when it does not."""

        def equity_and_margin(moment: Decimal) -> tuple[Decimal, Decimal]:
            prices = self.prices_at(moment, opens, extremes)
            values = [position.units * prices[a] for a, position in enumerate(self.positions)]
            return self.cash + sum(values, ZERO), self.margin(values)

        if all(position.units == 0 for position in self.positions) or not self.at_most(*equity_and_margin(ONE)):
            return None

        def called(moment: Decimal) -> bool:
            equity, margin = equity_and_margin(moment)
            return equity <= margin

        return earliest if self.at_most(*equity_and_margin(earliest)) else bisect(called, earliest, ONE)

    def levels(self, a: int) -> tuple[Decimal, Decimal]:
        s, position = self.settings, self.positions[a]
        sign = ONE if position.units > 0 else -ONE
        return position.entry * (1 - sign * s.stop_loss), position.entry * (1 + sign * s.take_profit)

    def beyond(self, a: int, price: Decimal, level: Decimal) -> bool:
        """Reached, in the direction that loses."""
        return self.at_most(price, level) if self.positions[a].units > 0 else self.at_most(level, price)

    def passed(self, a: int, price: Decimal, level: Decimal) -> bool:
        """Passed, in the direction that wins."""
        return not (self.at_most(price, level) if self.positions[a].units > 0 else self.at_most(level, price))

    def gapped_stop(self, open_: Decimal, stop: Decimal) -> Decimal:
        return open_

    # ------------------------------------------------------------------ comparisons
    def at_most(self, left: Decimal, right: Decimal) -> bool:
        """left <= right, remembering how close the call was: floats may decide a tie the other way."""
        self.compared(left, right)
        return left <= right

    def compared(self, left: Decimal, right: Decimal) -> None:
        if left.is_finite() and right.is_finite() and max(abs(left), abs(right)) > 0:
            self.narrowest = min(self.narrowest, abs(left - right) / max(abs(left), abs(right)))


def bisect(right_of: Callable[[Decimal], bool], low: Decimal, high: Decimal) -> Decimal:
    """The point in [low, high] from which on `right_of` holds."""
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if right_of(middle):
            high = middle
        else:
            low = middle
    return high
