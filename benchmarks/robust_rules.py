"""Rules that are good and not the best, to be imitated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def lean(obs: npt.NDArray[np.float32], names: Sequence[str]) -> npt.NDArray[np.int64]:
    """CartPole: push to where the pole leans. Some forty steps, random actions twenty."""
    return (obs[:, 2] > 0).astype(np.int64)


def lean_and_turn(obs: npt.NDArray[np.float32], names: Sequence[str]) -> npt.NDArray[np.int64]:
    """CartPole: push to where the pole will lean. Some two hundred steps, until the cart is at the edge."""
    return (obs[:, 2] + 0.5 * obs[:, 3] > 0).astype(np.int64)


def swing(obs: npt.NDArray[np.float32], names: Sequence[str]) -> npt.NDArray[np.float32]:
    """Pendulum: push along the motion below, hold against it above, with three quarters of the torque."""
    cosine, sine, speed = obs[:, 0], obs[:, 1], obs[:, 2]
    hold = -(8.0 * sine + 2.0 * speed)
    torque = np.where(cosine > 0.8, hold, np.sign(speed))
    return np.clip(torque, -1.5, 1.5)[:, None].astype(np.float32)
