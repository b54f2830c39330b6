"""The portfolio reference with guards: each of them in its plainest form, in decimal numbers, sharing no code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from tests.market.portfolio_reference import PortfolioReference
from tests.market.reference import BANKRUPT, INFINITY, ONE, ZERO, Bar
from tests.market.reference_guards import DAY, DUST, GuardedReference, GuardSettings


class GuardedPortfolioReference(PortfolioReference):
    """`nanoseconds` turns times of the clock into those of `guards`."""

    def __init__(self, *arguments: Any, guards: GuardSettings, nanoseconds: Callable[[int], int]) -> None:
        super().__init__(*arguments)
        self.guards, self.nanoseconds = guards, nanoseconds
        self.peak = self.day_equity = self.last_equity
        self.turnover, self.halted = ZERO, set[str]()
        self.day = self.day_of(self.t)
        # What is wrong with the bars of each asset, by time: at their opens and when they are complete.
        self.at_open: list[dict[int, set[str]]] = []
        self.complete: list[dict[int, set[str]]] = []
        for asset in self.assets:
            times = sorted(asset.bars)
            own = replace(guards, times=[nanoseconds(time) for time in times])
            judge = GuardedReference([asset.bars[time] for time in times], self.settings, guards=own)
            self.at_open.append(dict(zip(times, judge.unbelieved_at_open, strict=True)))
            self.complete.append(dict(zip(times, judge.unbelieved, strict=True)))
            self.narrowest = min(self.narrowest, judge.narrowest)

    def day_of(self, t: int) -> int:
        return self.nanoseconds(self.clock[t]) // DAY

    # ------------------------------------------------------------------ decision
    def limited(self, weights: Sequence[Decimal], now: int) -> list[Decimal]:
        """Brought under the exposure limit together, and into what a halt leaves one by one."""
        allowed = super().limited(weights, now)
        total = sum(map(abs, allowed), ZERO)
        limit = self.guards.max_exposure
        if limit is not None and not self.at_most(total, limit):
            self.acted.add("exposure")
            allowed = [weight * limit / total for weight in allowed]
        return self.halt(allowed, max(self.last_equity, BANKRUPT * self.settings.initial_cash))

    def halt(self, weights: Sequence[Decimal], equity: Decimal) -> list[Decimal]:
        if not self.halted:
            return list(weights)
        result = []
        for weight, position in zip(weights, self.positions, strict=True):
            exposure = position.value / equity
            low, high = (ZERO, ZERO) if self.guards.flatten else (min(exposure, ZERO), max(exposure, ZERO))
            result.append(min(max(weight, low), high))
            if result[-1] != weight:
                self.acted |= self.halted
        return result

    # ------------------------------------------------------------------ fill
    def fill(self, weights: Sequence[Decimal], tradable: Sequence[Bar | None]) -> None:
        equity = self.equity()
        weights = self.halt(weights, equity)
        believed: list[Bar | None] = []
        for a, bar in enumerate(tradable):
            wrong = self.wrong_with(a) if bar is not None else set()
            if wrong and self.differs(weights[a], self.positions[a].value, equity):
                self.acted |= wrong
            believed.append(None if wrong else bar)
        super().fill(weights, believed)

    def wrong_with(self, a: int) -> set[str]:
        """Of the last complete bar of the asset, and of the one that opens."""
        now, then = self.clock[self.t], self.clock[self.t + 1]
        earlier = [time for time in self.assets[a].bars if time <= now]
        wrong = set(self.complete[a][max(earlier)]) if earlier else set()
        return wrong | self.at_open[a].get(then, set()) if self.settings.fill_at_open else wrong

    def differs(self, target: Decimal, value: Decimal, equity: Decimal) -> bool:
        if target == 0:
            return value != 0
        return not self.at_most(abs(target - value / equity), self.settings.tolerance)

    def scale(self, equity: Decimal, stuck: Decimal, wanted: Decimal) -> Decimal:
        scale = super().scale(equity, stuck, wanted)
        if scale < 1 and self.most() < self.gross:
            self.acted.add("exposure")
        return scale

    def room(self, equity: Decimal, stuck: Decimal) -> Decimal:
        return max(self.most() - stuck / equity, ZERO)

    def most(self) -> Decimal:
        """Largest sum of the absolute exposures."""
        return self.gross if self.guards.max_exposure is None else min(self.gross, self.guards.max_exposure)

    def within_guards(self, wanted: dict[int, Decimal], equity: Decimal, after: Decimal) -> dict[int, Decimal]:
        if self.halted and self.guards.flatten:
            return wanted
        closing: dict[int, Decimal] = {}  # units of the orders that reduce, and of those that add
        adding: dict[int, Decimal] = {}
        held_back = False
        for a, units in wanted.items():
            position = self.positions[a]
            size = abs(units - position.units)
            towards_zero = min(size, abs(position.units)) if (units - position.units) * position.units < 0 else ZERO
            largest = self.largest_order(equity, position.price)
            # A position that one largest order has opened is closed by another: exactly equal, also in floats.
            if size != largest and not self.at_most(size, largest):
                self.acted.add("order_size")
            closing[a] = min(towards_zero, largest)
            adding[a] = min(size - towards_zero, largest - closing[a])
            held_back |= towards_zero > largest
        share = self.share_of_additions(self.notional(closing), self.notional(adding), after, held_back)
        return {a: self.cut(a, units, closing[a] + share * adding[a], equity) for a, units in wanted.items()}

    def share_of_additions(self, reduced: Decimal, added: Decimal, after: Decimal, held_back: bool) -> Decimal:
        """The factor for what adds risk: turnover after the reductions, and room where a reduction was held back."""
        share = ONE
        if self.guards.daily_turnover is not None:
            left = self.guards.daily_turnover * self.day_equity - self.turnover - reduced
            if added > 0 and not self.at_most(added, max(left, ZERO)):
                self.acted.add("turnover")
                share = max(left, ZERO) / added
        if held_back and added > 0:
            kept = sum((abs(position.value) for position in self.positions), ZERO) - reduced
            room = max(self.most() * after - kept, ZERO)
            share = min(share, room / added)
        return share

    def notional(self, units: dict[int, Decimal]) -> Decimal:
        return sum((size * self.positions[a].price for a, size in units.items()), ZERO)

    def cut(self, a: int, wanted: Decimal, size: Decimal, equity: Decimal) -> Decimal:
        """Units after an order of `size` towards `wanted`: whole lots, and no dust."""
        position = self.positions[a]
        if size == abs(wanted - position.units):
            return wanted
        if self.settings.lot > 0:
            size = self.whole_lots(size)
        elif size > 0 and self.at_most(size * position.price, DUST * equity):
            size = ZERO
        return position.units + size * (1 if wanted > position.units else -1)

    def largest_order(self, equity: Decimal, price: Decimal) -> Decimal:
        g = self.guards
        limits = [INFINITY]
        if g.order_units is not None:
            limits.append(g.order_units)
        if g.order_notional is not None:
            limits.append(g.order_notional / price)
        if g.order_fraction is not None:
            limits.append(g.order_fraction * equity / price)
        return min(limits)

    def trade(self, a: int, units: Decimal, price: Decimal, volume: Decimal, *, resting: bool = False) -> None:
        super().trade(a, units, price, volume, resting=resting)
        self.turnover += abs(units) * price

    # ------------------------------------------------------------------ days and losses
    def before_fill(self, last_equity: Decimal) -> None:
        if self.settings.fill_at_open:
            self.enter_day(last_equity)
        self.watch(self.equity())

    def after_fill(self, last_equity: Decimal) -> None:
        self.enter_day(last_equity)

    def after_mark(self) -> None:
        self.peak = max(self.peak, self.last_equity)
        self.watch(self.last_equity)

    def enter_day(self, last_equity: Decimal) -> None:
        if self.day_of(self.t + 1) != self.day:
            self.day, self.day_equity, self.turnover = self.day_of(self.t + 1), last_equity, ZERO
            self.halted.discard("daily_loss")

    def watch(self, equity: Decimal) -> None:
        g = self.guards
        if g.daily_loss is not None and self.at_most(equity, self.day_equity * (1 - g.daily_loss)):
            self.halted.add("daily_loss")
        if g.drawdown is not None and self.at_most(equity, self.peak * (1 - g.drawdown)):
            self.halted.add("drawdown")
