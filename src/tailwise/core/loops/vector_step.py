"""Bookkeeping of every vector step of B environments: short loops in one compiled call each.

As a dozen numpy calls on B numbers they took longer than the network.
"""

from __future__ import annotations

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.core.loops.step_bits import BROKEN_OBSERVATION, BROKEN_REWARD, ENDED, ENDED_IN_RESET

_LARGEST = np.float32(np.finfo(np.float32).max)


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
    """Record one vector step in the rows [B] of a rollout; return the events in it as `step_bits`, 0 in most steps.

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
