"""Money of an account with several assets: `accounting` asset by asset, with one cash and one interest for all."""

from __future__ import annotations

from typing import Any

from tailwise.core.compiled import kernel
from tailwise.market.accounting import liquidation_penalty, pay_dividend, trade
from tailwise.market.records import LIQUIDATION, TAKE_PROFIT


@kernel
def revalue(holding: Any, ledger: Any, price: float) -> None:
    """Book the gain since the last valuation."""
    ledger.price_pnl += holding.units * (price - holding.mark)
    holding.mark = price


@kernel
def worth(account: Any, holdings: Any) -> tuple[float, float]:
    """(equity, sum of the notionals) at the last marks."""
    equity, notional = account.cash, 0.0
    for a in range(holdings.shape[0]):
        value = holdings[a].units * holdings[a].mark
        equity += value
        notional += abs(value)
    return equity, notional


@kernel
def sweep(account: Any, holding: Any) -> None:
    """Move what a trade or a dividend did to the holding's cash into the shared cash."""
    account.cash += holding.cash
    holding.cash = 0.0


@kernel
def fill_order(account: Any, holding: Any, ledger: Any, record: Any, units: float, volume: float, rules: Any) -> None:
    """Change a position to `units` by an order of the policy, at its mark."""
    record.order_units = units - holding.units
    record.order_price = holding.mark
    trade(holding, ledger, units, holding.mark, volume, rules, False)
    sweep(account, holding)


@kernel
def leave_asset(
    account: Any, holding: Any, ledger: Any, record: Any, event: int, price: float, volume: float, rules: Any
) -> None:
    """Close a position by a stop-loss, a take-profit, a liquidation or a settlement."""
    units = holding.units
    revalue(holding, ledger, price)
    trade(holding, ledger, 0.0, price, volume, rules, event == TAKE_PROFIT)
    if event == LIQUIDATION:
        liquidation_penalty(holding, ledger, units, price, rules)
    sweep(account, holding)
    record.event = event
    record.exit_units = -units
    record.exit_price = price


@kernel
def pay_dividends(account: Any, holdings: Any, ledger: Any, bars: Any) -> None:
    for a in range(holdings.shape[0]):
        if holdings[a].units != 0.0:
            pay_dividend(holdings[a], ledger, bars[a].dividend)
            sweep(account, holdings[a])


@kernel
def finance_account(account: Any, holdings: Any, ledger: Any, bars: Any, clock_year: float, rules: Any) -> None:
    """Charge borrow and funding of each asset, and one step of interest on the shared cash.

    `accounting.finance` for one asset: with several, interest belongs to the account and not to any of them. clock_year
    is the step of the clock in years. An asset without a bar pays nothing, because its row of the table has a year
    fraction and a funding of 0: its bars of the year pay for the year.
    """
    short_notional, borrow, funding = 0.0, 0.0, 0.0
    for a in range(holdings.shape[0]):
        value = holdings[a].units * holdings[a].mark
        if value == 0.0:
            continue
        short = -min(value, 0.0)
        short_notional += short
        borrow += short * rules.borrow * bars[a].year_fraction
        funding += value * bars[a].funding
    own_cash = account.cash - short_notional  # the proceeds of shorts are the lenders' security
    interest = own_cash * (rules.cash if own_cash > 0.0 else rules.loan) * clock_year
    ledger.borrow += borrow
    ledger.funding += funding
    ledger.interest += interest
    account.cash += interest - borrow - funding
