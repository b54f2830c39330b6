"""Statistics of a path: closed forms, both tails, and what is undefined."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tailwise import backtest
from tailwise.bars.synthetic import random_walk
from tailwise.core.errors import ConfigError
from tailwise.core.numerics import discounted_forward_returns, tail_horizon
from tailwise.evaluate.statistics import empirical_cvar, path_statistics
from tailwise.evaluate.words import columns, exposures, held, ruins
from tailwise.market.costs import COMPONENTS, NO_COSTS
from tailwise.market.path import AccountPath


def test_sharpe_of_a_known_series_equals_the_closed_form() -> None:
    """Bars of an hour around the clock: 8766 a year from the data's own times. Rejects a Sharpe ratio annualised by a
    constant, or by wall-clock time."""
    bars = random_walk(seed=3, length=20_000, sigma=0.01, drift=0.0005)
    path = backtest(np.ones(len(bars)), bars, NO_COSTS)
    found = path_statistics(path, alpha=0.05, gamma=0.9)
    returns = np.log(bars.close[1:] / bars.open[1:])
    assert bars.frequency.periods_per_year == pytest.approx(365 * 24, rel=0.01)
    expected = returns.mean() / returns.std(ddof=1) * np.sqrt(bars.frequency.periods_per_year)
    assert found.sharpe == pytest.approx(expected, rel=1e-9)
    assert found.annual_volatility == pytest.approx(0.01 * np.sqrt(365 * 24), rel=0.02)
    assert found.total_return == pytest.approx(np.exp(returns.sum()) - 1, rel=1e-9)
    # CVaR of a normal law: mean - sd x phi(z) / alpha.
    assert found.cvar_bar == pytest.approx(0.0005 - 0.01 * 2.0627, rel=0.03)
    assert found.costs == 0.0 and found.mean_exposure == pytest.approx(1.0, abs=1e-9)
    daily = 0.0005 - 0.01 * 2.0627 / np.sqrt(24)
    assert abs(found.cvar_bar - daily) > 0.01  # the wrong horizon would not pass


def test_a_flat_account_has_no_sharpe_and_no_tail() -> None:
    bars = random_walk(seed=0, length=400)
    found = path_statistics(backtest(np.zeros(len(bars)), bars), alpha=0.05, gamma=0.99)
    assert found.sharpe is None and found.annual_volatility == 0.0
    assert found.total_return == 0.0 and found.cvar_bar == 0.0 and found.turnover == 0.0 and found.trades == 0


def test_discounted_forward_returns_equal_the_plain_sum() -> None:
    returns = np.random.default_rng(0).standard_normal(80)
    gamma = 0.9
    horizon = tail_horizon(gamma)
    assert horizon == 30
    plain = [sum(gamma**k * returns[t + k] for k in range(horizon)) for t in range(len(returns) - horizon + 1)]
    found = discounted_forward_returns(returns, gamma)
    assert np.allclose(found, plain, rtol=0, atol=1e-12) and len(found) == 51
    assert len(discounted_forward_returns(returns[:29], gamma)) == 0


@pytest.mark.parametrize("alpha", [0.05, 0.031, 1.0])
def test_empirical_cvar_counts_the_border_value_partly(alpha: float) -> None:
    """Against the integral of the empirical quantile function. Rejects rounding alpha n to whole values."""
    values = np.random.default_rng(1).standard_normal(50)
    ordered = np.sort(values)
    levels = (np.arange(500_000) + 0.5) / 500_000 * alpha
    integral = ordered[np.minimum((levels * 50).astype(int), 49)].mean()
    assert empirical_cvar(values, alpha) == pytest.approx(integral, rel=1e-4)


def test_empirical_cvar_of_a_normal_law() -> None:
    values = stats.norm.ppf((np.arange(100_000) + 0.5) / 100_000)
    assert empirical_cvar(values, 0.05) == pytest.approx(-2.0627, rel=1e-3)


def test_impossible_settings_are_sentences() -> None:
    with pytest.raises(ConfigError, match="alpha is 0"):
        empirical_cvar(np.zeros(3), 0.0)
    with pytest.raises(ConfigError, match="gamma is 1"):
        tail_horizon(1.0)


def by_hand() -> AccountPath:
    """Four daily bars, 252 a year: equity 100, 110, 99, 99, 108.9, with one order, one exit and a few costs."""
    equity = np.array([100.0, 110.0, 99.0, 99.0, 108.9])
    zero = np.zeros(4)
    ledger = dict.fromkeys(COMPONENTS, zero) | {
        "equity_before": equity[:-1],
        "equity": equity[1:],
        "shortfall": zero,
        "fee": np.array([0.5, 0.0, 0.0, 0.0]),
        "spread": np.array([0.0, 0.0, 0.198, 0.0]),
        "units": np.array([[11.0], [9.9], [0.0], [0.0]]),
        "order_units": np.array([[11.0], [0.0], [0.0], [0.0]]),
        "order_price": np.array([[10.0], [0.0], [0.0], [0.0]]),
        "exit_units": np.array([[0.0], [0.0], [-9.9], [0.0]]),
        "exit_price": np.array([[0.0], [0.0], [10.0], [0.0]]),
        "row": np.arange(4),
    }
    time = np.datetime64("2020-01-01", "ns") + np.arange(4) * np.timedelta64(1, "D")
    close = np.array([[10.0], [10.0], [10.0], [11.0]])
    return AccountPath("X", "real", ("X",), 252.0, time, ledger, np.ones((4, 1)), close, 4)


def test_drawdown_turnover_and_costs_by_hand() -> None:
    """Rejects sums that are not per year and a drawdown from the start instead of from the peak."""
    found = path_statistics(by_hand(), alpha=0.25, gamma=0.0)
    assert found.max_drawdown == pytest.approx(1 - 99 / 110)
    years = 4 / 252
    assert found.years == pytest.approx(years) and found.annual_return is None  # below a year
    assert found.turnover == pytest.approx((110 / 100 + 99 / 99) / years)
    assert found.costs == pytest.approx((0.5 / 100 + 0.198 / 99) / years)
    assert found.mean_exposure == pytest.approx((1.0 + 1.0 + 0.0 + 0.0) / 4)
    assert found.trades == 2 and not found.ruined
    assert found.cvar_bar == pytest.approx(np.log(0.9))
    assert found.total_return == pytest.approx(0.089)


def test_a_short_account_says_so() -> None:
    """Three bars short, one long. Rejects an exposure without its sign, by which a short looks like a long."""
    path = backtest(np.array([-1.0, -1.0, -1.0, 0.6, 0.0]), random_walk(seed=0, length=5, sigma=1e-6), NO_COSTS)
    found = path_statistics(path, alpha=0.25, gamma=0.0)
    assert found.short_exposure == pytest.approx(3 / 4, abs=1e-3)
    assert found.long_exposure == pytest.approx(0.6 / 4, abs=1e-3)
    assert found.mean_exposure == pytest.approx(3.6 / 4, abs=1e-3)
    assert found.net_exposure == pytest.approx(-2.4 / 4, abs=1e-3)
    shown = {name: show(found) for name, show in columns(found)}
    assert (shown["long exposure"], shown["short exposure"], shown["net exposure"]) == ("0.15", "0.75", "-0.60")
    assert held(found) == "0.15 long and 0.75 short" and exposures(found) == "0.15 / 0.75 / -0.60"


@pytest.mark.parametrize("bar", [1000, 200])
def test_ruin_is_in_the_long_tail_and_the_rest_of_the_window_counts(bar: int) -> None:
    """A short squeezed a hundredfold. Rejects a tail that only knows starts with a whole horizon ahead, in which ruin
    hardly appears (-0.13 for ruin at bar 1000) or not at all (at bar 200)."""
    bars = random_walk(seed=0, length=2000)
    jump = np.where(np.arange(2000) >= bar, 100.0, 1.0)
    hurt = replace(bars, **{name: getattr(bars, name) * jump for name in ("open", "high", "low", "close")})
    path = backtest(-np.ones(2000), hurt)
    assert path.ruined and len(path) == bar and path.planned == 1999
    found = path_statistics(path, alpha=0.05, gamma=0.99)
    assert found.ruined and found.shortfall > 0 and found.bars == 1999
    # The bars after the end earn nothing and are no risk. Rejects ratios of the bars before the end alone.
    whole = np.concatenate([path.log_returns, np.zeros(1999 - bar)])
    assert found.annual_volatility == pytest.approx(whole.std(ddof=1) * np.sqrt(path.periods_per_year))
    assert found.sharpe == pytest.approx(whole.mean() / whole.std(ddof=1) * np.sqrt(path.periods_per_year))
    assert found.years == pytest.approx(1999 / bars.frequency.periods_per_year)
    assert found.cvar_return is not None and found.cvar_return < -10
    assert found.total_return == -1.0
    sentence = ruins({"policy": path})[0]
    assert "policy: ruined on" in sentence and f"{bar:,} of 1,999 bars" in sentence
    assert ruins({"flat": backtest(np.zeros(2000), hurt)}) == []
