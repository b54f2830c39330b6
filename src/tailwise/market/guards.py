"""Guards: limits between a policy and its orders, the same compiled functions in training, backtest and paper trading.

They act twice. At the decision (`guard_bounds`) a target is brought into the interval that the limits leave, at the
prices of the close just seen; that interval is also the action mask. At the fill (`guarded_order`) the order itself is
limited at the price it gets, which is what counts. docs/guards.md tells what each guard does.

In an account with several assets, exposure and halts act on the decision (`limit_exposure`, `halt_weights`), turnover
and the sizes of orders, which the assets share, on the fill (`limit_orders`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.market.guard_arrays import (
    ABSURD_BAR,
    DAILY_LOSS,
    DRAWDOWN,
    EXPOSURE,
    KNOWN_AT_OPEN,
    ORDER_SIZE,
    STALE_BAR,
    STALE_OPEN,
    TURNOVER,
)
from tailwise.market.orders import LOT_ROUNDING, desired_units, large_enough, wants_order

_DUST = 1e-9  # of equity; what rounding leaves of a turnover that is used up is not worth an order


# ---------------------------------------------------------------------- what is remembered
@kernel
def begin_guard(guard: Any, day: int, equity: float) -> None:
    guard.day = day
    guard.halted = 0
    guard.day_equity = equity
    guard.turnover = 0.0


@kernel
def enter_day(guard: Any, day: int, equity: float) -> None:
    """`equity` is that of the last close. On a new day turnover is free again and a daily loss is forgotten."""
    if day != guard.day:
        guard.day = day
        guard.day_equity = equity
        guard.turnover = 0.0
        guard.halted &= DRAWDOWN


@kernel
def watch_losses(guard: Any, equity: float, peak: float, limits: Any) -> None:
    """Halt at a loss that has reached its limit."""
    if equity <= guard.day_equity * (1.0 - limits.daily_loss):
        guard.halted |= DAILY_LOSS
    if equity <= peak * (1.0 - limits.drawdown):
        guard.halted |= DRAWDOWN


# ---------------------------------------------------------------------- what is allowed
@kernel
def bar_code(last_flags: int, open_flags: int) -> int:
    """Guards that forbid an order now: `last_flags` of the last complete bar, `open_flags` of the bar that opens."""
    flags = last_flags | (open_flags & KNOWN_AT_OPEN)
    if flags == 0:
        return 0
    code = STALE_BAR if flags & STALE_OPEN else 0
    return code | ABSURD_BAR if flags & ~STALE_OPEN else code


@kernel
def risk_bounds(target: float, exposure: float, halted: int, limits: Any) -> tuple[float, float, int]:
    """(low, high, code): target exposures that the exposure limit and the halts leave, and who cuts `target`."""
    code = EXPOSURE if abs(target) > limits.exposure else 0
    low, high = -limits.exposure, limits.exposure
    if halted != 0:
        aim = min(max(target, low), high)
        floor, ceiling = (0.0, 0.0) if limits.closes_on_halt == 1 else (min(exposure, 0.0), max(exposure, 0.0))
        if aim < floor or aim > ceiling:
            code |= halted
        low, high = max(low, floor), min(high, ceiling)
    return low, high, code


@kernel
def largest_order(equity: float, price: float, limits: Any) -> float:
    """Units that one order may have."""
    return min(limits.units, min(limits.notional, limits.fraction * equity) / price)


@kernel
def turnover_share(guard: Any, limits: Any, fill_day: int) -> float:
    """Fraction of the day's turnover that is left to an order that should be filled on `fill_day`."""
    if fill_day != guard.day:
        return 1.0
    return turnover_left(guard, limits) / (limits.turnover * guard.day_equity)


@kernel
def turnover_left(guard: Any, limits: Any) -> float:
    """Notional that may still be traded on the guard's day, account currency."""
    return max(limits.turnover * guard.day_equity - guard.turnover, 0.0)


