"""The loss terms of one microbatch, each by name and already weighted, with the numbers that describe them.

The clipped PPO surrogate (Schulman et al. 2017, arXiv 1707.06347) with dual clip (Ye et al. 2020, arXiv 1912.09729),
exact KL divergences, advantage-weighted regression, and the critics' losses. Every term is a mean over rows [n], so
that accumulation over microbatches is a weighted sum of gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tailwise.core.errors import ConfigError
from tailwise.learner.config import Awr, LearnerConfig
from tailwise.learner.critic_losses import clip_mean, clipped_loss
from tailwise.learner.return_laws import RowLoss, return_law
from tailwise.learner.returns import require_flags, require_shape
from tailwise.learner.tally import Number
from tailwise.model.actor_critic import ActorCritic, CriticOutput
from tailwise.model.distributions import ActionLaw, CategoricalLaw, GaussianLaw, log_softmax, mask_logits

# exp(20) = 4.9e8 is far beyond every clip and far from overflow in float32 (exp(88)).
LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True)
class SurrogateTerms:
    """All [...], per sample; only `loss` carries a gradient.

    loss: to be minimised; 0 where excluded. ratio: exp(clamped log_ratio), 1 where excluded. log_ratio: new - old as
    it is, not clamped, possibly not finite. clip_active: the clip decides and the gradient is 0. dual_active: the dual
    clip decides and the gradient is 0. clamp_active: a finite |log_ratio| above 20. excluded: log_ratio is not finite.
    """

    loss: Tensor
    ratio: Tensor
    log_ratio: Tensor
    clip_active: Tensor
    dual_active: Tensor
    clamp_active: Tensor
    excluded: Tensor


def policy_loss_terms(
    logp_new: Tensor,
    logp_old: Tensor,
    advantage: Tensor,
    *,
    clip: float,
    dual_clip: float | None,
) -> SurrogateTerms:
    """-min(r A, clip(r, 1-clip, 1+clip) A), and for A < 0 never more than -dual_clip * A.

    logp_new, logp_old, advantage: [...]. The log-ratio is clamped to +-20 for the exponential only. With the dual clip
    a loss is bounded by max(1 + clip, dual_clip) * |A| whatever log-prob was stored; without it only by exp(20) * |A|.

    A log-ratio that is not finite (a stored log-prob of +-inf or NaN) says nothing about the policy: there is no step
    that would be right for it. Such a sample is excluded: its loss is 0, no gradient leaves it, and it is counted. It
    is not replaced by a large finite ratio, which would look like an ordinary, merely stale sample in every metric. An
    advantage that is not finite is *not* excluded: it makes the loss not finite, and the update refuses itself.
    """
    if not (math.isfinite(clip) and 0.0 < clip < 1.0):
        raise ConfigError(f"The policy clip is {clip}, expected a number between 0 and 1, typically 0.2.")
    if dual_clip is not None and not (math.isfinite(dual_clip) and dual_clip > 1.0 + clip):
        raise ConfigError(
            f"The dual clip is {dual_clip}, expected a finite number above 1 + clip = {1.0 + clip} (typically 3), or "
            "none; a lower one would cut off ratios that the clip allows."
        )
    require_shape("logp_old", logp_old, tuple(logp_new.shape))
    require_shape("advantage", advantage, tuple(logp_new.shape))
    logp_old, advantage = logp_old.detach(), advantage.detach()

    raw = logp_new - logp_old
    finite = torch.isfinite(raw.detach())
    log_ratio = torch.where(finite, raw, torch.zeros_like(raw))
    ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    objective = torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)
    dual_active = torch.zeros_like(finite)
    plain_ratio = ratio.detach()
    if dual_clip is not None:
        dual_active = (advantage < 0) & (plain_ratio > dual_clip)
        objective = torch.where(dual_active, dual_clip * advantage, objective)
    clip_active = ((advantage > 0) & (plain_ratio > 1.0 + clip)) | ((advantage < 0) & (plain_ratio < 1.0 - clip))
    return SurrogateTerms(
        loss=torch.where(finite, -objective, torch.zeros_like(objective)),
        ratio=plain_ratio,
        log_ratio=raw.detach(),
        clip_active=clip_active,
        dual_active=dual_active,
        clamp_active=log_ratio.detach().abs() > LOG_RATIO_LIMIT,
        excluded=~finite,
    )


# exp(500) = 1e217: any mean of such terms is still finite in float64 and beyond every KL target.
_EXPONENT_LIMIT = 500.0


def kl_gaussian(mean0: Tensor, log_std0: Tensor, mean1: Tensor, log_std1: Tensor) -> Tensor:
    """KL of diagonal Gaussians: sum of ln(s1/s0) + (s0^2 + (m0-m1)^2) / (2 s1^2) - 1/2 over the last dimension.

    mean: [..., A]; log_std: [..., A] or [A]. Returns [...]. For tanh-squashed actions pass the base Gaussians: an
    invertible map leaves the divergence as it is.
    """
    # expm1(x) - x does not lose the small divergences of a first epoch to cancellation.
    double_difference = 2.0 * (log_std0 - log_std1)
    spread = torch.expm1(double_difference) - double_difference
    location = ((mean0 - mean1) * torch.exp(-log_std1)).square()
    return 0.5 * (spread + location).sum(-1)


def kl_categorical(logits0: Tensor, logits1: Tensor) -> Tensor:
    """KL of categoricals: sum of p0 (ln p0 - ln p1) over the last dimension. logits: [..., K]. Returns [...].

    A masked action has the logit finfo.min, hence p0 = 0, and contributes exactly 0 to value and gradient.
    """
    require_shape("The new logits", logits1, tuple(logits0.shape))
    log_p0 = log_softmax(logits0)
    log_p1 = log_softmax(logits1)
    p0 = log_p0.exp()
    difference = torch.where(p0 > 0, log_p0 - log_p1, torch.zeros_like(log_p0))
    return (p0 * difference).sum(-1)


def k3(log_ratio: Tensor) -> Tensor:
    """expm1(d) - d per sample, d = logp_new - logp_old of actions of the old policy; >= 0, mean KL(old || new).

    log_ratio: [...], any dtype; returns float64 [...]: float32 gives inf at d = 200. An entry that is not finite gives
    0 and has to be counted, see `k3_mean`. A finite d beyond 500 saturates instead: a policy that ran away must not
    vanish from the mean.
    """
    d = log_ratio.detach().double()
    d = torch.where(torch.isfinite(d), d, torch.zeros_like(d))
    return torch.expm1(d.clamp(max=_EXPONENT_LIMIT)) - d.clamp(max=_EXPONENT_LIMIT)


@dataclass(frozen=True)
class K3Estimate:
    """mean: over the included samples, None without any. count: included samples. excluded: non-finite ones."""

    mean: float | None
    count: int
    excluded: int


def k3_mean(log_ratio: Tensor, valid: Tensor | None = None) -> K3Estimate:
    """Mean of `k3` over valid samples with a finite log-ratio. log_ratio: [...]; valid: bool [...] or None."""
    considered = torch.ones_like(log_ratio, dtype=torch.bool)
    if valid is not None:
        require_flags("valid", valid, tuple(log_ratio.shape))
        considered = valid
    included = considered & torch.isfinite(log_ratio.detach())
    count = int(included.sum())
    mean = float(k3(log_ratio)[included].mean()) if count else None
    return K3Estimate(mean=mean, count=count, excluded=int(considered.sum()) - count)


@dataclass(frozen=True)
class AwrTerms:
    """loss: [...], -weight * logp. weight: [...], without gradient. clamp_active: bool [...], weight at its maximum."""

    loss: Tensor
    weight: Tensor
    clamp_active: Tensor


def _check_options(beta: float, max_weight: float) -> None:
    if not (math.isfinite(beta) and beta > 0.0):
        raise ConfigError(f"The AWR temperature beta is {beta}, expected a finite number above 0, typically 1.")
    if not (math.isfinite(max_weight) and max_weight > 0.0):
        raise ConfigError(f"The largest AWR weight is {max_weight}, expected a finite number above 0, typically 20.")


def awr_weights(adv: Tensor, *, beta: float, max_weight: float) -> Tensor:
    """w = exp(min(A / beta, ln max_weight)), without gradient. adv: [...]. Returns [...].

    The exponent is bounded before exp: bounding the result would first produce inf.
    """
    _check_options(beta, max_weight)
    exponent = (adv.detach() / beta).clamp(max=math.log(max_weight))
    return exponent.exp().clamp(max=max_weight)  # exp(log(w)) may exceed w by its last bit


def awr_loss_terms(logp: Tensor, adv: Tensor, *, beta: float, max_weight: float) -> AwrTerms:
    """-w * logp per sample; the mean over samples is the caller's. logp, adv: [...]."""
    require_shape("adv", adv, tuple(logp.shape))
    weight = awr_weights(adv, beta=beta, max_weight=max_weight)
    return AwrTerms(loss=-weight * logp, weight=weight, clamp_active=adv.detach() / beta > math.log(max_weight))


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
    """terms: weighted scalars by name, to be summed; means, maxima, minima: numbers without gradient, read later;
    kl, log_ratio [n] detached."""

    terms: dict[str, Tensor]
    means: dict[str, Number]
    maxima: dict[str, Number]
    minima: dict[str, Number]
    kl: Tensor
    log_ratio: Tensor
    probes: dict[str, Tensor]  # scalars whose gradient is measured and which train nothing by themselves

    @property
    def total(self) -> Tensor:
        """The scalar that is differentiated."""
        return torch.stack(list(self.terms.values())).sum()


