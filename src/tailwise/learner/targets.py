"""Raw targets of one rollout: mean advantages, lambda-returns, and particles of the return's law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tailwise.core.streams import Streams
from tailwise.learner.particles import inverse_cdf_atoms, inverse_cdf_quantiles, sr_lambda, stratified_levels
from tailwise.learner.returns import gae, lambda_return, next_values
from tailwise.learner.rollout import Rollout
from tailwise.model.config import CategoricalCritic, QuantileCritic, ScalarCritic
from tailwise.model.critics import normalised_atoms

CriticConfig = ScalarCritic | QuantileCritic | CategoricalCritic


@dataclass(frozen=True)
class Targets:
    """Raw units. advantage, lambda_return, value [T, B]; particles [T, B, M] or None (scalar critics)."""

    advantage: Tensor
    lambda_return: Tensor
    value: Tensor
    particles: Tensor | None


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
        return mu + sigma * inverse_cdf_quantiles(law.sort(-1).values.mean(-2), levels)
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
    make_particles: Callable[..., Tensor] | None = None,
) -> Targets:
    """Advantages by exact scalar GAE; particles by SR(lambda) with `critic.lambda`; everything in raw units.

    make_particles: another implementation of `particle_returns`.
    """
    record = rollout.critic
    value = combine_means(record.raw(record.mean), config.combine)
    final_value = combine_means(record.raw(record.final_mean), config.combine)
    following = next_values(value, final_value, rollout.terminated, rollout.truncated)
    advantage = gae(
        rollout.reward,
        value[:-1],
        following,
        rollout.terminated,
        rollout.truncated,
        gamma=gamma,
        lam=lam,
        valid=rollout.valid,
    )
    returns = lambda_return(advantage, value[:-1])
    particles: Tensor | None = None
    if isinstance(config, QuantileCritic) and config.target == "scalar":
        particles = returns[..., None]
    elif isinstance(config, QuantileCritic | CategoricalCritic):
        particles = (make_particles or particle_returns)(rollout, config, streams, gamma=gamma)
    return Targets(advantage, returns, value[:-1], particles)


def particle_returns(
    rollout: Rollout, config: QuantileCritic | CategoricalCritic, streams: Streams, *, gamma: float
) -> Tensor:
    """Particles [T, B, M] of the return of every step, raw units."""
    record = rollout.critic
    assert record.law is not None and record.final_law is not None
    count, dtype = config.particle_count, rollout.reward.dtype
    ids: np.ndarray = rollout.environment.numpy()

    def draw(name: str, steps: int) -> Tensor:
        u = streams.uniforms(name, update=rollout.update, environments=ids, steps=steps, draws=count)
        return torch.from_numpy(u).to(dtype)

    # One set of levels per environment and update: steps bootstrap at independent moments, and draws cost time.
    levels = stratified_levels(draw("levels", 1))
    every = levels.expand(rollout.steps + 1, -1, -1)
    by_steps = levels if isinstance(config, QuantileCritic) else every  # atoms are searched row by row
    z = law_particles(record.law, config, by_steps, mu=record.mu, sigma=record.sigma)
    z_final = torch.zeros_like(z[1:])
    ends = rollout.truncated & ~rollout.terminated & rollout.valid
    z_final[ends] = law_particles(record.final_law[ends], config, every[1:][ends], mu=record.mu, sigma=record.sigma)
    return sr_lambda(
        rollout.reward,
        z,
        z_final,
        rollout.terminated,
        rollout.truncated,
        draw("bootstrap", rollout.steps),
        gamma=gamma,
        lam=config.lam,
        valid=rollout.valid,
    )
