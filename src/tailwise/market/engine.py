"""The market's clock: N accounts advance by one bar in one compiled call. docs/market.md tells the order of events.

A decision is made at the close of bar t and sees nothing later. It is filled at the open of bar t+1 (or as declared)
and the account is marked at the close of bar t+1; the reward is the logarithm of the ratio of the two equities.

`guards` is None or a `GuardArrays`. `portfolio` is a `PortfolioArrays` for accounts with several assets and None for
one asset; `single` is None for several assets and True for one. None is a type of its own to the compiler, which leaves
out what needs something else: without guards their code is absent, and accounts with one asset have a loop of their
own. There are two arguments because nothing but a None is known when compiling.
"""

from __future__ import annotations

import math
from typing import Any

from tailwise.core.compiled import kernel
from tailwise.market.accounting import clear_components, finance, liquidation_penalty, pay_dividend, trade
from tailwise.market.guards import (
    bar_code,
    begin_guard,
    enter_day,
    guard_bounds,
    guarded_order,
    turnover_share,
    watch_losses,
)
from tailwise.market.orders import desired_units, exit_in_bar, large_enough
from tailwise.market.portfolio_engine import (
    advance_portfolio,
    begin_portfolio,
    clear_portfolio,
    decide_weights,
    observe_portfolio,
    queue_weights,
)
from tailwise.market.records import BANKRUPT, LIQUIDATION, NO_EVENT, TAKE_PROFIT

_HALF_HELD = 20.0  # bars after which `bars_held` reaches one half


@kernel
def fill_order(
    account: Any,
    ledger: Any,
    target: float,
    equity: float,
    price: float,
    volume: float,
    row: int,
    rules: Any,
    guards: Any,
    i: int,
) -> None:
    """Trade towards the target exposure at `price`, unless the order is too small to be sent or a guard forbids it."""
    units = account.units
    if guards is None:
        wanted = desired_units(target, equity, price, units, rules)
        if not large_enough(wanted, units, price, rules):
            return
    else:
        opening = guards.flags[row + 1] if rules.fill_at_open == 1 else 0
        bar_guards = bar_code(guards.flags[row], opening)
        guard, limits = guards.states[i], guards.limits[0]
        wanted, code = guarded_order(target, units, equity, price, guard, limits, bar_guards, rules)
        ledger.guard |= code
        if wanted == units:
            return
        guard.turnover += abs(wanted - units) * price
    trade(account, ledger, wanted, price, volume, rules, False)
    ledger.order_units = wanted - units
    ledger.order_price = price


@kernel
def close_position(
    account: Any, ledger: Any, event: int, price: float, volume: float, rules: Any, guards: Any, i: int
) -> None:
    """Close the position by a stop-loss, a take-profit or a liquidation, which no guard delays."""
    units = account.units
    if guards is not None:
        guards.states[i].turnover += abs(units) * price
    trade(account, ledger, 0.0, price, volume, rules, event == TAKE_PROFIT)
    if event == LIQUIDATION:
        liquidation_penalty(account, ledger, units, price, rules)
    ledger.event = event
    ledger.exit_units = -units
    ledger.exit_price = price


@kernel
def clear(ledger: Any, equity: float) -> None:
    """Start the record of a step."""
    clear_components(ledger, equity)
    ledger.order_units = 0.0
    ledger.order_price = 0.0
    ledger.exit_units = 0.0
    ledger.exit_price = 0.0
    ledger.event = NO_EVENT
    ledger.guard = 0


@kernel
def advance(account: Any, ledger: Any, target: float, bars: Any, rules: Any, guards: Any, i: int) -> None:
    """Move account `i` through the next bar, with the order that is due now."""
    row = account.row
    before, bar = bars[row], bars[row + 1]
    equity_before = account.equity
    at_open = rules.fill_at_open == 1
    if at_open:
        price, volume = bar.open, bar.volume
        ledger.price_pnl += account.units * (bar.open - before.close)
        pay_dividend(account, ledger, bar.dividend)
    else:
        price, volume = before.close, before.volume
    # A margin call comes before the policy's order, which it cancels: nobody trades out of a call for free.
    equity = account.cash + account.units * price
    if guards is not None:
        if at_open:
            enter_day(guards.states[i], guards.days[row + 1], equity_before)
        watch_losses(guards.states[i], equity, account.peak, guards.limits[0])
    if account.units != 0.0 and equity <= rules.maintenance * abs(account.units) * price:
        close_position(account, ledger, LIQUIDATION, price, volume, rules, guards, i)
    else:
        fill_order(account, ledger, target, equity, price, volume, row, rules, guards, i)
    if guards is not None:  # with fills at the close the order still belonged to the day before
        enter_day(guards.states[i], guards.days[row + 1], equity_before)
    finance(account, ledger, price, bar.funding, bar.year_fraction, rules)
    if not at_open:
        pay_dividend(account, ledger, bar.dividend)
    if account.units != 0.0:
        units = account.units
        event, exit_price = exit_in_bar(units, account.entry, account.cash, bar.open, bar.high, bar.low, rules)
        if event != NO_EVENT:
            ledger.price_pnl += units * (exit_price - price)
            close_position(account, ledger, event, exit_price, bar.volume, rules, guards, i)
        else:
            ledger.price_pnl += units * (bar.close - price)
            account.held += 1
    account.equity = account.cash + account.units * bar.close
    account.peak = max(account.peak, account.equity)
    if guards is not None:
        watch_losses(guards.states[i], account.equity, account.peak, guards.limits[0])
    account.row += 1
    account.age += 1
    ledger.equity = account.equity
    ledger.units = account.units
    ledger.row = account.row
    ledger.symbol = account.symbol