@kernel
def inside(low: float, high: float, floor: float, ceiling: float) -> tuple[float, float]:
    """[low, high] cut to [floor, ceiling]; the end of the latter that is nearest when they do not meet."""
    return min(max(low, floor), ceiling), max(min(high, ceiling), floor)


@kernel
def guard_bounds(
    target: float,
    exposure: float,
    equity: float,
    close: float,
    guard: Any,
    limits: Any,
    flags: int,
    same_day: bool,
    immediate: bool,
) -> tuple[float, float, int]:
    """(low, high, code) at a decision: targets that will pass as far as the close can tell, and who cuts `target`.

    exposure = units x close / equity. `flags` of the bar just closed. same_day: the order should be filled on the
    guard's day, whose turnover counts. immediate: no latency, so the order will meet today's position; otherwise only
    the exposure limit and the halts can be said now, and the fill does the rest. The bar's own flags are left to the
    fill as well, which forgets the order altogether: low = high = exposure here, and no code.
    """
    if immediate and flags != 0:
        return exposure, exposure, 0
    low, high, code = risk_bounds(target, exposure, guard.halted, limits)
    if not immediate or (guard.halted != 0 and limits.closes_on_halt == 1):
        return low, high, code
    aim = min(max(target, low), high)
    if same_day:
        left = turnover_left(guard, limits) / equity
        # Reducing is free. Beyond zero the other side opens, and the way to zero has used up turnover.
        floor = -max(left - exposure, 0.0) if exposure >= 0.0 else exposure - left
        ceiling = max(left + exposure, 0.0) if exposure <= 0.0 else exposure + left
        if aim < floor or aim > ceiling:
            code |= TURNOVER
        low, high = inside(low, high, floor, ceiling)
        aim = min(max(aim, low), high)
    reach = largest_order(equity, close, limits) * close / equity
    if abs(aim - exposure) > reach:
        code |= ORDER_SIZE
    low, high = inside(low, high, exposure - reach, exposure + reach)
    return low, high, code


@kernel
def cut_order(wanted: float, units: float, size: float, equity: float, price: float, lot: float) -> float:
    """Units to hold after an order of `size` units from `units` towards `wanted`, in whole lots; dust is not traded."""
    sign = 1.0 if wanted > units else -1.0
    if lot > 0.0:
        lots = math.floor(size / lot + LOT_ROUNDING)
        return float(np.rint(units / lot) + sign * lots) * lot
    if size * price <= _DUST * equity:
        return units
    return units + sign * size


@kernel
def limited_units(
    wanted: float, units: float, equity: float, price: float, guard: Any, limits: Any, lot: float
) -> tuple[float, int]:
    """(units to hold, code): the order from `units` to `wanted` cut to the turnover left and to the largest order."""
    size = abs(wanted - units)
    code = 0
    reducing = min(size, abs(units)) if (wanted - units) * units < 0.0 else 0.0
    left = max(turnover_left(guard, limits) / price, reducing)
    if size > left:
        size = left
        code = TURNOVER
    largest = largest_order(equity, price, limits)
    if size > largest:
        size = largest
        code |= ORDER_SIZE
    if code == 0:
        return wanted, 0
    return cut_order(wanted, units, size, equity, price, lot), code


@kernel
def guarded_order(
    target: float, units: float, equity: float, price: float, guard: Any, limits: Any, bar_guards: int, rules: Any
) -> tuple[float, int]:
    """(units to hold, code) for a target exposure at the moment of the fill; equity at this price, before the order.

    bar_guards: what `bar_code` says of the bars. A flattening order is as large as it must be; every other order, also
    one that reduces, keeps the size limits. Nothing is sent on a stale or absurd bar.
    """
    exposure = units * price / equity
    low, high, code = risk_bounds(target, exposure, guard.halted, limits)
    aim = min(max(target, low), high)
    flatten = guard.halted != 0 and limits.closes_on_halt == 1
    if aim == exposure and not flatten:
        return units, code  # held by a halt, exactly; sizing would trade the last bit
    wanted = desired_units(aim, equity, price, units, rules)
    if wanted != units and not flatten:
        wanted, cut = limited_units(wanted, units, equity, price, guard, limits, rules.lot)
        code |= cut
    if not large_enough(wanted, units, price, rules):
        return units, code
    if bar_guards != 0:
        return units, code | bar_guards
    return wanted, code


