"""Whether the volume of bars counts units, which is what market impact is computed from.

Impact is impact_bps x sqrt(units traded / volume of the bar). Currency pairs are traded without a common tape: their
files carry the number of price changes (ticks) or of lots, some thousand an hour where billions change hands, and an
ordinary order then seems to be many times the market.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise

import numpy as np

from tailwise.bars.bars import Bars
from tailwise.market.costs import CostConfig

# ISO 4217 codes of currencies that are quoted in pairs, and of the metals that are quoted like them.
CURRENCIES = frozenset(
    {
        *("USD", "EUR", "JPY", "GBP", "CHF", "AUD", "NZD", "CAD", "SEK", "NOK", "DKK", "PLN", "HUF", "CZK", "RON"),
        *("TRY", "ZAR", "MXN", "BRL", "CLP", "COP", "SGD", "HKD", "CNY", "CNH", "INR", "KRW", "TWD", "THB", "IDR"),
        *("MYR", "PHP", "ILS", "RUB", "SAR", "AED"),
    }
)
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
