"""Particle targets of a rollout: SR(lambda) from the last step to the first.

A bootstrap is rare (1 - lambda), so the critics' law at a step is sorted and read only where a particle needs it. The
twin is `tailwise.learner.batches.particle_returns` with `sr_lambda` and `inverse_cdf_quantiles`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tailwise.core.compiled import kernel
from tailwise.core.loops.philox import four_words, to_short_uniform
from tailwise.core.streams import Streams
from tailwise.fused.minibatch import Work
from tailwise.fused.vectors import copy
from tailwise.learner.returns import places_between, stratified_levels
from tailwise.learner.rollout import CriticRecord, Rollout
from tailwise.model.config import QuantileCritic

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
# numpy's: a kernel that is called with a number of Python's is compiled again for that very number.
_NOTHING, _EPOCH = np.uint16(0), np.int64(0)


@kernel(reorder=True)
def _crossings(law: np.ndarray) -> np.float32:
    """How many quantiles [N] are above the next one; counted in floats, of which a register holds more."""
    crossings = _ZERO
    for i in range(law.shape[0] - 1):
        crossings += _ONE if law[i] > law[i + 1] else _ZERO
    return crossings


@kernel
def _in_order(law: np.ndarray, sorting: np.ndarray) -> bool:
    """Whether the quantiles of the laws [C, N] are in order, as those of a network mostly are. Where they are not,
    sorting[:1] is the average over critics of their sorted quantiles; sorting [2, N] is scratch."""
    critics, count = law.shape
    crossings = _ZERO
    for c in range(critics):
        crossings += _crossings(law[c])
    if crossings == _ZERO:
        return True
    mean, row = sorting[0], sorting[1]
    for c in range(critics):
        for i in range(count):  # insertion is fastest where few are out of place
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
    return False


@kernel
def _read(
    law: np.ndarray,
    left: np.ndarray,
    fraction: np.ndarray,
    mu: float,
    sigma: float,
    wanted: np.ndarray,
    sorting: np.ndarray,
    target: np.ndarray,
) -> None:
    """Particles [M] of the average of the laws [C, N], where `wanted` bool [M] says so."""
    laws = law if _in_order(law, sorting) else sorting[:1]
    critics = laws.shape[0]
    share = np.float32(1.0 / critics)
    for j in range(target.shape[0]):
        if wanted[j]:
            at = left[j]
            low, high = laws[0, at], laws[0, at + 1]
            for c in range(1, critics):
                low += laws[c, at]
                high += laws[c, at + 1]
            low *= share
            target[j] = mu + sigma * (low + fraction[j] * (high * share - low))


@kernel(inline=True)
def _follows(drawn: np.ndarray, j: int, lam: float) -> bool:
    """Whether the j-th short uniform of the blocks of words `drawn` lies below lambda."""
    at = j // 16 * 4
    words = (drawn[at], drawn[at + 1], drawn[at + 2], drawn[at + 3])
    return to_short_uniform(words, j % 16) < lam


class _Arrays(NamedTuple):
    """What targets are computed from: law [T+1, B, C, N], final_law [T, B, C, N]; reward, terminated, truncated, valid
    [T, B]; environments int64 [B]; key uint64 [2] of the stream of bootstraps; left int64 [B, M], fraction [B, M]:
    where each environment's levels lie between quantiles."""

    law: np.ndarray
    final_law: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    environments: np.ndarray
    key: np.ndarray
    left: np.ndarray
    fraction: np.ndarray


class _Memory(NamedTuple):
    """Scratch memory for b environments: drawn uint64, the words of M short uniforms; pieces uint16, the same memory;
    sorting float32 [2, N]; wanted bool [2, M], whose second row is True; carries float32 [b, M]."""

    drawn: np.ndarray
    pieces: np.ndarray
    sorting: np.ndarray
    wanted: np.ndarray
    carries: np.ndarray


