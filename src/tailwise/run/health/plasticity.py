"""Whether a network can still learn: dormant units, the rank of its features, the size of its weights and their way.

Definitions as published: dormant units of Sokar et al. 2023, effective rank of Roy and Vetterli 2007. Weights are all
parameters but those of heads that move with the return scale, whose size says how returns are measured.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tailwise.learner.optimisers import scaled_heads
from tailwise.model.actor_critic import ActorCritic
from tailwise.run.health.probes import Hidden

DORMANT = 0.025  # share of the layer's mean activity at or below which a unit counts as dormant


def dormant_units(layers: list[Tensor]) -> float:
    """Share of units, over all layers [..., H], whose mean |output| is at most `DORMANT` of the mean of their layer.

    All units of a layer that is silent as a whole are dormant. In numpy, where small arrays cost less.
    """
    dormant, units = 0, 0
    for layer in layers:
        activity = np.abs(layer.detach().numpy().reshape(-1, layer.shape[-1])).mean(0)
        dormant += int(np.count_nonzero(activity <= DORMANT * activity.mean()))
        units += len(activity)
    return dormant / units


@torch.no_grad()
def effective_rank(features: Tensor) -> float:
    """exp(entropy of the singular values of features [..., H], divided by their sum), dimensions; 0 for zeros.

    They are the roots of the eigenvalues of the Gram matrix, which take half the time. Squaring costs half the digits:
    singular values below 1e-8 of the largest are rounding, and such a share adds less than 2e-7 to the entropy.
    """
    rows = features.flatten(0, -2).double()
    values = torch.linalg.eigvalsh(rows.T @ rows).clamp(min=0.0).sqrt().numpy()
    total = values.sum()
    if total == 0.0:
        return 0.0
    share = values[values > 0.0] / total
    return math.exp(-float(share @ np.log(share)))


class Weights:
    """The weights of a model against those that it was built with."""

    def __init__(self, model: ActorCritic) -> None:
        heads = scaled_heads(model)
        self._parameters = [p for p in model.parameters() if p not in heads]
        self._initial = self._now().clone()
        self._initial_norm = float(torch.linalg.vector_norm(self._initial))

    def _now(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self._parameters]) if self._parameters else torch.zeros(0)

    def metrics(self) -> dict[str, float]:
        """Norm, and norm and distance over the initial norm; nothing for a model that began with zeros."""
        if self._initial_norm == 0.0:
            return {}
        now = self._now()
        norm = float(torch.linalg.vector_norm(now))
        distance = float(torch.linalg.vector_norm(now - self._initial))
        return {
            "model/weight_norm": norm,
            "model/weight_growth": norm / self._initial_norm,
            "model/weight_distance": distance / self._initial_norm,
        }


def plasticity(hidden: Hidden | None, weights: Weights) -> dict[str, float]:
    """All metrics; those of units need `hidden`, what the network answered to some observations."""
    metrics = weights.metrics()
    if hidden is not None and hidden.layers:
        metrics["model/dormant_units"] = dormant_units(hidden.layers)
        metrics["model/effective_rank"] = effective_rank(hidden.features)
    return metrics
