"""From a rollout to minibatches: raw targets, the new return scale, standardised advantages, rows in random order.

Without a core a minibatch is a random set of valid rows. With a core it is a random set of environments with all their
steps, so that sequences stay whole. A microbatch is a part of a minibatch; its losses weigh by its share of valid rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailwise.core.numerics import surely_finite
from tailwise.core.streams import Streams
from tailwise.learner.config import LearnerConfig
from tailwise.learner.losses import Batch
from tailwise.learner.optimisers import Optimiser
from tailwise.learner.return_laws import ScaleMove, return_law
from tailwise.learner.returns import (
    gae,
    lambda_return,
    next_values,
    normalise,
    part_of_normalised,
    sr_lambda,
    stratified_levels,
)
from tailwise.learner.rollout import CriticRecord, Rollout
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.config import Critic
from tailwise.model.scales import preserve_outputs

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


@dataclass(frozen=True)
class Prepared:
    """Everything that minibatches read. obs [T, B, D] with invalid rows zeroed; the rest flat over rows R = T*B.

    risk_advantage: the risk part of the advantage alone, for measuring its gradient; None when it is not measured.
    """

    obs: Tensor
    action: Tensor
    log_prob: Tensor
    params: Tensor
    mask: Tensor | None
    advantage: Tensor
    mean_target: Tensor
    particles: Tensor | None
    old_mean: Tensor
    old_law: Tensor | None
    valid: Tensor
    environment: Tensor
    risk_advantage: Tensor | None = None

    def finite(self) -> bool:
        """Whether every target that valid rows will train on is finite."""
        read = [self.advantage, self.mean_target, *([] if self.particles is None else [self.particles])]
        # A row that nobody reads may be broken: look closer.
        return all(
            surely_finite(t.numpy(force=True)) or bool(torch.isfinite(t[self.valid.reshape(-1)]).all()) for t in read
        )

    def draws(
        self, streams: Streams, model: ActorCritic, *, update: int, epoch: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """Random numbers of one epoch: particle choices [R, m] (int64), uniforms for sampled entropies [R, noise]."""
        steps = self.valid.shape[0]
        ids: np.ndarray = self.environment.numpy()

        address: dict[str, Any] = {"update": update, "epoch": epoch, "environments": ids, "steps": steps}

        chosen: Tensor | None = None
        sampled = return_law(model.config.critic).sampled
        if self.particles is not None and self.particles.shape[-1] > sampled > 0:
            # One particle per stratum: unbiased, and each row sees the whole range of levels.
            width = self.particles.shape[-1] // sampled
            within = torch.from_numpy(streams.uniforms("particle", draws=sampled, short=True, **address)) * width
            chosen = torch.arange(sampled) * width + within.reshape(-1, sampled).long()
        if not model.law.squashed:
            return chosen, None
        uniform = streams.uniforms("entropy", draws=model.law.noise, **address)
        return chosen, torch.from_numpy(uniform).reshape(-1, model.law.noise)

    def mask_rows(self, rows: Tensor) -> Tensor | None:
        """Action masks [n, K] of flat rows."""
        return None if self.mask is None else self.mask.index_select(0, rows)

    def batch(self, rows: Tensor, draws: tuple[Tensor | None, Tensor | None]) -> Batch:
        """The microbatch of flat rows [n]."""
        chosen, uniform = draws
        particles = None if self.particles is None else self.particles.index_select(0, rows)
        if particles is not None and chosen is not None:
            particles = particles.gather(-1, chosen.index_select(0, rows))
        return Batch(
            action=self.action.index_select(0, rows),
            log_prob=self.log_prob.index_select(0, rows),
            params=self.params.index_select(0, rows),
            mask=self.mask_rows(rows),
            advantage=self.advantage.index_select(0, rows),
            mean_target=self.mean_target.index_select(0, rows),
            particles=particles,
            old_mean=self.old_mean.index_select(0, rows),
            old_law=None if self.old_law is None else self.old_law.index_select(0, rows),
            uniform=None if uniform is None else uniform.index_select(0, rows),
            risk_advantage=None if self.risk_advantage is None else self.risk_advantage.index_select(0, rows),
        )


def prepare(
    rollout: Rollout,
    targets: Targets,
    model: ActorCritic,
    optimiser: Optimiser,
    config: LearnerConfig,
    mix_advantages: Callable[[Tensor, Tensor | None, float], Tensor],
    *,
    risk: Tensor | None = None,
    multiplier: float = 0.0,
    probe_risk: bool = False,
) -> tuple[Prepared, dict[str, float]]:
    """Move the return scale (heads keep their raw outputs), re-express old outputs and targets in it.

    risk: risk advantages [T, B] in raw units, None without; probe_risk: also keep their part apart, standardised.
    """
    sample = targets.particles if targets.particles is not None else targets.lambda_return
    moved = move_scale(model, optimiser, rollout.of_valid(sample).reshape(-1))
    scale = model.return_scale
    mixed = mix_advantages(targets.advantage, risk, multiplier)
    advantage, report = normalise(mixed, rollout.valid, mode=config.advantages)
    risk_part: Tensor | None = None
    if risk is not None and probe_risk:
        # What risk changed, through the seam: a mixture that ignores it, or a risk that is 0, leaves nothing here.
        difference = mixed - mix_advantages(targets.advantage, torch.zeros_like(risk), multiplier)
        risk_part = part_of_normalised(difference, mixed, rollout.valid, mode=config.advantages)
    old_mean, old_law = old_outputs(rollout, model, moved)

    def flat(tensor: Tensor) -> Tensor:
        return tensor.reshape(-1, *tensor.shape[2:])

    prepared = Prepared(
        obs=rollout.obs if rollout.all_valid else torch.where(rollout.valid[..., None], rollout.obs, 0.0),
        action=flat(rollout.action),
        log_prob=flat(rollout.log_prob),
        params=flat(rollout.params),
        mask=None if rollout.mask is None else flat(rollout.mask),
        advantage=flat(advantage),
        mean_target=flat(scale.to_normalised(targets.lambda_return)),
        particles=None if targets.particles is None else flat(scale.to_normalised(targets.particles)),
        old_mean=flat(old_mean),
        old_law=None if old_law is None else flat(old_law),
        valid=rollout.valid,
        environment=rollout.environment,
        risk_advantage=None if risk_part is None else flat(risk_part),
    )
    metrics = {
        "advantage/mean": report.mean or 0.0,
        "advantage/std": report.std or 0.0,
        "advantage/min": report.minimum or 0.0,
        "advantage/max": report.maximum or 0.0,
        "advantage/no_signal_groups": float(report.no_signal),
        "advantage/largest_normalised": float(advantage.abs().max()),
        "return/mu": float(scale.mu),
        "return/sigma": float(scale.sigma),
        "return/sigma_over_first": float(scale.sigma / scale.first) if float(scale.first) > 0 else 1.0,
        "return/largest_normalised": float(rollout.of_valid(prepared.mean_target.view_as(rollout.reward)).abs().max()),
    }
    return prepared, metrics


def move_scale(model: ActorCritic, optimiser: Optimiser, raw_returns: Tensor) -> Tensor | None:
    """New (mu, sigma) from raw returns [n]; linear heads are rescaled so that raw predictions stay as they were.

    The gradient of a squared error scales with the head, so the optimiser's state of those rows does too; quantile
    gradients are free of scale and keep theirs. Logits of a categorical critic are no affine function of the return:
    its support moves with the scale, and its prediction moves along (it is not output-preserving).
    The first returns set the start of the quantiles, see `start_laws`, whose result is returned; later ones None.
    """
    old_mu, old_sigma, mu, sigma = model.return_scale.absorb(raw_returns)
    if old_sigma == 0.0:
        return start_laws(model, raw_returns) if sigma > 0 else None
    if (old_mu, old_sigma) == (mu, sigma):
        return None
    law, move = return_law(model.config.critic), ScaleMove(old_mu, old_sigma, mu, sigma)
    for critic in model.critic_heads():
        if critic.mean_head is not None:
            preserve_outputs(critic.mean_head, **move._asdict())
            for parameter in (critic.mean_head.weight, critic.mean_head.bias):
                optimiser.rescale(parameter, old_sigma / sigma, weights=old_sigma / sigma)
        if critic.law_head is not None:
            law.rescale(critic.law_head, move)
            if law.rescales:
                for parameter in critic.law_head.parameters():
                    optimiser.rescale(parameter, 1.0, weights=old_sigma / sigma)
    return None


@torch.no_grad()
def start_laws(model: ActorCritic, raw_returns: Tensor) -> Tensor | None:
    """Let the quantiles of all critics begin as those of the first returns [n] together, in the new scale.

    A critic is built with the quantiles of a normal law. The outermost ones of a skewed law lie several standard
    deviations further out, and few samples pull on them: with default settings they take longer than a run to arrive
    (docs/decisions/0005). Returns by how much the quantiles moved, [C, N]; None where nothing did: other critics, or
    returns without a spread.
    """
    returns = model.return_scale.to_normalised(raw_returns).double().numpy(force=True)
    start = return_law(model.config.critic).start(returns)
    if start is None:
        return None
    moves = []
    for critic in model.critic_heads():
        assert critic.law_head is not None
        bias = critic.law_head.bias
        moves.append(start.to(bias.dtype) - bias)
        bias.copy_(start)
    return torch.stack(moves)


def old_outputs(rollout: Rollout, model: ActorCritic, moved: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """The record's outputs in the current scale: means [T, B, C], laws [T, B, C, N] if clipping needs them.

    Before the first scale the heads were not rescaled, so the outputs stand as they are, apart from how far their start
    was `moved` [C, N].
    """
    record, scale = rollout.critic, model.return_scale
    mean, law = record.mean[:-1], None if record.law is None else record.law[:-1]
    if not model.config.critic.clip.active:
        law = None
    if record.sigma > 0:
        mean = scale.to_normalised(record.raw(mean))
    if law is None:
        return mean, None
    return mean, return_law(model.config.critic).in_scale(law, record, scale, moved)


@dataclass(frozen=True)
class Part:
    """A microbatch: `units` [u] are flat rows t*B + b, or with `whole` the environments of whole sequences; size: the
    number n of valid rows.

    Which rows those are is worked out when it is asked: kernels walk through sequences by themselves.
    """

    units: np.ndarray
    valid: Tensor
    whole: bool
    size: int

    @property
    def envs(self) -> Tensor | None:
        """Environments [b] of whole sequences, None without a core."""
        return torch.from_numpy(self.units) if self.whole else None

    @cached_property
    def rows(self) -> Tensor:
        """Flat indices t*B + b [n] of the valid rows."""
        if self.inside is None:
            return torch.from_numpy(self.units)
        steps, environments = self.valid.shape
        return torch.from_numpy(sequence_rows(steps, environments, self.units))[self.inside]

    @cached_property
    def inside(self) -> Tensor | None:
        """Place [n] of each row in the [T, b] block of `envs`, None without a core."""
        return torch.from_numpy(np.flatnonzero(self.valid.numpy()[:, self.units])) if self.whole else None


def minibatches(units: np.ndarray, *, count: int, permutation: np.ndarray) -> Iterator[np.ndarray]:
    """Split what `all_units` gave into `count` parts, in the order given."""
    shuffled, first = units[permutation], 0
    for k in range(min(count, len(units))):  # the first ones take what is left over
        end = first + len(units) // count + (k < len(units) % count)
        yield shuffled[first:end]
        first = end


def all_units(valid: Tensor, *, recurrent: bool) -> np.ndarray:
    """What `minibatches` splits and `parts` cuts: environments [B] when recurrent, else valid flat rows."""
    return np.arange(valid.shape[1]) if recurrent else np.flatnonzero(valid.numpy().reshape(-1))


def units_of_shards(valid: Tensor, *, recurrent: bool, shards: int) -> list[np.ndarray]:
    """`all_units` of each shard: the environments [B] are cut into as many neighbouring groups of equal size."""
    units, environments = all_units(valid, recurrent=recurrent), valid.shape[1]
    if shards == 1:
        return [units]
    shard = (units % environments) // (environments // shards)
    return [units[shard == k] for k in range(shards)]


def sequence_rows(steps: int, environments: int, chosen: np.ndarray) -> np.ndarray:
    """Flat rows t*B + b [T*b] of the sequences of the `chosen` [b] among B environments, step by step."""
    rows: np.ndarray = (np.arange(steps)[:, None] * environments + chosen).reshape(-1)
    return rows


def parts(units: np.ndarray, valid: Tensor, *, microbatches: int, recurrent: bool) -> list[Part]:
    """Cut one minibatch into microbatches; parts without a valid row are dropped (they weigh nothing)."""
    chunks = [units] if microbatches == 1 or not len(units) else np.array_split(units, min(microbatches, len(units)))
    sizes = [int(np.count_nonzero(valid.numpy()[:, chunk])) if recurrent else len(chunk) for chunk in chunks]
    return [Part(chunk, valid, recurrent, size) for chunk, size in zip(chunks, sizes) if size]


@dataclass(frozen=True)
class EpochDraws:
    """Random numbers of one epoch. of_batches: see `Prepared.draws`; kept: what `noise` drew for all rows at once."""

    streams: Streams
    rollout: Rollout
    epoch: int
    of_batches: tuple[Tensor | None, Tensor | None]
    kept: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def noise(self, part: Part, name: str, draws: int) -> Tensor:
        """Uniform numbers [T, b, draws] of the sequences of a part, [1, n, draws] of its rows without a core."""
        rollout, envs = self.rollout, part.envs
        address: dict[str, Any] = {"update": rollout.update, "epoch": self.epoch, "steps": rollout.steps}
        if envs is not None:
            ids = rollout.environment[envs].numpy()
            return torch.from_numpy(self.streams.uniforms(name, environments=ids, draws=draws, short=True, **address))
        if (name, draws) not in self.kept:
            ids = rollout.environment.numpy()
            uniform = self.streams.uniforms(name, environments=ids, draws=draws, short=True, **address)
            self.kept[name, draws] = torch.from_numpy(uniform).reshape(-1, draws)
        return self.kept[name, draws][part.rows][None]
