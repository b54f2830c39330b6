"""What `benchmarks.equality` runs: thirteen configurations that together touch every path of learner and market.

They are plain dictionaries, because each of them is parsed by two revisions; a key that is renamed must still be read
under its old name, as in the files of users.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

ENVIRONMENTS, STEPS = 8, 32  # of a rollout
CHOICES = 4  # of a door
BOTH = ("torch", "fused")
TORCH = ("torch",)  # where the fused backend does not cover the configuration


@dataclass(frozen=True)
class Case:
    """One configuration.

    - config: what differs from the defaults, without backend and total_steps.
    - backends: the implementations that cover it.
    - observed: entries of an observation as `predict` takes it; None on a market, where the test window is played.
    - doors: whether the environment is `Doors`, passed from Python.
    """

    name: str
    config: Mapping[str, Any]
    backends: tuple[str, ...] = BOTH
    observed: int | None = None
    doors: bool = False


def _run(**changes: Any) -> dict[str, Any]:
    return {
        "environments": ENVIRONMENTS,
        "rollout_steps": STEPS,
        "checkpoint_every": 2,
        "tensorboard": False,
        **changes,
    }


def _cartpole(hidden: bool) -> dict[str, Any]:
    return {"id": "CartPole-v1", "hide": [1, 3] if hidden else []}


def _bars(market: str, *seeds: int, length: int = 900) -> dict[str, Any]:
    return {"kind": "synthetic", "market": market, "seeds": list(seeds), "parameters": {"length": length}}


LSTM, GRU = {"kind": "lstm", "hidden": 24}, {"kind": "gru", "hidden": 24}
SMALL = {"kind": "quantile", "quantiles": 32}
CONSTRAINT = {
    "mode": "constraint",
    "alpha": 0.1,
    "limit": -0.01,
    "warmup": {"updates": 1, "longest": 2, "tolerance": 1.0},
}

CASES = (
    Case(
        "mlp quantile discrete",
        {
            "seed": 1,
            "env": _cartpole(hidden=False),
            "learner": {
                "epochs": 4,
                "minibatches": 4,
                "learning_rate": 0.003,
                "kl_factor": {"kind": "on"},
                "target_kl": 0.002,
            },
            "evaluate": {"every": 3, "episodes": 3},
            "health": {"gradients_every": 2},
            "run": _run(),
        },
        observed=4,
    ),
    Case(
        "lstm quantile discrete",
        {
            "seed": 2,
            "env": _cartpole(hidden=True),
            "model": {"core": LSTM, "critic": {**SMALL, "combine": "average"}},
            "learner": {
                "epochs": 3,
                "minibatches": 2,
                "microbatches": 2,
                "learning_rate": 0.003,
                "schedule": {"kind": "cosine", "end": 0.1},
                "entropy": {"kind": "plateau", "window": 3, "tolerance": 1.0, "decay": 3},
            },
            "run": _run(),
        },
        observed=2,
    ),
    Case(
        "gru quantile box",
        {
            "seed": 3,
            "env": {"id": "Pendulum-v1", "hide": [2], "time_limit": 50},
            "model": {"core": GRU, "critic": SMALL, "encoder": {"activation": "relu", "hidden": [32]}},
            "learner": {"epochs": 3, "minibatches": 2, "advantages": "per_env"},
            "run": _run(),
        },
        observed=2,
    ),
    Case(
        "gru categorical discrete",
        {
            "seed": 4,
            "env": _cartpole(hidden=True),
            "model": {
                "core": {**GRU, "layers": 2},
                "critic": {"kind": "categorical", "atoms": 51, "clip": {"kind": "mean_and_variance"}},
            },
            "learner": {"epochs": 2, "minibatches": 2},
            "run": _run(),
        },
        backends=TORCH,
        observed=2,
    ),
    Case(
        "mlp scalar box",
        {
            "seed": 5,
            "env": {"id": "Pendulum-v1"},
            "model": {
                "norm": "layer",
                "actor": {"box": "squashed"},
                "critic": {"kind": "scalar", "clip": {"kind": "mean_only"}},
            },
            "learner": {"epochs": 3, "minibatches": 4, "awr": {"kind": "on"}},
            "risk": {"mode": "off"},
            "run": _run(),
        },
        backends=TORCH,
        observed=3,
    ),
    Case(
        "mlp quantile masks",
        {"seed": 6, "learner": {"epochs": 3, "minibatches": 4}, "model": {"critic": SMALL}, "run": _run()},
        observed=3,
        doors=True,
    ),
    Case(
        "market stops latency",
        {
            "seed": 7,
            "data": _bars("regime_switching", 1, 2),
            "env": {"kind": "market", "episode_length": 60, "stop_loss": 0.01, "take_profit": 0.02},
            "costs": {"latency": 2, "lot_size": 0.5},
            "model": {"core": LSTM, "critic": SMALL},
            "learner": {"epochs": 3, "minibatches": 2},
            "evaluate": {"every": 4},
            "run": _run(),
        },
    ),
    # Discrete positions of which none is ever forbidden: the market whose rollouts run ahead in one kernel.
    Case(
        "market ahead",
        {
            "seed": 11,
            "data": _bars("ar1", 5, 6),
            "env": {"kind": "market", "episode_length": 60},
            "model": {"critic": SMALL},
            "learner": {"epochs": 3, "minibatches": 2},
            "run": _run(),
        },
    ),
    Case(
        "quantile clips and means",
        {
            "seed": 12,
            "env": _cartpole(hidden=False),
            "model": {"critic": {**SMALL, "mean": "quantiles", "clip": {"kind": "mean_and_variance"}}},
            "learner": {"epochs": 3, "minibatches": 2},
            "run": _run(),
        },
        backends=TORCH,
        observed=4,
    ),
    Case(
        "quantile scalar target",
        {
            "seed": 13,
            "env": _cartpole(hidden=False),
            "model": {"critic": {**SMALL, "target": "scalar"}},
            "learner": {"epochs": 3, "minibatches": 2},
            "risk": {"mode": "off"},
            "run": _run(),
        },
        backends=TORCH,
        observed=4,
    ),
    Case(
        "market exposure guards",
        {
            "seed": 8,
            "data": _bars("jump_diffusion", 3),
            "env": {
                "kind": "market",
                "action": {"kind": "exposure", "low": -1.0, "high": 2.0},
                "episode_length": 60,
                "guards": {"max_exposure": 1.5, "order_fraction": 1.0, "drawdown": 0.1},
            },
            "model": {"critic": SMALL},
            "learner": {"epochs": 3, "minibatches": 4},
            "risk": {"mode": "penalty", "alpha": 0.1, "weight": 0.5},
            "run": _run(),
        },
    ),
    Case(
        "portfolio",
        {
            "seed": 9,
            "data": _bars("heston", 4, 5, 6),
            "env": {"kind": "market", "action": {"kind": "weights", "gross": 1.5}, "episode_length": 60},
            "model": {"core": GRU, "critic": SMALL},
            "learner": {"epochs": 3, "minibatches": 2},
            "run": _run(),
        },
    ),
    Case(
        "limit",
        {
            "seed": 10,
            "data": _bars("jump_diffusion", 7),
            "env": {"kind": "market", "action": {"kind": "exposure"}, "episode_length": 100},
            "model": {"core": LSTM, "critic": SMALL},
            "learner": {"epochs": 3, "minibatches": 2, "gamma": 0.95},
            "risk": CONSTRAINT,
            "run": _run(),
        },
    ),
)


class Doors(VectorEnv):  # type: ignore[type-arg]
    """N corridors with four doors, some of them locked: discrete actions with masks, SAME_STEP autoreset.

    All of its state are two arrays of integers, so that a run that is continued elsewhere is exactly the same.
    """

    def __init__(self, num_envs: int = ENVIRONMENTS, *, longest: int = 20) -> None:
        self.num_envs, self.longest = num_envs, longest
        self.single_observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.single_action_space = spaces.Discrete(CHOICES)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._room: npt.NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self._age: npt.NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Begin in rooms that follow from the seed."""
        first = seed if isinstance(seed, int) else 0
        self._room = self._after(np.arange(self.num_envs) + first % 2**20)
        self._age = np.arange(self.num_envs) % self.longest  # truncations do not fall on one step
        return self._seen(self._room), {"action_mask": self._mask()}

    def step(
        self, actions: Any
    ) -> tuple[
        npt.NDArray[np.float32], npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]
    ]:
        """The reward is a function of room and door; a locked door is a mistake of the caller."""
        doors = np.asarray(actions, dtype=np.int64)
        if not self._mask()[np.arange(self.num_envs), doors].all():
            raise ValueError(f"a locked door was chosen: doors {doors.tolist()}, open {self._mask().tolist()}.")
        reward = self._seen(self._room)[:, 0].astype(np.float64) * (doors - 1.5)
        following = self._after(self._room + doors)
        self._age = self._age + 1
        terminated = following % 13 == 0
        truncated = (self._age >= self.longest) & ~terminated
        done = terminated | truncated
        infos: dict[str, Any] = {"final_obs": self._seen(following)} if done.any() else {}
        self._room = np.where(done, self._after(following), following)
        self._age = np.where(done, 0, self._age)
        return self._seen(self._room), reward, terminated, truncated, {**infos, "action_mask": self._mask()}

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        """Plain arrays."""
        return {"room": self._room.copy(), "age": self._age.copy()}

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continue where `get_state` was taken."""
        self._room, self._age = np.array(state["room"]), np.array(state["age"])

    def _after(self, room: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return (room * 1_103_515_245 + 12_345) % 2**31  # the generator of ANSI C

    def _seen(self, room: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Three digits of the room's number, float32 [N, 3] in [-1, 1]."""
        digits = np.stack([room // 2**shift % 256 for shift in (8, 15, 22)], axis=1)
        return (digits / 127.5 - 1.0).astype(np.float32)

    def _mask(self) -> npt.NDArray[np.bool_]:
        """bool [N, 4]: the first door is always open, the others by bits of the room's number."""
        bits = np.stack([self._room >> (4 + door) & 1 for door in range(CHOICES)], axis=1).astype(np.bool_)
        bits[:, 0] = True
        return bits
