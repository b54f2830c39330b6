"""Tail risk as an advantage: what an action did to a measure of the pooled law of the discounted return.

A measure of risk is not an expectation, but near the present law it moves like one: its influence function u turns it
into E[u(Y)]. The advantage of u reaches the actor like any other advantage. A term that differentiates the critic's
prediction instead would teach the critic optimism and constrain nothing.

An action is credited through the return from its own step on, not through the returns of earlier steps that it also
belongs to. With independent steps this overweights risk by (1 + gamma), which the multiplier absorbs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tailwise.core.errors import ConfigError
from tailwise.learner.returns import require_shape
from tailwise.learner.risk_config import CvarMeasure, Measure, WangMeasure
from tailwise.learner.tail import mean_utility, pooled_tail, risk_utility, wang_from_quantiles
from tailwise.learner.targets import Targets

_WANG_CELLS = 1024  # equal shares of the pooled law, in each of which the distortion is taken as constant


@dataclass(frozen=True)
class RiskSettings:
    """What is measured and with which tail probability; the multiplier comes with each update."""

    measure: Measure
    alpha: float


@dataclass(frozen=True)
class Utility:
    """The influence function of a measure at the pooled law: E[u(Y)] is the measure's `value`.

    threshold, cvar: this sample's VaR and CVaR, whichever threshold the utility uses; None for other measures.
    """

    value: float
    of: Callable[[Tensor], Tensor]
    threshold: float | None = None
    cvar: float | None = None


def utility_at(measure: Measure, pooled: Tensor, alpha: float, *, threshold: float | None = None) -> Utility:
    """u of the measure at the pooled returns [n] (any order, raw units).

    threshold: the VaR to use for CVaR instead of this sample's own. CVaR is the largest E[u] over all thresholds, so a
    sample that chooses its own one looks better than it is, the more so the fewer independent returns it holds; a
    threshold from elsewhere has no such bias, and errs on the careful side where it is off.
    """
    if isinstance(measure, CvarMeasure):
        own, cvar = pooled_tail(pooled, alpha)
        if threshold is None:
            return Utility(cvar, lambda y: risk_utility(y, own, alpha), own, cvar)
        value = mean_utility(pooled, threshold, alpha)
        return Utility(value, lambda y: risk_utility(y, threshold, alpha), own, cvar)
    if isinstance(measure, WangMeasure):
        return _wang_utility(pooled, measure.eta)
    return Utility(float(pooled.double().mean()), lambda y: y)


def _wang_utility(pooled: Tensor, eta: float) -> Utility:
    """u(y) = integral of g(F(x)) dx up to y, with g the density of the distortion over levels of the pooled law F.

    F is taken as linear inside cells of equal share, g as constant; beyond the ends u goes on with the last slope.
    """
    ordered = pooled.double().sort().values
    cells = min(_WANG_CELLS, max(1, len(ordered) - 1))
    edges = torch.linspace(0.0, 1.0, cells + 1, dtype=torch.float64)
    knots = ordered[(edges * (len(ordered) - 1)).round().long()]
    slopes = torch.special.ndtr(torch.special.ndtri(edges) + eta).diff() * cells
    heights = torch.cat([torch.zeros(1, dtype=torch.float64), (slopes * knots.diff()).cumsum(0)])
    value = float(wang_from_quantiles(ordered, eta))

    def raw(y: Tensor) -> Tensor:
        cell = torch.searchsorted(knots, y.double().contiguous(), right=True).sub(1).clamp(0, cells - 1)
        height: Tensor = heights[cell] + slopes[cell] * (y.double() - knots[cell])
        return height

    shift = value - float(raw(ordered).mean())
    return Utility(value, lambda y: (raw(y) + shift).to(y.dtype))


def risk_advantages(particles: Tensor, predicted: Tensor, utility: Utility) -> Tensor:
    """A_risk[t] = mean_j u(Y[t][j]) - E_{Z(s[t])}[u]: [T, B].

    particles: Y [T, B, M], SR(lambda) returns with the lambda of the advantages: as with GAE, leaning on the critics
    early makes the signal of an action stand out from the noise of the steps after it. predicted: particles of the
    critics' law at s[t], [T, B, M], which knows nothing of the action and is therefore a baseline. Both in raw units.
    """
    require_shape("The predicted particles", predicted, tuple(particles.shape))
    return utility.of(particles).mean(-1) - utility.of(predicted).mean(-1)


@dataclass(frozen=True)
class Assessment:
    """A rollout's risk in raw units: the measure of the pooled law, its spread, and the advantages [T, B]."""

    measured: float
    threshold: float | None
    cvar: float | None  # of this sample at its own threshold, where the measure is CVaR
    spread: float
    advantage: Tensor
    advantage_std: float
    mean_advantage_std: float

    def metrics(self, multiplier: float) -> dict[str, float]:
        """Numbers of an update that used this multiplier."""
        parts = multiplier * self.advantage_std, self.mean_advantage_std
        return ({} if self.threshold is None else {"risk/threshold": self.threshold}) | {
            "risk/measure": self.measured,
            "risk/spread": self.spread,
            "risk/advantage_std": self.advantage_std,
            "risk/advantage_share": parts[0] / sum(parts) if sum(parts) > 0 else 0.0,
        }


def assess_risk(
    targets: Targets, valid: Tensor, settings: RiskSettings, *, threshold: float | None = None
) -> Assessment:
    """The measure over all valid rows of a rollout and its advantages; valid: bool [T, B].

    The measure and its threshold come from the particles with the long lambda of the critics, which are nearly
    observed returns; only the advantages lean on the critics' law.
    """
    if targets.particles is None or targets.predicted is None or targets.near is None:
        raise ConfigError(
            "risk acts on the policy through particles of the return's law and these critics have none; use "
            "model.critic.kind quantile with target particles, or risk.mode off"
        )
    pooled = targets.particles[valid].reshape(-1)
    utility = utility_at(settings.measure, pooled, settings.alpha, threshold=threshold)
    advantage = risk_advantages(targets.near, targets.predicted, utility)
    return Assessment(
        measured=utility.value,
        threshold=utility.threshold,
        cvar=utility.cvar,
        spread=float(pooled.std(correction=0)),
        advantage=advantage,
        advantage_std=float(advantage[valid].double().std(correction=0)),
        mean_advantage_std=float(targets.advantage[valid].double().std(correction=0)),
    )