@dataclass(frozen=True)
class Inputs:
    """What the network reads for the n rows of a microbatch.

    obs    [T, b, D] raw observations of b whole sequences; [1, n, D] single rows without a core
    state  [b, S, H] hidden state before the first step
    start  [T, b] bool: the hidden state is zeroed before that step
    inside [n] places of the rows in [T, b], flat; None without a core, where they are the rows
    noise  (name of a stream, k) -> uniform numbers in (0, 1) [T, b, k], the same however minibatches are cut; None
           where nobody draws
    normalised   `obs` as the network reads them, where they are known; None: worked out when asked
    """

    obs: Tensor
    state: Tensor
    start: Tensor
    inside: Tensor | None
    noise: Callable[[str, int], Tensor] | None = None
    normalised: Tensor | None = None

    def encode(self, model: ActorCritic, obs: Tensor | None = None) -> Tensor:
        """Latent features [n, H] of the rows; obs: others in their place, such as an adversary's, shaped alike."""
        if obs is None and self.normalised is not None:
            return self.encode_normalised(model, self.normalised)
        return self.encode_normalised(model, model.normaliser(self.obs if obs is None else obs))

    def encode_normalised(self, model: ActorCritic, normalised: Tensor) -> Tensor:
        """`encode` of observations [T, b, D] that are normalised already."""
        features = model.latent_of(normalised, self.state, self.start).features
        if self.inside is None:
            return features[0]
        return features.reshape(-1, features.shape[-1])[self.inside]


