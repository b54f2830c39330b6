"""Between rollout and epochs: the new return scale, normalised targets, standardised advantages, flat rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailwise.core.numerics import surely_finite
from tailwise.core.streams import Streams
from tailwise.learner.advantages import normalise, part_of_normalised
from tailwise.learner.config import LearnerConfig
from tailwise.learner.losses import Batch
from tailwise.learner.return_laws import ScaleMove, return_law
from tailwise.learner.rollout import Rollout
from tailwise.learner.tail import pooled_tail
from tailwise.learner.targets import Targets
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.return_scale import preserve_outputs


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
        return None if self.mask is None else self.mask[rows]

    def batch(self, rows: Tensor, draws: tuple[Tensor | None, Tensor | None]) -> Batch:
        """The microbatch of flat rows [n]."""
        chosen, uniform = draws
        particles = None if self.particles is None else self.particles[rows]
        if particles is not None and chosen is not None:
            particles = particles.gather(-1, chosen[rows])
        return Batch(
            action=self.action[rows],
            log_prob=self.log_prob[rows],
            params=self.params[rows],
            mask=self.mask_rows(rows),
            advantage=self.advantage[rows],
            mean_target=self.mean_target[rows],
            particles=particles,
            old_mean=self.old_mean[rows],
            old_law=None if self.old_law is None else self.old_law[rows],
            uniform=None if uniform is None else uniform[rows],
            risk_advantage=None if self.risk_advantage is None else self.risk_advantage[rows],
        )


def prepare(
    rollout: Rollout,
    targets: Targets,
    model: ActorCritic,
    optimiser: torch.optim.Optimizer,
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


def move_scale(model: ActorCritic, optimiser: torch.optim.Optimizer, raw_returns: Tensor) -> Tensor | None:
    """New (mu, sigma) from raw returns [n]; linear heads are rescaled so that raw predictions stay as they were.

    The gradient of a squared error scales with the head, so Adam's moments of those rows do too; quantile gradients are
    free of scale and keep theirs. Logits of a categorical critic are no affine function of the return: its support
    moves with the scale, and its prediction moves along (it is not output-preserving).
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
                state = optimiser.state.get(parameter, {})
                if state:
                    state["exp_avg"].mul_(old_sigma / sigma)
                    state["exp_avg_sq"].mul_((old_sigma / sigma) ** 2)
        if critic.law_head is not None:
            law.rescale(critic.law_head, move)
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


def describe_targets(
    rollout: Rollout, targets: Targets, model: ActorCritic, tail_alpha: float | None, *, cvar: float | None = None
) -> dict[str, float]:
    """Numbers about raw targets: explained variance, and the tail of the pooled return law (`cvar` if it is known)."""
    returns, value = (
        rollout.of_valid(part).numpy(force=True).astype(np.float64) for part in (targets.lambda_return, targets.value)
    )
    spread = float(returns.var())
    metrics: dict[str, float] = {"return/mean": float(returns.mean()), "return/std": spread**0.5}
    if spread > 0:
        metrics["critic/explained_variance"] = 1.0 - float((returns - value).var()) / spread
    if tail_alpha is not None and targets.particles is not None:
        particles = rollout.of_valid(targets.particles)
        metrics["risk/cvar_return"] = pooled_tail(particles, tail_alpha)[1] if cvar is None else cvar
    return metrics
