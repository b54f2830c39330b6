"""Runs in which an observation is wrong by many orders of magnitude: learning goes on, and an alert names it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from tailwise.run.trainer import Trainer
from tests.support import BACKENDS, small_trainer


class Signs(gym.Env[Any, Any]):
    """Observation +-1 (and a number that says nothing); reward 1 for naming its sign. `glitch(step)`: send 1e6 instead.

    Steps are counted over all environments that share `counter`.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, counter: list[int], glitch: Any) -> None:
        self.counter, self.glitch = counter, glitch
        self.sign, self.age = 1, 0

    def _observe(self) -> np.ndarray:
        self.sign = 1 if self.np_random.random() < 0.5 else -1
        self.counter[0] += 1
        first = 1e6 if self.glitch(self.counter[0]) else float(self.sign)
        return np.array([first, self.np_random.standard_normal()], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float((int(action) == 1) == (self.sign == 1))
        self.age += 1
        return self._observe(), reward, False, self.age == 16, {}


def train(glitch: Any, updates: int, *, backend: str) -> Trainer:
    counter = [0]
    trainer = small_trainer(
        lambda: Signs(counter, glitch),
        backend=backend,
        learner={"learning_rate": 3e-3, "gamma": 0.01},
        run={"environments": 8, "rollout_steps": 32, "total_steps": 256 * updates},
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("backend", BACKENDS)
def test_glitch_in_every_rollout_does_not_end_learning(backend: str) -> None:
    """One observation in 200 is 1e6. Rejects a scale that is multiplied by such an entry with every rollout: the sign
    would vanish from the observation, and the reward stay at chance, .5."""
    trainer = train(lambda step: step % 200 == 7, 40, backend=backend)
    assert np.mean([row["reward/mean"] for row in trainer.history[-5:]]) > 0.9
    assert 0.9 < float(trainer.model.normaliser.variance[0].sqrt()) < 1.5
    noticed = [row["obs/outlier_fraction"] > 0 for row in trainer.history]
    assert noticed[0] and sum(noticed) > 30  # some hit the last observation of an episode, which no decision saw
    assert trainer.alerts[0].rule == "observation_outlier" and trainer.alerts[0].update == 1


@pytest.mark.parametrize("at", [100, 2000])
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_observation_among_7680_is_told_once_and_forgotten(backend: str, at: int) -> None:
    """In the first rollout or in the eighth. The statistics are those of a run without it, nearly; one alert at its
    update and none about drift later. Rejects raw moments in the watch for drift (an alert ten rollouts after)."""
    clean, wild = (train(glitch, 30, backend=backend) for glitch in (lambda step: False, lambda step: step == at))
    assert float(wild.model.normaliser.variance[0] / clean.model.normaliser.variance[0]) == pytest.approx(1, rel=0.1)
    update = (at - 8) // 256 + 1  # the resets come first
    told = [(alert.rule, alert.update) for alert in wild.alerts if alert.rule.startswith("observation")]
    assert told == [("observation_outlier", update)]
    assert [row["update"] for row in wild.history if row["obs/outlier_fraction"] > 0] == [update]
