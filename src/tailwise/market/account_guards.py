"""The guards of one live account: the functions of guards.py and guard_arrays.py, fed with one bar after the other.

The order of calls is that of the simulator (docs/guards.md): `open_bar`, `order`, `filled` for every fill, `close_bar`,
`decision`. Amounts that are easily mistaken for one another have types of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

import numpy as np

from tailwise.core.errors import ConfigError, DataError
from tailwise.market.costs import CostConfig
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.guard_arrays import (
    BAR_MEMORY,
    DAY_NS,
    GUARD,
    GUARDS,
    check_bar,
    check_open,
    guard_names,
    make_bar_limits,
    make_limits,
)
from tailwise.market.guards import bar_code, begin_guard, enter_day, guard_bounds, guarded_order, watch_losses
from tailwise.market.records import make_rules

Units = NewType("Units", float)  # shares, coins, contracts; negative: sold
Lots = NewType("Lots", float)  # multiples of the lot size
Money = NewType("Money", float)  # account currency
Exposure = NewType("Exposure", float)  # position or target as a multiple of equity


@dataclass(frozen=True)
class GuardedTarget:
    """A decision as the guards leave it: `target` within [low, high], and the names of the guards that changed it."""

    target: Exposure
    low: Exposure
    high: Exposure
    guards: tuple[str, ...]


@dataclass(frozen=True)
class GuardedOrder:
    """An order as the guards leave it; 0 units: none. `lot_size` in units, 0 where any amount can be traded."""

    units: Units
    price: Money
    lot_size: Units
    guards: tuple[str, ...]

    @property
    def notional(self) -> Money:
        return Money(abs(self.units) * self.price)

    @property
    def lots(self) -> Lots:
        if self.lot_size == 0.0:
            raise ConfigError("This account has no lot size (costs.lot_size is 0), so an order has no number of lots.")
        return Lots(float(np.rint(self.units / self.lot_size)))


class AccountGuards:
    """What the guards of one account remember. Live orders are filled at the open that follows the decision."""

    def __init__(
        self,
        config: MarketEnvConfig,
        costs: CostConfig,
        *,
        bar: np.timedelta64,
        time: np.datetime64,
        equity: Money,
    ) -> None:
        """bar: length of a bar; time and equity: now."""
        if config.fill != "next_open":
            raise ConfigError(f"env.fill is '{config.fill}'; a live order can only be filled at 'next_open'.")
        self._bar_ns = int(bar.astype("timedelta64[ns]").astype(np.int64))
        self._immediate = costs.latency == 0
        self._rules = make_rules(config, costs)[0]
        self._limits = make_limits(config.guards)[0]
        self._bar_limits = make_bar_limits(config.guards, self._bar_ns)[0]
        self._memory = np.zeros(1, dtype=BAR_MEMORY)
        self._state = np.zeros(1, dtype=GUARD)
        self._last_flags = self._open_flags = 0
        self._expected_day = 0
        self.counts = dict.fromkeys(GUARDS, 0)
        begin_guard(self._state[0], _nanoseconds(time) // DAY_NS, equity)

    @property
    def halted(self) -> tuple[str, ...]:
        """Which of daily_loss and drawdown forbid new risk now."""
        return guard_names(int(self._state["halted"][0]))

    def open_bar(self, time: np.datetime64, open_: float, *, last_equity: Money, equity: Money, peak: Money) -> None:
        """A bar opens. Equity at the last close and now; `peak` is the highest equity at a close so far."""
        now = _nanoseconds(time)
        if self._memory["seen"][0] and now <= self._memory["time"][0]:
            raise DataError(f"A bar opens at {time}, not after the bar before it; the feed is out of order.")
        self._open_flags = check_open(self._memory[0], now, open_, self._bar_limits)
        enter_day(self._state[0], now // DAY_NS, last_equity)
        watch_losses(self._state[0], equity, peak, self._limits)

    def order(self, target: Exposure, *, units: Units, equity: Money, price: Money) -> GuardedOrder:
        """The order for a target, at the price of its fill and the equity at that price before it."""
        stop = bar_code(self._last_flags, self._open_flags)
        wanted, code = guarded_order(target, units, equity, price, self._state[0], self._limits, stop, self._rules)
        return GuardedOrder(Units(wanted - units), price, Units(float(self._rules["lot"])), self._count(code))

    def filled(self, units: Units, price: Money) -> None:
        """An order, a stop or a liquidation was filled: it counts as turnover."""
        self._state["turnover"] += abs(units) * price

    def close_bar(
        self,
        time: np.datetime64,
        open_: float,
        high: float,
        low: float,
        close: float,
        *,
        equity: Money,
        peak: Money,
    ) -> None:
        """The bar that opened at `time` is complete. Equity at its close; `peak` includes it."""
        now = _nanoseconds(time)
        self._last_flags = check_bar(self._memory[0], now, open_, high, low, close, self._bar_limits)
        self._expected_day = (now + self._bar_ns) // DAY_NS
        watch_losses(self._state[0], equity, peak, self._limits)

    def decision(self, target: Exposure, *, units: Units, equity: Money, close: Money) -> GuardedTarget:
        """A decision at the close just seen."""
        low, high, code = guard_bounds(
            target,
            units * close / equity,
            equity,
            close,
            self._state[0],
            self._limits,
            self._last_flags,
            self._expected_day == int(self._state["day"][0]),
            self._immediate,
        )
        bounds = Exposure(low), Exposure(high)
        if self._immediate and self._last_flags != 0:
            return GuardedTarget(target, *bounds, ())  # the fill forgets the order, and counts it
        return GuardedTarget(Exposure(min(max(target, low), high)), *bounds, self._count(code))

    def _count(self, code: int) -> tuple[str, ...]:
        names = guard_names(code)
        for name in names:
            self.counts[name] += 1
        return names


def _nanoseconds(time: np.datetime64) -> int:
    return int(time.astype("datetime64[ns]").astype(np.int64))
