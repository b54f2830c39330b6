"""What trading costs: the configuration section `costs`, the table from which everything else about costs follows, and
whether the volume of bars can serve to compute market impact.

The annotation of a setting (`Cost`) says how it reaches the engine, whether a stress test scales it and what `tailwise
init` writes; `LEDGER_COMPONENTS` lists the names under which money is booked. Records, stress tests, reports and `init`
derive from these two. A new cost is a setting here (and a component, if it is booked under a name of its own) and its
arithmetic in `accounting.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from tailwise.bars.bars import Bars
from tailwise.core.config import Section

BPS = 1e-4
MarketKind = Literal["session", "round_the_clock", "pair"]  # closes at night, never closes, a currency pair at a broker


@dataclass(frozen=True)
class Component:
    """A part of the change of equity.

    sign: with which it enters. of: what causes it: the price, fills of orders and exits, holding a position, own cash.
    words: in a list of costs.
    """

    name: str
    sign: Literal[1, -1]
    of: Literal["price", "fills", "holding", "cash"]
    words: str = ""


#: In the order in which ledgers and files have them.
LEDGER_COMPONENTS = (
    Component("price_pnl", 1, "price"),
    Component("fee", -1, "fills", "fees"),
    Component("spread", -1, "fills", "spread"),
    Component("slippage", -1, "fills", "slippage"),
    Component("impact", -1, "fills", "impact"),
    Component("borrow", -1, "holding", "borrow"),
    Component("funding", -1, "holding", "funding"),
    Component("liquidation", -1, "fills", "liquidations"),
    Component("interest", 1, "cash"),
    Component("dividends", 1, "holding"),
)

# Components of the change of equity with the sign they have in it.
COMPONENTS: Mapping[str, int] = {component.name: component.sign for component in LEDGER_COMPONENTS}


def components_of(cause: str, *, sign: int) -> tuple[str, ...]:
    """Names of the components with this cause and sign."""
    return tuple(one.name for one in LEDGER_COMPONENTS if one.of == cause and one.sign == sign)


def cost_words() -> str:
    """All that costs, in a list: "fees, spread, ..."."""
    return ", ".join(one.words for one in LEDGER_COMPONENTS if one.sign < 0)


@dataclass(frozen=True)
class Cost:
    """How a setting of the section `costs` reaches the engine, and what others need to know of it.

    rule      its name in `records.RULES`
    unit      what 1 of the setting is in the engine: 1e-4 for bps
    stressed  a cost that the stress test multiplies and that `NO_COSTS` leaves out; False: received, or no money
    linear    its word in messages, where each order that takes liquidity pays this share of its notional
    init      what `tailwise init` writes for each kind of market; None: the default, which it does not write
    comment   what `tailwise init` writes beside it
    """

    rule: str
    unit: float = 1.0
    stressed: bool = True
    linear: str | None = None
    init: Mapping[MarketKind, float] | None = None
    comment: str = ""


class CostConfig(Section):
    """Every cost is charged once, inside equity, and reported under its own name.

    1 bps is 1e-4 of the traded notional, which is |units| x the price of the fill before costs. An annual rate r
    costs r / (bars per year) of the amount in each bar.
    """

    taker_fee_bps: Annotated[
        float, Cost("taker", BPS, linear="fee", init={"session": 1.0, "round_the_clock": 5.0, "pair": 0.0})
    ] = Field(
        2.0, ge=0, le=500, description="fee of orders that take liquidity, in bps: the policy's, stops, liquidations"
    )
    maker_fee_bps: Annotated[float, Cost("maker", BPS)] = Field(
        1.0, ge=0, le=500, description="fee of resting orders, in bps: take-profit exits"
    )
    half_spread_bps: Annotated[
        float,
        Cost("half_spread", BPS, linear="half-spread", init={"session": 1.0, "round_the_clock": 1.0, "pair": 1.0}),
    ] = Field(
        1.0, ge=0, le=500, description="half of the bid-ask spread, in bps; paid by each order that takes liquidity"
    )
    slippage_bps: Annotated[
        float, Cost("slippage", BPS, linear="slippage", init={"session": 1.0, "round_the_clock": 1.0, "pair": 1.0})
    ] = Field(1.0, ge=0, le=500, description="further loss of an order that takes liquidity, in bps of its notional")
    impact_bps: Annotated[float, Cost("impact", BPS, init={"session": 10.0, "round_the_clock": 10.0, "pair": 10.0})] = (
        Field(
            10.0,
            ge=0,
            le=10_000,
            description="square-root impact in bps: an order pays impact_bps x sqrt(units traded / volume of the bar)",
        )
    )
    borrow_rate: Annotated[
        float,
        Cost("borrow", init={"session": 0.01, "round_the_clock": 0.1, "pair": 0.01}, comment="per year, on shorts"),
    ] = Field(0.01, ge=0, le=5, description="annual rate on the notional of a short position; 0.01 is 1% a year")
    loan_rate: Annotated[float, Cost("loan")] = Field(
        0.05, ge=0, le=5, description="annual rate on negative cash, the loan of a levered long"
    )
    cash_rate: Annotated[float, Cost("cash", stressed=False)] = Field(
        0.0, ge=0, le=5, description="annual rate that own cash earns (the proceeds of a short earn nothing)"
    )
    # Not in the rules: added to the funding of each bar (`tables`), where the data may have its own.
    funding_bps: float = Field(
        0.0,
        ge=-500,
        le=500,
        description="funding per bar in bps of the notional, added to the data's own; positive: longs pay, shorts get",
    )
    liquidation_bps: Annotated[float, Cost("liquidation", BPS)] = Field(
        50.0, ge=0, le=5000, description="penalty of a forced liquidation in bps, on top of the other costs"
    )
    latency: int = Field(
        0, ge=0, le=64, description="bars between a decision and its fill, beyond the delay that `fill` has by itself"
    )
    lot_size: Annotated[float, Cost("lot", stressed=False)] = Field(
        0.0, ge=0, description="smallest tradable amount in units; positions are whole lots; 0: any amount"
    )
    minimum_notional: Annotated[float, Cost("minimum_notional", stressed=False)] = Field(
        0.0, ge=0, description="smallest order in account currency; orders that close a position are exempt"
    )

    @property
    def linear(self) -> dict[str, float]:
        """Settings, in bps, that each order which takes liquidity pays on its notional, by their words."""
        return {cost.linear: getattr(self, name) for name, cost in COSTS.items() if cost.linear is not None}

    @property
    def taker_rate(self) -> float:
        """Cost of a taking order without impact, as a fraction of its notional."""
        return sum(self.linear.values()) * BPS

    def rules(self) -> dict[str, float]:
        """The settings as the engine reads them, by their names in `records.RULES`."""
        return {cost.rule: getattr(self, name) * cost.unit for name, cost in COSTS.items()}

    def scaled(self, factor: float) -> dict[str, float]:
        """The settings that a stress test multiplies, times `factor`, by name."""
        return {name: getattr(self, name) * factor for name, cost in COSTS.items() if cost.stressed}


def _table() -> dict[str, Cost]:
    fields = CostConfig.model_fields.items()
    return {name: mark for name, field in fields for mark in field.metadata if isinstance(mark, Cost)}


#: The settings that reach the engine, by name.
COSTS: Mapping[str, Cost] = _table()

NO_COSTS = CostConfig.model_validate(CostConfig().scaled(0.0))


def guessed_costs(market: MarketKind) -> dict[str, float]:
    """What `tailwise init` writes for a market of this kind, by setting."""
    return {name: cost.init[market] for name, cost in COSTS.items() if cost.init is not None}


# ---------------------------------------------------------------------- volumes
# ISO 4217 codes of currencies that are quoted in pairs, and of the metals that are quoted like them.
_CURRENCY_CODES = (
    "USD EUR JPY GBP CHF AUD NZD CAD SEK NOK DKK PLN HUF CZK RON TRY ZAR MXN BRL CLP COP SGD HKD CNY CNH INR KRW TWD "
    "THB IDR MYR PHP ILS RUB SAR AED"
)
CURRENCIES = frozenset(_CURRENCY_CODES.split())
METALS = {"XAU": "gold", "XAG": "silver", "XPT": "platinum", "XPD": "palladium"}
SMALLEST_TURNOVER = 0.1  # median volume x close of a bar, as a multiple of the account
LEAST_IMPACT = 1e-4  # of the notional: below, impact is not worth a word, whatever the other costs are

_LETTERS = re.compile(r"[A-Z]+")


def currency_pair(symbol: str) -> tuple[str, str] | None:
    """('EUR', 'USD') for EURUSD, eur/usd, EUR_USD, EURUSD=X and EURUSD_H1; ('XAU', 'USD') for gold; None for others."""
    words = _LETTERS.findall(symbol.upper())
    halves = [(word[:3], word[3:]) for word in words if len(word) == 6]
    neighbours = [(one, two) for one, two in pairwise(words) if len(one) == len(two) == 3]
    for base, quote in (*halves, *neighbours):
        if base != quote and base in {*CURRENCIES, *METALS} and quote in CURRENCIES:
            return base, quote
    return None


def describe_pair(base: str, quote: str) -> str:
    """'a pair of currencies' or 'gold against USD'."""
    return f"{METALS[base]} against {quote}" if base in METALS else "a pair of currencies"


def turnover(bars: Bars) -> float:
    """Median of volume x close over the bars that have volume, quote currency; 0 when none has."""
    traded = bars.volume > 0
    return float(np.median(bars.volume[traded] * bars.close[traded])) if traded.any() else 0.0


def volume_doubt(bars: Bars, account: float) -> str | None:
    """Why the volumes cannot be units, as a sentence; None when nothing speaks against it. account: its equity."""
    pair = currency_pair(bars.symbol)
    if pair is not None:
        return (
            f"{bars.symbol} is {describe_pair(*pair)}, which has no common tape: its volumes are ticks or lots, not "
            "units."
        )
    size = turnover(bars)
    if size < SMALLEST_TURNOVER * account:
        return (
            f"{bars.symbol} trades {size:,.0f} a bar in the median (volume x close), against an account of "
            f"{account:,.0f}: its volumes are not units, or the account is too large for it."
        )
    return None


def expected_impact(bars: Bars, costs: CostConfig, account: float) -> float:
    """Impact of an order of the whole account in the median bar, as a fraction of its notional."""
    size = turnover(bars)
    participation = account / size if size else 1.0  # as the simulator counts a bar without volume
    return costs.impact_bps * 1e-4 * math.sqrt(participation)


def impact_warning(bars: Bars, costs: CostConfig, account: float) -> str | None:
    """A sentence when impact would be the largest cost of an order of the whole account; None otherwise."""
    impact = expected_impact(bars, costs, account)
    others = costs.linear
    if impact < LEAST_IMPACT or impact <= max(others.values()) * 1e-4:
        return None
    listed = ", ".join(f"{name} {bps:g}" for name, bps in others.items())
    doubt = volume_doubt(bars, account)
    cause = f" {doubt}" if doubt else ""
    return (
        f"{bars.symbol}: impact is the largest cost: an order of the whole account pays about {impact * 1e4:.3g} bps "
        f"of it in the median bar ({listed} bps).{cause} Check that volume counts units, lower "
        "env.initial_cash, or set costs.impact_bps: 0."
    )
