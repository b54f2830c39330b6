"""Credit of an action in a measure of the pooled discounted return, through every return that contains its reward.

The measure is E[u(Y)] over all visited states (`Utility`). The reward after the action at step t is part of the return
from t, and of the return from every earlier step of the episode:

    Y[t-k] = R[t-k:t] + gamma^k Y[t],    R[t-k:t] = sum_{i<k} gamma^i r[t-k+i]

so the action is credited at every lag k:

    c[t, k] = mean_j u(R[t-k:t] + gamma^k Y[t][j]) - mean_j u(R[t-k:t] + gamma^k Z[t][j])

with Y particles of the return that followed and Z particles that the critics predicted before the action. R is known
before the action, so any Z is a baseline. With lag 0 alone, risk counts (1 + gamma) times too much against the mean
*inside* the measure, and the sign of the credit can be wrong. docs/decisions/0013-credit-of-an-action-in-the-tail.md
has the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailwise.learner.rollout import Past, Rollout

LONGEST_LAG = 4096  # steps, whatever gamma; what lies beyond is completed too
HORIZONS = 3  # lags go up to so many times 1 / (1 - gamma); what lies beyond has a weight of 5% and is completed
THINNING = 8  # lags from k on are taken in strata of k // THINNING, each represented by the lag in its middle
LARGEST_FACTOR = 8.0  # by which a lag is weighted up that few rows have: a few rows must not carry the whole credit


@dataclass(frozen=True)
class Utility:
    """The influence function of a measure at the pooled law, concave and piecewise linear: E[u(Y)] is its `value`.

        u(y) = offset + slope y - sum_i weights[i] max(knots[i] - y, 0)

    knots, weights  float64 [n]; n is 1 for CVaR, 0 for the mean
    mean_slope      E[u'(Y)] over the pooled law: what a small shift of all returns is worth
    threshold, cvar this sample's VaR and CVaR, whichever threshold the utility uses; None for other measures
    """

    value: float
    offset: float
    slope: float
    knots: NDArray[np.float64]
    weights: NDArray[np.float64]
    mean_slope: float
    threshold: float | None = None
    cvar: float | None = None

    def of(self, y: Tensor) -> Tensor:
        """u(y), any shape."""
        result = self.offset + self.slope * y
        for knot, weight in zip(self.knots, self.weights, strict=True):
            result = result - float(weight) * (float(knot) - y).clamp(min=0.0)
        return result


@dataclass(frozen=True)
class LagGrid:
    """The lags at which credit is computed, and the discount that each of them stands for.

    lag: int64 [n], ascending, the first is 0. mass: [n], the sum of gamma^k over the lags of the stratum. end: the
    first lag beyond the last stratum.
    """

    lag: NDArray[np.int64]
    mass: NDArray[np.float64]
    end: int


@cache
def lag_grid(gamma: float) -> LagGrid:
    """About 40 lags for gamma .99 instead of 300: neighbouring lags see nearly the same rewards."""
    end = min(math.ceil(round(HORIZONS / (1.0 - gamma), 6)), LONGEST_LAG) + 1
    lags, mass, first = [], [], 0
    while first < end:
        after = min(first + max(1, first // THINNING), end)
        lags.append((first + after - 1) // 2)
        mass.append((gamma**first - gamma**after) / (1.0 - gamma))
        first = after
    lag, weight = np.array(lags, dtype=np.int64), np.array(mass)
    for array in (lag, weight):
        array.setflags(write=False)
    return LagGrid(lag, weight, end)


def history_length(gamma: float) -> int:
    """Rewards before a rollout that its credit reads, steps."""
    return int(lag_grid(gamma).lag[-1])


@dataclass(frozen=True)
class LagWeights:
    """Weights of the credit of one rollout, already divided by their mean total W.

    pair: [n], of c[t, lag] in every row that is old enough. neutral: of E[u'] (mean_j Y - mean_j Z) in every row.
    """

    pair: NDArray[np.float64]
    neutral: float


def ages(rollout: Rollout) -> NDArray[np.int64]:
    """Steps since the episode of each row began, [T, B]; 0 in its first row."""
    start, valid = rollout.start.numpy(force=True), rollout.valid.numpy(force=True)
    fresh = start.copy()
    fresh[1:] |= ~valid[:-1]  # a row that only reset the environment is no step
    before = np.zeros(start.shape[1], np.int64) if rollout.past is None else rollout.past.age.numpy(force=True)
    step = np.arange(start.shape[0])[:, None]
    return np.asarray(step - np.maximum.accumulate(np.where(fresh, step, -before), axis=0))


def past_after(rollout: Rollout, past: Past) -> Past:
    """What came before the next rollout: as many rewards as `past` has, and the age of its step 0.

    A next step that opens an episode has the age 0, whatever stands here (`ages`). Behind a reward that is not finite
    episodes count as begun: the rollout itself is refused, and no later one may read that reward.
    """
    kept, steps = past.reward.shape[0], rollout.steps
    finite = torch.isfinite(rollout.reward)
    reward = torch.cat([past.reward, torch.where(finite, rollout.reward, 0.0)])[-kept:].clone()
    row = np.arange(steps)[:, None]
    last_broken = np.where(finite.numpy(force=True), -1, row).max(0)
    since_broken = np.where(last_broken >= 0, steps - 1 - last_broken, np.iinfo(np.int64).max)
    age = np.where(rollout.valid[-1].numpy(force=True), ages(rollout)[-1] + 1, 0)
    return Past(reward, torch.from_numpy(np.minimum(age, since_broken)))


def lag_weights(rollout: Rollout, age: NDArray[np.int64], gamma: float) -> LagWeights:
    """One weight per lag for the whole rollout; a weight per step would favour young rows, and with them the risk.

    Of the returns that begin in the n valid rows, the share `alive` reaches lag k before its episode terminates: an
    action later than that does not exist. A smaller share is `seen` in a row at that lag, because time limits and the
    beginning of training cut off the rest; so rows at lag k are weighted by alive / seen, at most LARGEST_FACTOR. What
    that leaves, and the lags beyond the grid, are completed by gamma^k c[t, 0] + (1 - gamma^k) E[u'] (mean Y - mean Z)
    for c[t, k] / gamma^k: the own credit at lag 0, that of the mean at long lags, where one reward no longer decides
    whether a return is in the tail; exact where steps are independent.
    """
    grid, valid = lag_grid(gamma), rollout.valid.numpy(force=True)
    decay, rows = gamma**grid.lag, int(np.count_nonzero(valid))
    at_risk = _at_least(age[valid], grid.end)
    deaths = _at_least(age[valid & rollout.terminated.numpy(force=True)], grid.end)
    hazard = deaths[0] / rows  # per step, over all ages: for ages that no row has
    survives = 1.0 - np.divide(deaths, at_risk, out=np.full(grid.end + 1, hazard), where=at_risk > 0)
    alive_at = np.concatenate([[1.0], np.cumprod(survives)])  # Kaplan and Meier 1958: cut off is not terminated
    seen, alive = at_risk[grid.lag] / rows, alive_at[grid.lag]

    factor = np.minimum(LARGEST_FACTOR, np.divide(alive, seen, out=np.zeros_like(seen), where=seen > 0))
    missing = grid.mass * (alive - factor * seen)
    rest = alive_at[grid.end] * gamma**grid.end / (1.0 - gamma * (1.0 - hazard))
    rest_own = alive_at[grid.end] * gamma ** (2 * grid.end) / (1.0 - gamma**2 * (1.0 - hazard))
    own = float((missing * decay).sum() + rest_own)
    neutral = float((missing * (1.0 - decay)).sum() + rest - rest_own)
    total = float((grid.mass * factor * seen).sum()) + own + neutral
    pair = grid.mass / decay * factor
    pair[0] += own
    return LagWeights(pair / total, neutral / total)


def _at_least(values: NDArray[np.int64], largest: int) -> NDArray[np.int64]:
    """How many of the values (>= 0) are at least k, for k = 0 .. largest."""
    counts = np.bincount(np.minimum(values, largest), minlength=largest + 1)
    return np.asarray(np.cumsum(counts[::-1])[::-1])


@dataclass(frozen=True)
class CreditInputs:
    """What the credit of a rollout is computed from, in raw units.

    near, predicted: Y and Z [T, B, M]. reward: float64 [H+T, B], the rewards of the rollout behind H earlier ones. age:
    [T, B]. lag: [n] and decay: gamma^lag [n]. weights: see `LagWeights`.
    """

    near: Tensor
    predicted: Tensor
    reward: NDArray[np.float64]
    age: NDArray[np.int64]
    lag: NDArray[np.int64]
    decay: NDArray[np.float64]
    weights: LagWeights
    gamma: float
    utility: Utility


Credit = Callable[[CreditInputs], Tensor]


def credit_inputs(rollout: Rollout, near: Tensor, predicted: Tensor, utility: Utility, gamma: float) -> CreditInputs:
    """Ages, weights and rewards of a rollout, ready for `risk_credit` or its compiled twin."""
    grid, age = lag_grid(gamma), ages(rollout)
    history, now = int(grid.lag[-1]), rollout.reward.numpy(force=True)
    reward: NDArray[Any] = np.zeros((history + len(now), now.shape[1]))
    reward[history:] = now
    if rollout.past is not None:
        known = rollout.past.reward.numpy(force=True)[-history:]
        reward[history - len(known) : history] = known
    return CreditInputs(
        near=near,
        predicted=predicted,
        reward=reward,
        age=age,
        lag=grid.lag,
        decay=np.power(gamma, grid.lag, dtype=np.float64),
        weights=lag_weights(rollout, age, gamma),
        gamma=gamma,
        utility=utility,
    )


def risk_credit(inputs: CreditInputs) -> Tensor:
    """A_risk [T, B]: sum over lags of pair[lag] c[t, lag], plus neutral x E[u'] (mean_j Y - mean_j Z).

    The plain twin of `tailwise.fused.credit`, in float64.
    """
    near, predicted, utility = inputs.near.double(), inputs.predicted.double(), inputs.utility
    steps, history = near.shape[0], len(inputs.reward) - near.shape[0]
    reward, age = torch.from_numpy(inputs.reward), torch.from_numpy(inputs.age)
    credit = inputs.weights.neutral * utility.mean_slope * (near.mean(-1) - predicted.mean(-1))
    before = torch.zeros(steps, near.shape[1], dtype=torch.float64)  # R[t-k:t] for the k reached
    reached = 0
    for lag, decay, weight in zip(inputs.lag.tolist(), inputs.decay, inputs.weights.pair, strict=True):
        while reached < lag:
            reached += 1
            before = reward[history - reached : history - reached + steps] + inputs.gamma * before
        rows = age >= lag
        shift = before[rows][:, None]
        gained = utility.of(shift + decay * near[rows]).mean(-1) - utility.of(shift + decay * predicted[rows]).mean(-1)
        credit[rows] += weight * gained
    return credit.to(inputs.near.dtype)
