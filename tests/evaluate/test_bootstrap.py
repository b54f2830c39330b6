"""Intervals: long-run variance, influence functions, level and power over bars; the interquartile mean over seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import fft, stats
from scipy.signal import lfilter

from tailwise.core.errors import ConfigError, ShapeError
from tailwise.evaluate import bootstrap
from tailwise.evaluate.bootstrap import (
    Interval,
    Statistic,
    block_length,
    interquartile_mean,
    long_run_variance,
    resampled_rows,
    standard_error,
    studentised_intervals,
    summarise_seeds,
)
from tailwise.evaluate.statistics import empirical_cvar

YEAR = 252.0


def studentised_interval(series: Any, statistic: Statistic, **options: Any) -> Interval:
    (interval,) = studentised_intervals(series, [statistic], **options)
    return interval


def fat(count: int, seed: int, *, phi: float = 0.0, mean: float = 0.0) -> np.ndarray:
    shocks = 0.01 * np.random.default_rng(seed).standard_t(5, count + 50)
    return mean + np.asarray(lfilter([1.0], [1.0, -phi], shocks))[50:]


def test_long_run_variance_of_an_autoregression() -> None:
    """x = 0.5 x' + e has long-run variance 1 / (1 - 0.5)**2 = 4 and variance 4/3. Rejects the plain variance."""
    rng = np.random.default_rng(0)
    series = lfilter([1.0], [1.0, -0.5], rng.standard_normal((300, 4000)), axis=1)[:, 100:]
    found, degrees = long_run_variance(series - series.mean(axis=1, keepdims=True))
    assert degrees == int(0.4 * 3900 ** (2 / 3)) == 99
    assert found.mean() == pytest.approx(4.0, rel=0.03)
    assert series.var() == pytest.approx(4 / 3, rel=0.02)


def test_long_run_variance_is_the_mean_power_of_the_slowest_cosines() -> None:
    """64 bars: 6 cosines, of amplitude 1 to 6. Rejects the constant as one of them: their mean is 5/6 of it then, or
    depends on the level of the series."""
    amplitudes = np.zeros(64)
    amplitudes[1:7] = np.arange(1, 7)
    amplitudes[7:] = 100.0
    found, degrees = long_run_variance(fft.idct(amplitudes, type=2, norm="ortho") + 3.0)
    assert degrees == 6 and float(found) == pytest.approx((1 + 4 + 9 + 16 + 25 + 36) / 6)


@pytest.mark.parametrize(
    "statistic",
    [
        bootstrap.mean_return(YEAR),
        bootstrap.volatility(YEAR),
        bootstrap.sharpe(YEAR),
        bootstrap.cvar(0.05),
        bootstrap.mean_difference(YEAR),
        bootstrap.sharpe_difference(YEAR),
    ],
    ids=lambda s: s.name,
)
def test_influence_is_the_derivative(statistic: Statistic) -> None:
    """Weigh each bar by 1 + e g: the statistic moves by e mean(g influence). Rejects a forgotten factor or term.

    Weights are made of repetitions: bars of 1 .. n, each as often as an integer weight says.
    """
    rng = np.random.default_rng(1)
    series = np.stack([fat(1500, 1, mean=0.002), fat(1500, 2)])
    influence = statistic.influence(series)
    assert abs(influence.mean()) < np.abs(influence).max() / 1500  # 0 up to the n - 1 of a variance
    more = rng.choice(1500, 75, replace=False)
    rows = np.concatenate([np.repeat(np.arange(1500), 20), more])  # weight 21/20 for some bars
    moved = float(statistic.value(series[:, rows]) - statistic.value(np.repeat(series, 20, axis=1)))
    expected = float(influence[more].sum() / len(rows))
    assert moved == pytest.approx(expected, rel=0.03)


def test_standard_error_is_that_of_simulated_sharpe_ratios() -> None:
    """Rejects sqrt((1 + SR**2 / 2) / n), which knows neither autocorrelation nor fat tails."""
    series = np.stack([fat(2000, seed, phi=0.2, mean=0.001) for seed in range(400)])[:, None]
    statistic = bootstrap.sharpe(1.0)
    truth = float(statistic.value(series).std())
    errors = standard_error(statistic.influence(series))
    assert errors.mean() == pytest.approx(truth, rel=0.08)
    assert np.sqrt(1 / 2000) < 0.88 * truth


