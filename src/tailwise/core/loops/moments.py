"""Moments of many rows in compiled code: read once, in blocks that stay in the nearest cache."""

from __future__ import annotations

import numpy as np

from tailwise.core.compiled import kernel

BLOCK = 128  # rows


@kernel
def add_moments(
    rows: np.ndarray, mean: np.ndarray, squares: np.ndarray, low: np.ndarray, high: np.ndarray, work: np.ndarray
) -> None:
    """Of the columns of rows [n, D]; everything else float64 [D]: mean, squares (the sum of squared distances from it),
    low and high (no entry is beyond them); work [2, D] is scratch. Begin with 0, 0, inf, -inf.

    Each block takes two passes, mean first, and blocks are merged by Chan's formula: no digits are lost to large means.
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
