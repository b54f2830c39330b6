"""The loss terms of one microbatch, each by name and already weighted, with the numbers that describe them.

Every term is a mean over rows [n], so that accumulation over microbatches is a weighted sum of gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tailwise.learner import value_clip
from tailwise.learner.awr import awr_loss_terms
from tailwise.learner.config import Awr, LearnerConfig
from tailwise.learner.divergence import kl_categorical, kl_gaussian
from tailwise.learner.return_laws import RowLoss, return_law
from tailwise.learner.surrogate import policy_loss_terms
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.critics import CriticOutput
from tailwise.model.distributions import ActionLaw, CategoricalLaw, GaussianLaw


@dataclass(frozen=True)
class Batch:
    """Rows [n] of a microbatch; values and targets in normalised return units.

    action [n, A]; log_prob [n]; params [n, P]; mask [n, K] or None; advantage [n] standardised; mean_target [n];
    particles [n, m] or None; old_mean [n, C]; old_law [n, C, N]: quantiles or probabilities on the current atoms,
    None for scalar critics or when value clipping is off; uniform [n, noise]: draws for sampled entropies;
    risk_advantage [n]: the risk part alone where its gradient is to be measured, else None.
    """

    action: Tensor
    log_prob: Tensor
    params: Tensor
    mask: Tensor | None
    advantage: Tensor
    mean_target: Tensor
    particles: Tensor | None
    old_mean: Tensor
    old_law: Tensor | None
    uniform: Tensor | None
    risk_advantage: Tensor | None = None


@dataclass(frozen=True)
class Losses:
    """terms: weighted scalars by name, to be summed; means, maxima, minima: numbers; kl, log_ratio [n] detached."""

    terms: dict[str, Tensor]
    means: dict[str, float]
    maxima: dict[str, float]
    minima: dict[str, float]
    kl: Tensor
    log_ratio: Tensor
    probes: dict[str, Tensor]  # scalars whose gradient is measured and which train nothing by themselves

    @property
    def total(self) -> Tensor:
        """The scalar that is differentiated."""
        return torch.stack(list(self.terms.values())).sum()


#: The seam for further losses (adversary, imitation of a teacher): (model, features [n, H], params [n, P], batch) -> a
#: weighted scalar.
AuxiliaryLoss = Callable[[ActorCritic, Tensor, Tensor, Batch], Tensor]


def law_kl(law: ActionLaw, old: Tensor, new: Tensor) -> Tensor:
    """Exact KL(old || new) of action laws with parameters [..., P] -> [...]; squashed: of the base Gaussians."""
    if isinstance(law, CategoricalLaw):
        pairs = zip(law.split(old), law.split(new), strict=True)
        return torch.stack([kl_categorical(a, b) for a, b in pairs]).sum(0)
    assert isinstance(law, GaussianLaw)
    return kl_gaussian(*law.split(old), *law.split(new))


def compute_losses(
    model: ActorCritic,
    features: Tensor,
    batch: Batch,
    config: LearnerConfig,
    *,
    entropy_weight: float,
    bounds_weight: float = 0.0,
    auxiliary: Sequence[tuple[str, AuxiliaryLoss]] = (),
) -> Losses:
    """All loss terms at latent features [n, H]."""
    params = model.policy(features, batch.mask)
    log_prob = model.law.log_prob(params, batch.action)
    surrogate = policy_loss_terms(
        log_prob, batch.log_prob, batch.advantage, clip=config.clip, dual_clip=config.dual_clip
    )
    entropy = model.law.entropy(params, batch.uniform)
    terms = {"policy": surrogate.loss.mean()}
    if entropy_weight:  # 0 switches the bonus off; a term without gradient would look like a broken one
        terms["entropy"] = -entropy_weight * entropy.mean()
    if bounds_weight and model.law.cut:
        terms["bounds"] = bounds_weight * model.law.overshoot(params).mean()
    if isinstance(config.awr, Awr):
        imitation = awr_loss_terms(log_prob, batch.advantage, beta=config.awr.beta, max_weight=config.awr.max_weight)
        terms["awr"] = config.awr.weight * imitation.loss.mean()
    critic_terms, means = critic_losses(model, model.values(features), batch)
    for name, value in critic_terms.items():
        terms[name] = config.value_weight / model.critic_count * value
    for name, function in auxiliary:
        terms[name] = function(model, features, params, batch)
    with torch.no_grad():
        kl = law_kl(model.law, batch.params, params)
        log_ratio = surrogate.log_ratio.detach()
        means |= {f"loss/{name}": float(value) for name, value in terms.items()}
        means |= {
            "policy/entropy": float(entropy.mean()),
            "policy/kl": float(kl.mean()),
            "policy/clip_fraction": float(surrogate.clip_active.float().mean()),
            "policy/dual_clip_fraction": float(surrogate.dual_active.float().mean()),
            "policy/log_ratio_clamp_fraction": float(surrogate.clamp_active.float().mean()),
            "policy/excluded_fraction": float(surrogate.excluded.float().mean()),
            "policy/nan_fraction": float(log_ratio.isnan().float().mean()),
            "policy/infinite_fraction": float(log_ratio.isinf().float().mean()),
        }
        if "awr" in terms:
            size = sum(abs(float(value)) for value in terms.values())
            means["loss/awr_share"] = abs(float(terms["awr"])) / size if size > 0 else 0.0
        if isinstance(model.law, CategoricalLaw):
            means["policy/logit_range"] = float(_logit_range(model.law, params).mean())
        maxima = {
            "policy/log_ratio_max": float(log_ratio.abs().max()),
            "policy/ratio_max": float(surrogate.ratio.max()),
            "policy/entropy_max": float(entropy.max()),
        }
        minima = {"policy/entropy_min": float(entropy.min())}
    probes = {}
    if batch.risk_advantage is not None:
        part = policy_loss_terms(
            log_prob, batch.log_prob, batch.risk_advantage, clip=config.clip, dual_clip=config.dual_clip
        )
        probes["risk"] = part.loss.mean()
    return Losses(terms, means, maxima, minima, kl.detach(), log_ratio, probes)


def _logit_range(law: CategoricalLaw, params: Tensor) -> Tensor:
    """Largest minus smallest allowed logit [n], of the component in which it is widest; params [n, P]."""
    forbidden = torch.finfo(params.dtype).min
    ranges = [
        logits.amax(-1) - torch.where(logits > forbidden, logits, torch.inf).amin(-1) for logits in law.split(params)
    ]
    return torch.stack(ranges).amax(0)


def critic_losses(model: ActorCritic, out: CriticOutput, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Unweighted losses `mean_i` and `law_i` per critic i, each clipped (if at all) around its own old output."""
    critic = model.config.critic
    law = return_law(critic)
    rows: dict[str, RowLoss] = {}
    for i in range(model.critic_count):
        if not critic.mean_from_law:
            rows[f"mean_{i}"] = _mean_loss(model, out.mean[:, i], batch.old_mean[:, i], batch.mean_target)
        if out.law is not None:
            assert batch.particles is not None
            old = None if batch.old_law is None else batch.old_law[:, i]
            rows[f"law_{i}"] = law.loss(out.law[:, i], old, batch.particles)
    terms = {name: loss.mean() for name, (loss, _, _) in rows.items()}
    spread = out.mean.detach().amax(-1) - out.mean.detach().amin(-1)
    means = {
        "critic/loss": sum(float(loss.detach()) for loss in terms.values()),
        "critic/loss_unclipped": sum(float(plain.detach().mean()) for _, plain, _ in rows.values()),
        "critic/clip_fraction": float(torch.stack([active.float().mean() for _, _, active in rows.values()]).mean()),
        "critic/clip_loss_fraction": float(
            torch.stack([(loss.detach() > plain.detach()).float().mean() for loss, plain, _ in rows.values()]).mean()
        ),
        "critic/disagreement": float(spread.mean()),
    }
    if batch.particles is not None:
        means |= law.describe(out, batch.particles)
    return terms, means


def _mean_loss(model: ActorCritic, new: Tensor, old: Tensor, target: Tensor) -> RowLoss:
    """Squared error with the ordinary PPO value clip."""
    clip = model.config.critic.clip
    plain = (new - target) ** 2
    if not clip.active:
        return RowLoss(plain, plain, torch.zeros_like(plain, dtype=torch.bool))
    clipped = value_clip.clip_mean(new, old, clip.limits[0])
    return RowLoss(value_clip.clipped_loss(plain, (clipped - target) ** 2), plain, (clipped != new).detach())
