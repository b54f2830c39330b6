"""Tail risk: measures of a law of returns, and the advantage of an action in them.

A measure of risk is not an expectation, but near the present law it moves like one: its influence function u turns it
into E[u(Y)]. The advantage of u reaches the actor like any other advantage. A term that differentiates the critic's
prediction instead would teach the critic optimism and constrain nothing. `tailwise.learner.credit` says how much of u
an action is credited with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from tailwise.core.errors import ConfigError, DataError
from tailwise.learner.batches import Targets
from tailwise.learner.credit import Credit, Utility, credit_inputs, risk_credit
from tailwise.learner.returns import normal_scores, require_shape
from tailwise.learner.risk_config import MeanMeasure, Measure, WangMeasure
from tailwise.learner.rollout import Rollout

# alpha = 3/30 is not below 1/10 because of its last bit.
_ROUNDING = 1e-12
_SAMPLED = 1 << 13  # numbers that show where the tail begins
_MARGIN = 1.3  # times the tail: 5% of 8,192 has a standard error of 5%
_WORTH_SAMPLING = 9  # numbers for each one in the sample; fewer are parted sooner than sampled
_BLOCK = np.dtype(np.uint64).itemsize  # flags in a word


def _check_alpha(alpha: float) -> None:
    if not (math.isfinite(alpha) and 0.0 < alpha <= 1.0):
        raise ConfigError(f"The tail share alpha is {alpha}, expected a number above 0 and at most 1, typically 0.05.")


def check_resolution(alpha: float, n: int) -> str | None:
    """Whether N quantiles can show the tail of share alpha.

    alpha < 1/N: ConfigError, the lowest quantile centre already lies in the middle of the tail and beyond. alpha < 2/N:
    returns a warning sentence. Otherwise None. Both sentences name the N needed.
    """
    _check_alpha(alpha)
    if n < 1:
        raise ConfigError(f"The number of quantiles is {n}, expected at least 1.")
    if alpha * n < 1.0 - _ROUNDING:
        raise ConfigError(
            f"alpha = {alpha} is below the resolution 1/{n} of {n} quantiles; use at least "
            f"{math.ceil(1.0 / alpha - _ROUNDING)} quantiles (better {math.ceil(2.0 / alpha - _ROUNDING)}), or a "
            "larger alpha."
        )
    if alpha * n < 2.0 - _ROUNDING:
        return (
            f"alpha = {alpha} covers fewer than two of {n} quantiles, its CVaR is coarse; use at least "
            f"{math.ceil(2.0 / alpha - _ROUNDING)} quantiles."
        )
    return None


def _cvar_weights(n: int, alpha: float) -> list[float]:
    """Weights on N sorted quantiles of the mean over levels [0, alpha] of the law read in normal scores, N > 1.

    Between the centres of k and k+1 the quantile function is (1-f) theta_k + f theta_{k+1} with f linear in the score
    x = Phi^-1(p) of the level p; the first segment begins at level 0, the last one ends at level 1. The integral of x
    over levels [a, b] is pdf(x_a) - pdf(x_b), so that of f is exact.
    """
    scores = normal_scores(n)
    weights = [0.0] * n
    for k in range(n - 1):
        start = 0.0 if k == 0 else (k + 0.5) / n
        end = min(alpha, 1.0 if k == n - 2 else (k + 1.5) / n)
        if end <= start:
            break
        scores_sum = _density_at(start) - _density_at(end)
        upper = (scores_sum - (end - start) * scores[k]) / (scores[k + 1] - scores[k])
        weights[k] += (end - start - upper) / alpha
        weights[k + 1] += upper / alpha
    return weights


def _density_at(level: float) -> float:
    """The standard normal density at the quantile of `level`; 0 at the levels 0 and 1."""
    return math.exp(-0.5 * float(ndtri(level)) ** 2) / math.sqrt(2.0 * math.pi)


def _weighted_sum(values: Tensor, weights: list[float] | Tensor) -> Tensor:
    """sum_i values[..., i] * weights[i] in float64, returned in the dtype of the values."""
    weight = torch.as_tensor(weights, dtype=torch.float64, device=values.device)
    return (values.double() * weight).sum(-1).to(values.dtype)


def cvar_from_quantiles(theta: Tensor, alpha: float) -> Tensor:
    """Mean of the worst share alpha of a law given by N quantiles.

    The quantile function joins the centres ((i+0.5)/N, theta_i), sorted, by lines that are straight in normal scores,
    the lowest one extended to level 0, as bootstraps read it (`returns.inverse_cdf_quantiles`); it is integrated
    exactly over [0, alpha], so a normal law is exact. alpha = 1 returns mean(theta) by definition. alpha below 1/N is
    an error, see `check_resolution`. theta: [..., N], any order. Returns [...].
    """
    count = theta.shape[-1]
    check_resolution(alpha, count)
    if alpha == 1.0:  # the only one that a single quantile allows
        return theta.mean(-1)
    return _weighted_sum(theta.sort(dim=-1).values, _cvar_weights(count, alpha))


def _sorted_atoms(values: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Sorted values, their normalised weights and the cumulative weight up to and including each; [..., M], float64."""
    count = values.shape[-1]
    if count == 0:
        raise DataError("A tail measure was asked of no values at all; collect at least one return first.")
    if weights is None:
        ordered = values.double().sort(dim=-1).values
        steps = torch.arange(1, count + 1, dtype=torch.float64, device=values.device)
        # i/M instead of a running sum of 1/M: no rounding to accumulate over a million particles.
        return ordered, torch.full_like(ordered, 1.0 / count), (steps / count).expand_as(ordered)
    if values.ndim == 1:
        values = values.expand(*weights.shape[:-1], count)
    require_shape("weights", weights, tuple(values.shape))
    weight = weights.double()
    if bool((weight < 0).any()) or not bool((weight.sum(-1) > 0).all()):
        raise DataError(
            f"The weights of the atoms must be >= 0 with a positive sum; the smallest is {float(weight.min())} and the "
            f"smallest sum {float(weight.sum(-1).min())}."
        )
    ordered, order = values.double().sort(dim=-1)
    weight = (weight / weight.sum(-1, keepdim=True)).gather(-1, order)
    return ordered, weight, weight.cumsum(-1)


