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


class OddState(Odd):
    """Gives and takes its state; wrong: the call that fails in that environment; "slow": its get_state takes 1 s."""

    def get_state(self) -> dict[str, int]:
        self._fail("get_state")
        if self.wrong == "slow" and self.number == self.chosen:
            time.sleep(1.0)
        return {"number": self.number, "steps": self.steps}

    def set_state(self, state: dict[str, int]) -> None:
        self._fail("set_state")
        self.number, self.steps = state["number"], state["steps"]

    def _fail(self, call: str) -> None:
        if self.wrong == call and self.number == self.chosen:
            raise ConnectionResetError(call)


class Numbered(Odd):
    """Says in its infos which call of its function built it."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.call = call

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed, options=options)
        return obs, info | {"call": self.call}


class Numbering:
    """A function that counts its calls, and fails in call `at`."""

    def __init__(self, at: int = -1) -> None:
        self.calls, self.at = 0, at

    def __call__(self) -> Numbered:
        self.calls += 1
        if self.calls - 1 == self.at:
            raise ConnectionResetError("refused")
        return Numbered(self.calls - 1)


class Unreadable:
    """A function that can be sent but not received."""

    def __call__(self) -> Odd:
        return Odd()

    def __getstate__(self) -> dict[str, Any]:
        return {"sent": True}

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise ConnectionResetError("not here")


class Lasting(Odd):
    """Takes its time to end: "close" a minute to close, "exit" asks its process to end, which a thread keeps alive."""

    def step(self, action: Any) -> Any:
        if self.wrong == "exit":
            threading.Thread(target=time.sleep, args=(60.0,)).start()
            raise SystemExit
        return super().step(action)

    def close(self) -> None:
        if self.wrong == "close" and self.steps:  # the one that only shows its spaces is closed at once
            time.sleep(60.0)


class OddActions(Odd):
    """With an action space that is given."""

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__()
        self.action_space = space
