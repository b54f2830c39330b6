"""Credit of an action in a measure of the pooled return, for all lags at once.

The twin is `tailwise.learner.credit.risk_credit`. For CVaR and every other piecewise linear u,

    u(R + g^k y) = const + slope g^k y - g^k sum_i weights[i] max(c_i - y, 0),   c_i = (knots[i] - R) / g^k

so all that is needed of the particles of a row is the mean of max(c - y, 0). Where c lies below all particles that is
0, and above all of them it is linear: long lags are mostly such cases and cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tailwise.core.compiled import kernel
from tailwise.fused.minibatch import Work
from tailwise.learner.credit import CreditInputs

_ZERO = np.float32(0.0)


@kernel(reorder=True)
def _shortfall(threshold: np.float32, values: np.ndarray) -> np.float32:
    """Sum of max(threshold - y, 0) over values [M]."""
    total = _ZERO
    for j in range(values.shape[0]):
        short = threshold - values[j]
        total += short if short > _ZERO else _ZERO
    return total


@kernel(reorder=True)
def _sum(values: np.ndarray) -> np.float32:
    total = _ZERO
    for j in range(values.shape[0]):
        total += values[j]
    return total


@kernel
def _lowest(values: np.ndarray, lowest: np.float32) -> np.float32:
    for j in range(values.shape[0]):
        lowest = values[j] if values[j] < lowest else lowest
    return lowest


@kernel
def _highest(values: np.ndarray, highest: np.float32) -> np.float32:
    for j in range(values.shape[0]):
        highest = values[j] if values[j] > highest else highest
    return highest


class _Arrays(NamedTuple):
    """What credit is computed from: near, predicted float32 [T, B, M]; reward float64 [H+T, B]; age int64 [T, B]; lag
    int64 [n], decay, pair float64 [n]; knots, weights float64 [i]; see `CreditInputs`."""

    near: np.ndarray
    predicted: np.ndarray
    reward: np.ndarray
    age: np.ndarray
    lag: np.ndarray
    decay: np.ndarray
    pair: np.ndarray
    neutral: float
    gamma: float
    slope: float
    knots: np.ndarray
    weights: np.ndarray


@kernel
def credit_columns(arrays: _Arrays, columns: np.ndarray, scratch: np.ndarray, result: np.ndarray) -> None:
    """Write A_risk of the environments `columns` to result [T, B]; scratch float64 [7, H+T]."""
    near, predicted, reward, gamma = arrays.near, arrays.predicted, arrays.reward, arrays.gamma
    lag, decay, pair, knots, weights = arrays.lag, arrays.decay, arrays.pair, arrays.knots, arrays.weights
    steps, history = near.shape[0], reward.shape[0] - near.shape[0]
    rewards, before, gain = scratch[0], scratch[1, :steps], scratch[2, :steps]
    low, high, old, total = scratch[3, :steps], scratch[4, :steps], scratch[5, :steps], scratch[6, :steps]
    share = 1.0 / near.shape[2]
    for i in range(columns.shape[0]):
        b = columns[i]
        for t in range(reward.shape[0]):
            rewards[t] = reward[t, b]
        for t in range(steps):
            before[t] = 0.0
            gain[t] = share * (_sum(near[t, b]) - _sum(predicted[t, b]))
            low[t] = _lowest(predicted[t, b], _lowest(near[t, b], near[t, b, 0]))
            high[t] = _highest(predicted[t, b], _highest(near[t, b], near[t, b, 0]))
            old[t] = arrays.age[t, b]
            total[t] = arrays.neutral * gain[t]
        reached = 0
        for k in range(lag.shape[0]):
            while reached < lag[k]:
                reached += 1
                first = history - reached
                for t in range(steps):
                    before[t] = rewards[first + t] + gamma * before[t]
            for t in range(steps):
                if old[t] >= lag[k]:
                    credit = arrays.slope * gain[t]
                    for m in range(knots.shape[0]):
                        c = (knots[m] - before[t]) / decay[k]
                        if c >= high[t]:
                            credit += weights[m] * gain[t]
                        elif c > low[t]:
                            threshold = np.float32(c)
                            short = _shortfall(threshold, near[t, b]) - _shortfall(threshold, predicted[t, b])
                            credit -= weights[m] * share * short
                    total[t] += pair[k] * decay[k] * credit
        for t in range(steps):
            result[t, b] = total[t]


def risk_credit(inputs: CreditInputs, *, run: Callable[[np.ndarray, Work], None]) -> Tensor:
    """A_risk [T, B]; run: shares the environments among workers, as `Workers.run` does."""
    utility, weights = inputs.utility, inputs.weights
    result = torch.empty(inputs.near.shape[:2])
    arrays = _Arrays(
        near=np.ascontiguousarray(inputs.near.numpy()),
        predicted=np.ascontiguousarray(inputs.predicted.numpy()),
        reward=inputs.reward,
        age=inputs.age,
        lag=inputs.lag,
        decay=inputs.decay,
        pair=weights.pair,
        neutral=weights.neutral * utility.mean_slope,
        gamma=inputs.gamma,
        slope=utility.slope,
        knots=utility.knots,
        weights=utility.weights,
    )

    def work(columns: np.ndarray, _: int) -> None:
        credit_columns(arrays, columns, np.empty((7, len(inputs.reward))), result.numpy())

    run(np.arange(result.shape[1]), work)
    return result
