"""Means and variances of the columns of many rows, exact to float64, in one pass over memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SIDE_BY_SIDE = 64  # sums of a flat sample


@dataclass(frozen=True)
class Moments:
    """Of `count` rows, each float64 [D]; the variance is that of the population. No entry is below `low` or above
    `high`: bounds from sums of squares, about ten standard deviations out, and not the extremes themselves."""

    count: int
    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def column_moments(rows: NDArray[np.floating[Any]]) -> Moments:
    """Of rows [n, D]; no rows have mean and variance 0. Not finite where a column is not."""
    from tailwise.core.loops.moments import add_moments  # compiled code: not before somebody needs it

    count, size = rows.shape
    mean, squares = np.zeros(size), np.zeros(size)
    low, high = np.full(size, np.inf), np.full(size, -np.inf)
    add_moments(np.ascontiguousarray(rows), mean, squares, low, high, np.empty((2, size)))
    return Moments(count, mean, squares / max(count, 1), low, high)


def sample_moments(values: NDArray[np.floating[Any]]) -> tuple[float, float]:
    """Mean and population variance of values [n], n > 0."""
    whole = len(values) // _SIDE_BY_SIDE * _SIDE_BY_SIDE
    parts = [values[:whole].reshape(-1, _SIDE_BY_SIDE)] if whole else []
    parts += [values[whole:].reshape(1, -1)] if whole < len(values) else []
    found = [column_moments(part) for part in parts]
    counts = np.concatenate([np.full(len(one.mean), float(one.count)) for one in found])
    means = np.concatenate([one.mean for one in found])
    mean = float(counts @ means) / len(values)
    with np.errstate(invalid="ignore"):  # values that are not finite have no moments: NaN, and the caller sees it
        around = np.concatenate([one.variance for one in found]) + (means - mean) ** 2
    return mean, float(counts @ around) / len(values)
