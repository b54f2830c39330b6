"""Discounted sums of rewards over stretches of a rollout, in compiled code."""

from __future__ import annotations

import numpy as np

from tailwise.core.compiled import kernel


@kernel
def add_discounted(
    reward: np.ndarray, column: np.ndarray, first: np.ndarray, last: np.ndarray, factor: np.ndarray, gamma: float,
    total: np.ndarray,
) -> None:  # fmt: skip
    """total [n] += sum over t = first .. last of factor * gamma^(t - first) * reward[t, column], all float64.

    reward [T, E]; column, first, last int64 [n]; factor [n]: weight of the first step. Step by step and not by closed
    sums: the result then does not depend on how a history is cut into rollouts.
    """
    for i in range(total.shape[0]):
        weight, at = factor[i], column[i]
        for t in range(first[i], last[i] + 1):
            total[i] += reward[t, at] * weight
            weight *= gamma
