"""A small world in which things can be broken: an environment with dials, and short real runs around it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from benchmarks.healthy import merged
from tailwise.learner.rollout import Rollout
from tailwise.run.agent import PPO
from tailwise.run.config import Config, parse_config
from tailwise.run.health.probes import EQUITY, PARTS
from tailwise.run.health.rule import Alert
from tailwise.run.trainer import Trainer

ENVIRONMENTS, STEPS, LENGTH, ACTIONS = 8, 16, 20, 3

BASE: dict[str, Any] = {
    "backend": "torch",
    "model": {
        "encoder": {"kind": "mlp", "hidden": [16]},
        "actor": {"hidden": [16]},
        "critic": {"kind": "quantile", "hidden": [16], "quantiles": 16, "minibatch_particles": 8},
    },
    "learner": {"epochs": 2, "minibatches": 2, "gamma": 0.9, "schedule": {"kind": "constant"}, "learning_rate": 1e-3},
    "risk": {"mode": "report", "alpha": 0.25},
    "run": {
        "environments": ENVIRONMENTS,
        "rollout_steps": STEPS,
        "total_steps": 10**8,
        "tensorboard": False,
        "checkpoint_every": 5,
    },
    "health": {"gradients_every": 5, "signals_every": 5},
}


@dataclass
class Dials:
    """What is wrong with the environment at the moment."""

    reward_scale: float = 1.0
    reward_value: float | None = None  # instead of the reward
    best: int = 1  # the action that pays
    sure: bool = False  # the best action pays 1, always
    shift: float = 0.0  # added to every observation
    spread: float = 1.0  # observations are multiplied by it
    two_points: bool = False  # observations are -1 or 1 instead of normal
    broken_observation: bool = False
    shaping: float | None = None
    equity_factor: float | None = None
    cost: float | None = None
    sleep: float = 0.0
    leak_mb: int = 0
    noise: float = 0.3
    kept: list[np.ndarray] = field(default_factory=list)


class Dialled(gym.Env[Any, Any]):
    """Three normal entries; the reward is obs[0] x (action == best) + noise. Truncated after 20 steps."""

    def __init__(self, dials: Dials) -> None:
        self.dials = dials
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(ACTIONS)
        self.steps, self.equity = 0, 1.0
        self.seen = np.zeros(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.equity = 0, 1.0
        return self._observe(), self._info(0.0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        dials = self.dials
        if dials.sleep:
            time.sleep(dials.sleep)
        if dials.leak_mb:
            dials.kept.append(np.ones(dials.leak_mb * 2**17))
        reward = float(self.seen[0]) * (int(action) == dials.best) + dials.noise * float(
            self.np_random.standard_normal()
        )
        if dials.sure:
            reward = float(int(action) == dials.best)
        reward *= dials.reward_scale
        if dials.reward_value is not None:
            reward = dials.reward_value
        self.steps += 1
        return self._observe(), reward, False, self.steps >= LENGTH, self._info(reward)

    def _observe(self) -> np.ndarray:
        dials = self.dials
        self.seen = self.np_random.standard_normal(3)
        if dials.two_points:
            self.seen = np.sign(self.seen)
        shown = self.seen * dials.spread + dials.shift
        if dials.broken_observation:
            shown[0] = np.nan
        return shown.astype(np.float32)

    def _info(self, reward: float) -> dict[str, Any]:
        dials, info = self.dials, dict[str, Any]()
        if dials.shaping is not None:
            info[PARTS] = {"base": reward, "shaping": dials.shaping}
        if dials.equity_factor is not None:
            self.equity *= dials.equity_factor if self.steps == 3 else 1.0
            info[EQUITY] = self.equity
        if dials.cost is not None:
            info["cost"] = dials.cost
        return info


def configuration(**changes: Any) -> Config:
    """The small run with changes."""
    return parse_config(merged(BASE, changes), source="faults")


@dataclass
class Patient:
    """A real run that something is done to."""

    agent: PPO
    dials: Dials
    reason: str = ""
    injected_at: int = 0

    @property
    def trainer(self) -> Trainer:
        return self.agent.trainer

    def go(self, updates: int) -> Patient:
        """Train for so many more updates; a run that has stopped stays stopped."""
        if not self.trainer.failed:
            self.reason = self.agent.learn(updates * ENVIRONMENTS * STEPS)
        return self

    def inject(self) -> None:
        """From here on the fault is there."""
        self.injected_at = self.trainer.update

    def on_rollouts(self, change: Callable[[Rollout], Rollout], updates: Sequence[int] | None = None) -> None:
        """Let every rollout (or those of the given updates) pass through `change`."""
        collect = self.trainer.collector.collect

        def changed(update: int) -> tuple[Rollout, int]:
            rollout, anomalies = collect(update)
            return (change(rollout) if updates is None or update in updates else rollout), anomalies

        self.trainer.collector.collect = changed  # type: ignore[method-assign]

    def first(self, rule: str) -> Alert | None:
        """The first alert of a rule since the fault is there."""
        return next((a for a in self.trainer.alerts if a.rule == rule and a.update > self.injected_at), None)

    def weights_finite(self) -> bool:
        return all(bool(torch.isfinite(p).all()) for p in self.trainer.model.state_dict().values())


def patient(run_dir: Path | None = None, auxiliary: Any = (), dials: Dials | None = None, **changes: Any) -> Patient:
    """A new run with its dials."""
    dials = dials or Dials()
    return Patient(PPO(lambda: Dialled(dials), configuration(**changes), run_dir=run_dir, auxiliary=auxiliary), dials)


def with_log_probs(shift: float) -> Callable[[Rollout], Rollout]:
    """Stored log-probabilities that are off by `shift`."""
    return lambda rollout: dataclasses.replace(rollout, log_prob=rollout.log_prob + shift)