# ---------------------------------------------------------------------- several assets
@kernel
def limit_exposure(weights: Any, limits: Any) -> int:
    """Bring weights [A] of a decision under the exposure limit, all by one factor; returns who did."""
    total = 0.0
    for a in range(weights.shape[0]):
        total += abs(weights[a])
    if total <= limits.exposure:
        return 0
    for a in range(weights.shape[0]):
        weights[a] *= limits.exposure / total
    return EXPOSURE


@kernel
def halt_weights(weights: Any, holdings: Any, equity: float, guard: Any, limits: Any) -> int:
    """Bring weights [A] into what the halts leave of each asset; returns who did. equity: at the marks of holdings."""
    code = 0
    for a in range(weights.shape[0]):
        exposure = holdings[a].units * holdings[a].mark / equity
        low, high, cut = risk_bounds(weights[a], exposure, guard.halted, limits)
        code |= cut & guard.halted  # the exposure limit is one for all assets together
        weights[a] = min(max(weights[a], low), high)
    return code


@kernel
def hold_back(
    weights: Any, holdings: Any, last_flags: Any, open_flags: Any, equity: float, rules: Any, plans: Any
) -> int:
    """Take assets [A] with stale or absurd bars out of `plans`; returns the guards of those that wanted an order.

    last_flags and open_flags int8 [A]: of the last complete bars, and of the bars that open.
    """
    code = 0
    for a in range(weights.shape[0]):
        if plans[a].tradable == 0:
            continue
        bar_guards = bar_code(last_flags[a], open_flags[a])
        if bar_guards == 0:
            continue
        plans[a].tradable = 0
        held = holdings[a].units * holdings[a].mark
        if weights[a] != held / equity and wants_order(weights[a], held, equity, rules):
            code |= bar_guards
    return code


@kernel
def limit_orders(
    holdings: Any, plans: Any, equity: float, largest_sum: float, guard: Any, limits: Any, lot: float
) -> int:
    """Cut the orders of `plans` [A] to the largest order each and to the turnover that they share; returns who cut.

    The part of an order that reduces a position is limited by the size alone. The parts that add risk share what the
    reductions leave of the turnover, all by one factor. Where the size held a reduction back, they also share what is
    left of `largest_sum`, account currency: else an account that moves from one asset to another would be invested
    twice. equity: before the orders.
    """
    code = 0
    reduced, added, kept = 0.0, 0.0, 0.0  # notionals; kept: of positions after their reductions
    held_back = False
    for a in range(holdings.shape[0]):
        plan, units, price = plans[a], holdings[a].units, holdings[a].mark
        kept += abs(units) * price
        if plan.sends == 0:
            continue
        size = abs(plan.wanted - units)
        reducing = min(size, abs(units)) if (plan.wanted - units) * units < 0.0 else 0.0
        largest = largest_order(equity, price, limits)
        plan.cut = 0
        if size > largest:
            code |= ORDER_SIZE
            plan.cut = 1
        if reducing > largest:
            held_back = True
        plan.reducing = min(reducing, largest)
        plan.adding = min(size - reducing, largest - plan.reducing)
        reduced += plan.reducing * price
        added += plan.adding * price
    share = 1.0
    room = max(turnover_left(guard, limits) - reduced, 0.0)
    if added > room:
        code |= TURNOVER
        share = room / added
    if held_back and share * added > max(largest_sum - (kept - reduced), 0.0):
        share = max(largest_sum - (kept - reduced), 0.0) / added
    for a in range(holdings.shape[0]):
        plan = plans[a]
        if plan.sends == 1 and (plan.cut == 1 or (share < 1.0 and plan.adding > 0.0)):
            size = plan.reducing + share * plan.adding
            plan.wanted = cut_order(plan.wanted, holdings[a].units, size, equity, holdings[a].mark, lot)
    return code
