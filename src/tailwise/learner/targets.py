"""Raw targets of one rollout: mean advantages, lambda-returns, and particles of the return's law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailwise.core.streams import Streams
from tailwise.learner.particles import (
    average_law,
    inverse_cdf_atoms,
    inverse_cdf_quantiles,
    sr_lambda,
    stratified_levels,
)
from tailwise.learner.returns import gae, lambda_return, next_values
from tailwise.learner.rollout import CriticRecord, Rollout
from tailwise.model.config import CategoricalCritic, QuantileCritic, ScalarCritic
from tailwise.model.critics import normalised_atoms

CriticConfig = ScalarCritic | QuantileCritic | CategoricalCritic


#: What `particle_returns` is, for implementations in compiled code.
MakeParticles = Callable[..., tuple[Tensor | None, list[Tensor]]]


@dataclass(frozen=True)
class Targets:
    """Raw units. advantage, lambda_return, value [T, B]; particles [T, B, M] or None (scalar critics).

    predicted [T, B, M]: particles of the critics' own law at s[t], None where particles are not those of a law.
    near [T, B, M]: SR(lambda) particles with the lambda of the advantages, which lean on the critics sooner and are
    far less noisy; only where risk acts on the policy.
    """

    advantage: Tensor
    lambda_return: Tensor
    value: Tensor
    particles: Tensor | None
    predicted: Tensor | None
    near: Tensor | None


def combine_means(mean: Tensor, how: str) -> Tensor:
    """One value from C critics: mean [..., C] -> [...]."""
    return mean.amin(-1) if how == "lower" else mean.mean(-1)


def law_particles(law: Tensor, config: CriticConfig, levels: Tensor, *, mu: float, sigma: float) -> Tensor:
    """Particles [..., M] of the critics' common law: the average over critics of their inverse CDFs.

    law [..., C, N]: normalised quantiles, or logits on atoms, in the scale (mu, sigma); levels [..., M] in (0, 1). Raw
    units come out. "Lower of two" would bias an on-policy law; averages do not. Even where M = N the quantiles
    themselves are not used: their outermost levels are 0.5/N from the ends, so every bootstrap would trim the tail.
    """
    if isinstance(config, QuantileCritic):
        return mu + sigma * inverse_cdf_quantiles(average_law(law), levels)
    assert isinstance(config, CategoricalCritic)
    atoms = mu + sigma * normalised_atoms(config).to(law.dtype)
    per_critic = [inverse_cdf_atoms(atoms, law[..., c, :].softmax(-1), levels) for c in range(law.shape[-2])]
    return torch.stack(per_critic).mean(0)


def build_targets(
    rollout: Rollout,
    config: CriticConfig,
    streams: Streams,
    *,
    gamma: float,
    lam: float,
    near: bool = False,
    make_particles: MakeParticles | None = None,
) -> Targets:
    """Advantages by exact scalar GAE; particles by SR(lambda) with `critic.lambda`; everything in raw units.

    near: also make the particles with the lambda of the advantages. make_particles: another `particle_returns`.
    """
    record = rollout.critic
    value = combine_means(record.raw(record.mean), config.combine)
    final_value = combine_means(record.raw(record.final_mean), config.combine) if rollout.any_truncated else value[1:]
    following = next_values(value, final_value, rollout.terminated, rollout.truncated)
    advantage = gae(
        rollout.reward,
        value[:-1],
        following,
        rollout.terminated,
        rollout.truncated,
        gamma=gamma,
        lam=lam,
        valid=None if rollout.all_valid else rollout.valid,
    )
    returns = lambda_return(advantage, value[:-1])
    particles: Tensor | None = None
    predicted: Tensor | None = None
    nearer: Tensor | None = None
    if isinstance(config, QuantileCritic) and config.target == "scalar":
        particles = returns[..., None]
    elif isinstance(config, QuantileCritic | CategoricalCritic):
        lambdas = (config.lam, lam) if near else (config.lam,)
        predicted, (particles, *others) = (make_particles or particle_returns)(
            rollout, record, config, streams, gamma=gamma, lambdas=lambdas
        )
        nearer = others[0] if near else None
    return Targets(advantage, returns, value[:-1], particles, predicted, nearer)


def particle_returns(
    rollout: Rollout,
    record: CriticRecord,
    config: QuantileCritic | CategoricalCritic,
    streams: Streams,
    *,
    gamma: float,
    lambdas: tuple[float, ...],
) -> tuple[Tensor, list[Tensor]]:
    """Particles of the critics' law at every state, and SR(lambda) ones for each lambda, all [T, B, M]."""
    assert record.law is not None and record.final_law is not None
    count, dtype = config.particle_count, rollout.reward.dtype
    ids: np.ndarray = rollout.environment.numpy()

    # One set of levels per environment and update: steps bootstrap at independent moments, and draws cost time.
    address: dict[str, Any] = {"update": rollout.update, "environments": ids, "draws": count}
    levels = stratified_levels(torch.from_numpy(streams.uniforms("levels", steps=1, **address)).to(dtype))
    every = levels.expand(rollout.steps + 1, -1, -1)
    by_steps = levels if isinstance(config, QuantileCritic) else every  # atoms are searched row by row
    z = law_particles(record.law, config, by_steps, mu=record.mu, sigma=record.sigma)
    z_final = torch.zeros_like(z[1:])
    ends = rollout.truncated & ~rollout.terminated & rollout.valid
    z_final[ends] = law_particles(record.final_law[ends], config, every[1:][ends], mu=record.mu, sigma=record.sigma)
    uniform = torch.from_numpy(streams.uniforms("bootstrap", steps=rollout.steps, short=True, **address))
    return z[:-1], [
        sr_lambda(
            rollout.reward,
            z,
            z_final,
            rollout.terminated,
            rollout.truncated,
            uniform,
            gamma=gamma,
            lam=lam,
            valid=rollout.valid,
        )
        for lam in lambdas
    ]
