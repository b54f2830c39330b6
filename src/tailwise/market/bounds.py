"""What may be chosen next: the action mask of `positions` and the per-step [low, high] of `exposure`.

The venue bounds (margin, smallest order) and the guards are kept apart, because the engine itself applies the guards to
every target and counts what they change.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.market.costs import CostConfig
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.guards import guard_bounds, inside, risk_bounds
from tailwise.market.records import BANKRUPT

_MARGIN_AT_REACH = 0.5  # of 1 / maintenance; up to it an order would have to cost half of the equity to be liquidated
_BISECTIONS = 40


def margin_can_bind(config: MarketEnvConfig, costs: CostConfig) -> bool:
    """Whether impact, the one cost that sizing cannot foresee exactly, could carry an allowed exposure into a margin
    call."""
    return costs.impact_bps > 0 and config.action.largest * config.maintenance_margin > _MARGIN_AT_REACH


@kernel
def can_be_held(target: float, exposure: float, equity: float, close: float, volume: float, rules: Any) -> bool:
    """Whether equity exceeds the maintenance margin after an order from `exposure` to `target`, all costs paid."""
    traded = abs(target - exposure)  # as a multiple of equity
    participation = traded * equity / (close * volume) if volume > 0.0 else 1.0
    linear = rules.linear * traded
    left = 1.0 - linear - rules.impact * traded * math.sqrt(participation)
    return left > rules.maintenance * abs(target) * (1.0 - linear)


@kernel
def furthest_held(end: float, exposure: float, equity: float, close: float, volume: float, rules: Any) -> float:
    """The target between 0 and `end`, as near to `end` as margin allows."""
    if can_be_held(end, exposure, equity, close, volume, rules):
        return end
    held, lost = 0.0, 1.0  # fractions of `end`
    for _ in range(_BISECTIONS):
        middle = 0.5 * (held + lost)
        if can_be_held(middle * end, exposure, equity, close, volume, rules):
            held = middle
        else:
            lost = middle
    return held * end


@kernel
def venue_bounds(account: Any, bar: Any, low: float, high: float, rules: Any) -> tuple[float, float]:
    """[low, high] cut to what margin and the smallest order leave at the close of `bar`, with its volume.

    An end that is worth less than one lot or one order is as good as 0, or as the present exposure if that is beyond 0.
    """
    close = bar.close
    equity = max(account.equity, BANKRUPT * account.start_equity)
    exposure = account.units * close / equity
    high = furthest_held(high, exposure, equity, close, bar.volume, rules)
    low = min(furthest_held(low, exposure, equity, close, bar.volume, rules), high)
    smallest = max(rules.lot * close, rules.minimum_notional)
    if high > 0.0 and high * equity < smallest:
        high = min(high, max(exposure, 0.0))
    if low < 0.0 and -low * equity < smallest:
        low = max(low, min(exposure, 0.0))
    return min(low, high), high


@kernel
def venue_bounds_of_accounts(accounts: Any, bars: Any, low: float, high: float, rules_array: Any, bounds: Any) -> None:
    """bounds float64 [N, 2] of the next decision, without guards."""
    for i in range(accounts.shape[0]):
        account = accounts[i]
        bounds[i, 0], bounds[i, 1] = venue_bounds(account, bars[account.row], low, high, rules_array[0])


@kernel
def guard_bounds_of(account: Any, bars: Any, guards: Any, i: int, immediate: bool) -> tuple[float, float]:
    """[low, high] that the guards leave of the next decision of account `i`."""
    row = account.row
    close = bars[row].close
    equity = max(account.equity, BANKRUPT * account.start_equity)
    guard = guards.states[i]
    low, high, _ = guard_bounds(
        0.0,
        account.units * close / equity,
        equity,
        close,
        guard,
        guards.limits[0],
        guards.flags[row],
        guards.fill_days[row] == guard.day,
        immediate,
    )
    return low, high


@kernel
def guard_bounds_of_accounts(accounts: Any, bars: Any, guards: Any, immediate: bool, bounds: Any) -> None:
    """Cut bounds float64 [N, 2] to what the guards leave of the next decision; guards win where nothing is left."""
    for i in range(accounts.shape[0]):
        floor, ceiling = guard_bounds_of(accounts[i], bars, guards, i, immediate)
        bounds[i, 0], bounds[i, 1] = inside(bounds[i, 0], bounds[i, 1], floor, ceiling)


@kernel
def guard_bounds_of_portfolios(accounts: Any, holdings: Any, guards: Any, immediate: bool, bounds: Any) -> None:
    """Cut bounds float64 [N, A, 2] to what exposure limit, halts and ignored bars leave of the next decision."""
    for i in range(accounts.shape[0]):
        account, guard = accounts[i], guards.states[i]
        equity = max(account.equity, BANKRUPT * account.start_equity)
        for a in range(holdings.shape[1]):
            exposure = holdings[i, a].units * holdings[i, a].mark / equity
            floor, ceiling, _ = risk_bounds(0.0, exposure, guard.halted, guards.limits[0])
            if immediate and guards.flags[account.row, a] != 0:
                floor, ceiling = exposure, exposure
            bounds[i, a, 0], bounds[i, a, 1] = inside(bounds[i, a, 0], bounds[i, a, 1], floor, ceiling)


@kernel
def allow_positions(
    positions: Any,
    equity: float,
    close: float,
    exposure: float,
    low: float,
    high: float,
    hold: bool,
    rules: Any,
    mask: Any,
) -> None:
    """mask int8 [K]: 1 where a target of positions [K] is worth at least one lot and one order and lies in [low, high].

    The target nearest to the present exposure, brought into [low, high], stays allowed when nothing else is, and always
    with `hold`: it is how one keeps a position that guards forbid to enlarge.
    """
    anchor = min(max(exposure, low), high)
    nearest = 0
    some = False
    for k in range(positions.shape[0]):
        notional = abs(positions[k]) * equity
        traded = positions[k] == 0.0 or (notional >= rules.lot * close and notional >= rules.minimum_notional)
        allowed = traded and low <= positions[k] <= high
        mask[k] = 1 if allowed else 0
        some = some or allowed
        if abs(positions[k] - anchor) < abs(positions[nearest] - anchor):
            nearest = k
    if hold or not some:
        mask[nearest] = 1


@kernel
def mask_positions(
    accounts: Any, bars: Any, positions: Any, rules_array: Any, guards: Any, immediate: bool, mask: Any
) -> None:
    """Action mask int8 [N, K] of the next decision; `guards` is None or a `GuardArrays`."""
    rules = rules_array[0]
    for i in range(accounts.shape[0]):
        account = accounts[i]
        close = bars[account.row].close
        equity = max(account.equity, BANKRUPT * account.start_equity)
        exposure = account.units * close / equity
        low, high = -np.inf, np.inf
        if guards is not None:
            low, high = guard_bounds_of(account, bars, guards, i, immediate)
        allow_positions(positions, equity, close, exposure, low, high, guards is not None, rules, mask[i])
