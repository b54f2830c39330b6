"""Volumes that cannot be units are recognised by the name of the symbol, and by turnover against the account."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tailwise.bars.bars import Bars
from tailwise.bars.builtin import load
from tailwise.bars.synthetic import random_walk
from tailwise.market.costs import CostConfig, currency_pair, expected_impact, impact_warning, turnover, volume_doubt

ACCOUNT = 100_000.0


def ticks(symbol: str = "EURUSD", *, volume: float = 1261.0) -> Bars:
    """Hourly bars near 1.1 with some thousand ticks each, as brokers export them."""
    bars = random_walk(seed=1, length=600, sigma=0.001)
    prices = {name: getattr(bars, name) * 0.011 for name in ("open", "high", "low", "close")}
    return replace(bars, symbol=symbol, volume=np.full(600, volume), **prices)


@pytest.mark.parametrize(
    ("symbol", "pair"),
    [
        ("EURUSD", ("EUR", "USD")),
        ("eur/usd", ("EUR", "USD")),
        ("GBP_JPY", ("GBP", "JPY")),
        ("USDJPY=X", ("USD", "JPY")),
        ("DAT_ASCII_AUDNZD_M1_2018", ("AUD", "NZD")),
        ("XAUUSD", ("XAU", "USD")),
        ("BTCUSD", None),
        ("BTC/USDT", None),
        ("GOOG", None),
        ("USDUSD", None),
        ("SP500", None),
        ("SYNTHETIC-RANDOM-WALK", None),
    ],
)
def test_currency_pairs_by_name(symbol: str, pair: tuple[str, str] | None) -> None:
    """Rejects any six letters, any symbol with USD in it (coins are counted in units), and upper case alone."""
    assert currency_pair(symbol) == pair


def test_volumes_that_cannot_be_units() -> None:
    """Rejects a check by name alone, and one without the account: what is small for one is plenty for another."""
    assert "EURUSD is a pair of currencies" in str(volume_doubt(ticks(volume=1e9), ACCOUNT))
    assert "XAUUSD is gold against USD" in str(volume_doubt(ticks("XAUUSD"), ACCOUNT))
    plain = ticks("CFD")
    size = turnover(plain)
    assert size == pytest.approx(1261 * float(np.median(plain.close)))
    assert "trades 1," in str(volume_doubt(plain, ACCOUNT)) and "account of 100,000" in str(
        volume_doubt(plain, ACCOUNT)
    )
    assert volume_doubt(plain, size * 9.99) is None and volume_doubt(plain, size * 10.01) is not None
    for name in ("sp500", "nasdaq"):
        assert volume_doubt(load(name), ACCOUNT) is None


def test_impact_is_named_where_it_is_the_largest_cost() -> None:
    """The law written out: 10 bps x sqrt(100,000 / (1261 x close)). Rejects a warning wherever there is impact."""
    bars, costs = ticks("CFD"), CostConfig()
    expected = 10e-4 * np.sqrt(ACCOUNT / np.median(bars.volume * bars.close))
    assert expected_impact(bars, costs, ACCOUNT) == pytest.approx(expected)
    assert f"pays about {expected * 1e4:.3g} bps" in str(impact_warning(bars, costs, ACCOUNT))
    assert impact_warning(bars, CostConfig(impact_bps=0), ACCOUNT) is None
    dear = CostConfig(half_spread_bps=expected * 1e4 + 1)
    assert impact_warning(bars, dear, ACCOUNT) is None, "the half-spread is larger"
    assert impact_warning(load("sp500"), costs, ACCOUNT) is None
    free = CostConfig(taker_fee_bps=0, half_spread_bps=0, slippage_bps=0)
    assert impact_warning(load("sp500"), free, ACCOUNT) is None, "the largest of nothing is not worth a word"
