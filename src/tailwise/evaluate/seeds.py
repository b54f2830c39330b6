"""Several seeds, one number: the interquartile mean with a stratified bootstrap (Agarwal et al. 2021).

Robust to the one seed that failed and to the one that was lucky, and less noisy than the median.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import trim_mean

from tailwise.core.errors import ConfigError, ShapeError
from tailwise.core.streams import Streams

Floats = npt.NDArray[np.float64]
REPETITIONS = 5000
FEWEST_SEEDS = 2


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
    scores: Floats, *, level: float = 0.95, repetitions: int = REPETITIONS, seed: int = 0
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
