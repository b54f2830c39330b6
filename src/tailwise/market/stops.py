"""Forced and resting exits inside a bar: stop-loss, take-profit and liquidation at prices that really were there.

A bar shows open, high, low and close but not their order. The open comes first, so whatever it has already passed is
filled at the open, however far beyond the level that is. For the rest the worst case is assumed: the adverse extreme
comes before the favourable one.
"""

from __future__ import annotations

from typing import Any

from tailwise.core.compiled import kernel
from tailwise.market.records import LIQUIDATION, NO_EVENT, STOP_LOSS, TAKE_PROFIT


@kernel
def liquidation_price(units: float, cash: float, maintenance: float) -> float:
    """Price at which equity is `maintenance` x notional: cash + units p = maintenance |units| p.

    A long without loan has a price of 0 or below, which no bar reaches.
    """
    if units > 0.0:
        return -cash / (units * (1.0 - maintenance))
    return -cash / (units * (1.0 + maintenance))


@kernel
def exit_in_bar(
    units: float, entry: float, cash: float, open_: float, high: float, low: float, rules: Any
) -> tuple[int, float]:
    """(event, price before costs) of the exit that this bar forces on a position; (NO_EVENT, 0) when it has none.

    A stop fires when its level is touched; a take-profit, which waits in a queue, only when its level is passed.
    Where liquidation and stop-loss would happen at the same moment it is a liquidation, which costs more.
    """
    liquidation = liquidation_price(units, cash, rules.maintenance)
    if units > 0.0:
        stop = entry * (1.0 - rules.stop_loss)
        profit = entry * (1.0 + rules.take_profit)
        if low > max(stop, liquidation) and high <= profit:  # nearly every bar: one test instead of six
            return NO_EVENT, 0.0
        if open_ <= liquidation:
            return LIQUIDATION, open_
        if open_ <= stop:
            return STOP_LOSS, open_
        if open_ > profit:
            return TAKE_PROFIT, open_
        if low <= liquidation and liquidation >= stop:
            return LIQUIDATION, liquidation
        if low <= stop:
            return STOP_LOSS, stop
        if high > profit:
            return TAKE_PROFIT, profit
        return NO_EVENT, 0.0
    stop = entry * (1.0 + rules.stop_loss)
    profit = entry * (1.0 - rules.take_profit)
    if high < min(stop, liquidation) and low >= profit:
        return NO_EVENT, 0.0
    if open_ >= liquidation:
        return LIQUIDATION, open_
    if open_ >= stop:
        return STOP_LOSS, open_
    if open_ < profit:
        return TAKE_PROFIT, open_
    if high >= liquidation and liquidation <= stop:
        return LIQUIDATION, liquidation
    if high >= stop:
        return STOP_LOSS, stop
    if low < profit:
        return TAKE_PROFIT, profit
    return NO_EVENT, 0.0
