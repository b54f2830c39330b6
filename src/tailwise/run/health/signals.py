"""Signals that rules need beside the learner's own metrics, and what has to be remembered for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from tailwise.core.numerics import Moments
from tailwise.learner.config import KlFactor, LearnerConfig
from tailwise.learner.rollout import Rollout
from tailwise.model.actor_critic import ActorCritic
from tailwise.run.health import probes
from tailwise.run.health.drift import Drift
from tailwise.run.health.step_facts import StepFacts

REWARD_WARMUP = 5  # rollouts before a reward can be a jump
RETURN_WARMUP = 10  # updates before a fall of the return is told
RETURN_RATE = 0.1
USUAL_KL = 0.05  # nats; what KL is compared with when no target is set


class Signals:
    """Measures after each update. All of it reads the rollout and the torch modules, whatever the backend is."""

    def __init__(self, model: ActorCritic, learner: LearnerConfig, *, every: int) -> None:
        self.model = model
        self.kl_factor = learner.kl_factor
        self.every = every
        self.drift = Drift(np.asarray(model.observation.scaled, dtype=np.bool_))
        self.rollouts = 0
        self.largest_reward = 0.0
        self.rewards_varied = False  # within one of the rollouts so far
        self.ends_told = False  # whether terminations told something, with rewards that are all equal
        self.peak_std = 0.0
        self.returns = 0
        self.return_mean = 0.0
        self.return_variance = 0.0

    def measure(
        self,
        rollout: Rollout,
        facts: StepFacts,
        metrics: Mapping[str, float],
        *,
        kl_factor: float,
        target_kl: float | None,
        observed: Moments | None = None,
    ) -> dict[str, float]:
        """Everything about this update; `metrics` are the learner's own, `observed` its moments of observations."""
        rows = probes.Rows.of(rollout)
        found = probes.decisions(self.model, rows) | facts.metrics()
        found |= self._rewards(rows, rollout)
        found |= self._returns(metrics)
        largest = probes.largest_entropy(self.model, rows)
        if largest is not None and largest > 0 and "policy/entropy" in metrics:
            found["policy/entropy_share"] = metrics["policy/entropy"] / largest
        if "policy/kl_after" in metrics:
            found["policy/kl_of_target"] = metrics["policy/kl_after"] / (USUAL_KL if target_kl is None else target_kl)
        found |= self.drift.absorb(rows.obs, observed)
        if self.rollouts % self.every == 0:
            found |= self.drift.sample(rows.obs)
            dead = probes.dead_units(self.model, rollout)
            found |= {} if dead is None else {"model/dead_units": dead}
        if isinstance(self.kl_factor, KlFactor):
            found["step/at_low_bound"] = float(kl_factor <= self.kl_factor.low)
            found["step/at_high_bound"] = float(kl_factor >= self.kl_factor.high)
        found["machine/memory"] = probes.memory_mb()
        self.rollouts += 1
        return found

    def _rewards(self, rows: probes.Rows, rollout: Rollout) -> dict[str, float]:
        earlier = self.largest_reward if self.rollouts >= REWARD_WARMUP else 0.0
        found, varied = probes.rewards(rows.reward, earlier)
        if found:
            self.largest_reward = max(self.largest_reward, found["reward/largest"])
            found["reward/no_information"] = float(self._no_information(rollout, varied=varied))
        return found

    def _no_information(self, rollout: Rollout, *, varied: bool) -> bool:
        """All rewards are equal and nothing ended, as it always was, or although rewards used to differ.

        A solved CartPole has neither differences nor ends: there the ends told what was good, and nothing is wrong. The
        same where only the step that ends an episode pays differently (a solved InvertedPendulum).
        """
        terminated, alive = rollout.terminated.numpy(), varied  # whether rewards differ while an episode goes on
        told = bool(terminated.any())
        if told:
            paid = rollout.reward.numpy()[rollout.valid.numpy() & ~terminated]
            alive = bool(paid.min() < paid.max()) if len(paid) else varied
            told = not len(paid) or bool(paid.any())  # where staying alive pays nothing, ending it costs nothing
        self.rewards_varied |= alive
        self.ends_told |= told and not self.rewards_varied
        return not varied and not told and not self.ends_told

    def _returns(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """How the returns of this update compare with the earlier ones; nothing for a refused update."""
        mean, std = metrics.get("return/mean"), metrics.get("return/std")
        if mean is None or std is None or not (math.isfinite(mean) and math.isfinite(std)):
            return {}
        found = {}
        self.peak_std = max(self.peak_std, std)
        if self.peak_std > 0:
            found["return/std_of_peak"] = std / self.peak_std
        spread = math.sqrt(self.return_variance)
        if self.returns >= RETURN_WARMUP and spread > 0 and self.peak_std > 0:
            found["return/decline"] = (self.return_mean - mean) / spread
            found["return/decline_of_peak"] = (self.return_mean - mean) / self.peak_std
        rate = max(RETURN_RATE, 1.0 / (self.returns + 1))
        shift = mean - self.return_mean
        self.return_variance = (1 - rate) * (self.return_variance + rate * shift**2)
        self.return_mean += rate * shift
        self.returns += 1
        return found

    def forget_returns(self) -> None:
        """Compare the returns of the next updates with each other alone: another discount gives other returns."""
        self.peak_std, self.returns, self.return_mean, self.return_variance = 0.0, 0, 0.0, 0.0

    def evaluation(self, mean: np.ndarray) -> dict[str, float]:
        """Shift of the evaluation's mean observation [D] against training."""
        shift = self.drift.against(mean)
        return {} if shift is None else {"obs/evaluation_drift": shift}

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """For a checkpoint: (tensors, JSON)."""
        tensors = {f"drift/{name}": torch.from_numpy(np.array(array)) for name, array in self.drift.state().items()}
        return tensors, {
            "rollouts": self.rollouts,
            "largest_reward": self.largest_reward,
            "rewards_varied": self.rewards_varied,
            "ends_told": self.ends_told,
            "peak_std": self.peak_std,
            "returns": self.returns,
            "return_mean": self.return_mean,
            "return_variance": self.return_variance,
        }

    def load(self, tensors: Mapping[str, torch.Tensor], data: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.drift.load({n.removeprefix("drift/"): t.numpy() for n, t in tensors.items() if n.startswith("drift/")})
        self.rollouts, self.returns = int(data["rollouts"]), int(data["returns"])
        self.largest_reward, self.peak_std = float(data["largest_reward"]), float(data["peak_std"])
        self.rewards_varied, self.ends_told = bool(data["rewards_varied"]), bool(data["ends_told"])
        self.return_mean, self.return_variance = float(data["return_mean"]), float(data["return_variance"])
