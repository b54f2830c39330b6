"""The contract between the trainer and an implementation of the mathematics: plain torch, or fused kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tailwise.core.numerics import Moments
from tailwise.learner.ahead import Ahead
from tailwise.learner.decisions import Decisions
from tailwise.learner.rollout import CriticRecord, Rollout
from tailwise.learner.step_size import StepSize
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.inference import Decision


@dataclass(frozen=True)
class Knobs:
    """What the schedules say for one update."""

    step_size: StepSize
    entropy_weight: float
    measure_terms: bool = False  # also measure the gradient of every loss term on every parameter group
    multiplier: float = 0.0  # weight of the risk advantages beside the mean ones
    threshold: float | None = (
        None  # VaR of the pooled return (raw) as known from earlier updates; None: take this one's
    )
    bounds_weight: float = 0.0  # of the squared distance of Box means from their bounds


@dataclass(frozen=True)
class UpdateReport:
    """What an update did. `reason` says why it was refused or rolled back; None when committed.

    observed: moments of the valid observations as the normaliser absorbed them; None where nothing was committed.
    """

    committed: bool
    reason: str | None
    stopped_early: bool
    kl: float
    metrics: dict[str, float]
    term_gradients: dict[str, dict[str, float]] = field(default_factory=dict)
    went_too_far: bool = False  # rolled back because weights or KL left their bounds, not because of broken input
    observed: Moments | None = None


class Backend(Protocol):
    """What a trainer needs from the mathematics."""

    model: ActorCritic

    def warm_up(self, tell: Callable[[str], None], venv: Any = None) -> None:
        """Whatever the first use, in the environments `venv` if given, would wait for; what takes long is told."""
        ...

    def act(self, obs: Tensor, state: Tensor, start: Tensor, mask: Tensor | None, uniform: Tensor | None) -> Decision:
        """obs [B, D], state [B, S, H], start [B], mask [B, K], uniform [B, noise] (None: most likely action)."""
        ...

    def begin(self, update: int, environments: npt.NDArray[np.int64], steps: int, state: Tensor) -> Decisions:
        """Memory for a rollout from state [B, S, H], with the random numbers of that update; environments [B]: ids."""
        ...

    def decide(
        self, made: Decisions, t: int, obs: npt.NDArray[np.float32], start: npt.NDArray[np.bool_],
        mask: npt.NDArray[np.bool_] | None,
    ) -> None:  # fmt: skip
        """`act` on obs [B, D], start [B], mask [B, K], written to step t of a rollout; its state moves on."""
        ...

    def ahead(self, venv: Any) -> Ahead | None:
        """Whole rollouts of these environments in compiled code, after `begin`; None where each step needs Python."""
        ...

    def look(self, obs: Tensor, state: Tensor, start: Tensor) -> Tensor:
        """Features [n, H] of observations [n, D] one step after hidden states [n, S, H], without acting.

        start [n]: True where the observation opens an episode, so the hidden state counts as zero."""
        ...

    def record(self, features: Tensor, final_features: Tensor, final_index: Tensor) -> CriticRecord:
        """Critic outputs at features [T+1, B, H], and at final_features [F, H] of rows final_index [F, 2] = (t, b)."""
        ...

    def update(self, rollout: Rollout, knobs: Knobs) -> UpdateReport:
        """Learn from a rollout, or refuse it and leave everything as it was."""
        ...

    def snapshot(self) -> Any:
        """A copy of everything that an update changes: weights, normaliser, return scale, optimiser."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Put a snapshot back, bit for bit."""
        ...

    def training_tensors(self) -> dict[str, Tensor]:
        """Optimiser state, for a checkpoint."""
        ...

    def check_training_tensors(self, tensors: dict[str, Tensor], *, fresh: bool) -> None:
        """Raise, without touching anything, when tensors are not those of this model's optimiser."""
        ...

    def load_training_tensors(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `training_tensors`."""
        ...
