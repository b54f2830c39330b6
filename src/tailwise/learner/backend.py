"""The contract between the trainer and an implementation of the mathematics: plain torch, or fused kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tailwise.core.numerics import Moments
from tailwise.core.streams import Streams
from tailwise.learner.batches import Part, Prepared
from tailwise.learner.config import LearnerConfig
from tailwise.learner.credit import CreditInputs
from tailwise.learner.decisions import Ahead, Decisions
from tailwise.learner.losses import AuxiliaryLoss
from tailwise.learner.optimisers import Optimiser, StepSize
from tailwise.learner.risk import RiskSettings
from tailwise.learner.rollout import CriticRecord, Rollout
from tailwise.learner.shards import Shards
from tailwise.learner.variance_scaling import GradientNoise
from tailwise.model.actor_critic import ActorCritic, CriticOutput, Decision


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
    prior_weight: float = 0.0  # of KL(policy || prior)
    progress: float = 1.0  # steps behind the run over all its steps


@dataclass(frozen=True)
class UpdateReport:
    """What an update did. `reason` says why it was refused or rolled back; None when committed.

    observed: moments of the valid observations as the normaliser absorbed them; None where nothing was committed.
    gradient_noise: (|g|^2, squared error of g) by parameter group, where variance scaling measures it.
    before: the backend's snapshot of the learner as it was; None where the update was refused before it began.
    """

    committed: bool
    reason: str | None
    stopped_early: bool
    kl: float
    metrics: dict[str, float]
    term_gradients: dict[str, dict[str, float]] = field(default_factory=dict)
    went_too_far: bool = False  # rolled back because weights or KL left their bounds, not because of broken input
    observed: Moments | None = None
    gradient_noise: dict[str, tuple[float, float]] = field(default_factory=dict)
    before: Any = None


#: (mean advantages [T, B], risk advantages [T, B] or None, multiplier) -> advantages [T, B]; the seam of tail risk.
MixAdvantages = Callable[[Tensor, Tensor | None, float], Tensor]


class Epochs(Protocol):
    """The passes over one rollout: how a backend makes gradients and steps, and what it measured on the way.

    stopped          whether KL ended the epochs
    done             epochs that were completed
    first_log_ratio  largest |log ratio| before the first step: 0 but for rounding
    term_gradients   gradient norm of each loss term on each parameter group, where it was measured
    noise            measures how far the gradients of microbatches agree, None where nobody asks
    """

    stopped: bool
    done: int
    first_log_ratio: float
    term_gradients: dict[str, dict[str, float]]
    noise: GradientNoise | None

    def draws(self, epoch: int) -> Any:
        """Random numbers of an epoch, which are handed to `minibatch`."""
        ...

    def minibatch(self, parts: list[list[Part]], draws: Any) -> str | None:
        """Step on the parts of a minibatch, those of each shard in a list, unless KL stops it; return a sentence if a
        number is not finite."""
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers of all minibatches, aggregated over the update."""
        ...

    def kl_after(self) -> float:
        """Mean KL(old||new) over all valid rows of the rollout with the present weights, nats."""
        ...


class Backend(Protocol):
    """The mathematics of a learner: networks, particles, gradients. `ppo.update` composes them."""

    model: ActorCritic
    config: LearnerConfig
    streams: Streams
    tail_alpha: float | None
    risk: RiskSettings | None
    mix_advantages: MixAdvantages
    auxiliary: tuple[tuple[str, AuxiliaryLoss], ...]
    shards: Shards

    @property
    def optimiser(self) -> Optimiser:
        """Holds the state of the optimiser."""
        ...

    def warm_up(self, tell: Callable[[str], None], venv: Any = None) -> None:
        """Compile everything that the first update needs, in the environments `venv` if given; report progress."""
        ...

    def act(self, obs: Tensor, state: Tensor, start: Tensor, mask: Tensor | None, uniform: Tensor | None) -> Decision:
        """obs [B, D], state [B, S, H], start [B], mask [B, K], uniform [B, noise] (None: most likely action)."""
        ...

    def play(self, obs: Tensor, state: Tensor, start: Tensor, mask: Tensor | None, uniform: Tensor | None) -> Decision:
        """`act` for playback: no row depends on the rows beside it; raises DataError where a decision is not finite."""
        ...

    def begin(self, update: int, environments: npt.NDArray[np.int64], steps: int, state: Tensor) -> Decisions:
        """Memory for a rollout from state [B, S, H], with the random numbers of that update; environments [B]: ids."""
        ...

    def decide(
        self,
        decisions: Decisions,
        t: int,
        obs: npt.NDArray[np.float32],
        start: npt.NDArray[np.bool_],
        mask: npt.NDArray[np.bool_] | None,
    ) -> None:
        """`act` on obs [B, D], start [B], mask [B, K], written to step t of a rollout; its state moves on."""
        ...

    def ahead(self, venv: Any) -> Ahead | None:
        """Whole rollouts of these environments in compiled code, after `begin`; None where each step needs Python."""
        ...

    def encode(self, obs: Tensor, state: Tensor, start: Tensor) -> Tensor:
        """Features [n, H] of observations [n, D] one step after hidden states [n, S, H], without acting.

        start [n]: True where the observation opens an episode, so the hidden state counts as zero.
        """
        ...

    def values(self, features: Tensor) -> CriticOutput:
        """Critic outputs at features [..., H], normalised units."""
        ...

    def record(self, features: Tensor, final_features: Tensor, final_index: Tensor) -> CriticRecord:
        """Critic outputs at features [T+1, B, H], and at final_features [F, H] of rows final_index [F, 2] = (t, b)."""
        ...

    def update(self, rollout: Rollout, knobs: Knobs) -> UpdateReport:
        """Learn from a rollout, or refuse it and leave everything as it was."""
        ...

    def particles(self, *arguments: Any, **named: Any) -> tuple[Tensor | None, list[Tensor]]:
        """Particles of the return's law, as `batches.particle_returns`."""
        ...

    def risk_credit(self, inputs: CreditInputs) -> Tensor:
        """Risk advantages [T, B], as `credit.risk_credit`."""
        ...

    def epochs(self, rollout: Rollout, prepared: Prepared, knobs: Knobs) -> Epochs:
        """Begin the passes over a rollout."""
        ...

    def first_non_finite(self) -> str | None:
        """Name of the first parameter or buffer with a NaN or infinite entry, None when all are finite."""
        ...

    def snapshot(self) -> Any:
        """A copy of everything that an update changes: weights, normaliser, return scale, optimiser."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Put a snapshot back, bit for bit."""
        ...