@dataclass(frozen=True)
class View:
    """What an auxiliary loss sees of a microbatch of n rows.

    inputs   observations and hidden states, from which features can be computed again
    features [n, H] latent features, with their graph
    params   [n, P] parameters of the action law, with their graph
    batch    actions, advantages, targets, masks
    progress steps behind the run over all its steps, 0 to 1
    means, maxima   where the loss writes metrics of its own, means over the rows and largest values
    """

    inputs: Inputs
    features: Tensor
    params: Tensor
    batch: Batch
    progress: float = 1.0
    means: dict[str, Number] = field(default_factory=dict)
    maxima: dict[str, Number] = field(default_factory=dict)


#: The seam for further losses (adversary, imitation of a teacher, prior): a weighted scalar, a mean over the rows; None
#: where it does not act now (a term without gradient would look like a broken one).
AuxiliaryLoss = Callable[[ActorCritic, View], Tensor | None]


def law_kl(law: ActionLaw, old: Tensor, new: Tensor) -> Tensor:
    """Exact KL(old || new) of action laws with parameters [..., P] -> [...]; squashed: of the base Gaussians."""
    if isinstance(law, CategoricalLaw):
        pairs = zip(law.split(old), law.split(new), strict=True)
        return torch.stack([kl_categorical(a, b) for a, b in pairs]).sum(0)
    assert isinstance(law, GaussianLaw)
    return kl_gaussian(*law.split(old), *law.split(new))


def _masked_prior(model: ActorCritic, mask: Tensor | None, params: Tensor) -> Tensor:
    """The prior [n, P], of what the mask allows."""
    assert model.prior is not None
    prior = model.prior.expand_as(params)
    return mask_logits(prior, mask) if model.law.discrete else prior