@kernel
def particle_targets(
    arrays: _Arrays,
    update: int,
    scale: tuple[float, float, float, float],
    columns: np.ndarray,
    memory: _Memory,
    predicted: np.ndarray,
    result: np.ndarray,
) -> None:
    """Of the environments `columns` [b]: result [T, B, M]; predicted: particles of the law at every state, [T, B, M],
    or [0, B, M] where nobody asks. scale (mu, sigma, gamma, lambda)."""
    law, left, fraction, key = arrays.law, arrays.left, arrays.fraction, arrays.key
    drawn, pieces, sorting, carries = memory.drawn, memory.pieces, memory.sorting, memory.carries
    steps, _, count = result.shape
    mu, sigma, discount, lam = np.float32(scale[0]), np.float32(scale[1]), np.float32(scale[2]), scale[3]
    # A short uniform is below lambda where its own 16 bits are below those of lambda; the rest decides between equals.
    whole = np.int64(lam * 2.0**16)
    some, everything = memory.wanted[0], memory.wanted[1]
    for i in range(columns.shape[0]):
        b = columns[i]
        _read(law[steps, b], left[b], fraction[b], mu, sigma, everything, sorting, carries[i])
    for t in range(steps - 1, -1, -1):  # all environments of a step together: they lie side by side
        for i in range(columns.shape[0]):
            b, carry = columns[i], carries[i]
            gain = arrays.reward[t, b]
            if not arrays.valid[t, b]:
                _read(law[t, b], left[b], fraction[b], mu, sigma, everything, sorting, carry)
                for j in range(count):
                    carry[j] = carry[j] if np.isfinite(carry[j]) else _ZERO
                copy(carry, result[t, b])
                continue
            if arrays.terminated[t, b]:
                for j in range(count):
                    carry[j] = gain
                copy(carry, result[t, b])
                continue
            if arrays.truncated[t, b]:
                _read(arrays.final_law[t, b], left[b], fraction[b], mu, sigma, everything, sorting, carry)
            else:
                for block in range(drawn.shape[0] // 4):
                    words = four_words(key[0], key[1], t, block, _EPOCH, arrays.environments[b], update)
                    for k in range(4):
                        drawn[4 * block + k] = words[k]
                highest = _NOTHING
                for j in range(count):
                    highest = pieces[j] if pieces[j] > highest else highest
                if highest >= whole:
                    for j in range(count):
                        some[j] = pieces[j] >= whole and not _follows(drawn, j, lam)
                    _read(law[t + 1, b], left[b], fraction[b], mu, sigma, some, sorting, carry)
            for j in range(count):
                carry[j] = gain + discount * carry[j]
            copy(carry, result[t, b])
    for t in range(predicted.shape[0]):
        for i in range(columns.shape[0]):
            b = columns[i]
            _read(law[t, b], left[b], fraction[b], mu, sigma, everything, sorting, predicted[t, b])


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
    count, envs = critic.particle_count, rollout.envs
    assert record.law is not None and record.final_law is not None
    ids: np.ndarray = rollout.environment.numpy()
    uniform = streams.uniforms("levels", update=rollout.update, environments=ids, steps=1, draws=count)
    levels = stratified_levels(torch.from_numpy(uniform[0].astype(np.float32)))
    left, fraction = places_between(levels, critic.quantiles)
    arrays = _Arrays(
        law=_array(record.law),
        final_law=_array(record.final_law if rollout.any_truncated else record.law),  # never read, but of that type
        reward=_array(rollout.reward),
        terminated=_array(rollout.terminated),
        truncated=_array(rollout.truncated),
        valid=_array(rollout.valid),
        environments=ids,
        key=streams.key("bootstrap"),
        left=left.numpy(),
        fraction=fraction.float().numpy(),
    )
    predicted = torch.empty(rollout.steps if len(lambdas) > 1 else 0, envs, count)
    results = [torch.empty(rollout.steps, envs, count) for _ in lambdas]

    def work(columns: np.ndarray, _: int) -> None:
        for k, lam in enumerate(lambdas):
            scale = (record.mu, record.sigma, gamma, lam)
            law_too = (predicted if k == 0 else predicted[:0]).numpy()
            memory = _memory(len(columns), count, critic.quantiles)
            particle_targets(arrays, rollout.update, scale, columns, memory, law_too, results[k].numpy())

    run(np.arange(envs), work)
    return (predicted if len(lambdas) > 1 else None), results


def _memory(envs: int, count: int, quantiles: int) -> _Memory:
    drawn = np.empty((count + 15) // 16 * 4, dtype=np.uint64)
    return _Memory(
        drawn=drawn,
        pieces=drawn.view(np.uint16),
        sorting=np.empty((2, quantiles), dtype=np.float32),
        wanted=np.ones((2, count), dtype=np.bool_),
        carries=np.empty((envs, count), dtype=np.float32),
    )


def _array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.numpy())
