"""Schedules: pure functions of progress, and the entropy weight that a plateau starts to lower."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tailwise.learner.config import (
    ConstantEntropy,
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    NarrowingExploration,
    PlateauEntropy,
)


def schedule_factor(config: ConstantSchedule | LinearSchedule | CosineSchedule, steps: int, total_steps: int) -> float:
    """Factor on the learning rate after `steps` of `total_steps` environment steps; clamped past the end."""
    progress = min(max(steps / total_steps, 0.0), 1.0)
    if isinstance(config, ConstantSchedule):
        return 1.0
    if isinstance(config, LinearSchedule):
        return 1.0 + (config.end - 1.0) * progress
    return config.end + (1.0 - config.end) * 0.5 * (1.0 + math.cos(math.pi * progress))


def narrowing(
    config: NarrowingExploration | None, initial_log_std: float, steps: int, total_steps: int, applied: float
) -> float:
    """What is added to ln(standard deviation), at most 0, after `steps` of `total_steps`; `applied` so far.

    Never less than before: a run that goes on beyond its end stays as narrow as it is.
    """
    if config is None:
        return applied
    whole = min(0.0, math.log(config.end_std) - initial_log_std)
    return min(applied, whole * min(steps / total_steps, 1.0))


def plateau_begins(history: Sequence[float], window: int, tolerance: float) -> int | None:
    """Index of the first update at which the least-squares slope of the last `window` entropies is within tolerance.

    history: entropy per update in nats, oldest first. None while no window is flat.
    """
    if len(history) < window:
        return None
    x = np.arange(window) - (window - 1) / 2.0
    for end in range(window, len(history) + 1):
        slope = float(x @ np.asarray(history[end - window : end]) / (x @ x))
        if abs(slope) <= tolerance:
            return end - 1
    return None


def entropy_weight(config: ConstantEntropy | PlateauEntropy, *, plateau_at: int | None, update: int) -> float:
    """Weight of the entropy bonus at `update`, given the update at which a plateau was seen (None: not yet)."""
    if isinstance(config, ConstantEntropy) or plateau_at is None:
        return config.weight
    share = min(max((update - plateau_at) / config.decay, 0.0), 1.0)
    return config.weight + (config.floor - config.weight) * share