def cvar_from_atoms(values: Tensor, weights: Tensor | None, alpha: float) -> Tensor:
    """Mean of the worst alpha of the mass of weighted atoms; the atom that crosses alpha is split.

    values: [..., M], any order, or [M] common to all rows. weights: [..., M], >= 0, or None for equal ones.
    Returns [...].
    """
    _check_alpha(alpha)
    ordered, weight, cumulative = _sorted_atoms(values, weights)
    mass = torch.minimum((alpha - (cumulative - weight)).clamp(min=0.0), weight)
    # Where, not times: an infinite best value outside the tail must not turn the sum into NaN.
    tail = torch.where(mass > 0, mass * ordered, torch.zeros_like(ordered))
    return (tail.sum(-1) / alpha).to(values.dtype)


def pooled_tail(values: Tensor, alpha: float) -> tuple[float, float]:
    """(VaR_alpha, CVaR_alpha) of equally weighted values [n], without sorting them: for a million particles.

    CVaR by Rockafellar and Uryasev's formula at zeta = VaR, which splits the atom at the crossing exactly.
    """
    _check_alpha(alpha)
    count = values.numel()
    if count == 0:
        raise DataError("A tail measure was asked of no values at all; collect at least one return first.")
    worst = max(1, math.ceil(alpha * count - _ROUNDING * count))
    tail = _lowest(values.detach().reshape(-1).numpy(force=True), worst)  # what is not in the tail adds nothing
    zeta = float(tail[-1])
    return zeta, zeta - float((zeta - tail).sum(dtype=np.float64)) / count / alpha


def _lowest(values: NDArray[Any], worst: int) -> NDArray[Any]:
    """The `worst` lowest of values [n], the largest of them last, the others in any order.

    numpy parts a million numbers in an eighth of the time of torch.kthvalue. It has less to part where a sample shows
    a bound below which all of them lie; a bound that turns out too low is not used.
    """
    stride = len(values) // _SAMPLED | 1  # odd: particles of a row lie side by side, often a power of two of them
    if stride >= _WORTH_SAMPLING:
        sample = values[::stride]
        rank = int(_MARGIN * worst / stride) + 1
        if rank < len(sample) // 2:
            bound = np.partition(sample, rank)[rank]
            near = _blocks_below(values, bound)
            if len(near) >= worst:
                near.partition(worst - 1)
                if near[worst - 1] <= bound:
                    return near[:worst]
    return np.partition(values, worst - 1)[:worst]


def _blocks_below(values: NDArray[Any], bound: float) -> NDArray[Any]:
    """All of values [n] that are at most `bound`, in any order, and some others: those that lie beside them.

    Whole blocks are taken, each seen from one word of flags: numpy picks single numbers one run at a time, and in a
    tail the runs are short.
    """
    whole = len(values) // _BLOCK * _BLOCK
    chosen = np.flatnonzero((values[:whole] <= bound).view(np.uint64) != 0)
    blocks = values[:whole].reshape(-1, _BLOCK).take(chosen, axis=0).reshape(-1)
    return blocks if whole == len(values) else np.append(blocks, values[whole:])


def mean_utility(values: Tensor, zeta: float, alpha: float) -> float:
    """E[u], u(y) = zeta - max(zeta - y, 0) / alpha, of equally weighted values [...] (Rockafellar & Uryasev 2000).

    CVaR_alpha where zeta is VaR_alpha, and less for any other zeta. Summed in float64 without a copy in it.
    """
    _check_alpha(alpha)
    below = (zeta - values).clamp_(min=0.0).sum(dtype=torch.float64)
    return zeta - float(below) / values.numel() / alpha


def wang_from_quantiles(theta: Tensor, eta: float) -> Tensor:
    """Wang's distorted mean (Wang 2000): weights h((i+1)/N) - h(i/N), h(t) = Phi(Phi^-1(t) + eta).

    eta > 0 is averse (weight on the low quantiles), 0 the mean. For N(0, 1) the value is -eta. theta: [..., N], any
    order. Returns [...].
    """
    if not math.isfinite(eta):
        raise ConfigError(f"The Wang parameter eta is {eta}, expected a finite number, above 0 for risk aversion.")
    count = theta.shape[-1]
    edges = torch.arange(count + 1, dtype=torch.float64, device=theta.device) / count
    distorted = torch.special.ndtr(torch.special.ndtri(edges) + eta)
    return _weighted_sum(theta.sort(dim=-1).values, distorted.diff())


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
