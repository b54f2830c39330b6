"""An environment that can go wrong in one row; a module of its own, because processes import it."""

from __future__ import annotations

import threading
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tailwise.core.streams import Streams


class Odd(gym.Env[Any, Any]):
    """Counts its steps. wrong: in which step what happens, in the environments whose first number is that of row 4."""

    def __init__(self, wrong: str = "", at: int = 3, row: int = 4) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.wrong, self.at = wrong, at
        self.chosen = Streams(0).integer("environment/train", environment=row, index=0)
        self.number, self.steps = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.number, self.steps = int(seed or 0), 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        info: dict[str, Any] = {"steps": self.steps}
        if self.number == self.chosen and self.steps == self.at:
            if self.wrong == "raises":
                raise ZeroDivisionError("division by zero")
            if self.wrong == "lock":
                info["lock"] = threading.Lock()
            if self.wrong == "sleeps":
                time.sleep(1.0)
        return self._obs(), float(action), False, self.steps == 7, info

    def _obs(self) -> np.ndarray:
        return np.array([self.steps, self.number % 97], dtype=np.float32)
