"""Loops over large arrays in compiled code: one pass over memory instead of one per numpy call."""

from __future__ import annotations

import numpy as np

from tailwise.core.compiled import kernel

BLOCK = 128  # rows


@kernel
def add_moments(
    rows: np.ndarray, mean: np.ndarray, squares: np.ndarray, low: np.ndarray, high: np.ndarray, work: np.ndarray
) -> None:
    """Add the moments of the columns of rows [n, D]; begin with mean 0, squares 0, low inf, high -inf, float64 [D].

    squares: sum of squared distances from the mean; low, high: no entry is beyond them; work [2, D]: scratch. Rows are
    read once, in blocks that stay in the nearest cache. Each block takes two passes, mean
    first, and blocks are merged by Chan's formula: no digits are lost to large means.
    """
    count, size = rows.shape
    sums, around = work[0], work[1]
    for first in range(0, count, BLOCK):
        end = min(first + BLOCK, count)
        for j in range(size):
            sums[j] = 0.0
            around[j] = 0.0
        for i in range(first, end):
            for j in range(size):
                sums[j] += rows[i, j]
        for j in range(size):
            sums[j] /= end - first
        for i in range(first, end):
            for j in range(size):
                distance = rows[i, j] - sums[j]
                around[j] += distance * distance
        share = (end - first) / end
        for j in range(size):
            moved = sums[j] - mean[j]
            mean[j] += moved * share
            squares[j] += around[j] + moved * moved * first * share
            # No entry is further from the mean than the root of the sum of all squared distances.
            reach = np.sqrt(around[j])
            low[j], high[j] = min(low[j], sums[j] - reach), max(high[j], sums[j] + reach)


@kernel
def rescale(values: np.ndarray, centre: float, unit: float, result: np.ndarray) -> None:
    """result = (values - centre) / unit in float64, rounded at the end; values and result float32 [n].

    Divided once: a division takes as long as everything else, and its last bit of float64 is far from the result.
    """
    share = 1.0 / unit
    for i in range(values.shape[0]):
        result[i] = (np.float64(values[i]) - centre) * share


@kernel
def follow_windows(
    reward: np.ndarray,
    ends: np.ndarray,
    breaks: np.ndarray,
    column: np.ndarray,
    first: np.ndarray,
    age: np.ndarray,
    discount: np.ndarray,
    total: np.ndarray,
    last: np.ndarray,
) -> None:
    """Add to total [n] what each window gathers from its row `first` on, and set the row `last` up to which it does.

    A window goes on until an episode ends there, until it has seen as many steps as `discount` has after its first
    entry, or to the last row. Where a row breaks it, so that it did not follow from the one before, last is -1.

    reward float64 [T, E]; ends, breaks bool [T, E]; column, first, age int64 [n]: environment, row, steps seen before;
    discount [ages]: powers of gamma. Step by step and not by closed sums: the result then does not depend on how a
    history is cut into rollouts.
    """
    steps, horizon, gamma = reward.shape[0], discount.shape[0] - 1, discount[1]
    for i in range(total.shape[0]):
        at, t, weight, gathered = column[i], first[i], discount[age[i]], total[i]
        stop = min(steps, t + horizon - age[i]) - 1
        broken = age[i] > 0 and breaks[t, at]
        while not broken:
            gathered += reward[t, at] * weight
            weight *= gamma
            if ends[t, at] or t == stop:
                break
            t += 1
            broken = breaks[t, at]
        total[i] = gathered
        last[i] = -1 if broken else t
