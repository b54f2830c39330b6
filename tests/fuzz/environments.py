"""An environment that does what no environment should: wrong spaces, wrong results and errors of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.fuzz.dice import Dice

HOSTILE_ID = "tests/Hostile-v0"


class OwnError(Exception):
    """An error that only its author knows."""


def _deep(levels: int) -> dict[str, Any]:
    return {"x": 1.0} if levels == 0 else {"d": _deep(levels - 1)}


OBSERVATION_SPACES: list[Callable[[], Any]] = [
    lambda: spaces.Box(-1.0, 1.0, (3,), np.float32),
    lambda: spaces.Box(-np.inf, np.inf, (), np.float64),
    lambda: spaces.Box(0, 255, (2, 2), np.uint8),
    lambda: spaces.Box(-1.0, 1.0, (0,), np.float32),
    lambda: spaces.Discrete(3),
    lambda: spaces.Discrete(1, start=-5),
    lambda: spaces.MultiBinary(3),
    lambda: spaces.MultiDiscrete([2, 3]),
    lambda: spaces.Dict(a=spaces.Box(-1.0, 1.0, (2,), np.float32), b=spaces.Discrete(2)),
    lambda: spaces.Dict({}),
    lambda: spaces.Tuple((spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,), np.float32))),
    lambda: spaces.Text(5),
    lambda: spaces.Sequence(spaces.Discrete(2)),
    lambda: None,
    lambda: "Box",
]
ACTION_SPACES: list[Callable[[], Any]] = [
    lambda: spaces.Discrete(2),
    lambda: spaces.Discrete(1),
    lambda: spaces.MultiDiscrete([2, 3]),
    lambda: spaces.Box(-1.0, 1.0, (2,), np.float32),
    lambda: spaces.Box(-np.inf, np.inf, (1,), np.float32),
    lambda: spaces.Box(0.0, 0.0, (1,), np.float32),
    lambda: spaces.MultiBinary(2),
    lambda: spaces.Dict(a=spaces.Discrete(2)),
    lambda: spaces.Text(5),
    lambda: None,
]
REWARDS: list[Any] = [
    None, "1", "x", b"1", 1, True, 10**400, -(10**25), 1e300, -1e300, float("nan"), float("inf"), 1j, [], [1.0],
    [1, 2], np.float32(1), np.array(1.0), np.array([1.0]), np.zeros(2), np.zeros(0), np.array(["1"]),
    np.array([None]), {}, object(),
]  # fmt: skip
FLAGS: list[Any] = [
    None,
    0,
    1,
    2,
    "",
    "True",
    float("nan"),
    np.bool_(True),
    np.array([True]),
    np.zeros(2),
    [],
    [True],
    {},
]
INFOS: list[Any] = [
    None, [], "info", 1, {1: 2.0}, {None: None}, {(1, 2): np.nan}, {"x": None}, {"x": "text"},
    {"x": np.zeros(3)}, {"x": 10**30}, {"x": {"y": {1: 2}}}, {"x": [1, 2]}, {"_x": 1.0}, {"final_obs": 1},
    {"final_info": 3}, {"action_mask": 1}, {"action_mask": [1, 1]}, {"action_mask": [0, 0]},
    {"action_mask": "yes"}, {"action_mask": [[1], [1, 2]]}, {"action_mask": None},
    {"action_mask": np.array([[0.0, 1.0]])}, {"action_mask": [np.nan, 1]}, {"equity": "rich"}, {"equity": -1.0},
    {"equity": [1.0, 2.0]}, {"equity": {"a": 1}}, {"reward_parts": {"base": None}}, {"reward_parts": {1: 2.0}},
    {"reward_parts": {"a/b": "x"}}, {"reward_parts": 3}, {"parts": {"equity": None}}, {"episode": {"r": 1}},
    {"is_success": True}, _deep(40),
]  # fmt: skip
OBSERVATIONS: list[Any] = [
    None, 0, 1.5, "obs", b"", [], [1, 2, 3], [[1, 2], [3]], (), {}, {"a": 1}, {"a": np.zeros(2), "b": 9},
    np.zeros(4), np.zeros((1, 3)), np.zeros(3, np.complex128), np.array(["a", "b", "c"]), np.array([None] * 3),
    np.full(3, np.nan), np.full(3, 1e300), np.full(3, np.inf), np.zeros(3, bool), object(), 10**40,
    (np.zeros(3), {}), np.array([7]), -1,
]  # fmt: skip
RESULTS: list[Any] = [None, 0, (), (1, 2), (1, 2, 3, {}), "abcde", [1] * 6, {}, np.zeros(5), iter(())]
ERRORS: list[BaseException] = [
    OwnError(""), OwnError("of\nseveral [bold]lines"), ZeroDivisionError(), KeyError("k"), StopIteration(),
    MemoryError(), RecursionError(), NotImplementedError(), OSError(2, "no such file"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), gym.error.ResetNeeded("reset"),
    TypeError("unexpected keyword argument 'seed'"), AssertionError(), EOFError(),
]  # fmt: skip


class Hostile(gym.Env[Any, Any]):
    """Behaves until step `when`, then returns or raises what the dice of `case` say."""

    def __init__(self, case: int = 0) -> None:
        dice = Dice("environment", case)
        self.observation_space = dice.pick(OBSERVATION_SPACES)() if dice.chance(0.4) else OBSERVATION_SPACES[0]()
        self.action_space = dice.pick(ACTION_SPACES)() if dice.chance(0.4) else ACTION_SPACES[0]()
        self.part = dice.pick(["reward", "terminated", "truncated", "info", "observation", "result", "error", "reset"])
        self.when, self.once, self.length = dice.below(12), dice.chance(0.3), 1 + dice.below(9)
        self.mixed = dice.chance(0.3)  # whether good and bad values take turns
        pools = {
            "reward": REWARDS, "terminated": FLAGS, "truncated": FLAGS, "info": INFOS, "observation": OBSERVATIONS,
            "result": RESULTS, "error": ERRORS, "reset": [*RESULTS, *ERRORS, *OBSERVATIONS],
        }  # fmt: skip
        self.value = dice.pick(pools[self.part])
        if self.part == "error" and dice.chance(0.1):
            raise self.value
        self.steps = self.episode_steps = 0

    def _observe(self) -> Any:
        space = self.observation_space
        return space.sample() if isinstance(space, spaces.Space) else np.zeros(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode_steps = 0
        if self.part == "reset" and self.steps >= self.when:
            if isinstance(self.value, BaseException):
                raise self.value
            return self.value
        if self.part == "info" and self.when == 0:
            return self._observe(), self.value
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.episode_steps += 1
        ended = self.episode_steps >= self.length
        values = {"observation": self._observe(), "reward": 1.0, "terminated": ended, "truncated": False, "info": {}}
        late = self.steps == self.when if self.once else self.steps >= self.when
        if late and not (self.mixed and self.steps % 2):
            if self.part == "error":
                raise self.value
            if self.part == "result":
                return self.value
            if self.part in values:
                values[self.part] = self.value
        return tuple(values.values())
