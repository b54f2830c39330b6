"""From weights to units: bounds, the gross limit, and the one equation that all orders of an account share."""

from __future__ import annotations

import math
from typing import Any

from tailwise.core.compiled import kernel
from tailwise.market.sizes import LOT_ROUNDING


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
def whole_lots(units: float, lot: float) -> float:
    """`units` rounded towards zero to a multiple of `lot`; lot 0: as they are."""
    if lot <= 0.0:
        return units
    lots = math.floor(abs(units) / lot + LOT_ROUNDING)
    return lots * lot if units > 0.0 else -lots * lot


@kernel
def plan_orders(equity: float, holdings: Any, weights: Any, tradable: Any, gross: float, rules: Any, plans: Any) -> int:
    """Which assets an order is considered for, and their targets; returns how many.

    tradable [A] ASSET_BAR: bars of the moment of the fill. Exposure that cannot be traded now takes its part of
    `gross`; the other weights are scaled down to what remains.
    """
    stuck, wanted = 0.0, 0.0
    for a in range(holdings.shape[0]):
        if tradable[a].present == 1:
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
        if tradable[a].present == 0:
            continue
        target = scale * weights[a]
        plans[a].target = target
        held = holdings[a].units * holdings[a].mark
        if target == 0.0:
            sends = held != 0.0  # closing is always possible
        else:
            sends = abs(target * equity - held) > rules.tolerance * equity
        if sends:
            plans[a].sends = 1
            count += 1
    return count
