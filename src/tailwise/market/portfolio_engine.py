"""One account with several assets: its decision, its bar and its observation; `engine.py` has the loop over accounts.

The order of events is that of one asset, with one cash and one margin for all; docs/portfolio.md has the rules.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tailwise.core.compiled import kernel
from tailwise.market.accounting import (
    clear_components,
    close_holding,
    equity_and_notional,
    fill_asset_order,
    finance_account,
    pay_dividends,
    revalue,
)
from tailwise.market.guard_arrays import EXPOSURE
from tailwise.market.guards import (
    begin_guard,
    enter_day,
    halt_weights,
    hold_back,
    limit_exposure,
    limit_orders,
    turnover_share,
    watch_losses,
)
from tailwise.market.orders import (
    equity_after_orders,
    force_exits,
    large_enough,
    limit_weights,
    liquidate,
    plan_orders,
    whole_lots,
)
from tailwise.market.records import BANKRUPT, NO_EVENT, SETTLEMENT

_HALF_HELD = 20.0  # bars after which `bars_held` reaches one half, as in engine.py


class PortfolioArrays(NamedTuple):
    """What the kernels need of accounts with A assets beyond what those with one asset have.

    holdings      [N, A] HOLDING
    low, high     float64 [A], bounds of the weights; gross: largest sum of their absolute values
    clock_year    step of the clock, years
    weights       float64 [A] and
    plans         [A] PLAN: scratch
    fills         [N, A] ASSET_LEDGER, or [1, A] without `report`
    """

    holdings: npt.NDArray[Any]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    gross: float
    clock_year: float
    weights: npt.NDArray[np.float64]
    plans: npt.NDArray[Any]
    fills: npt.NDArray[Any]


@kernel
def fill_orders(
    account: Any, ledger: Any, fills: Any, tradable: Any, rules: Any, guards: Any, portfolio: Any, i: int
) -> None:
    """Trade towards the weights at the marks, where the asset has a bar, the order is large enough and guards let it
    pass."""
    holdings, weights, plans, gross = portfolio.holdings[i], portfolio.weights, portfolio.plans, portfolio.gross
    equity, _ = equity_and_notional(account, holdings)
    for a in range(holdings.shape[0]):
        plans[a].tradable = tradable[a].present
    if guards is not None:
        guard, limits, row = guards.states[i], guards.limits[0], account.row
        ledger.guard |= halt_weights(weights, holdings, equity, guard, limits)
        # With fills at the close no bar opens: the last complete one is asked twice.
        opening = guards.flags[row + 1] if rules.fill_at_open == 1 else guards.flags[row]
        ledger.guard |= hold_back(weights, holdings, guards.flags[row], opening, equity, rules, plans)
        gross = min(gross, limits.exposure)
    count, scale = plan_orders(equity, holdings, weights, gross, rules, plans)
    if guards is not None and scale < 1.0 and gross < portfolio.gross:
        ledger.guard |= EXPOSURE
    if guards is not None and guards.states[i].halted != 0:
        for a in range(holdings.shape[0]):  # held by a halt, exactly; sizing would trade the last bit
            if plans[a].target == holdings[a].units * holdings[a].mark / equity:
                plans[a].sends = 0
    if count == 0:
        return
    after = equity_after_orders(equity, holdings, plans, rules.linear)
    for a in range(holdings.shape[0]):
        if plans[a].sends == 1:
            plans[a].wanted = whole_lots(plans[a].target * after / holdings[a].mark, rules.lot)
    if guards is not None and (guards.states[i].halted == 0 or guards.limits[0].closes_on_halt == 0):
        largest = gross * after
        ledger.guard |= limit_orders(holdings, plans, equity, largest, guards.states[i], guards.limits[0], rules.lot)
    for a in range(holdings.shape[0]):
        holding, wanted = holdings[a], plans[a].wanted
        if plans[a].sends == 1 and large_enough(wanted, holding.units, holding.mark, rules):
            if guards is not None:
                guards.states[i].turnover += abs(wanted - holding.units) * holding.mark
            fill_asset_order(account, holding, ledger, fills[a], wanted, tradable[a].volume, rules)


@kernel
def clear_portfolio(ledger: Any, fills: Any, equity: float) -> None:
    """Start the records of a step."""
    clear_components(ledger, equity)
    ledger.margin_call = 0
    ledger.guard = 0
    for a in range(fills.shape[0]):
        fills[a].order_units = 0.0
        fills[a].order_price = 0.0
        fills[a].exit_units = 0.0
        fills[a].exit_price = 0.0
        fills[a].event = NO_EVENT


@kernel
def mark_at_close(account: Any, holdings: Any, ledger: Any, fills: Any, bars: Any, rules: Any) -> None:
    """Mark everything at its close; positions in assets whose history ends here are settled there."""
    for a in range(holdings.shape[0]):
        holding, bar = holdings[a], bars[a]
        if bar.present == 1:
            if holding.units != 0.0:
                revalue(holding, ledger, bar.close)
                if bar.ends == 1:
                    close_holding(account, holding, ledger, fills[a], SETTLEMENT, bar.close, bar.volume, rules)
                else:
                    holding.held += 1
            holding.mark = bar.close
        fills[a].units = holding.units


@kernel
def exit_notional(fills: Any) -> float:
    """Notional of all exits of the step so far; an asset has at most one."""
    total = 0.0
    for a in range(fills.shape[0]):
        total += abs(fills[a].exit_units) * fills[a].exit_price
    return total


@kernel
def advance_portfolio(
    account: Any, ledger: Any, fills: Any, table: Any, rules: Any, guards: Any, portfolio: Any, i: int
) -> None:
    """Move account `i` through the next row of `table` [T, A], with the weights that are due now."""
    holdings, plans = portfolio.holdings[i], portfolio.plans
    before, bars = table[account.row], table[account.row + 1]
    equity_before = account.equity
    at_open = rules.fill_at_open == 1
    tradable = bars if at_open else before
    if at_open:
        for a in range(holdings.shape[0]):
            if bars[a].present == 1:
                revalue(holdings[a], ledger, bars[a].open)
        pay_dividends(account, holdings, ledger, bars)
    # A margin call comes before the orders, which it cancels: nobody trades out of a call for free.
    equity, notional = equity_and_notional(account, holdings)
    if guards is not None:
        if at_open:
            enter_day(guards.states[i], guards.days[account.row + 1], equity_before)
        watch_losses(guards.states[i], equity, account.peak, guards.limits[0])
    if notional > 0.0 and equity <= rules.maintenance * notional:
        liquidate(account, holdings, ledger, fills, tradable, plans, 0.0, rules)
    else:
        fill_orders(account, ledger, fills, tradable, rules, guards, portfolio, i)
    exited = 0.0
    if guards is not None:  # with fills at the close the order still belonged to the day before
        exited = exit_notional(fills)
        guards.states[i].turnover += exited
        enter_day(guards.states[i], guards.days[account.row + 1], equity_before)
    finance_account(account, holdings, ledger, bars, portfolio.clock_year, rules)
    if not at_open:
        pay_dividends(account, holdings, ledger, bars)
    force_exits(account, holdings, ledger, fills, bars, plans, rules)
    mark_at_close(account, holdings, ledger, fills, bars, rules)
    account.equity, _ = equity_and_notional(account, holdings)
    account.peak = max(account.peak, account.equity)
    if guards is not None:
        guards.states[i].turnover += exit_notional(fills) - exited
        watch_losses(guards.states[i], account.equity, account.peak, guards.limits[0])
    account.row += 1
    account.age += 1
    ledger.equity = account.equity
    ledger.row = account.row


@kernel
def begin_portfolio(
    account: Any, pending: Any, row: int, last_row: int, table: Any, rules: Any, guards: Any, portfolio: Any, i: int
) -> None:
    """Start an episode at the close of `row` of `table` [T, A]: flat, with the initial cash; pending [latency, A]
    weights are 0."""
    account.row = row
    account.last_row = last_row
    account.age = 0
    account.cash = rules.initial_cash
    account.equity = rules.initial_cash
    account.peak = rules.initial_cash
    account.start_equity = rules.initial_cash
    for a in range(portfolio.weights.shape[0]):
        holding = portfolio.holdings[i, a]
        holding.held = 0
        holding.units = 0.0
        holding.entry = 0.0
        holding.mark = table[row, a].close
        holding.cash = 0.0
        for k in range(pending.shape[0]):
            pending[k, a] = 0.0
    if guards is not None:
        begin_guard(guards.states[i], guards.days[row], rules.initial_cash)


@kernel
def observe_portfolio(
    account: Any, pending: Any, table: Any, features: Any, guards: Any, portfolio: Any, i: int, out: Any
) -> None:
    """Write one observation [A F + 5 A + 3 + latency A (+ guards)]; table [T, A] and features [T, A F].
    `accounts.observation_names` names the entries."""
    row = account.row
    at = features.shape[1]
    for k in range(at):
        out[k] = features[row, k]
    equity = max(account.equity, BANKRUPT * account.start_equity)  # the last observation of a ruined account is finite
    gross = 0.0
    for a in range(table.shape[1]):
        holding, bar = portfolio.holdings[i, a], table[row, a]
        exposure = holding.units * holding.mark / equity
        gross += abs(exposure)
        gain = holding.mark / holding.entry - 1.0 if holding.units != 0.0 else 0.0
        out[at] = exposure
        out[at + 1] = gain if holding.units > 0.0 else -gain
        out[at + 2] = holding.held / (holding.held + _HALF_HELD)
        out[at + 3] = bar.available
        out[at + 4] = bar.present
        at += 5
    out[at] = gross
    out[at + 1] = account.cash / equity
    out[at + 2] = 1.0 - equity / account.peak
    at += 3
    for k in range(pending.shape[0]):
        for a in range(table.shape[1]):
            out[at] = pending[k, a]
            at += 1
    if guards is not None:
        guard = guards.states[i]
        for a in range(table.shape[1]):
            out[at] = 1.0 if guard.halted != 0 or guards.flags[row, a] != 0 else 0.0
            at += 1
        if out.shape[0] > at:  # only with a limit on turnover
            out[at] = turnover_share(guard, guards.limits[0], guards.fill_days[row])


@kernel
def queue_weights(pending: Any, weights: Any) -> None:
    """Exchange the newest weights [A] for the oldest that wait in pending [latency, A]."""
    latency = pending.shape[0]
    for a in range(weights.shape[0]):
        newest = weights[a]
        weights[a] = pending[0, a]
        for k in range(latency - 1):
            pending[k, a] = pending[k + 1, a]
        pending[latency - 1, a] = newest


@kernel
def decide_weights(actions: Any, account: Any, ledger: Any, table: Any, guards: Any, portfolio: Any, i: int) -> None:
    """Write into `portfolio.weights` what bounds and guards leave of actions [A] at the close just seen."""
    weights = portfolio.weights
    limit_weights(actions, portfolio.low, portfolio.high, portfolio.gross, table[account.row], weights)
    if guards is not None:
        equity = max(account.equity, BANKRUPT * account.start_equity)
        ledger.guard |= limit_exposure(weights, guards.limits[0])
        ledger.guard |= halt_weights(weights, portfolio.holdings[i], equity, guards.states[i], guards.limits[0])
