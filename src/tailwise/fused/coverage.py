"""What the fused backend covers: a closed list. Everything else is for torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tailwise.core.errors import ConfigError
from tailwise.learner.config import Awr, LearnerConfig, NoImitation
from tailwise.learner.optimiser_config import AdamOptimiser, AdamWOptimiser, VarianceScaling
from tailwise.learner.return_laws import QuantileKernel, return_law
from tailwise.model.action_spec import ActionSpec
from tailwise.model.config import Critic, GruCore, LstmCore, MlpEncoder, ModelConfig

COVERED_ACTIVATIONS = ("tanh", "relu")


def why_not_fused(
    model: ModelConfig,
    learner: LearnerConfig,
    action: ActionSpec,
    *,
    auxiliary: Sequence[tuple[str, Any]] = (),
) -> str | None:
    """The first option that the fused backend does not cover, as a sentence that names it; None when all are."""
    if torch.get_default_dtype() != torch.float32:
        return (
            f"torch's default dtype is {torch.get_default_dtype()}, which is not covered; use float32, or backend torch"
        )
    return why_not_configured(model, learner) or _why_not_actions(action) or _why_not_auxiliary(auxiliary)


def why_not_configured(model: ModelConfig, learner: LearnerConfig) -> str | None:
    """The part of `why_not_fused` that needs no environment."""
    critic, core, encoder = model.critic, model.core, model.encoder
    if not isinstance(encoder, MlpEncoder):
        return f"model.encoder.kind {encoder.kind} is not covered; use mlp, or backend torch"
    if encoder.activation not in COVERED_ACTIVATIONS:
        covered = " or ".join(COVERED_ACTIVATIONS)
        return f"model.encoder.activation {encoder.activation} is not covered; use {covered}, or backend torch"
    if model.norm != "none":
        return f"model.norm {model.norm} is not covered; use none, or backend torch"
    if not isinstance(learner.imitation, NoImitation):
        return f"learner.imitation.kind {learner.imitation.kind} is not covered; use none, or backend torch"
    if isinstance(core, LstmCore | GruCore) and core.layers > 1:
        return f"model.core.layers {core.layers} is not covered; use 1, or backend torch"
    if return_law(critic).kernel is None:
        return f"model.critic.kind {critic.kind} is not covered; use quantile or scalar, or backend torch"
    if critic.mean_from_law:
        return "model.critic.mean quantiles is not covered; use head, or backend torch"
    if critic.clip.active:
        return f"model.critic.clip.kind {critic.clip.kind} is not covered; use disable, or backend torch"
    if isinstance(learner.awr, Awr):
        return "learner.awr.kind on is not covered; use off, or backend torch"
    optimiser = learner.optimiser
    if not isinstance(optimiser, AdamOptimiser | AdamWOptimiser):
        return f"learner.optimiser.kind {optimiser.kind} is not covered; use adam or adamw, or backend torch"
    if isinstance(optimiser, AdamWOptimiser) and optimiser.shrink_perturb > 0:
        return f"learner.optimiser.shrink_perturb {optimiser.shrink_perturb:g} is not covered; use 0, or backend torch"
    if isinstance(learner.variance_scaling, VarianceScaling):
        return "learner.variance_scaling.kind on is not covered; use off, or backend torch"
    if learner.adversary.has_loss:
        return f"learner.adversary.kind {learner.adversary.kind} is not covered; use none, or backend torch"
    return None


def kernel_of(critic: Critic) -> QuantileKernel:
    """What the compiled loss needs to know of the critics' law, which must be covered."""
    kernel = return_law(critic).kernel
    if kernel is None:
        raise ConfigError(f"backend fused: model.critic.kind {critic.kind} is not covered; use quantile or scalar")
    return kernel


def _why_not_actions(action: ActionSpec) -> str | None:
    if action.kind not in ("discrete", "box"):
        return f"the action space is {action.kind}, which is not covered; use backend torch"
    return None


def _why_not_auxiliary(auxiliary: Sequence[tuple[str, Any]]) -> str | None:
    if auxiliary:
        return f"the auxiliary loss {auxiliary[0][0]!r} is not covered; use backend torch"
    return None
