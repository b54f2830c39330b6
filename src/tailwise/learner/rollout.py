"""What a rollout is: the tensors that the collector fills and the learner reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tailwise.core.errors import ShapeError
from tailwise.core.numerics import surely_finite


@dataclass(frozen=True)
class CriticRecord:
    """Critic outputs at rollout time, normalised, with the scale (mu, sigma) that makes them raw returns.

    mean [T+1, B, C]; law [T+1, B, C, N] (quantiles, or logits on atoms, or None);
    final_mean [T, B, C], final_law [T, B, C, N]: at final_obs, meaningful where truncated (0 elsewhere).
    sigma is 0 before the first rollout with any spread: raw predictions are then exactly 0.
    """

    mean: Tensor
    law: Tensor | None
    final_mean: Tensor
    final_law: Tensor | None
    mu: float
    sigma: float

    def raw(self, normalised: Tensor) -> Tensor:
        """Means or quantiles of this record in raw return units, same shape."""
        return normalised * self.sigma + self.mu


@dataclass(frozen=True)
class Past:
    """What came before a rollout: rewards [H, B] of the newest H steps, and the age [B] (int64) of step 0.

    The age counts the steps since the episode began. Rewards from before its beginning are never read.
    """

    reward: Tensor
    age: Tensor


def side_by_side(rollouts: Sequence[Rollout]) -> Rollout:
    """The rollouts of groups of environments, of the same steps of one policy, as one: their environments in order."""
    records, first = [one.critic for one in rollouts], rollouts[0]

    def joined(name: str, parts: Sequence[Any], along: int = 1) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else torch.cat(values, along)

    pasts = [one.past for one in rollouts]
    per_step = ("obs", "action", "log_prob", "params", "mask", "reward", "terminated", "truncated", "valid", "start")
    return Rollout(
        **{name: joined(name, rollouts) for name in per_step},
        state=joined("state", rollouts, 0),
        critic=CriticRecord(
            **{name: joined(name, records) for name in ("mean", "law", "final_mean", "final_law")},
            mu=first.critic.mu,
            sigma=first.critic.sigma,
        ),
        environment=joined("environment", rollouts, 0),
        update=first.update,
        past=None if pasts[0] is None else Past(joined("reward", pasts), joined("age", pasts, 0)),
    )


@dataclass(frozen=True)
class Rollout:
    """T steps of B environments, oldest first. Floats are float32.

    obs [T, B, D] raw flat observations; action [T, B, A] raw actions (int64 or float32); log_prob [T, B] and
    params [T, B, P] as the policy produced them (never recomputed); mask [T, B, K] bool or None; reward [T, B];
    terminated, truncated, valid, start [T, B] bool: `start` says that the hidden state was zeroed before that step,
    `valid` is False where the environment only reset and ignored the action; state [B, S, H] before step 0;
    critic: outputs at every step and at truncations; environment [B]: ids that key the random streams; past: what came
    before, None where nobody needs it: episodes then count as begun with the rollout.
    """

    obs: Tensor
    action: Tensor
    log_prob: Tensor
    params: Tensor
    mask: Tensor | None
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    start: Tensor
    state: Tensor
    critic: CriticRecord
    environment: Tensor
    update: int
    past: Past | None = None

    def __post_init__(self) -> None:
        steps, envs = self.reward.shape
        if steps < 1 or envs < 1 or not bool(self.valid.any()):
            raise ShapeError(
                f"the rollout has {steps} steps x {envs} environments and {int(self.valid.sum())} valid transitions; "
                "an update needs at least one: raise run.rollout_steps"
            )
        for field in fields(self):
            value = getattr(self, field.name)
            per_step = isinstance(value, Tensor) and field.name not in ("state", "environment")
            if per_step and value.shape[:2] != (steps, envs):
                raise ShapeError(
                    f"rollout.{field.name} has shape {tuple(value.shape)}; expected [{steps}, {envs}, ...]"
                )
            if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.get_default_dtype():
                raise ShapeError(
                    f"rollout.{field.name} is {value.dtype}; one dtype is used everywhere: {torch.get_default_dtype()}"
                )

    @property
    def steps(self) -> int:
        """T."""
        return int(self.reward.shape[0])

    @property
    def envs(self) -> int:
        """B."""
        return int(self.reward.shape[1])

    @cached_property
    def all_valid(self) -> bool:
        """Whether every row is a transition: the usual case."""
        return bool(self.valid.numpy(force=True).all())

    @cached_property
    def any_truncated(self) -> bool:
        """Whether an episode was cut off; if not, nobody reads what the critics say at last observations."""
        return bool(self.truncated.numpy(force=True).any())

    def of_valid(self, tensor: Tensor) -> Tensor:
        """The valid rows [n, ...] of a tensor [T, B, ...]: without a copy where all are valid."""
        return tensor.flatten(0, 1) if self.all_valid else tensor[self.valid]

    def non_finite(self) -> dict[str, int]:
        """How many entries that an update would read are NaN or infinite, by name; empty when all are finite."""
        if self._surely_finite():
            return {}
        boundary = self.truncated & ~self.terminated & self.valid
        goes_on = self.valid[-1] & ~(self.terminated | self.truncated)[-1]
        reads: dict[str, Tensor] = {
            "observation": self.obs[self.valid],
            "action": self.action[self.valid],
            "reward": self.reward[self.valid],
            "log_prob": self.log_prob[self.valid],
            "value": self.critic.mean[:-1][self.valid],
            "bootstrap value": self.critic.mean[-1][goes_on],
            "value at truncation": self.critic.final_mean[boundary],
        }
        # Masked logits are filled with the smallest finite number, so a healthy parameter is always finite.
        reads["policy parameter"] = self.params[self.valid]
        if self.critic.law is not None and self.critic.final_law is not None:
            reads["value law"] = self.critic.law[:-1][self.valid]
            reads["bootstrap law"] = self.critic.law[-1][goes_on]
            reads["law at truncation"] = self.critic.final_law[boundary]
        counts = {name: int((~torch.isfinite(t)).sum()) for name, t in reads.items() if t.is_floating_point()}
        return {name: n for name, n in counts.items() if n}

    def _surely_finite(self) -> bool:
        """Whether all entries, read or not, are finite at first sight; if not, look closer at those that are read."""
        record = self.critic
        tensors = [self.obs, self.action, self.reward, self.log_prob, self.params, record.mean, record.law]
        if self.any_truncated:
            tensors += [record.final_mean, record.final_law]
        return surely_finite(*(t.numpy(force=True) for t in tensors if t is not None and t.is_floating_point()))
