"""Particle targets of a rollout: SR(lambda) from the last step to the first, environment by environment.

A bootstrap is rare (1 - lambda), so the critics' law at a step is sorted and read only where a particle needs it. The
twin is `tailwise.learner.targets.particle_returns` with `sr_lambda` and `inverse_cdf_quantiles`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailwise.core.compiled import kernel
from tailwise.core.loops.philox import four_words, to_uniform
from tailwise.core.streams import Streams
from tailwise.kernels.memory import copy
from tailwise.kernels.workers import Work
from tailwise.learner.particles import places_between, stratified_levels
from tailwise.learner.rollout import CriticRecord, Rollout
from tailwise.model.config import QuantileCritic

_ZERO = np.float32(0.0)


@kernel
def _average_sorted(law: np.ndarray, row: np.ndarray, mean: np.ndarray) -> None:
    """mean [N] = average over critics of their sorted quantiles; law [C, N]; row [N] is scratch.

    Quantiles of a network are nearly in order, and insertion is fastest where few are out of place.
    """
    critics, count = law.shape
    for c in range(critics):
        for i in range(count):
            value, k = law[c, i], i
            while k > 0 and row[k - 1] > value:
                row[k] = row[k - 1]
                k -= 1
            row[k] = value
        for i in range(count):
            mean[i] = row[i] if c == 0 else mean[i] + row[i]
    share = np.float32(1.0 / critics)
    for i in range(count):
        mean[i] *= share


@kernel(inline=True)
def _particle(quantiles: np.ndarray, left: int, fraction: float, mu: float, sigma: float) -> float:
    low = quantiles[left]
    return mu + sigma * (low + fraction * (quantiles[left + 1] - low))


@kernel
def particle_targets(
    law: np.ndarray, final_law: np.ndarray, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray,
    valid: np.ndarray, environments: np.ndarray, update: int, key: np.ndarray, left: np.ndarray, fraction: np.ndarray,
    scale: tuple[float, float], gamma: float, lam: float, columns: np.ndarray, predicted: np.ndarray,
    result: np.ndarray,
) -> None:  # fmt: skip
    """Of the environments `columns` [b]: result [T, B, M]; predicted: particles of the law at every state, [T, B, M],
    or [0, B, M] where nobody asks.

    law [T+1, B, C, N], final_law [T, B, C, N]; key uint64 [2] of the stream of bootstraps; left int64 [B, M],
    fraction [B, M]: where each environment's levels lie between quantiles; scale (mu, sigma).
    """
    steps, _, count = result.shape
    mu, sigma, discount, trace = np.float32(scale[0]), np.float32(scale[1]), np.float32(gamma), np.float32(lam)
    quantiles, row = np.empty(law.shape[3], dtype=np.float32), np.empty(law.shape[3], dtype=np.float32)
    carry = np.empty(count, dtype=np.float32)
    for b in columns:
        _average_sorted(law[steps, b], row, quantiles)
        for j in range(count):
            carry[j] = _particle(quantiles, left[b, j], fraction[b, j], mu, sigma)
        for t in range(steps - 1, -1, -1):
            if not valid[t, b]:
                _average_sorted(law[t, b], row, quantiles)
                for j in range(count):
                    z = _particle(quantiles, left[b, j], fraction[b, j], mu, sigma)
                    carry[j] = z if np.isfinite(z) else _ZERO
            elif terminated[t, b]:
                for j in range(count):
                    carry[j] = reward[t, b]
            elif truncated[t, b]:
                _average_sorted(final_law[t, b], row, quantiles)
                for j in range(count):
                    carry[j] = reward[t, b] + discount * _particle(quantiles, left[b, j], fraction[b, j], mu, sigma)
            else:
                sorted_here = False
                for block in range((count + 3) // 4):
                    words = four_words(key[0], key[1], t, block, 0, environments[b], update)
                    for k in range(min(4, count - 4 * block)):
                        j = 4 * block + k
                        if not np.float32(to_uniform(words[k])) < trace:
                            if not sorted_here:
                                _average_sorted(law[t + 1, b], row, quantiles)
                                sorted_here = True
                            carry[j] = _particle(quantiles, left[b, j], fraction[b, j], mu, sigma)
                        carry[j] = reward[t, b] + discount * carry[j]
            copy(carry, result[t, b])
        for t in range(predicted.shape[0]):
            _average_sorted(law[t, b], row, quantiles)
            for j in range(count):
                predicted[t, b, j] = _particle(quantiles, left[b, j], fraction[b, j], mu, sigma)


def particle_returns(
    rollout: Rollout,
    record: CriticRecord,
    critic: QuantileCritic,
    streams: Streams,
    *,
    gamma: float,
    lambdas: tuple[float, ...],
    run: Callable[[np.ndarray, Work], None],
) -> tuple[Tensor | None, list[Tensor]]:
    """SR(lambda) particles [T, B, M] for each lambda; those of the critics' law where more than one is asked for.

    run: shares the environments among workers, as `Workers.run` does.
    """
    count = critic.particle_count
    assert record.law is not None and record.final_law is not None
    ids: np.ndarray = rollout.environment.numpy()
    uniform = streams.uniforms("levels", update=rollout.update, environments=ids, steps=1, draws=count)
    levels = stratified_levels(torch.from_numpy(uniform[0].astype(np.float32)))
    left, fraction = places_between(levels, critic.quantiles)
    predicted = torch.empty(rollout.steps if len(lambdas) > 1 else 0, rollout.envs, count)
    results = []
    arrays = (record.law, record.final_law, rollout.reward, rollout.terminated, rollout.truncated, rollout.valid)
    fixed = (
        *map(_array, arrays),
        ids,
        rollout.update,
        streams.key("bootstrap"),
        left.numpy(),
        fraction.float().numpy(),
    )
    for k, lam in enumerate(lambdas):
        result = torch.empty(rollout.steps, rollout.envs, count)
        rest = ((record.mu, record.sigma), gamma, lam)
        written = ((predicted if k == 0 else predicted[:0]).numpy(), result.numpy())
        run(np.arange(rollout.envs), partial(_share, (*fixed, *rest), written))
        results.append(result)
    return (predicted if len(lambdas) > 1 else None), results


def _share(arguments: tuple[Any, ...], written: tuple[np.ndarray, np.ndarray], columns: np.ndarray, _: int) -> None:
    particle_targets(*arguments, columns, *written)


def _array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.numpy())
