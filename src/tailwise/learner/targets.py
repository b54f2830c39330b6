"""Raw targets of one rollout: mean advantages, lambda-returns, and particles of the return's law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailwise.core.streams import Streams
from tailwise.learner.particles import sr_lambda, stratified_levels
from tailwise.learner.return_laws import return_law
from tailwise.learner.returns import gae, lambda_return, next_values
from tailwise.learner.rollout import CriticRecord, Rollout
from tailwise.model.config import Critic

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


def build_targets(
    rollout: Rollout,
    config: Critic,
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
    law = return_law(config)
    if law.lam is None:
        particles = law.target_of(returns)
    else:
        lambdas = (law.lam, lam) if near else (law.lam,)
        predicted, (particles, *others) = (make_particles or particle_returns)(
            rollout, record, config, streams, gamma=gamma, lambdas=lambdas
        )
        nearer = others[0] if near else None
    return Targets(advantage, returns, value[:-1], particles, predicted, nearer)


def particle_returns(
    rollout: Rollout,
    record: CriticRecord,
    config: Critic,
    streams: Streams,
    *,
    gamma: float,
    lambdas: tuple[float, ...],
) -> tuple[Tensor, list[Tensor]]:
    """Particles of the critics' law at every state, and SR(lambda) ones for each lambda, all [T, B, M]."""
    assert record.law is not None and record.final_law is not None
    law, dtype = return_law(config), rollout.reward.dtype
    count = law.particle_count
    ids: np.ndarray = rollout.environment.numpy()

    # One set of levels per environment and update: steps bootstrap at independent moments, and draws cost time.
    address: dict[str, Any] = {"update": rollout.update, "environments": ids, "draws": count}
    levels = stratified_levels(torch.from_numpy(streams.uniforms("levels", steps=1, **address)).to(dtype))
    z = law.particles(record.law, levels, mu=record.mu, sigma=record.sigma)
    z_final = torch.zeros_like(z[1:])
    ends = rollout.truncated & ~rollout.terminated & rollout.valid
    at_ends = levels.expand(rollout.steps, -1, -1)[ends]
    z_final[ends] = law.particles(record.final_law[ends], at_ends, mu=record.mu, sigma=record.sigma)
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
