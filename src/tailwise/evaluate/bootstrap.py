"""Intervals: of statistics of dependent returns, and of scores over seeds.

Returns: the studentised stationary bootstrap (Politis & Romano 1994). A statistic is given with its influence function,
whose long-run variance is the variance of the statistic however the bars depend on one another. Each resample is
measured in its own standard errors, and a bound is never nearer than Student's law with the degrees of freedom of that
variance puts it: percentile intervals, and the bootstrap alone, give more false alarms than they promise.
docs/evidence.md shows what was measured.

The influence of bar t on a statistic is what it would change if bars like t were a little more frequent. For a smooth
function of moments it is the derivative; for CVaR see Trindade et al. 2007.

Seeds: the interquartile mean with a stratified bootstrap (Agarwal et al. 2021), robust to the one seed that failed and
to the one that was lucky, and less noisy than the median.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import fft
from scipy.stats import t as student
from scipy.stats import trim_mean

from tailwise.core.errors import ConfigError, ShapeError
from tailwise.core.streams import Streams
from tailwise.evaluate.statistics import NOTHING, worst_share

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

REPETITIONS = 2000
LEVEL = 0.95
FEWEST_BARS = 30  # below, no interval: the long-run variance would rest on two or three cosines
_LARGEST_PART = 4_000_000  # resampled values that are held in memory at once
_DEGENERATE = 0.05  # share of resamples without any spread above which a series is too sparse for an interval
SEED_REPETITIONS = 5000
FEWEST_SEEDS = 2


@dataclass(frozen=True)
class Statistic:
    """A number of series [..., k, n] of k paths over the same n bars, with what each bar contributes to it."""

    name: str
    value: Callable[[Floats], Floats]  # [..., k, n] -> [...]
    influence: Callable[[Floats], Floats]  # [..., k, n] -> [..., n], mean 0


@dataclass(frozen=True)
class Interval:
    """An estimate with its bounds; None where the series has no spread or too few bars to say anything."""

    estimate: float
    low: float | None
    high: float | None
    level: float  # probability that such an interval holds the truth
    above_zero: float | None  # one-sided p-value of "the truth is at most 0"; small: evidence that it is above
    block: int | None  # mean length of the resampled blocks, bars

    @property
    def verdict(self) -> str:
        """'above zero', 'below zero' or 'no evidence': whether 0 lies outside the interval."""
        if self.low is not None and self.low > 0:
            return "above zero"
        return "below zero" if self.high is not None and self.high < 0 else "no evidence"


def long_run_variance(values: Floats) -> tuple[Floats, int]:
    """Long-run variance [...] of values [..., n] with mean 0, and its degrees of freedom.

    The mean square of the first nu type-II cosine coefficients, nu = 0.4 n^(2/3) (Lazarus, Lewis, Stock & Watson 2018):
    the mean over its root has Student's law with nu degrees of freedom, which holds its level where normal critical
    values with a Newey-West variance do not. Never negative, and one fast transform for many series.
    """
    count = values.shape[-1]
    degrees = max(int(0.4 * count ** (2 / 3)), 1)
    cosines = fft.dct(values, type=2, norm="ortho", axis=-1)[..., 1 : degrees + 1]
    return np.asarray((cosines**2).mean(axis=-1)), degrees


def block_length(values: Floats) -> int:
    """Mean block length in bars for values [n]: the automatic one (Politis & White 2004) with a floor of n^(1/3).

    The automatic length looks at the autocorrelation of the values alone and says 1 for most returns, whose sizes
    depend on one another all the same.
    """
    from arch.bootstrap import optimal_block_length

    length = float(len(values) ** (1 / 3))
    if float(values.std()) > NOTHING:
        length = max(float(optimal_block_length(values)["stationary"].iloc[0]), length)
    return int(np.ceil(round(length, 9)))


def resampled_rows(bars: int, block: int, repetitions: int, *, seed: int, name: str) -> Rows:
    """Rows int64 [repetitions, bars] of the stationary bootstrap: blocks of geometric length around a circle."""
    from arch.bootstrap import StationaryBootstrap

    if repetitions < 1:
        raise ConfigError(f"{repetitions} resamples were asked for; at least 1 is needed.")
    source = StationaryBootstrap(block, np.arange(bars), seed=Streams(seed).integer(f"evaluate/{name}"))
    rows = np.empty((repetitions, bars), dtype=np.int64)
    for row, (positional, _) in enumerate(source.bootstrap(repetitions)):
        rows[row] = positional[0]
    return rows


def studentised_intervals(
    series: Floats,
    statistics: Sequence[Statistic],
    *,
    level: float = LEVEL,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> list[Interval]:
    """Intervals of several statistics of series [k, n]; those with blocks of one length share their resamples."""
    if not 0.5 < level < 1:
        raise ConfigError(f"the level of an interval is {level}; it lies between 0.5 and 1, for instance 0.95.")
    drawn: dict[int, Rows] = {}
    intervals = []
    for statistic in statistics:
        estimate = float(statistic.value(series))
        influence = statistic.influence(series)
        if series.shape[-1] < FEWEST_BARS or not float(standard_error(influence)) > NOTHING:
            intervals.append(Interval(estimate, None, None, level, None, None))
            continue
        block = block_length(influence)
        if block not in drawn:
            drawn[block] = resampled_rows(series.shape[-1], block, repetitions, seed=seed, name="bootstrap")
        ratios = _ratios(series, statistic, estimate, drawn[block])
        intervals.append(_interval(estimate, influence, ratios, level, block, repetitions))
    return intervals


def _ratios(series: Floats, statistic: Statistic, estimate: float, rows: Rows) -> Floats:
    """(statistic - estimate) / standard error of each resample that has any spread: float64 [at most repetitions]."""
    part = max(_LARGEST_PART // series.size, 1)
    ratios = []
    for first in range(0, len(rows), part):
        resampled = series[:, rows[first : first + part]].swapaxes(0, 1)  # [r, k, n]
        errors = standard_error(statistic.influence(resampled))
        usable = errors > NOTHING
        ratios.append((statistic.value(resampled)[usable] - estimate) / errors[usable])
    return np.concatenate(ratios)


def _interval(
    estimate: float, influence: Floats, ratios: Floats, level: float, block: int, repetitions: int
) -> Interval:
    if len(ratios) < (1 - _DEGENERATE) * repetitions:
        return Interval(estimate, None, None, level, None, None)
    error, law = float(standard_error(influence)), student(long_run_variance(influence)[1])
    outer = (1 - level) / 2
    low, high = np.quantile(ratios, [outer, 1 - outer])
    low, high = min(low, law.ppf(outer)), max(high, law.ppf(1 - outer))
    beyond = max((1 + np.sum(ratios >= estimate / error)) / (1 + len(ratios)), law.sf(estimate / error))
    return Interval(
        estimate, float(estimate - high * error), float(estimate - low * error), level, float(beyond), block
    )


def standard_error(influence: Floats) -> Floats:
    """Standard error [...] of a statistic with influence values [..., n]."""
    variance, _ = long_run_variance(influence)
    return np.sqrt(variance / influence.shape[-1])


def mean_return(periods_per_year: float) -> Statistic:
    """Mean log-return per year."""
    return Statistic(
        "mean return",
        lambda x: periods_per_year * x[..., 0, :].mean(axis=-1),
        lambda x: periods_per_year * _centred(x[..., 0, :]),
    )


def volatility(periods_per_year: float) -> Statistic:
    """Standard deviation of log-returns, per square root of a year."""
    root = np.sqrt(periods_per_year)

    def influence(x: Floats) -> Floats:
        centred, deviation = _centred(x[..., 0, :]), _deviation(x[..., 0, :])
        return np.asarray(root * (centred**2 - deviation**2) / (2 * np.maximum(deviation, NOTHING)))

    return Statistic("volatility", lambda x: root * x[..., 0, :].std(axis=-1, ddof=1), influence)


def sharpe(periods_per_year: float) -> Statistic:
    """The annualised Sharpe ratio of log-returns."""
    root = np.sqrt(periods_per_year)
    return Statistic("Sharpe", lambda x: root * _sharpe(x[..., 0, :]), lambda x: root * _sharpe_influence(x[..., 0, :]))


def cvar(alpha: float) -> Statistic:
    """Mean of the worst share alpha of log-returns per bar."""

    def value(x: Floats) -> Floats:
        return worst_share(x[..., 0, :], alpha)[1]

    def influence(x: Floats) -> Floats:
        border, mean = worst_share(x[..., 0, :], alpha)
        shape = (*border.shape, 1)
        below = np.minimum(x[..., 0, :] - border.reshape(shape), 0.0)
        return _centred(np.asarray(border.reshape(shape) + below / alpha - mean.reshape(shape)))

    return Statistic("CVaR", value, influence)


def mean_difference(periods_per_year: float) -> Statistic:
    """Mean log-return per year of the first path minus that of the second."""
    return Statistic(
        "difference of mean returns",
        lambda x: periods_per_year * (x[..., 0, :] - x[..., 1, :]).mean(axis=-1),
        lambda x: periods_per_year * _centred(x[..., 0, :] - x[..., 1, :]),
    )


def sharpe_difference(periods_per_year: float) -> Statistic:
    """Sharpe ratio of the first path minus that of the second (Ledoit & Wolf 2008)."""
    root = np.sqrt(periods_per_year)
    return Statistic(
        "difference of Sharpe",
        lambda x: root * (_sharpe(x[..., 0, :]) - _sharpe(x[..., 1, :])),
        lambda x: root * (_sharpe_influence(x[..., 0, :]) - _sharpe_influence(x[..., 1, :])),
    )


def _centred(x: Floats) -> Floats:
    return np.asarray(x - x.mean(axis=-1, keepdims=True))


def _deviation(x: Floats) -> Floats:
    return np.asarray(x.std(axis=-1, ddof=1, keepdims=True))


def _sharpe(x: Floats) -> Floats:
    return np.asarray(x.mean(axis=-1) / np.maximum(_deviation(x)[..., 0], NOTHING))


def _sharpe_influence(x: Floats) -> Floats:
    deviation = np.maximum(_deviation(x), NOTHING)
    scaled = _centred(x) / deviation
    ratio = x.mean(axis=-1, keepdims=True) / deviation
    # A resample in which nothing happened has no influence and no ratio; its zero error marks it.
    return np.where(deviation > NOTHING, scaled - 0.5 * ratio * (scaled**2 - 1), 0.0)


@dataclass(frozen=True)
class SeedSummary:
    """A score over seeds and tasks (folds, symbols)."""

    iqm: float  # mean of the middle half of all scores
    low: float | None  # bounds of the interval; None with a single seed, which shows no spread
    high: float | None
    level: float
    seeds: int
    tasks: int


def interquartile_mean(scores: Floats) -> float:
    """Mean of the scores without the lowest and the highest quarter (a whole number of them each)."""
    return float(trim_mean(np.asarray(scores, dtype=np.float64), 0.25, axis=None))


def summarise_seeds(
    scores: Floats, *, level: float = 0.95, repetitions: int = SEED_REPETITIONS, seed: int = 0
) -> SeedSummary:
    """Interquartile mean of scores [seeds, tasks] and its interval: seeds are redrawn within each task.

    Drawing within tasks keeps the differences between tasks, which are not noise of the seeds, out of the interval.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 2 or not values.size or not np.isfinite(values).all():
        raise ShapeError(f"scores have shape {values.shape}; finite numbers, a row per seed and a column per task.")
    if not 0.5 < level < 1:
        raise ConfigError(f"the level of an interval is {level}; it lies between 0.5 and 1, for instance 0.95.")
    seeds, tasks = values.shape
    estimate = interquartile_mean(values)
    if seeds < FEWEST_SEEDS:
        return SeedSummary(estimate, None, None, level, seeds, tasks)
    draws = Streams(seed).uniforms("evaluate/seeds", update=0, environments=1, steps=repetitions, draws=values.size)
    rows = (draws.reshape(repetitions, seeds, tasks) * seeds).astype(np.int64)
    drawn = values[rows, np.arange(tasks)].reshape(repetitions, -1)
    low, high = np.quantile(trim_mean(drawn, 0.25, axis=1), [(1 - level) / 2, (1 + level) / 2])
    return SeedSummary(estimate, float(low), float(high), level, seeds, tasks)