def compute_losses(
    model: ActorCritic,
    features: Tensor,
    batch: Batch,
    config: LearnerConfig,
    *,
    entropy_weight: float,
    bounds_weight: float = 0.0,
    prior_weight: float = 0.0,
    auxiliary: Sequence[tuple[str, AuxiliaryLoss]] = (),
    inputs: Inputs | None = None,
    progress: float = 1.0,
) -> Losses:
    """All loss terms at latent features [n, H]; inputs: what they were computed from, needed by auxiliary losses;
    progress: see `View`."""
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
    prior_kl = None if model.prior is None else law_kl(model.law, params, _masked_prior(model, batch.mask, params))
    if prior_kl is not None and prior_weight:
        terms["prior"] = prior_weight * prior_kl.mean()
    if isinstance(config.awr, Awr):
        imitation = awr_loss_terms(log_prob, batch.advantage, beta=config.awr.beta, max_weight=config.awr.max_weight)
        terms["awr"] = config.awr.weight * imitation.loss.mean()
    critic_terms, means = critic_losses(model, model.values(features), batch)
    for name, value in critic_terms.items():
        terms[name] = config.value_weight / model.critic_count * value
    views = []
    for name, function in auxiliary:
        assert inputs is not None, "auxiliary losses need the inputs of the microbatch"
        views.append(View(inputs, features, params, batch, progress))
        term = function(model, views[-1])
        if term is not None:
            terms[name] = term
    with torch.no_grad():
        kl = law_kl(model.law, batch.params, params)
        log_ratio = surrogate.log_ratio.detach()
        means |= {f"loss/{name}": value.detach() for name, value in terms.items()}
        means |= {"policy/entropy": entropy.mean(), "policy/kl": kl.mean()}
        means |= _fractions(surrogate)
        if prior_kl is not None:
            means["policy/prior_kl"] = prior_kl.mean()
        for name in ("awr", "imitation"):
            if name in terms:
                size = torch.stack([value.detach().double().abs() for value in terms.values()]).sum()
                own = terms[name].detach().double().abs()
                means[f"loss/{name}_share"] = torch.where(size > 0, own / size, torch.zeros_like(size))
        if isinstance(model.law, CategoricalLaw):
            means["policy/logit_range"] = _logit_range(model.law, params).mean()
        maxima: dict[str, Number] = {
            "policy/log_ratio_max": log_ratio.abs().max(),
            "policy/ratio_max": surrogate.ratio.max(),
            "policy/entropy_max": entropy.detach().max(),
        }
        minima: dict[str, Number] = {"policy/entropy_min": entropy.detach().min()}
        for view in views:
            means |= view.means
            maxima |= view.maxima
    probes = {}
    if batch.risk_advantage is not None:
        part = policy_loss_terms(
            log_prob, batch.log_prob, batch.risk_advantage, clip=config.clip, dual_clip=config.dual_clip
        )
        probes["risk"] = part.loss.mean()
    return Losses(terms, means, maxima, minima, kl.detach(), log_ratio, probes)


def _fractions(surrogate: SurrogateTerms) -> dict[str, Number]:
    """Shares of the rows in which something was clipped, clamped or excluded; a few operations for all of them."""
    flags = {
        "policy/clip_fraction": surrogate.clip_active,
        "policy/dual_clip_fraction": surrogate.dual_active,
        "policy/log_ratio_clamp_fraction": surrogate.clamp_active,
        "policy/excluded_fraction": surrogate.excluded,
        "policy/nan_fraction": surrogate.log_ratio.isnan(),
        "policy/infinite_fraction": surrogate.log_ratio.isinf(),
    }
    return dict(zip(flags, torch.stack(list(flags.values())).float().mean(-1).unbind(), strict=True))


def _logit_range(law: CategoricalLaw, params: Tensor) -> Tensor:
    """Largest minus smallest allowed logit [n], of the component in which it is widest; params [n, P]."""
    forbidden = torch.finfo(params.dtype).min
    ranges = [
        logits.amax(-1) - torch.where(logits > forbidden, logits, torch.inf).amin(-1) for logits in law.split(params)
    ]
    return torch.stack(ranges).amax(0)


def critic_losses(model: ActorCritic, out: CriticOutput, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Number]]:
    """Unweighted losses `mean_i` and `law_i` per critic i, each clipped (if at all) around its own old output."""
    critic = model.config.critic
    law = return_law(critic)
    heads, rows = model.critic_heads(), dict[str, RowLoss]()
    for i in range(model.critic_count):
        if heads[i].mean_head is not None:
            rows[f"mean_{i}"] = _mean_loss(model, out.mean[:, i], batch.old_mean[:, i], batch.mean_target)
        if out.law is not None:
            assert batch.particles is not None
            old = None if batch.old_law is None else batch.old_law[:, i]
            rows[f"law_{i}"] = law.loss(out.law[:, i], old, batch.particles)
    terms = {name: loss.mean() for name, (loss, _, _) in rows.items()}
    spread = out.mean.detach().amax(-1) - out.mean.detach().amin(-1)
    plain = [loss.unclipped.detach() for loss in rows.values()]
    clipped = torch.stack([loss.clipped for loss in rows.values()])
    larger = torch.stack([loss.loss.detach() for loss in rows.values()]) > torch.stack(plain)
    means: dict[str, Number] = {
        # In float64: losses of different size are added up.
        "critic/loss": torch.stack([loss.detach() for loss in terms.values()]).double().sum(),
        "critic/loss_unclipped": torch.stack([loss.mean() for loss in plain]).double().sum(),
        "critic/clip_fraction": clipped.float().mean(-1).mean(),
        "critic/clip_loss_fraction": larger.float().mean(-1).mean(),
        "critic/disagreement": spread.mean(),
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
    clipped = clip_mean(new, old, clip.limits[0])
    return RowLoss(clipped_loss(plain, (clipped - target) ** 2), plain, (clipped != new).detach())
