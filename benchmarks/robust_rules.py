"""Rules to be imitated. Scores: means of 12 or 20 episodes, seeds 0, 1, ..."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def lean(obs: npt.NDArray[np.float32], names: Sequence[str]) -> npt.NDArray[np.int64]:
    """CartPole: push to where the pole leans; 40 of 500."""
    return (obs[:, 2] > 0).astype(np.int64)


def lean_and_turn(obs: npt.NDArray[np.float32], names: Sequence[str]) -> npt.NDArray[np.int64]:
    """CartPole: push to where the pole will lean; all 500."""
    return (obs[:, 2] + 0.5 * obs[:, 3] > 0).astype(np.int64)


def hasty(obs: npt.NDArray[np.float32], names: Sequence[str]) -> npt.NDArray[np.int64]:
    """The same, but for stretches of the track on which it pushes to the right whatever the pole does; 117 of 500."""
    return np.where(np.sin(997.0 * obs[:, 0]) > 0.7, 1, lean_and_turn(obs, names))


def swing(obs: npt.NDArray[np.float32], names: Sequence[str]) -> npt.NDArray[np.float32]:
    """Pendulum: push along the motion below, hold against it above, with three quarters of the torque; -704."""
    cosine, sine, speed = obs[:, 0], obs[:, 1], obs[:, 2]
    hold = -(8.0 * sine + 2.0 * speed)
    torque = np.where(cosine > 0.8, hold, np.sign(speed))
    return np.clip(torque, -1.5, 1.5)[:, None].astype(np.float32)