def test_estimates_are_those_of_the_statistics() -> None:
    from tailwise.evaluate.statistics import path_statistics
    from tests.evaluate.paths import path_of

    returns = fat(800, 3, mean=0.0003)
    found = path_statistics(path_of(returns), alpha=0.05, gamma=0.9)
    assert float(bootstrap.sharpe(YEAR).value(returns[None])) == pytest.approx(found.sharpe, rel=1e-12)
    assert float(bootstrap.volatility(YEAR).value(returns[None])) == pytest.approx(found.annual_volatility, rel=1e-12)
    assert float(bootstrap.cvar(0.05).value(returns[None])) == pytest.approx(found.cvar_bar, rel=1e-12)
    many = np.stack([returns[:333], returns[-333:]])[:, None]
    assert bootstrap.cvar(0.031).value(many).tolist() == [empirical_cvar(row[0], 0.031) for row in many]


def test_rows_are_blocks_around_a_circle_and_seeded() -> None:
    rows = resampled_rows(500, 20, 200, seed=1, name="test")
    assert rows.shape == (200, 500) and rows.min() == 0 and rows.max() == 499
    follows = (np.diff(rows, axis=1) % 500 == 1).mean()
    assert follows == pytest.approx(1 - 1 / 20, abs=0.005)  # a new block begins once in 20 bars
    assert np.bincount(rows.reshape(-1), minlength=500).std() < 0.2 * 200  # the ends are drawn as often as the middle
    assert np.array_equal(rows, resampled_rows(500, 20, 200, seed=1, name="test"))
    assert not np.array_equal(rows, resampled_rows(500, 20, 200, seed=2, name="test"))


def test_block_length_has_a_floor_and_grows_with_dependence() -> None:
    """Rejects blocks of one bar, which white returns are given by the automatic rule alone."""
    assert block_length(fat(1000, 5)) == 10
    assert block_length(fat(1000, 5, phi=0.8)) > 15
    assert block_length(np.zeros(1000)) == 10


def test_the_level_holds_where_plain_variants_do_not() -> None:
    """200 markets without edge, autocorrelation 0.5, one year: 5% of two-sided false alarms are promised.

    Rejects the t-test that takes bars as independent, and the percentile interval.
    """
    ours = plain = percentile = 0
    rows = resampled_rows(252, 10, 250, seed=0, name="test")
    for seed in range(200):
        returns = fat(252, seed, phi=0.5)
        found = studentised_interval(returns[None], bootstrap.mean_return(YEAR), repetitions=250)
        ours += found.verdict != "no evidence"
        plain += abs(returns.mean() / returns.std(ddof=1) * np.sqrt(252)) > 1.97
        low, high = np.quantile(returns[rows].mean(axis=1), [0.025, 0.975])
        percentile += not low <= 0 <= high
    # 200 x 5% = 10, standard deviation 3.1.
    assert ours <= 19 < percentile < plain


def test_power() -> None:
    """Sharpe 2 over five years of daily bars is found, and the bounds hold it."""
    found = []
    for seed in range(30):
        noise = fat(1260, 1000 + seed, phi=0.05)
        returns = noise + 2 / np.sqrt(YEAR) * noise.std()
        found.append(studentised_interval(returns[None], bootstrap.sharpe(YEAR), repetitions=400))
    assert sum(f.verdict == "above zero" for f in found) >= 28
    assert sum(f.low < 2 < f.high for f in found if f.low is not None and f.high is not None) >= 26
    small = [f.above_zero for f in found if f.above_zero is not None]
    assert len(small) == 30 and np.median(small) < 0.005


def test_bounds_lean_where_the_law_is_skewed() -> None:
    """The mean of rare large gains is more often under- than overestimated: the upper bound is farther away. Rejects
    quantiles of the resamples that are taken over without being turned around."""
    shocks = np.random.default_rng(3).standard_exponential(120) ** 2
    for series, lean in ((shocks, 1), (-shocks, -1)):
        found = studentised_interval(series[None], bootstrap.mean_return(1.0), repetitions=1000)
        assert found.low is not None and found.high is not None
        upper, lower = found.high - found.estimate, found.estimate - found.low
        assert (upper > 1.15 * lower) if lean > 0 else (lower > 1.15 * upper)


def test_bounds_are_never_nearer_than_students() -> None:
    """Rejects the bootstrap alone, which in some of these series puts a bound nearer."""
    for seed in range(8):
        series = fat(150, 40 + seed)[None]
        found = studentised_interval(series, bootstrap.mean_return(1.0), repetitions=100, seed=seed)
        assert found.low is not None and found.high is not None
        reach = stats.t.ppf(0.975, int(0.4 * 150 ** (2 / 3))) * float(standard_error(series[0] - series.mean()))
        assert min(found.high - found.estimate, found.estimate - found.low) >= reach * (1 - 1e-9)


