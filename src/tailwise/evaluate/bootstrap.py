"""Intervals of statistics of dependent returns: the studentised stationary bootstrap (Politis & Romano 1994).

A statistic is given with its influence function, whose long-run variance is the variance of the statistic however the
bars depend on one another. Each resample is measured in its own standard errors, and a bound is never nearer than
Student's law with the degrees of freedom of that variance puts it: percentile intervals, and the bootstrap alone, give
more false alarms than they promise. docs/evidence.md shows what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import fft
from scipy.stats import t as student

from tailwise.core.errors import ConfigError
from tailwise.core.streams import Streams
from tailwise.evaluate.performance import NOTHING

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

REPETITIONS = 2000
LEVEL = 0.95
FEWEST_BARS = 30  # below, no interval: the long-run variance would rest on two or three cosines
_LARGEST_PART = 4_000_000  # resampled values that are held in memory at once
_DEGENERATE = 0.05  # share of resamples without any spread above which a series is too sparse for an interval


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
    found = np.empty((repetitions, bars), dtype=np.int64)
    for row, (positional, _) in enumerate(source.bootstrap(repetitions)):
        found[row] = positional[0]
    return found


def studentised_interval(
    series: Floats, statistic: Statistic, *, level: float = LEVEL, repetitions: int = REPETITIONS, seed: int = 0
) -> Interval:
    """The interval of a statistic of series [k, n]; the same resampled bars for all k."""
    return studentised_intervals(series, [statistic], level=level, repetitions=repetitions, seed=seed)[0]


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
    found = []
    for statistic in statistics:
        estimate = float(statistic.value(series))
        influence = statistic.influence(series)
        if series.shape[-1] < FEWEST_BARS or not float(standard_error(influence)) > NOTHING:
            found.append(Interval(estimate, None, None, level, None, None))
            continue
        block = block_length(influence)
        if block not in drawn:
            drawn[block] = resampled_rows(series.shape[-1], block, repetitions, seed=seed, name="bootstrap")
        ratios = _ratios(series, statistic, estimate, drawn[block])
        found.append(_interval(estimate, influence, ratios, level, block, repetitions))
    return found


def _ratios(series: Floats, statistic: Statistic, estimate: float, rows: Rows) -> Floats:
    """(statistic - estimate) / standard error of each resample that has any spread: float64 [at most repetitions]."""
    part = max(_LARGEST_PART // series.size, 1)
    found = []
    for first in range(0, len(rows), part):
        resampled = series[:, rows[first : first + part]].swapaxes(0, 1)  # [r, k, n]
        errors = standard_error(statistic.influence(resampled))
        usable = errors > NOTHING
        found.append((statistic.value(resampled)[usable] - estimate) / errors[usable])
    return np.concatenate(found)


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
