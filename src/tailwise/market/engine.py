"""The market's clock: N accounts advance by one bar in one compiled call. docs/market.md tells the order of events.

A decision is made at the close of bar t and sees nothing later. It is filled at the open of bar t+1 (or as declared)
and the account is marked at the close of bar t+1; the reward is the logarithm of the ratio of the two equities.

Compiled code is cached on disk, and numba looks only at the date of this file to know whether its cache is stale: after
an edit of accounting.py or stops.py, touch this file.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from tailwise.market.accounting import finance, liquidation_penalty, pay_dividend, trade
from tailwise.market.records import BANKRUPT, LIQUIDATION, NO_EVENT, TAKE_PROFIT
from tailwise.market.stops import exit_in_bar

ACCOUNT_OBSERVATIONS = ("exposure", "unrealised_return", "bars_held", "drawdown")
_HALF_HELD = 20.0  # bars after which `bars_held` reaches one half
_LOT_ROUNDING = 1e-9  # lots; a position of 5 lots must not become 4 because 5 was computed as 4.9999999999


@njit(cache=True, error_model="numpy", nogil=True)
def target_units(target: float, equity: float, price: float, units: float, rules: Any) -> float:
    """Units that make the exposure equal to `target` after the order's own fee, spread and slippage.

    u' price = target (equity - c |u' - u| price), solved for u'; then rounded towards zero to whole lots. Since costs
    only lower equity, |u'| never exceeds |target| equity / price.
    """
    full = equity / price  # units at an exposure of 1
    signed_rate = rules.linear if target * full > units else -rules.linear
    wanted = target * (full + signed_rate * units) / (1.0 + target * signed_rate)
    if rules.lot > 0.0:
        lots = math.floor(abs(wanted) / rules.lot + _LOT_ROUNDING)
        return lots * rules.lot if wanted > 0.0 else -lots * rules.lot
    return wanted


@njit(cache=True, error_model="numpy", nogil=True)
def fill_order(account: Any, ledger: Any, target: float, price: float, volume: float, rules: Any) -> None:
    """Trade towards the target exposure at `price`, unless the order is too small to be sent."""
    units = account.units
    if target == 0.0:
        if units == 0.0:
            return
        wanted = 0.0  # closing is always possible
    else:
        equity = account.cash + units * price
        if abs(target * equity - units * price) <= rules.tolerance * equity:
            return
        wanted = target_units(target, equity, price, units, rules)
        if wanted == units or (wanted != 0.0 and abs(wanted - units) * price < rules.minimum_notional):
            return
    trade(account, ledger, wanted, price, volume, rules, False)
    ledger.order_units = wanted - units
    ledger.order_price = price


@njit(cache=True, error_model="numpy", nogil=True)
def leave(account: Any, ledger: Any, event: int, price: float, volume: float, rules: Any) -> None:
    """Close the position by a stop-loss, a take-profit or a liquidation."""
    units = account.units
    trade(account, ledger, 0.0, price, volume, rules, event == TAKE_PROFIT)
    if event == LIQUIDATION:
        liquidation_penalty(account, ledger, units, price, rules)
    ledger.event = event
    ledger.exit_units = -units
    ledger.exit_price = price


@njit(cache=True, error_model="numpy", nogil=True)
def clear(ledger: Any, equity: float) -> None:
    """Start the record of a step."""
    ledger.price_pnl = 0.0
    ledger.fee = 0.0
    ledger.spread = 0.0
    ledger.slippage = 0.0
    ledger.impact = 0.0
    ledger.borrow = 0.0
    ledger.funding = 0.0
    ledger.liquidation = 0.0
    ledger.interest = 0.0
    ledger.dividends = 0.0
    ledger.equity_before = equity
    ledger.order_units = 0.0
    ledger.order_price = 0.0
    ledger.exit_units = 0.0
    ledger.exit_price = 0.0
    ledger.event = NO_EVENT


@njit(cache=True, error_model="numpy", nogil=True)
def advance(account: Any, ledger: Any, target: float, before: Any, bar: Any, rules: Any) -> None:
    """One account lives through `bar`, with the order that is due now; `before` is the bar of the last close."""
    clear(ledger, account.equity)
    at_open = rules.fill_at_open == 1
    if at_open:
        price, volume = bar.open, bar.volume
        ledger.price_pnl += account.units * (bar.open - before.close)
        pay_dividend(account, ledger, bar.dividend)
    else:
        price, volume = before.close, before.volume
    # A margin call comes before the policy's order, which it cancels: nobody trades out of a call for free.
    equity = account.cash + account.units * price
    if account.units != 0.0 and equity <= rules.maintenance * abs(account.units) * price:
        leave(account, ledger, LIQUIDATION, price, volume, rules)
    else:
        fill_order(account, ledger, target, price, volume, rules)
    finance(account, ledger, price, bar.funding, bar.year_fraction, rules)
    if not at_open:
        pay_dividend(account, ledger, bar.dividend)
    if account.units != 0.0:
        units = account.units
        event, exit_price = exit_in_bar(units, account.entry, account.cash, bar.open, bar.high, bar.low, rules)
        if event != NO_EVENT:
            ledger.price_pnl += units * (exit_price - price)
            leave(account, ledger, event, exit_price, bar.volume, rules)
        else:
            ledger.price_pnl += units * (bar.close - price)
            account.held += 1
    account.equity = account.cash + account.units * bar.close
    account.peak = max(account.peak, account.equity)
    account.row += 1
    account.age += 1
    ledger.equity = account.equity
    ledger.units = account.units
    ledger.row = account.row
    ledger.symbol = account.symbol


@njit(cache=True, error_model="numpy", nogil=True)
def begin(account: Any, pending: Any, row: int, symbol: int, last_row: int, rules: Any) -> None:
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


@njit(cache=True, error_model="numpy", nogil=True)
def observe(account: Any, pending: Any, bars: Any, features: Any, out: Any) -> None:
    """Write one observation [F + 4 + latency]: features of the bar just closed, the account, the waiting targets."""
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


@njit(cache=True, error_model="numpy", nogil=True)
def step_accounts(
    accounts: Any,
    pending: Any,
    targets: Any,
    bars: Any,
    features: Any,
    rules_array: Any,
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

    accounts [N] ACCOUNT, pending [N, latency], targets float64 [N], bars [R] BAR and features float32 [R, F] of all
    symbols one after the other, last_rows int64 [S], start_rows and start_symbols int64 [N, K] (the start of episode e
    is in column e mod K). Written: obs and final_obs float32 [N, D] (final_obs only where an episode ended), reward
    float64 [N], terminated and truncated bool [N], ledgers [N] LEDGER, or [1] when nobody wants to read them.
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
        due = targets[i]
        if latency > 0:
            oldest = pending[i, 0]
            for k in range(latency - 1):
                pending[i, k] = pending[i, k + 1]
            pending[i, latency - 1] = due
            due = oldest
        row = account.row
        advance(account, ledger, due, bars[row], bars[row + 1], rules)
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
                observe(account, pending[i], bars, features, final_obs[i])
                account.episode += 1
                column = account.episode % columns
                if column == columns - 1:
                    used_up += 1
                symbol = start_symbols[i, column]
                begin(account, pending[i], start_rows[i, column], symbol, last_rows[symbol], rules)
        observe(account, pending[i], bars, features, obs[i])
    return ended, used_up


@njit(cache=True, error_model="numpy", nogil=True)
def look_up(positions: Any, actions: Any, targets: Any) -> int:
    """targets[i] = positions[actions[i]]; returns the first i whose action is out of range, or -1."""
    count = positions.shape[0]
    for i in range(actions.shape[0]):
        action = actions[i]
        if action < 0 or action >= count:
            return i
        targets[i] = positions[action]
    return -1


@njit(cache=True, error_model="numpy", nogil=True)
def begin_accounts(
    accounts: Any, pending: Any, which: Any, rows: Any, symbols: Any, last_rows: Any, rules_array: Any
) -> None:
    """Start new episodes for the accounts `which` int64 [M] at `rows` [M] of `symbols` [M]."""
    for j in range(which.shape[0]):
        i = which[j]
        begin(accounts[i], pending[i], rows[j], symbols[j], last_rows[symbols[j]], rules_array[0])


@njit(cache=True, error_model="numpy", nogil=True)
def observe_accounts(accounts: Any, pending: Any, bars: Any, features: Any, obs: Any) -> None:
    """Observations float32 [N, D] of all accounts as they stand."""
    for i in range(accounts.shape[0]):
        observe(accounts[i], pending[i], bars, features, obs[i])


def observation_names(features: tuple[str, ...], latency: int) -> tuple[str, ...]:
    """Names of the D entries of an observation, in order."""
    return (*features, *ACCOUNT_OBSERVATIONS, *(f"pending_target_{k}" for k in range(latency)))


def observation_size(features: int, latency: int) -> int:
    return features + len(ACCOUNT_OBSERVATIONS) + latency


def affordable(
    positions: Any, equity: Any, close: Any, exposure: Any, lot: float, minimum_notional: float
) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Action mask int8 [N, K]: 1 where the target exposure is worth at least one lot and one order at this close.

    equity, close and exposure [N], positions [K]. A target of 0 is always allowed. Where nothing would be, the target
    nearest to the present exposure is.
    """
    notional = np.abs(positions)[None, :] * np.asarray(equity)[:, None]
    allowed = (notional >= lot * np.asarray(close)[:, None]) & (notional >= minimum_notional)
    allowed |= np.asarray(positions)[None, :] == 0.0
    nothing = ~allowed.any(axis=1)
    nearest = np.abs(np.asarray(positions)[None, :] - np.asarray(exposure)[:, None]).argmin(axis=1)
    allowed[nothing, nearest[nothing]] = True
    return allowed.astype(np.int8)