@kernel
def begin(account: Any, pending: Any, row: int, symbol: int, last_row: int, rules: Any, guards: Any, i: int) -> None:
    """Start an episode: flat, with the initial cash; `pending` [latency] orders mean "stay flat"."""
    account.row = row
    account.symbol = symbol
    account.last_row = last_row
    account.age = 0
    account.held = 0
    account.units = 0.0
    account.entry = 0.0
    account.cash = rules.initial_cash
    account.equity = rules.initial_cash
    account.peak = rules.initial_cash
    account.start_equity = rules.initial_cash
    for k in range(pending.shape[0]):
        pending[k] = 0.0
    if guards is not None:
        begin_guard(guards.states[i], guards.days[row], rules.initial_cash)


@kernel
def decide(target: float, account: Any, ledger: Any, bars: Any, guards: Any, i: int, immediate: bool) -> float:
    """The target that the guards leave of a decision at the close just seen."""
    row = account.row
    guard, flags = guards.states[i], guards.flags[row]
    if immediate and flags != 0:
        return target  # the fill will forget it
    close = bars[row].close
    equity = max(account.equity, BANKRUPT * account.start_equity)
    low, high, code = guard_bounds(
        target,
        account.units * close / equity,
        equity,
        close,
        guard,
        guards.limits[0],
        flags,
        guards.fill_days[row] == guard.day,
        immediate,
    )
    ledger.guard |= code
    return min(max(target, low), high)


@kernel
def observe(account: Any, pending: Any, bars: Any, features: Any, guards: Any, i: int, out: Any) -> None:
    """Write one observation [F + 4 + latency (+ guards)]: features of the bar just closed, the account, the waiting
    targets, the guards; `accounts.observation_names` names the entries."""
    row = account.row
    count = features.shape[1]
    for k in range(count):
        out[k] = features[row, k]
    close = bars[row].close
    equity = max(account.equity, BANKRUPT * account.start_equity)  # the last observation of a ruined account is finite
    units = account.units
    out[count] = units * close / equity
    gain = close / account.entry - 1.0 if units != 0.0 else 0.0
    out[count + 1] = gain if units > 0.0 else -gain
    out[count + 2] = account.held / (account.held + _HALF_HELD)
    out[count + 3] = 1.0 - equity / account.peak
    for k in range(pending.shape[0]):
        out[count + 4 + k] = pending[k]
    if guards is not None:
        end = count + 4 + pending.shape[0]
        guard = guards.states[i]
        out[end] = 1.0 if guard.halted != 0 or guards.flags[row] != 0 else 0.0
        if out.shape[0] > end + 1:  # only with a limit on turnover
            out[end + 1] = turnover_share(guard, guards.limits[0], guards.fill_days[row])


@kernel
def begin_account(
    account: Any,
    pending: Any,
    row: int,
    symbol: int,
    last_rows: Any,
    bars: Any,
    rules: Any,
    guards: Any,
    single: Any,
    portfolio: Any,
    i: int,
) -> None:
    """Start an episode of account `i`, with one asset or several."""
    if single is not None:
        begin(account, pending, row, symbol, last_rows[symbol], rules, guards, i)
    if portfolio is not None:
        begin_portfolio(account, pending, row, last_rows[symbol], bars, rules, guards, portfolio, i)


@kernel
def observe_account(
    account: Any, pending: Any, bars: Any, features: Any, guards: Any, single: Any, portfolio: Any, i: int, out: Any
) -> None:
    """Write the observation of account `i`, with one asset or several."""
    if single is not None:
        observe(account, pending, bars, features, guards, i, out)
    if portfolio is not None:
        observe_portfolio(account, pending, bars, features, guards, portfolio, i, out)


