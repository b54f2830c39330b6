"""From a target exposure to units: sizing after the order's own costs, whole lots, orders too small to be sent."""

from __future__ import annotations

import math
from typing import Any

from tailwise.core.compiled import kernel

LOT_ROUNDING = 1e-9  # lots; a position of 5 lots must not become 4 because 5 was computed as 4.9999999999


@kernel
def target_units(target: float, equity: float, price: float, units: float, rules: Any) -> float:
    """Units that make the exposure equal to `target` after the order's own fee, spread and slippage.

    u' price = target (equity - c |u' - u| price), solved for u'; then rounded towards zero to whole lots. Since costs
    only lower equity, |u'| never exceeds |target| equity / price.
    """
    full = equity / price  # units at an exposure of 1
    signed_rate = rules.linear if target * full > units else -rules.linear
    wanted = target * (full + signed_rate * units) / (1.0 + target * signed_rate)
    if rules.lot > 0.0:
        lots = math.floor(abs(wanted) / rules.lot + LOT_ROUNDING)
        return lots * rules.lot if wanted > 0.0 else -lots * rules.lot
    return wanted


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
