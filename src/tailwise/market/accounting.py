"""Money: what a trade, a bar of financing and a dividend do to one account, each component under its own name.

The functions change one ACCOUNT record and add to one LEDGER record. In an account with several assets they change a
HOLDING, whose cash is swept into the shared one. Nothing else in the simulator touches cash.
"""

from __future__ import annotations

import math
from typing import Any

from numba import literal_unroll

from tailwise.core.compiled import kernel
from tailwise.market.costs import COMPONENTS
from tailwise.market.records import LIQUIDATION, TAKE_PROFIT

_NAMES = tuple(COMPONENTS)


@kernel
def trade(
    account: Any, ledger: Any, units_after: float, price: float, volume: float, rules: Any, resting: bool
) -> None:
    """Change the position to `units_after` at `price` and pay for it.

    A taking order pays taker fee, half-spread, slippage and impact; a resting one (take-profit) the maker fee only.
    Impact is a fraction impact x sqrt(units traded / volume) of the notional; a bar without volume counts as if the
    order were all of it.
    """
    units_before = account.units
    traded = units_after - units_before
    notional = abs(traded) * price
    paid = 0.0
    if resting:
        fee = notional * rules.maker
        ledger.fee += fee
        paid = fee
    else:
        fee = notional * rules.taker
        spread = notional * rules.half_spread
        slippage = notional * rules.slippage
        participation = abs(traded) / volume if volume > 0.0 else 1.0
        impact = notional * rules.impact * math.sqrt(participation)
        ledger.fee += fee
        ledger.spread += spread
        ledger.slippage += slippage
        ledger.impact += impact
        paid = fee + spread + slippage + impact
    account.cash -= traded * price + paid
    account.units = units_after
    if units_after == 0.0:
        account.entry = 0.0
        account.held = 0
    elif units_before * units_after <= 0.0:  # opened or turned around
        account.entry = price
        account.held = 0
    elif abs(units_after) > abs(units_before):
        account.entry = (units_before * account.entry + traded * price) / units_after


@kernel
def interest_on(account: Any, short_notional: float, years: float, rules: Any) -> float:
    """What own cash earns, or a loan costs (negative), in `years`."""
    own_cash = account.cash - short_notional  # the proceeds of a short are the lender's security
    return own_cash * (rules.cash if own_cash > 0.0 else rules.loan) * years


@kernel
def finance(account: Any, ledger: Any, price: float, funding_rate: float, year_fraction: float, rules: Any) -> None:
    """Charge one bar of borrow, funding and interest on what is held right after the moment of the fill."""
    short_notional = -min(account.units, 0.0) * price
    borrow = short_notional * rules.borrow * year_fraction
    funding = account.units * price * funding_rate
    interest = interest_on(account, short_notional, year_fraction, rules)
    ledger.borrow += borrow
    ledger.funding += funding
    ledger.interest += interest
    account.cash += interest - borrow - funding


@kernel
def pay_dividend(account: Any, ledger: Any, per_unit: float) -> None:
    """Longs receive the dividend, shorts pay it."""
    amount = account.units * per_unit
    ledger.dividends += amount
    account.cash += amount


@kernel
def clear_components(ledger: Any, equity: float) -> None:
    """Start the record of a step at `equity`: no component has changed it yet."""
    for name in literal_unroll(_NAMES):  # a field of a record needs a name that is known when compiling
        ledger[name] = 0.0
    ledger.equity_before = equity


@kernel
def liquidation_penalty(account: Any, ledger: Any, units: float, price: float, rules: Any) -> None:
    """What a forced liquidation of `units` costs beyond the costs of its trade."""
    penalty = abs(units) * price * rules.liquidation
    ledger.liquidation += penalty
    account.cash -= penalty


# ---------------------------------------------------------------------- several assets
@kernel
def revalue(holding: Any, ledger: Any, price: float) -> None:
    """Book the gain since the last valuation."""
    ledger.price_pnl += holding.units * (price - holding.mark)
    holding.mark = price


@kernel
def equity_and_notional(account: Any, holdings: Any) -> tuple[float, float]:
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
def fill_asset_order(
    account: Any, holding: Any, ledger: Any, record: Any, units: float, volume: float, rules: Any
) -> None:
    """Change a position to `units` by an order of the policy, at its mark."""
    record.order_units = units - holding.units
    record.order_price = holding.mark
    trade(holding, ledger, units, holding.mark, volume, rules, False)
    sweep(account, holding)


@kernel
def close_holding(
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

    `finance` is for one asset; with several, interest belongs to the account and not to any of them. clock_year is
    the step of the clock in years. An asset without a bar pays nothing, because its row of the table has a year
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
    interest = interest_on(account, short_notional, clock_year, rules)
    ledger.borrow += borrow
    ledger.funding += funding
    ledger.interest += interest
    account.cash += interest - borrow - funding
