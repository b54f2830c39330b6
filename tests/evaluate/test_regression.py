"""Alpha and beta: leverage is beta and no alpha, a planted alpha is found, intervals hold their level."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

import tailwise
from tailwise.bars.builtin import sp500
from tailwise.core.errors import DataError
from tailwise.evaluate.regression import Regression, alpha_statistic, beyond_exposure, regress, regress_returns
from tailwise.market.costs import CostConfig
from tests.evaluate.paths import path_of

FREE = CostConfig(taker_fee_bps=0, half_spread_bps=0, slippage_bps=0, impact_bps=0)


def market(seed: int, count: int = 1260) -> np.ndarray:
    """Simple returns with a premium of 8% a year, 16% volatility, fat tails."""
    draws = np.random.default_rng(seed).standard_t(5, count) / np.sqrt(5 / 3)
    return 0.08 / 252 + 0.01 * draws


def fitted(own: np.ndarray, held: np.ndarray, repetitions: int = 400) -> Regression:
    found = regress_returns(own, held, 252.0, against="buy and hold", repetitions=repetitions)
    assert found is not None
    return found


@pytest.mark.parametrize("k", [-0.5, 0.3, 1.7])
def test_k_times_the_market_has_beta_k_and_no_alpha(k: float) -> None:
    """Exact without noise, within the intervals with it. Rejects "it earned money" for half of a rising market, and the
    sign of the market flipped, whose alpha is twice the premium of the exposure."""
    held = market(3)
    exact = fitted(k * held, held)
    assert exact.beta.estimate == pytest.approx(k, rel=1e-12)
    assert exact.alpha.estimate == pytest.approx(0.0, abs=1e-10) and exact.verdict == "no evidence"
    noise = 0.002 * np.random.default_rng(4).standard_normal(len(held))
    found = fitted(k * held + noise - noise.mean(), held)
    assert found.alpha.low is not None and found.alpha.high is not None and found.beta.low is not None
    assert found.alpha.low < 0 < found.alpha.high and found.verdict == "no evidence"
    assert found.beta.low < k < found.beta.high  # type: ignore[operator]
    flipped = fitted(k * held, -held)
    assert flipped.beta.estimate == pytest.approx(-k, rel=1e-12)
    wrong = 252 * ((k * held).mean() - (-k) * held.mean())  # slope of the wrong sign
    assert abs(wrong) > 0.01 and abs(exact.alpha.estimate) < 1e-9


def test_a_planted_alpha_is_found_with_its_sign() -> None:
    """6% a year beside an exposure of 0.6, residual volatility 3%. Flipped, the verdict flips."""
    held = market(5)
    noise = 0.002 * np.random.default_rng(6).standard_normal(len(held))
    own = 0.6 * held + noise - noise.mean() + 0.06 / 252
    found = fitted(own, held)
    assert found.verdict == "above zero" and found.alpha.estimate == pytest.approx(0.06, abs=0.01)
    assert found.alpha.low < 0.06 < found.alpha.high  # type: ignore[operator]
    assert fitted(-own, held).verdict == "below zero"
    assert "It earned money beyond its exposure, beyond noise (alpha +5.9% a year" in beyond_exposure(found, [])
    assert "It lost money beyond its exposure" in beyond_exposure(fitted(-own, held), [])
    assert beyond_exposure(found, ["it hardly held anything"]).startswith("Its alpha is above 0 beyond noise")


def test_a_constant_exposure_through_the_simulator_has_no_alpha() -> None:
    """Half of the S&P 500, rebalanced at every close without costs: beta 1/2, no alpha. Rejects log-returns, whose
    concavity gives half an exposure an alpha of k (1 - k) / 2 times the variance: half a percent a year."""
    bars = sp500().slice(3000, 4500)
    held = tailwise.backtest(np.ones(len(bars)), bars, FREE)
    half = tailwise.backtest(np.full(len(bars), 0.5), bars, FREE)
    found = regress(half, held, against="buy and hold", repetitions=200)
    assert found is not None and found.beta.estimate == pytest.approx(0.5, abs=0.01)
    variance = 252 * float(held.log_returns.var())
    assert abs(found.alpha.estimate) < 0.25 * variance / 8 and found.verdict == "no evidence"
    logs = fitted(half.log_returns, held.log_returns, repetitions=50)
    assert logs.alpha.estimate == pytest.approx(variance / 8, rel=0.3)


def test_the_interval_of_alpha_holds_its_level() -> None:
    """200 simulated series of five years with GARCH-like volatility and residuals that depend on the market's size, no
    alpha: 95% intervals miss 0 in 1 to 9% (standard error 1.5 points). Rejects intervals of the mean return, which
    miss 0 for half of a rising market."""
    rng, misses, beta_misses, naive = np.random.default_rng(7), 0, 0, 0
    for _ in range(200):
        scale = np.exp(0.5 * lfilter([0.3], [1.0, -0.95], rng.standard_normal(1260)))
        held = 0.0006 + 0.008 * scale * rng.standard_normal(1260)
        own = 0.5 * held + 0.004 * scale * lfilter([1.0], [1.0, -0.1], rng.standard_normal(1260))
        found = fitted(own, held, repetitions=200)
        misses += found.verdict != "no evidence"
        beta_misses += not found.beta.low < 0.5 < found.beta.high  # type: ignore[operator]
        naive += abs(own.mean()) > 1.96 * own.std() / np.sqrt(1260)
    assert 2 <= misses <= 18, misses
    assert 2 <= beta_misses <= 24, beta_misses
    assert naive > 18


def test_the_influence_is_the_derivative() -> None:
    """A bar that is counted a little more often moves alpha by its influence. Rejects the residual alone, without the
    leverage of the bar."""
    held = market(8, 300) + 0.005  # a mean that is not small against the deviation
    own = 0.4 * held + 0.003 * np.random.default_rng(9).standard_normal(300)
    series, statistic = np.stack([own, held]), alpha_statistic(252.0)
    bar, eps = int(np.argmax(held)), 1e-6
    weights = np.full(300, (1 - eps) / 300)
    weights[bar] += eps
    centre = weights @ held
    slope = weights @ ((held - centre) * own) / (weights @ (held - centre) ** 2)
    moved = 252 * (weights @ own - slope * centre)
    change = (moved - float(statistic.value(series))) / eps
    assert float(statistic.influence(series)[bar]) == pytest.approx(change, rel=1e-3)
    rest = own - own.mean() - slope * (held - held.mean())
    assert abs(252 * rest[bar] - change) > 0.1 * abs(change)


def test_a_market_that_never_moved_and_paths_of_other_bars() -> None:
    flat, some = path_of(np.zeros(100)), path_of(market(0, 100))
    assert regress(some, flat, against="flat") is None
    idle = regress(flat, some, against="buy and hold", repetitions=20)
    assert idle is not None and idle.beta.estimate == 0.0 and idle.alpha.low is None
    with pytest.raises(DataError, match="not over the same bars"):
        regress(some, path_of(market(0, 99)), against="buy and hold")
