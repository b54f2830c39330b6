"""From target exposures to units: sizing after the costs of the orders, whole lots, orders too small to be sent.

With several assets: bounds, the gross limit, and the one equation that all orders of an account share.
"""

from __future__ import annotations

import math
from typing import Any

from tailwise.core.compiled import kernel

LOT_ROUNDING = 1e-9  # lots; a position of 5 lots must not become 4 because 5 was computed as 4.9999999999


@kernel
def whole_lots(units: float, lot: float) -> float:
    """`units` rounded towards zero to a multiple of `lot`; lot 0: as they are."""
    if lot <= 0.0:
        return units
    lots = math.floor(abs(units) / lot + LOT_ROUNDING)
    return lots * lot if units > 0.0 else -lots * lot


@kernel
def target_units(target: float, equity: float, price: float, units: float, rules: Any) -> float:
    """Units that make the exposure equal to `target` after the order's own fee, spread and slippage.

    u' price = target (equity - c |u' - u| price), solved for u'; then rounded towards zero to whole lots. Since costs
    only lower equity, |u'| never exceeds |target| equity / price.
    """
    full = equity / price  # units at an exposure of 1
    signed_rate = rules.linear if target * full > units else -rules.linear
    wanted = target * (full + signed_rate * units) / (1.0 + target * signed_rate)
    return whole_lots(wanted, rules.lot)


@kernel
def desired_units(target: float, equity: float, price: float, units: float, rules: Any) -> float:
    """Units to hold for a target exposure; `units`, the present ones, while target and exposure are within tolerance.
    A target of 0 always closes."""
    if target == 0.0:
        return 0.0
    if abs(target * equity - units * price) <= rules.tolerance * equity:
        return units
    return target_units(target, equity, price, units, rules)


@kernel
def large_enough(wanted: float, units: float, price: float, rules: Any) -> bool:
    """Whether an order from `units` to `wanted` is sent: not an empty one, nor one below the minimum that leaves a
    position."""
    if wanted == units:
        return False
    return wanted == 0.0 or not abs(wanted - units) * price < rules.minimum_notional


# ---------------------------------------------------------------------- several assets
@kernel
def limit_weights(actions: Any, lows: Any, highs: Any, gross: float, bars: Any, targets: Any) -> None:
    """targets [A] = actions [A] clipped to their bounds, 0 where the asset is not available, scaled down to `gross`.

    bars [A] ASSET_BAR: the time at whose close the decision is made.
    """
    total = 0.0
    for a in range(actions.shape[0]):
        weight = 0.0
        if bars[a].available == 1:
            weight = min(max(actions[a], lows[a]), highs[a])
        targets[a] = weight
        total += abs(weight)
    if total > gross:
        for a in range(actions.shape[0]):
            targets[a] *= gross / total


@kernel
def equity_after_orders(equity: float, holdings: Any, plans: Any, rate: float) -> float:
    """Equity E' after fee, spread and slippage of all orders: E' = E - rate x sum |w E' - n| over assets that trade.

    w are the targets of `plans`, n = units x mark what is held now. The left side minus the right is convex, piecewise
    linear and increasing in E' (rate x gross < 1/2), and not negative at E' = E; so Newton's method falls from E to
    the root along exact lines and ends, at the latest, after one line per asset.
    """
    after = equity
    for _ in range(holdings.shape[0] + 1):
        constant, slope = equity, 1.0
        for a in range(holdings.shape[0]):
            if plans[a].sends == 1:
                held = holdings[a].units * holdings[a].mark
                signed_rate = rate if plans[a].target * after > held else -rate
                constant += signed_rate * held
                slope += signed_rate * plans[a].target
        previous, after = after, constant / slope
        if after == previous:
            break
    return after


@kernel
def wants_order(target: float, held: float, equity: float, rules: Any) -> bool:
    """Whether an order is considered for a position worth `held`: outside of the tolerance, or to close it."""
    if target == 0.0:
        return held != 0.0
    return abs(target * equity - held) > rules.tolerance * equity


@kernel
def plan_orders(equity: float, holdings: Any, weights: Any, gross: float, rules: Any, plans: Any) -> tuple[int, float]:
    """Which of the assets that `plans` call tradable an order is considered for, and their targets: (how many, the
    factor by which the weights were scaled down).

    Exposure that cannot be traded now takes its part of `gross`; the other weights share what remains.
    """
    stuck, wanted = 0.0, 0.0
    for a in range(holdings.shape[0]):
        if plans[a].tradable == 1:
            wanted += abs(weights[a])
        else:
            stuck += abs(holdings[a].units) * holdings[a].mark
    scale = 1.0
    if stuck > 0.0:
        room = max(gross - stuck / equity, 0.0)
        if wanted > room:
            scale = room / wanted
    count = 0
    for a in range(holdings.shape[0]):
        plans[a].sends = 0
        if plans[a].tradable == 0:
            continue
        target = scale * weights[a]
        plans[a].target = target
        if wants_order(target, holdings[a].units * holdings[a].mark, equity, rules):
            plans[a].sends = 1
            count += 1
    return count, scale
