"""From target exposures to orders, and exits that a bar forces on a position.

Orders are sized after their own costs, in whole lots; those that are too small are not sent. With several assets the
bounds, the gross limit and one equation that all orders of an account share are added.

Exits are stop-loss, take-profit and liquidation at prices that really were there. A bar shows open, high, low and close
but not their order. The open comes first, so whatever it has already passed is filled at the open, however far beyond
the level that is. For the rest the worst case is assumed: the adverse extreme comes before the favourable one.

With several assets that share a margin it is not known either which of them moved first. The worst case is assumed:
from the open on, all positions move together, in proportion, to their adverse extremes; after that come the favourable
ones. `moment` in [0, 1] is how far on the way to the adverse extremes the bar is.
"""

from __future__ import annotations

import math
from typing import Any

from tailwise.core.compiled import kernel
from tailwise.market.accounting import close_holding, revalue
from tailwise.market.records import LIQUIDATION, NO_EVENT, STOP_LOSS, TAKE_PROFIT

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


# ---------------------------------------------------------------------- exits inside a bar
_NEVER = 2.0  # a moment that no bar reaches


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


# ---------------------------------------------------------------------- several assets
@kernel
def plan_exits(holdings: Any, bars: Any, rules: Any, plans: Any) -> bool:
    """Value what is held at the open and find the exit that the stops of each asset alone ask for; any at all?

    The margin is left out by giving every position endless cash: `exit_in_bar` then knows stops only.
    """
    busy = False
    for a in range(holdings.shape[0]):
        plan, bar, units = plans[a], bars[a], holdings[a].units
        plan.event = NO_EVENT
        if units == 0.0 or bar.present == 0:
            plan.adverse = holdings[a].mark
            continue
        plan.adverse = bar.low if units > 0.0 else bar.high
        event, price = exit_in_bar(units, holdings[a].entry, math.inf, bar.open, bar.high, bar.low, rules)
        if event != NO_EVENT:
            busy = True
            plan.event = event
            plan.price = price
            plan.moment = 0.0
            if event == STOP_LOSS and price != bar.open:
                plan.moment = (price - bar.open) / (plan.adverse - bar.open)
    return busy


@kernel
def slack(account: Any, holdings: Any, plans: Any, worst: bool, maintenance: float) -> float:
    """Equity minus maintenance margin, at the marks or with every asset at its adverse extreme; at most 0: a call."""
    total = account.cash
    for a in range(holdings.shape[0]):
        units = holdings[a].units
        if units != 0.0:
            total += (units - maintenance * abs(units)) * (plans[a].adverse if worst else holdings[a].mark)
    return total


@kernel
def holds_anything(holdings: Any) -> bool:
    count = 0
    for a in range(holdings.shape[0]):
        count += holdings[a].units != 0.0
    return count > 0


@kernel
def liquidate(
    account: Any, holdings: Any, ledger: Any, records: Any, bars: Any, plans: Any, moment: float, rules: Any
) -> None:
    """Close all that can be traded, `moment` of the way from the marks to the adverse extremes; an asset without a bar
    keeps its position until it has one."""
    ledger.margin_call = 1
    for a in range(holdings.shape[0]):
        holding = holdings[a]
        if holding.units != 0.0 and bars[a].present == 1:
            price = holding.mark
            if moment > 0.0:
                price += moment * (plans[a].adverse - price)
            close_holding(account, holding, ledger, records[a], LIQUIDATION, price, bars[a].volume, rules)


@kernel
def next_stop(holdings: Any, plans: Any) -> int:
    """The asset whose stop-loss is reached first, -1 for none."""
    first = -1
    for a in range(holdings.shape[0]):
        waits = holdings[a].units != 0.0 and plans[a].event == STOP_LOSS
        if waits and (first < 0 or plans[a].moment < plans[first].moment):
            first = a
    return first


@kernel
def fall_to_extremes(account: Any, holdings: Any, ledger: Any, records: Any, bars: Any, plans: Any, rules: Any) -> bool:
    """All positions move from their opens to their adverse extremes; stops fire on the way, and a margin call, if the
    account meets one, ends it: True. Equity minus margin is linear and falling between two stops."""
    now = 0.0
    while True:
        stop = next_stop(holdings, plans)
        call = _NEVER
        worst = slack(account, holdings, plans, True, rules.maintenance)
        if worst <= 0.0 and holds_anything(holdings):
            at_open = slack(account, holdings, plans, False, rules.maintenance)
            call = max(min(at_open / (at_open - worst), 1.0), now) if at_open > 0.0 else now
        if call != _NEVER and (stop < 0 or call <= plans[stop].moment):
            liquidate(account, holdings, ledger, records, bars, plans, call, rules)
            return True
        if stop < 0:
            return False
        plan = plans[stop]
        now = plan.moment
        close_holding(account, holdings[stop], ledger, records[stop], STOP_LOSS, plan.price, bars[stop].volume, rules)


@kernel
def force_exits(account: Any, holdings: Any, ledger: Any, records: Any, bars: Any, plans: Any, rules: Any) -> None:
    """Everything that the bar forces on the positions between its open and its close. Order: docs/portfolio.md."""
    for a in range(holdings.shape[0]):
        if bars[a].present == 1:
            revalue(holdings[a], ledger, bars[a].open)
    if not holds_anything(holdings):
        return
    busy = plan_exits(holdings, bars, rules, plans)
    if not busy and slack(account, holdings, plans, True, rules.maintenance) > 0.0:
        return  # nearly every bar
    if slack(account, holdings, plans, False, rules.maintenance) <= 0.0:
        liquidate(account, holdings, ledger, records, bars, plans, 0.0, rules)
        return
    for a in range(holdings.shape[0]):
        plan = plans[a]
        if plan.event != NO_EVENT and plan.price == bars[a].open:
            close_holding(account, holdings[a], ledger, records[a], plan.event, plan.price, bars[a].volume, rules)
    if fall_to_extremes(account, holdings, ledger, records, bars, plans, rules):
        return
    for a in range(holdings.shape[0]):
        if holdings[a].units != 0.0 and plans[a].event == TAKE_PROFIT:
            close_holding(account, holdings[a], ledger, records[a], TAKE_PROFIT, plans[a].price, bars[a].volume, rules)
