"""Forced and resting exits inside a bar: stop-loss, take-profit and liquidation at prices that really were there.

A bar shows open, high, low and close but not their order. The open comes first, so whatever it has already passed is
filled at the open, however far beyond the level that is. For the rest the worst case is assumed: the adverse extreme
comes before the favourable one.

With several assets that share a margin it is not known either which of them moved first. The worst case is assumed:
from the open on, all positions move together, in proportion, to their adverse extremes; after that come the favourable
ones. `moment` in [0, 1] is how far on the way to the adverse extremes the bar is.
"""

from __future__ import annotations

import math
from typing import Any

from tailwise.core.compiled import kernel
from tailwise.market.accounting import leave_asset, revalue
from tailwise.market.records import LIQUIDATION, NO_EVENT, STOP_LOSS, TAKE_PROFIT

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
            leave_asset(account, holding, ledger, records[a], LIQUIDATION, price, bars[a].volume, rules)


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
        leave_asset(account, holdings[stop], ledger, records[stop], STOP_LOSS, plan.price, bars[stop].volume, rules)


@kernel
def live_through_bar(account: Any, holdings: Any, ledger: Any, records: Any, bars: Any, plans: Any, rules: Any) -> None:
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
            leave_asset(account, holdings[a], ledger, records[a], plan.event, plan.price, bars[a].volume, rules)
    if fall_to_extremes(account, holdings, ledger, records, bars, plans, rules):
        return
    for a in range(holdings.shape[0]):
        if holdings[a].units != 0.0 and plans[a].event == TAKE_PROFIT:
            leave_asset(account, holdings[a], ledger, records[a], TAKE_PROFIT, plans[a].price, bars[a].volume, rules)
