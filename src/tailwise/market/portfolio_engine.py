"""The clock of accounts that hold several assets: N accounts x A assets advance by one bar in one compiled call.

The order of events is that of `engine.py`, with one cash and one margin for all assets; docs/portfolio.md has the
rules.
"""

from __future__ import annotations

import math
from typing import Any

from tailwise.core.compiled import kernel
from tailwise.market.accounting import (
    clear_components,
    fill_asset_order,
    finance_account,
    leave_asset,
    pay_dividends,
    revalue,
    worth,
)
from tailwise.market.records import BANKRUPT, NO_EVENT, SETTLEMENT
from tailwise.market.sizes import equity_after_orders, large_enough, limit_weights, plan_orders, whole_lots
from tailwise.market.stops import liquidate, live_through_bar

ASSET_OBSERVATIONS = ("exposure", "unrealised_return", "bars_held", "available", "fresh")
ACCOUNT_OBSERVATIONS = ("gross", "cash_share", "drawdown")
_HALF_HELD = 20.0  # bars after which `bars_held` reaches one half, as in engine.py


@kernel
def fill_orders(
    account: Any,
    holdings: Any,
    ledger: Any,
    records: Any,
    weights: Any,
    tradable: Any,
    gross: float,
    rules: Any,
    plans: Any,
) -> None:
    """Trade towards the weights at the marks, where the asset has a bar and the order is large enough."""
    equity, _ = worth(account, holdings)
    if plan_orders(equity, holdings, weights, tradable, gross, rules, plans) == 0:
        return
    after = equity_after_orders(equity, holdings, plans, rules.linear)
    for a in range(holdings.shape[0]):
        if plans[a].sends == 0:
            continue
        holding = holdings[a]
        wanted = whole_lots(plans[a].target * after / holding.mark, rules.lot)
        if large_enough(wanted, holding.units, holding.mark, rules):
            fill_asset_order(account, holding, ledger, records[a], wanted, tradable[a].volume, rules)


@kernel
def clear(ledger: Any, records: Any, equity: float) -> None:
    """Start the records of a step."""
    clear_components(ledger, equity)
    ledger.margin_call = 0
    for a in range(records.shape[0]):
        records[a].order_units = 0.0
        records[a].order_price = 0.0
        records[a].exit_units = 0.0
        records[a].exit_price = 0.0
        records[a].event = NO_EVENT


@kernel
def close_time(account: Any, holdings: Any, ledger: Any, records: Any, bars: Any, rules: Any) -> None:
    """Mark everything at its close; positions in assets whose history ends here are settled there."""
    for a in range(holdings.shape[0]):
        holding, bar = holdings[a], bars[a]
        if bar.present == 1:
            if holding.units != 0.0:
                revalue(holding, ledger, bar.close)
                if bar.ends == 1:
                    leave_asset(account, holding, ledger, records[a], SETTLEMENT, bar.close, bar.volume, rules)
                else:
                    holding.held += 1
            holding.mark = bar.close
        records[a].units = holding.units


@kernel
def advance(
    account: Any,
    holdings: Any,
    ledger: Any,
    records: Any,
    weights: Any,
    before: Any,
    bars: Any,
    gross: float,
    clock_year: float,
    rules: Any,
    plans: Any,
) -> None:
    """One account lives through `bars` [A], with the weights [A] that are due now; `before` [A] were the last ones."""
    clear(ledger, records, account.equity)
    at_open = rules.fill_at_open == 1
    tradable = bars if at_open else before
    if at_open:
        for a in range(holdings.shape[0]):
            if bars[a].present == 1:
                revalue(holdings[a], ledger, bars[a].open)
        pay_dividends(account, holdings, ledger, bars)
    # A margin call comes before the orders, which it cancels: nobody trades out of a call for free.
    equity, notional = worth(account, holdings)
    if notional > 0.0 and equity <= rules.maintenance * notional:
        liquidate(account, holdings, ledger, records, tradable, plans, 0.0, rules)
    else:
        fill_orders(account, holdings, ledger, records, weights, tradable, gross, rules, plans)
    finance_account(account, holdings, ledger, bars, clock_year, rules)
    if not at_open:
        pay_dividends(account, holdings, ledger, bars)
    live_through_bar(account, holdings, ledger, records, bars, plans, rules)
    close_time(account, holdings, ledger, records, bars, rules)
    account.equity, _ = worth(account, holdings)
    account.peak = max(account.peak, account.equity)
    account.row += 1
    account.age += 1
    ledger.equity = account.equity
    ledger.row = account.row


@kernel
def begin(account: Any, holdings: Any, pending: Any, row: int, last_row: int, bars: Any, rules: Any) -> None:
    """Start an episode at the close of bars [A]: flat, with the initial cash; pending [latency, A] weights are 0."""
    account.row = row
    account.last_row = last_row
    account.age = 0
    account.cash = rules.initial_cash
    account.equity = rules.initial_cash
    account.peak = rules.initial_cash
    account.start_equity = rules.initial_cash
    for a in range(holdings.shape[0]):
        holding = holdings[a]
        holding.held = 0
        holding.units = 0.0
        holding.entry = 0.0
        holding.mark = bars[a].close
        holding.cash = 0.0
        for k in range(pending.shape[0]):
            pending[k, a] = 0.0


