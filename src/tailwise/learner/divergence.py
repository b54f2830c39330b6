"""KL(old || new) of policies: exact where there is a closed form, the k3 estimate elsewhere.

Index 0 is the old policy (the one that acted), index 1 the new one. The estimate k1 = -log_ratio may be negative and is
not used for control.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tailwise.learner.returns import require_flags, require_shape

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
    log_p0 = torch.log_softmax(logits0, dim=-1)
    log_p1 = torch.log_softmax(logits1, dim=-1)
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
