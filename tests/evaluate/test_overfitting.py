"""Deflated Sharpe ratios and the probability of backtest overfitting: by hand, on noise, with an edge, by a loop."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from tailwise.core.errors import ConfigError, ShapeError
from tailwise.evaluate.evidence import deflated_sharpe, expected_best_sharpe, overfitting, probabilistic_sharpe

# Bailey & López de Prado (2014), "The Deflated Sharpe Ratio", numerical example: a strategy with Sharpe 2.5 a year over
# 1250 daily returns (250 a year), skewness -3, kurtosis 10, the best of N trials whose Sharpe ratios have variance 1/2.
DAILY = 2.5 / np.sqrt(250)


def deflated(trials: int, *, skew: float = -3.0, kurtosis: float = 10.0) -> float:
    best = expected_best_sharpe(trials, 0.5 / 250)
    return probabilistic_sharpe(DAILY, 1250, skew=skew, kurtosis=kurtosis, benchmark=best)


def test_the_example_of_the_deflated_sharpe_ratio() -> None:
    assert expected_best_sharpe(100, 0.5 / 250) == pytest.approx(0.1132, abs=5e-5)
    assert deflated(100) == pytest.approx(0.9004, abs=5e-5)
    assert deflated(46) == pytest.approx(0.9505, abs=5e-5)  # the most trials that keep it above 95%
    assert deflated(88, skew=0.0, kurtosis=3.0) == pytest.approx(0.9505, abs=5e-5)  # had the returns been normal


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: probabilistic_sharpe(2.5, 1250, skew=-3, kurtosis=10, benchmark=0.1132 * np.sqrt(250)),  # annual ratio
        lambda: deflated(100, kurtosis=7.0),  # excess kurtosis instead of kurtosis
        lambda: deflated(100, skew=3.0),  # sign of the skewness
        lambda: probabilistic_sharpe(DAILY, 5, skew=-3, kurtosis=10, benchmark=0.1132),  # years instead of bars
    ],
)
def test_wrong_variants_miss_the_example(wrong: Callable[[], float]) -> None:
    assert abs(wrong() - 0.9004) > 10 * 5e-5


def test_the_example_of_the_probabilistic_sharpe_ratio() -> None:
    """Bailey & López de Prado (2012), "The Sharpe Ratio Efficient Frontier": 24 months, 0.458 a month (1.59 a year),
    skewness -2.448, kurtosis 10.164: 98.2% if the returns were normal, 91.3% as they are."""
    assert probabilistic_sharpe(0.458, 24, skew=0.0, kurtosis=3.0) == pytest.approx(0.982, abs=1e-3)
    assert probabilistic_sharpe(0.458, 24, skew=-2.448, kurtosis=10.164) == pytest.approx(0.913, abs=1e-3)


def test_the_expected_best_is_that_of_normal_draws() -> None:
    """Rejects sqrt(2 ln N), which is far above the truth for a handful of trials."""
    draws = np.random.default_rng(0).standard_normal((20_000, 50)).max(axis=1)
    assert expected_best_sharpe(50, 1.0) == pytest.approx(draws.mean(), rel=0.02)
    assert np.sqrt(2 * np.log(50)) > 1.2 * draws.mean()
    assert expected_best_sharpe(1, 1.0) == 0.0


def test_the_deflated_sharpe_falls_as_trials_grow() -> None:
    returns = 0.0008 + 0.01 * np.random.default_rng(1).standard_t(5, 1260)
    found = [deflated_sharpe(returns, 252.0, trials=n) for n in (1, 2, 5, 20, 100, 1000)]
    values = [f.deflated for f in found if f is not None]
    assert len(values) == 6 and all(np.diff(values) < 0)
    first = found[0]
    assert first is not None and first.deflated == first.probabilistic and first.expected_best == 0.0
    assert values[-1] < 0.5 < values[0]


def test_probabilistic_sharpe_of_a_series_equals_its_moments() -> None:
    returns = 0.0004 + 0.01 * np.random.default_rng(2).standard_t(4, 500)
    found = deflated_sharpe(returns, 252.0, trials=1)
    assert found is not None
    expected = probabilistic_sharpe(
        returns.mean() / returns.std(ddof=1), 500, skew=stats.skew(returns), kurtosis=stats.kurtosis(returns) + 3
    )
    assert found.probabilistic == pytest.approx(expected, rel=1e-12)


def test_the_variance_of_the_trials_is_annual_and_never_below_chance() -> None:
    """Rejects the variance of annual ratios taken per bar, and a search of near-copies that looks harmless."""
    returns = 0.0005 + 0.01 * np.random.default_rng(3).standard_normal(1000)
    wide = deflated_sharpe(returns, 250.0, trials=4, trial_sharpes=[0.0, 1.0, 2.0, 3.0])
    alike = deflated_sharpe(returns, 250.0, trials=4, trial_sharpes=[1.0, 1.001, 1.002, 1.003])
    unknown = deflated_sharpe(returns, 250.0, trials=4)
    assert wide is not None and alike is not None and unknown is not None
    assert wide.expected_best == pytest.approx(expected_best_sharpe(4, 5 / 3), rel=1e-9)  # variance of 0, 1, 2, 3
    assert alike.expected_best == unknown.expected_best == pytest.approx(expected_best_sharpe(4, 250 / 1000), rel=1e-9)


def test_what_cannot_be_judged() -> None:
    assert deflated_sharpe(np.zeros(100), 252.0, trials=3) is None
    with pytest.raises(ConfigError, match="0 trials"):
        expected_best_sharpe(0, 1.0)
    with pytest.raises(ConfigError, match="kurtosis is at least"):
        probabilistic_sharpe(1.0, 100, skew=3.0, kurtosis=1.0)
    with pytest.raises(ConfigError, match="at least 2"):
        probabilistic_sharpe(1.0, 1, skew=0.0, kurtosis=3.0)


def noise(trials: int, seed: int, bars: int = 800) -> np.ndarray:
    return 0.01 * np.random.default_rng(seed).standard_t(5, (bars, trials))


def test_by_hand() -> None:
    """Two halves, two trials. The first is the best of the first half and the worst of the second, and the other way
    round: whichever half chooses, its choice ends last of two, rank 1/3, log-odds ln(1/2)."""
    first = np.array([0.02, 0.01, 0.02, 0.01, -0.02, -0.01, -0.02, -0.01])
    found = overfitting(np.stack([first, -first], axis=1), blocks=2)
    assert found.probability == 1.0 and found.loss_probability == 1.0
    assert np.allclose(found.logits, np.log(0.5)) and found.chosen.tolist() == [0, 1]
    assert np.allclose(found.in_sample, 0.015 / np.std([0.02, 0.01, 0.02, 0.01], ddof=1))


def test_equals_the_plain_loop() -> None:
    """Rejects sums that forget the n - 1, blocks of unequal length taken as equal, and a rank counted from the top."""
    values = noise(5, seed=1, bars=103)
    found = overfitting(values, blocks=6)
    parts, logits = np.array_split(values, 6), []
    for some in combinations(range(6), 3):
        inside = np.concatenate([parts[i] for i in some])
        outside = np.concatenate([parts[i] for i in range(6) if i not in some])
        best = (inside.mean(0) / inside.std(0, ddof=1)).argmax()
        ratio = outside.mean(0) / outside.std(0, ddof=1)
        rank = (ratio <= ratio[best]).sum() / 6
        logits.append(np.log(rank / (1 - rank)))
    assert np.allclose(found.logits, logits) and found.probability == np.mean(np.array(logits) <= 0)


def test_noise_is_a_coin_and_an_edge_is_found() -> None:
    """On noise the chosen one is as often in the worse half as in the better; with one trial of Sharpe 3 it is not."""
    on_noise = [overfitting(noise(20, seed), blocks=10).probability for seed in range(40)]
    assert 0.4 < np.mean(on_noise) < 0.6
    edge = noise(20, seed=7)
    edge[:, 3] += 3 / np.sqrt(252) * edge[:, 3].std()
    found = overfitting(edge)
    assert found.probability < 0.05 and len(found.logits) == 12_870 and (found.chosen == 3).mean() > 0.9
    # Wrong: judging where it was chosen. The best in sample is then never in the worse half, noise or not.
    assert (found.in_sample > found.out_of_sample).mean() > 0.5
    assert all((overfitting(noise(20, seed), blocks=10).in_sample > 0).all() for seed in range(5))


def test_impossible_input() -> None:
    with pytest.raises(ShapeError, match="at least two trials"):
        overfitting(noise(1, 0))
    with pytest.raises(ConfigError, match="an even number"):
        overfitting(noise(3, 0), blocks=7)
    with pytest.raises(ConfigError, match="too few"):
        overfitting(noise(3, 0, bars=20), blocks=16)