@kernel
def step_accounts(
    accounts: Any,
    pending: Any,
    targets: Any,
    bars: Any,
    features: Any,
    rules_array: Any,
    guards: Any,
    single: Any,
    portfolio: Any,
    last_rows: Any,
    start_rows: Any,
    start_symbols: Any,
    autoreset: bool,
    obs: Any,
    final_obs: Any,
    reward: Any,
    terminated: Any,
    truncated: Any,
    ledgers: Any,
) -> tuple[int, int]:
    """Advance all accounts by one bar; returns how many episodes ended and how many accounts used up their starts.

    One asset each: accounts [N] ACCOUNT, pending [N, latency], targets float64 [N], bars [R] BAR and features float32
    [R, F] of all symbols one after the other, ledgers [N] LEDGER. Several: accounts [N] PORTFOLIO, pending
    [N, latency, A], targets [N, A], bars [T, A] ASSET_BAR, features [T, A F], ledgers [N] PORTFOLIO_LEDGER. Both:
    last_rows int64 [S], start_rows and start_symbols int64 [N, K] (the start of episode e is in column e mod K).
    Written: obs and final_obs float32 [N, D] (final_obs only where an episode ended), reward float64 [N], terminated
    and truncated bool [N], ledgers, of which there is one without `report`.
    """
    rules = rules_array[0]
    latency = pending.shape[1]
    columns = start_rows.shape[1]
    keep = 1 if ledgers.shape[0] == accounts.shape[0] else 0
    ended = 0
    used_up = 0
    for i in range(accounts.shape[0]):
        account = accounts[i]
        ledger = ledgers[i * keep]
        if single is not None:
            due = targets[i]
            clear(ledger, account.equity)
            if guards is not None:
                due = decide(due, account, ledger, bars, guards, i, latency == 0)
            if latency > 0:
                oldest = pending[i, 0]
                for k in range(latency - 1):
                    pending[i, k] = pending[i, k + 1]
                pending[i, latency - 1] = due
                due = oldest
            advance(account, ledger, due, bars, rules, guards, i)
        if portfolio is not None:
            fills = portfolio.fills[i * keep]
            clear_portfolio(ledger, fills, account.equity)
            decide_weights(targets[i], account, ledger, bars, guards, portfolio, i)
            if latency > 0:
                queue_weights(pending[i], portfolio.weights)
            advance_portfolio(account, ledger, fills, bars, rules, guards, portfolio, i)
        if guards is not None and ledger.guard != 0:
            for k in range(guards.counts.shape[1]):
                guards.counts[i, k] += (ledger.guard >> k) & 1
        floor = BANKRUPT * account.start_equity
        ruined = account.equity <= floor
        ledger.shortfall = max(floor - account.equity, 0.0)
        reward[i] = math.log(max(account.equity, floor) / ledger.equity_before)
        over = account.row >= account.last_row or account.age >= rules.episode_length
        terminated[i] = ruined
        truncated[i] = over
        if ruined or over:
            ended += 1
            if autoreset:
                observe_account(account, pending[i], bars, features, guards, single, portfolio, i, final_obs[i])
                account.episode += 1
                column = account.episode % columns
                if column == columns - 1:
                    used_up += 1
                row, symbol = start_rows[i, column], start_symbols[i, column]
                begin_account(account, pending[i], row, symbol, last_rows, bars, rules, guards, single, portfolio, i)
        observe_account(account, pending[i], bars, features, guards, single, portfolio, i, obs[i])
    return ended, used_up


@kernel
def look_up(positions: Any, actions: Any, targets: Any) -> int:
    """targets[i] = positions[actions[i]]; returns the first i whose action is out of range, or -1."""
    count = positions.shape[0]
    for i in range(actions.shape[0]):
        action = actions[i]
        if action < 0 or action >= count:
            return i
        targets[i] = positions[action]
    return -1


@kernel
def begin_accounts(
    accounts: Any,
    pending: Any,
    which: Any,
    rows: Any,
    symbols: Any,
    last_rows: Any,
    bars: Any,
    rules_array: Any,
    guards: Any,
    single: Any,
    portfolio: Any,
) -> None:
    """Start new episodes for the accounts `which` int64 [M] at `rows` [M] of `symbols` [M]."""
    for j in range(which.shape[0]):
        i, symbol, rules = which[j], symbols[j], rules_array[0]
        begin_account(accounts[i], pending[i], rows[j], symbol, last_rows, bars, rules, guards, single, portfolio, i)


@kernel
def observe_accounts(
    accounts: Any, pending: Any, bars: Any, features: Any, guards: Any, single: Any, portfolio: Any, obs: Any
) -> None:
    """Observations float32 [N, D] of all accounts at their last close."""
    for i in range(accounts.shape[0]):
        observe_account(accounts[i], pending[i], bars, features, guards, single, portfolio, i, obs[i])