@kernel
def observe(account: Any, holdings: Any, pending: Any, bars: Any, features: Any, out: Any) -> None:
    """Write one observation [A F + 5 A + 3 + latency A]; bars [A] and features [A F] are those of the account's row."""
    at = features.shape[0]
    for k in range(at):
        out[k] = features[k]
    equity = max(account.equity, BANKRUPT * account.start_equity)  # the last observation of a ruined account is finite
    gross = 0.0
    for a in range(holdings.shape[0]):
        holding = holdings[a]
        exposure = holding.units * holding.mark / equity
        gross += abs(exposure)
        gain = holding.mark / holding.entry - 1.0 if holding.units != 0.0 else 0.0
        out[at] = exposure
        out[at + 1] = gain if holding.units > 0.0 else -gain
        out[at + 2] = holding.held / (holding.held + _HALF_HELD)
        out[at + 3] = bars[a].available
        out[at + 4] = bars[a].present
        at += 5
    out[at] = gross
    out[at + 1] = account.cash / equity
    out[at + 2] = 1.0 - equity / account.peak
    at += 3
    for k in range(pending.shape[0]):
        for a in range(holdings.shape[0]):
            out[at] = pending[k, a]
            at += 1


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
def step_portfolios(
    accounts: Any,
    holdings: Any,
    pending: Any,
    actions: Any,
    bars: Any,
    features: Any,
    lows: Any,
    highs: Any,
    gross: float,
    clock_year: float,
    rules_array: Any,
    start_rows: Any,
    autoreset: bool,
    weights: Any,
    plans: Any,
    obs: Any,
    final_obs: Any,
    reward: Any,
    terminated: Any,
    truncated: Any,
    ledgers: Any,
    records: Any,
) -> tuple[int, int]:
    """Advance all accounts by one bar; returns how many episodes ended and how many accounts used up their starts.

    accounts [N] PORTFOLIO, holdings [N, A] HOLDING, pending [N, latency, A], actions float64 [N, A], bars [T, A]
    ASSET_BAR, features float32 [T, A F], lows and highs [A], start_rows int64 [N, K] (episode e in column e mod K);
    scratch: weights [A], plans [A] PLAN. Written: obs and final_obs float32 [N, D], reward float64 [N], terminated and
    truncated bool [N], ledgers [N] PORTFOLIO_LEDGER and records [N, A] ASSET_LEDGER, or one row of each when nobody
    wants to read them.
    """
    rules = rules_array[0]
    columns = start_rows.shape[1]
    last_row = bars.shape[0] - 1
    keep = 1 if ledgers.shape[0] == accounts.shape[0] else 0
    ended = 0
    used_up = 0
    for i in range(accounts.shape[0]):
        account, held = accounts[i], holdings[i]
        ledger = ledgers[i * keep]
        row = account.row
        limit_weights(actions[i], lows, highs, gross, bars[row], weights)
        if pending.shape[1] > 0:
            queue_weights(pending[i], weights)
        advance(
            account,
            held,
            ledger,
            records[i * keep],
            weights,
            bars[row],
            bars[row + 1],
            gross,
            clock_year,
            rules,
            plans,
        )
        floor = BANKRUPT * account.start_equity
        ruined = account.equity <= floor
        ledger.shortfall = max(floor - account.equity, 0.0)
        reward[i] = math.log(max(account.equity, floor) / ledger.equity_before)
        over = account.row >= last_row or account.age >= rules.episode_length
        terminated[i] = ruined
        truncated[i] = over
        if ruined or over:
            ended += 1
            if autoreset:
                observe(account, held, pending[i], bars[account.row], features[account.row], final_obs[i])
                account.episode += 1
                column = account.episode % columns
                if column == columns - 1:
                    used_up += 1
                start = start_rows[i, column]
                begin(account, held, pending[i], start, last_row, bars[start], rules)
        observe(account, held, pending[i], bars[account.row], features[account.row], obs[i])
    return ended, used_up


@kernel
def begin_portfolios(
    accounts: Any, holdings: Any, pending: Any, which: Any, rows: Any, bars: Any, rules_array: Any
) -> None:
    """Start new episodes for the accounts `which` int64 [M] at `rows` [M]."""
    for j in range(which.shape[0]):
        i = which[j]
        begin(accounts[i], holdings[i], pending[i], rows[j], bars.shape[0] - 1, bars[rows[j]], rules_array[0])


@kernel
def observe_portfolios(accounts: Any, holdings: Any, pending: Any, bars: Any, features: Any, obs: Any) -> None:
    """Observations float32 [N, D] of all accounts as they stand."""
    for i in range(accounts.shape[0]):
        row = accounts[i].row
        observe(accounts[i], holdings[i], pending[i], bars[row], features[row], obs[i])


def observation_names(symbols: tuple[str, ...], features: tuple[str, ...], latency: int) -> tuple[str, ...]:
    """Names of the D entries of an observation, in order."""
    return (
        *(f"{symbol}.{feature}" for symbol in symbols for feature in features),
        *(f"{symbol}.{name}" for symbol in symbols for name in ASSET_OBSERVATIONS),
        *ACCOUNT_OBSERVATIONS,
        *(f"{symbol}.pending_weight_{k}" for k in range(latency) for symbol in symbols),
    )
