"""Discounted rewards that windows gather in a rollout, in compiled code."""

from __future__ import annotations

import numpy as np

from tailwise.core.compiled import kernel


@kernel
def follow_windows(
    reward: np.ndarray, ends: np.ndarray, breaks: np.ndarray, column: np.ndarray, first: np.ndarray, age: np.ndarray,
    discount: np.ndarray, total: np.ndarray, last: np.ndarray,
) -> None:  # fmt: skip
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
