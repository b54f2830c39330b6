"""Loops in compiled code: one pass over large arrays instead of one per numpy call, and the bookkeeping of a vector
step, which took longer than the network as a dozen numpy calls on B numbers."""

from __future__ import annotations

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.core.loops import BROKEN_OBSERVATION, BROKEN_REWARD, ENDED, ENDED_IN_RESET

BLOCK = 128  # rows
_LARGEST = np.float32(np.finfo(np.float32).max)


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


@kernel
def take_step(
    reward: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    obs: np.ndarray,
    next_step: bool,
    pending: np.ndarray,
    returns: np.ndarray,
    lengths: np.ndarray,
    reward_row: np.ndarray,
    terminated_row: np.ndarray,
    truncated_row: np.ndarray,
    valid_row: np.ndarray,
    start_row: np.ndarray,
) -> int:
    """Record one vector step in the rows [B] of a rollout; return its events (`core.loops`), 0 in most steps.

    reward      float64 [B], with terminated and truncated bool [B]: results of the environments
    obs         float32 [B, D], already recorded; checked for NaN and infinity
    next_step   finished environments are reset by the following step (NEXT_STEP autoreset)
    pending     bool [B], environments that this step only resets; updated for the next step
    returns     float64 [B], with lengths int64 [B]: of the running episodes; updated
    """
    events = 0
    for i in range(reward.shape[0]):
        done, waited = terminated[i] or truncated[i], pending[i]
        value = 0.0 if waited else reward[i]
        reward_row[i], terminated_row[i], truncated_row[i] = value, terminated[i], truncated[i]
        valid_row[i] = not waited
        returns[i] += value
        lengths[i] += 0 if waited else 1
        start_row[i] = waited if next_step else done
        if next_step:
            pending[i] = done
        events |= ENDED if done else 0
        events |= 0 if np.isfinite(value) else BROKEN_REWARD
        events |= ENDED_IN_RESET if done and waited else 0
    flat, broken = obs.reshape(-1), 0
    for k in range(flat.shape[0]):
        broken += not abs(flat[k]) <= _LARGEST  # so written that NaN is broken
    return events | (BROKEN_OBSERVATION if broken else 0)


@kernel
def shift_choices(raw: np.ndarray, sizes: np.ndarray, start: np.ndarray, values: np.ndarray) -> int:
    """values = raw + start, all int64, raw and values [B, A], sizes and start [A]; returns the place in raw (counted
    row by row) of the first index that is not within 0 and sizes - 1, -1 where all are."""
    components = raw.shape[1]
    for i in range(raw.shape[0]):
        for a in range(components):
            if raw[i, a] < 0 or raw[i, a] >= sizes[a]:
                return int(i * components + a)
            values[i, a] = raw[i, a] + start[a]
    return -1
