"""KL(old || new) of the policy over a whole rollout: forward passes of trunk and actor, nothing backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.kernels.dense import forward
from tailwise.kernels.layout import NO_CORE, Network
from tailwise.kernels.memory import copy
from tailwise.kernels.policy_loss import log_softmax
from tailwise.kernels.recurrent import Tape
from tailwise.kernels.rows import Rows
from tailwise.kernels.shares import BLOCK, Scratch, Trunk, encode, gather
from tailwise.learner.batching import sequence_rows

if TYPE_CHECKING:
    from tailwise.kernels.backend import FusedBackend


@kernel(inline=True)
def _discrete_kl(log_p: np.ndarray, r: int, old: np.ndarray) -> float:
    """KL of row r with the new log-probabilities log_p [K]; old [R, 2K] as in `Rows`."""
    size, kl = log_p.shape[0], 0.0
    for k in range(size):
        p = np.float64(old[r, size + k])
        if p > 0.0:
            kl += p * (np.float64(old[r, k]) - np.float64(log_p[k]))
    return kl


@kernel(inline=True)
def _box_kl(out: np.ndarray, log_std: np.ndarray, r: int, rows: Rows) -> float:
    """KL of row r with means out [A]."""
    size, kl = out.shape[0], 0.0
    for a in range(size):
        spread = np.float64(log_std[a])
        twice = 2.0 * (np.float64(rows.old[r, size + a]) - spread)
        moved = (np.float64(rows.old[r, a]) - np.float64(out[a])) * np.exp(-spread)
        kl += 0.5 * (np.expm1(twice) - twice + moved * moved)
    return kl


@kernel
def sum_kl(
    network: Network, flat: np.ndarray, panels: np.ndarray, log_std: np.ndarray | None, rows: Rows, index: np.ndarray,
    features: np.ndarray | None, scratch: Scratch,
) -> float:  # fmt: skip
    """Sum of KL over the valid rows among `index` [n]; features [n * H], or None where the trunk makes them; log_std
    [A] of a Box policy or None."""
    width, size, total = network.features_width, network.actor, 0.0
    for first in range(0, index.shape[0], BLOCK):
        part = index[first : first + BLOCK]
        n = part.shape[0]
        if features is None:
            gather(rows.obs, part, scratch.work)
            forward(network.trunk, flat, panels, scratch.work, n)
            copy(scratch.work[network.features * n : (network.features + width) * n], scratch.back)
        else:
            copy(features[first * width : (first + n) * width], scratch.back)
        forward(network.policy, flat, panels, scratch.back, n)
        out = scratch.back[network.policy_output * n :]
        if log_std is None:
            log_softmax(out, size, part, size, rows.mask, scratch.policy[0], scratch.policy[1])
        for i in range(n):
            if rows.valid[part[i]]:
                mine = slice(i * size, (i + 1) * size)
                if log_std is None:
                    total += _discrete_kl(scratch.policy[0, mine], part[i], rows.old)
                else:
                    total += _box_kl(out[mine], log_std, part[i], rows)
    return total


def policy_kl(backend: FusedBackend, rows: Rows, steps: int) -> float:
    """Mean of KL(old || new) over all valid rows, nats; sequences in as many parts as training used."""
    network, flat, workers = backend.bound.network, backend.flat, backend.workers
    panels = backend.lay_out(backend.bound.laid.to_act)
    workers.begin()

    def add_to(scratch: Scratch, index: np.ndarray, features: np.ndarray | None) -> None:
        scratch.sums[0] += sum_kl(network, flat, panels, backend.log_std, rows, index, features, scratch)

    if network.core == NO_CORE:
        workers.run(
            np.flatnonzero(rows.valid),
            lambda part, k: add_to(workers.scratches[k], part, None),
        )
    else:
        count = min(rows.envs, backend.config.minibatches * backend.config.microbatches)
        for envs in np.array_split(np.arange(rows.envs), count):
            memory = workers.sequences(steps, len(envs))

            def work(part: np.ndarray, k: int, memory: list[tuple[Trunk, Tape]] = memory) -> None:
                index = sequence_rows(steps, rows.envs, part)
                encode(network, flat, panels, rows, index, part, *memory[k])
                add_to(workers.scratches[k], index, memory[k][1].features)

            workers.run(envs, work)
    return workers.result()[1][0] / np.count_nonzero(rows.valid)
