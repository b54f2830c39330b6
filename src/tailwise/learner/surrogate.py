"""The clipped PPO surrogate with dual clip, per sample.

References: Schulman et al. 2017 (arXiv 1707.06347); dual clip: Ye et al. 2020 (arXiv 1912.09729).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tailwise.core.errors import ConfigError
from tailwise.learner.returns import require_shape

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
