"""Tail risk as an advantage: what an action did to a measure of the pooled law of the discounted return.

A measure of risk is not an expectation, but near the present law it moves like one: its influence function u turns it
into E[u(Y)]. The advantage of u reaches the actor like any other advantage. A term that differentiates the critic's
prediction instead would teach the critic optimism and constrain nothing. `tailwise.learner.credit` says how much of u
an action is credited with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tailwise.core.errors import ConfigError
from tailwise.learner.credit import Credit, Utility, credit_inputs, risk_credit
from tailwise.learner.returns import require_shape
from tailwise.learner.risk_config import MeanMeasure, Measure, WangMeasure
from tailwise.learner.rollout import Rollout
from tailwise.learner.tail import mean_utility, pooled_tail, wang_from_quantiles
from tailwise.learner.targets import Targets

# Normal scores that part the pooled law into cells, in each of which the distortion is taken as constant.
_WANG_SCORES = torch.linspace(-3.0, 3.0, 25, dtype=torch.float64)


@dataclass(frozen=True)
class RiskSettings:
    """What is measured and with which tail probability; the multiplier comes with each update."""

    measure: Measure
    alpha: float


def utility_at(measure: Measure, pooled: Tensor, alpha: float, *, threshold: float | None = None) -> Utility:
    """u of the measure at the pooled returns [n] (any order, raw units).

    threshold: the VaR to use for CVaR instead of this sample's own. CVaR is the largest E[u] over all thresholds, so a
    sample that chooses its own one looks better than it is, the more so the fewer independent returns it holds; a
    threshold from elsewhere has no such bias, and errs on the careful side where it is off.
    """
    if isinstance(measure, WangMeasure):
        return _wang_utility(pooled, measure.eta)
    if isinstance(measure, MeanMeasure) or alpha == 1.0:  # the worst 100% are all of them
        nothing = np.zeros(0)
        mean = float(pooled.double().mean())
        own, cvar = (None, None) if isinstance(measure, MeanMeasure) else (float(pooled.max()), mean)
        return Utility(mean, 0.0, 1.0, nothing, nothing, 1.0, own, cvar)
    own, cvar = pooled_tail(pooled, alpha)
    zeta = own if threshold is None else threshold
    value = cvar if threshold is None else mean_utility(pooled, threshold, alpha)
    # At the sample's own VaR ties would count as above it, where a shift of all returns is worth exactly 1.
    below = alpha if threshold is None else np.count_nonzero(pooled.numpy(force=True) <= zeta) / pooled.numel()
    return Utility(value, zeta, 0.0, np.array([zeta]), np.array([1.0 / alpha]), below / alpha, own, cvar)


def _wang_utility(pooled: Tensor, eta: float) -> Utility:
    """u' is the density of the distortion over levels of the pooled law, averaged in cells between normal scores.

    Beyond the outermost scores u goes on with the slope of the last cell.
    """
    ordered = pooled.double().sort().values
    last = len(ordered) - 1
    levels = torch.special.ndtr(_WANG_SCORES)
    knots = ordered[(levels * last).round().long()].numpy()
    edges = torch.cat([torch.zeros(1, dtype=torch.float64), levels, torch.ones(1, dtype=torch.float64)])
    slopes = (torch.special.ndtr(torch.special.ndtri(edges) + eta).diff() / edges.diff()).numpy()
    falls = slopes[:-1] - slopes[1:]
    below = np.searchsorted(ordered.numpy(), knots) / len(ordered)
    value = float(wang_from_quantiles(ordered, eta))
    raw = Utility(value, 0.0, float(slopes[-1]), knots, falls, float(slopes[-1] + (falls * below).sum()))
    return replace(raw, offset=value - float(raw.of(ordered).mean()))


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
    targets: Targets,
    rollout: Rollout,
    settings: RiskSettings,
    *,
    gamma: float,
    threshold: float | None = None,
    credit: Credit = risk_credit,
) -> Assessment:
    """The measure over all valid rows of a rollout and its advantages.

    The measure and its threshold come from the particles with the long lambda of the critics, which are nearly
    observed returns; only the advantages lean on the critics' law: as with GAE, leaning on it early makes the signal of
    an action stand out from the noise of the steps after it. credit: `risk_credit` or its compiled twin.
    """
    if targets.particles is None or targets.predicted is None or targets.near is None:
        raise ConfigError(
            "risk acts on the policy through particles of the return's law and these critics have none; use "
            "model.critic.kind quantile with target particles, or risk.mode off"
        )
    require_shape("The predicted particles", targets.predicted, tuple(targets.near.shape))
    valid = rollout.valid
    pooled = rollout.of_valid(targets.particles).reshape(-1)
    utility = utility_at(settings.measure, pooled, settings.alpha, threshold=threshold)
    advantage = credit(credit_inputs(rollout, targets.near, targets.predicted, utility, gamma))
    return Assessment(
        measured=utility.value,
        threshold=utility.threshold,
        cvar=utility.cvar,
        spread=float(pooled.std(correction=0)),
        advantage=advantage,
        advantage_std=float(advantage[valid].double().std(correction=0)),
        mean_advantage_std=float(targets.advantage[valid].double().std(correction=0)),
    )