def test_a_p_value_is_never_smaller_than_the_resamples_and_student_allow() -> None:
    """An edge that no resample reaches has 1 / (1 + resamples) at least. Rejects the plain share, which is 0. Of a
    weaker one over few bars Student's law says more than the resamples. Rejects these alone."""
    strong = studentised_interval(fat(1000, 3, mean=0.02)[None], bootstrap.mean_return(YEAR), repetitions=200)
    assert strong.above_zero == pytest.approx(1 / 201)
    few = fat(40, 3, mean=0.01)[None]
    weak = studentised_interval(few, bootstrap.mean_return(YEAR), repetitions=2000)
    influence = bootstrap.mean_return(YEAR).influence(few)
    law = stats.t(long_run_variance(influence)[1])
    assert weak.above_zero is not None
    assert weak.above_zero >= law.sf(weak.estimate / float(standard_error(influence))) > 1 / 2001


def test_what_has_no_interval() -> None:
    """A flat account, too few bars, and an account that moved in two bars of a thousand: one resample in seven sees
    neither of them."""
    for series in (np.zeros(500), fat(20, 0), np.where(np.arange(1000) % 500 == 7, 0.01, 0.0)):
        found = studentised_interval(series[None], bootstrap.sharpe(YEAR), repetitions=200)
        assert found.low is None and found.above_zero is None and found.verdict == "no evidence"
    with pytest.raises(ConfigError, match="level of an interval is 95"):
        studentised_interval(fat(100, 0)[None], bootstrap.sharpe(YEAR), level=95)


def test_parts_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long series are resampled in parts that fit into memory."""
    series = fat(300, 9)[None]
    whole = studentised_interval(series, bootstrap.sharpe(YEAR), repetitions=100)
    monkeypatch.setattr("tailwise.evaluate.bootstrap._LARGEST_PART", 7 * 300)
    assert studentised_interval(series, bootstrap.sharpe(YEAR), repetitions=100) == whole


def test_interquartile_mean_by_hand() -> None:
    """Of eight scores the two lowest and the two highest go. Rejects the mean and the median."""
    scores = np.array([[-50.0, 1.0, 2.0, 3.0], [4.0, 6.0, 9.0, 700.0]])
    assert interquartile_mean(scores) == pytest.approx((2 + 3 + 4 + 6) / 4)
    assert interquartile_mean(scores) != np.median(scores) and abs(scores.mean() - 3.75) > 50


def test_the_interval_holds_the_truth() -> None:
    """95% intervals of ten seeds on three tasks of different height, 200 times."""
    rng = np.random.default_rng(0)
    truth = np.array([0.0, 0.2, 0.4])
    inside = 0
    for draw in range(200):
        found = summarise_seeds(truth + 0.3 * rng.standard_normal((10, 3)), repetitions=400, seed=draw)
        assert found.low is not None and found.high is not None and found.low <= found.iqm <= found.high
        inside += found.low <= 0.2 <= found.high
    assert inside >= 175


def test_differences_between_tasks_are_not_noise() -> None:
    """Rejects drawing from all scores alike: tasks 10 apart would then give an interval of their distance."""
    scores = np.array([0.0, 10.0, 20.0]) + 0.01 * np.random.default_rng(1).standard_normal((6, 3))
    found = summarise_seeds(scores)
    assert found.low is not None and found.high is not None and found.high - found.low < 0.1
    rows = np.random.default_rng(2).integers(0, scores.size, (2000, scores.size))
    wrong = np.quantile([interquartile_mean(scores.reshape(-1)[r]) for r in rows], [0.025, 0.975])
    assert wrong[1] - wrong[0] > 1.0


def test_seeded_and_hostile() -> None:
    scores = np.random.default_rng(3).standard_normal((5, 2))
    assert summarise_seeds(scores, seed=1) == summarise_seeds(scores, seed=1) != summarise_seeds(scores, seed=2)
    alone = summarise_seeds(scores[:1])
    assert alone.low is None and alone.high is None and alone.iqm == pytest.approx(scores[0].mean())
    with pytest.raises(ShapeError, match="a row per seed"):
        summarise_seeds(scores[0])
    with pytest.raises(ConfigError, match="level"):
        summarise_seeds(scores, level=95)
