"""The reference simulator with guards: each of them in its plainest form, in decimal numbers, sharing no code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from tests.market.reference import BANKRUPT, INFINITY, ONE, ZERO, Bar, Parts, Reference

DUST = Decimal("1e-9")
DAY = 86_400 * 10**9


@dataclass(frozen=True)
class GuardSettings:
    """Fractions and multiples; None is off. Times in ns."""

    max_exposure: Decimal | None = None
    order_fraction: Decimal | None = None
    order_units: Decimal | None = None
    order_notional: Decimal | None = None
    daily_turnover: Decimal | None = None
    daily_loss: Decimal | None = None
    drawdown: Decimal | None = None
    flatten: bool = False
    stale_bars: Decimal | None = None
    absurd_gap: Decimal | None = None
    absurd_move: Decimal | None = None
    absurd_volatility: Decimal | None = None
    volatility_bars: int = 50
    absurd_flat_bars: int | None = None
    bar_ns: int = 0
    times: Sequence[int] = ()


@dataclass
class GuardedReference(Reference):
    guards: GuardSettings = field(default_factory=GuardSettings)
    peak: Decimal = ZERO
    day: int = 0
    day_equity: Decimal = ZERO
    turnover: Decimal = ZERO
    halted: set[str] = field(default_factory=set)
    unbelieved_at_open: list[set[str]] = field(default_factory=list)
    unbelieved: list[set[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peak = self.day_equity = self.equity
        self.day = self.day_of(self.t)
        for t, bar in enumerate(self.bars):
            self.judge(t, bar)

    def day_of(self, t: int) -> int:
        return self.guards.times[t] // DAY if self.guards.times else 0

    # ------------------------------------------------------------------ bars
    def judge(self, t: int, bar: Bar) -> None:
        """Append what is wrong with bar t, at its open and at its close."""
        g = self.guards
        at_open: set[str] = set()
        if t > 0:
            before = self.bars[t - 1]
            if g.stale_bars is not None and g.times[t] - g.times[t - 1] > g.stale_bars * g.bar_ns:
                at_open.add("stale_bar")
            if self.exceeds(abs(bar.open / before.close - 1), g.absurd_gap):
                at_open.add("absurd_bar")
        absurd = False
        if t > 0:
            absurd = self.exceeds(abs(bar.close / self.bars[t - 1].close - 1), g.absurd_move)
            absurd |= self.beyond_volatility(t)
        if g.absurd_flat_bars is not None:
            run = self.bars[max(t + 1 - g.absurd_flat_bars, 0) : t + 1]
            absurd |= len(run) == g.absurd_flat_bars and all(one.high == one.low for one in run)
        self.unbelieved_at_open.append(at_open)
        self.unbelieved.append(at_open | ({"absurd_bar"} if absurd else set()))

    def beyond_volatility(self, t: int) -> bool:
        """Play the variance again from the first bar, which is slow and cannot be wrong by what was kept."""
        g = self.guards
        if g.absurd_volatility is None:
            return False
        variance, verdict = ZERO, False
        for u in range(1, t + 1):
            size = abs((self.bars[u].close / self.bars[u - 1].close).ln())
            verdict = False
            if u - 1 >= g.volatility_bars and variance > 0:
                limit = g.absurd_volatility * variance.sqrt()
                verdict = not self.at_most(size, limit)
                size = min(size, limit)
            weight = max(Decimal(2) / (g.volatility_bars + 1), ONE / u)
            variance = (1 - weight) * variance + weight * size * size
        return verdict

    def exceeds(self, value: Decimal, limit: Decimal | None) -> bool:
        return limit is not None and not self.at_most(value, limit)

    # ------------------------------------------------------------------ decision
    def decided(self, target: Decimal) -> Decimal:
        g, immediate = self.guards, self.settings.latency == 0
        if immediate and self.unbelieved[self.t]:
            return target
        equity = max(self.equity, BANKRUPT * self.settings.initial_cash)
        close = self.bars[self.t].close
        exposure = self.units * close / equity
        target = self.without_forbidden_risk(target, exposure)
        if not immediate or (self.halted and g.flatten):
            return target
        if g.daily_turnover is not None and self.expected_day() == self.day:
            left = self.turnover_left() / equity
            if exposure >= 0:
                target = self.clip(target, "turnover", -max(left - exposure, ZERO), exposure + left, abs(exposure))
            else:
                target = self.clip(target, "turnover", exposure - left, max(left + exposure, ZERO), abs(exposure))
        reach = self.largest_order(equity, close) * close / equity
        return self.clip(target, "order_size", exposure - reach, exposure + reach, abs(exposure))

    def expected_day(self) -> int:
        if not self.settings.fill_at_open:
            return self.day_of(self.t)
        return (self.guards.times[self.t] + self.guards.bar_ns) // DAY

    def without_forbidden_risk(self, target: Decimal, exposure: Decimal) -> Decimal:
        g = self.guards
        if g.max_exposure is not None:
            target = self.clip(target, "exposure", -g.max_exposure, g.max_exposure)
        if self.halted:
            low, high = (ZERO, ZERO) if g.flatten else (min(exposure, ZERO), max(exposure, ZERO))
            if not low <= target <= high:
                self.acted |= self.halted
            target = min(max(target, low), high)
        return target

    def clip(self, value: Decimal, name: str, low: Decimal, high: Decimal, scale: Decimal = ZERO) -> Decimal:
        for bound in (low, high):
            if name not in self.acted and value != bound:
                self.compared(value, bound, scale)
        if not low <= value <= high:
            self.acted.add(name)
        return min(max(value, low), high)

    # ------------------------------------------------------------------ fill
    def before_fill(self, last_equity: Decimal, equity: Decimal) -> None:
        if self.settings.fill_at_open:
            self.enter_day(self.t + 1, last_equity)
        self.watch(equity)

    def order(self, target: Decimal, equity: Decimal, price: Decimal) -> Decimal:
        exposure = self.units * price / equity
        flatten = bool(self.halted) and self.guards.flatten
        target = self.without_forbidden_risk(target, exposure)
        if target == exposure and not flatten:
            return ZERO
        wanted = self.wanted_units(target, equity, price)
        if wanted != self.units and not flatten:
            wanted = self.within_size(wanted, equity, price)
        if not self.is_sent(wanted, price):
            return ZERO
        stop = self.unbelieved[self.t] | (self.unbelieved_at_open[self.t + 1] if self.settings.fill_at_open else set())
        self.acted |= stop
        return ZERO if stop else wanted - self.units

    def within_size(self, wanted: Decimal, equity: Decimal, price: Decimal) -> Decimal:
        """What turnover and size leave of an order; closing uses up turnover but is never stopped by it."""
        order = wanted - self.units
        size = abs(order)
        closing = min(size, abs(self.units)) if order * self.units < 0 else ZERO
        if self.guards.daily_turnover is not None:
            size = self.clip(size, "turnover", ZERO, max(self.turnover_left() / price, closing))
        size = self.clip(size, "order_size", ZERO, self.largest_order(equity, price))
        if size == abs(order):
            return wanted
        if self.settings.lot > 0:
            return self.units + self.whole_lots(size) * (1 if order > 0 else -1)
        if self.at_most(size * price, DUST * equity):
            return self.units
        return self.units + size * (1 if order > 0 else -1)

    def largest_order(self, equity: Decimal, price: Decimal) -> Decimal:
        """Units."""
        g = self.guards
        limits = [INFINITY]
        if g.order_units is not None:
            limits.append(g.order_units)
        if g.order_notional is not None:
            limits.append(g.order_notional / price)
        if g.order_fraction is not None:
            limits.append(g.order_fraction * equity / price)
        return min(limits)

    def turnover_left(self) -> Decimal:
        assert self.guards.daily_turnover is not None
        return max(self.guards.daily_turnover * self.day_equity - self.turnover, ZERO)

    def trade(self, units: Decimal, price: Decimal, volume: Decimal, parts: Parts, *, resting: bool = False) -> None:
        super().trade(units, price, volume, parts, resting=resting)
        self.turnover += abs(units) * price

    def after_fill(self, last_equity: Decimal) -> None:
        self.enter_day(self.t + 1, last_equity)

    # ------------------------------------------------------------------ days and losses
    def enter_day(self, t: int, last_equity: Decimal) -> None:
        if self.day_of(t) != self.day:
            self.day, self.day_equity, self.turnover = self.day_of(t), last_equity, ZERO
            self.halted.discard("daily_loss")

    def after_mark(self) -> None:
        self.peak = max(self.peak, self.equity)
        self.watch(self.equity)

    def watch(self, equity: Decimal) -> None:
        g = self.guards
        if g.daily_loss is not None and self.at_most(equity, self.day_equity * (1 - g.daily_loss)):
            self.halted.add("daily_loss")
        if g.drawdown is not None and self.at_most(equity, self.peak * (1 - g.drawdown)):
            self.halted.add("drawdown")
