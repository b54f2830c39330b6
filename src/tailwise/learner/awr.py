"""Advantage-weighted regression (Peng et al. 2019, arXiv 1910.00177): imitation weighted by how good an action was."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from tailwise.core.errors import ConfigError
from tailwise.learner.returns import require_shape


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
