"""KL(old || new) of the policy over a whole rollout: forward passes of trunk and actor, nothing backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.fused.dense import forward
from tailwise.fused.inference import StepMemory, core_step
from tailwise.fused.layout import NO_CORE, Network
from tailwise.fused.memory import copy
from tailwise.fused.policy_loss import log_softmax
from tailwise.fused.rows import Rows
from tailwise.fused.shares import BLOCK, Scratch, gather
from tailwise.learner.batches import sequence_rows

if TYPE_CHECKING:
    from tailwise.fused.backend import FusedBackend


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


@kernel(inline=True)
def _sum_rows(out: np.ndarray, part: np.ndarray, log_std: np.ndarray | None, rows: Rows, policy: np.ndarray) -> float:
    """Sum of KL over the valid ones of the rows `part` [n] whose outputs are out [n * K], flat; policy: as in
    `log_softmax`."""
    n, total = part.shape[0], 0.0
    size = out.shape[0] // n
    if log_std is None:
        log_softmax(out, size, part, size, rows.mask, policy)
    for i in range(n):
        if rows.valid[part[i]]:
            mine = slice(i * size, (i + 1) * size)
            if log_std is None:
                total += _discrete_kl(policy[0, mine], part[i], rows.old)
            else:
                total += _box_kl(out[mine], log_std, part[i], rows)
    return total


@kernel
def sum_kl(
    network: Network, flat: np.ndarray, panels: np.ndarray, log_std: np.ndarray | None, rows: Rows, index: np.ndarray,
    scratch: Scratch,
) -> float:  # fmt: skip
    """Sum of KL over the valid rows among `index` [n], without a core; log_std [A] of a Box policy or None."""
    width, total = network.features_width, 0.0
    for first in range(0, index.shape[0], BLOCK):
        part = index[first : first + BLOCK]
        n = part.shape[0]
        gather(rows.obs, part, scratch.work, network.input_lead)
        forward(network.trunk, flat, panels, scratch.work, n)
        copy(scratch.work[network.features * n : (network.features + width) * n], scratch.back)
        forward(network.policy, flat, panels, scratch.back, n)
        out = scratch.back[network.policy_output * n : (network.policy_output + network.actor) * n]
        total += _sum_rows(out, part, log_std, rows, scratch.policy)
    return total


@kernel
def sum_kl_along(
    network: Network, flat: np.ndarray, panels: np.ndarray, log_std: np.ndarray | None, rows: Rows, order: np.ndarray,
    state: np.ndarray, memory: StepMemory,
) -> float:  # fmt: skip
    """Sum of KL over the valid steps of some neighbouring environments, step by step as they were decided: nothing is
    kept for a way back.

    order [T, n]: their rows; state [n, S, H] before step 0, in place; log_std [A] of a Box policy or None.
    """
    steps, n = order.shape
    width, total = network.features_width, 0.0
    features = memory.heads[: n * width].reshape(n, width)
    out = memory.heads[network.policy_output * n : (network.policy_output + network.actor) * n]
    read = memory.trunk[network.encoded * n :]
    for t in range(steps):
        part = order[t]
        gather(rows.obs, part, memory.trunk, network.input_lead)
        forward(network.trunk, flat, panels, memory.trunk, n)
        start = rows.start[part[0] : part[0] + n]
        core_step(network, flat, panels, read, state, start, memory, features, state)
        forward(network.policy, flat, panels, memory.heads, n)
        total += _sum_rows(out, part, log_std, rows, memory.policy)
    return total


def policy_kl(backend: FusedBackend, rows: Rows, steps: int) -> float:
    """Mean of KL(old || new) over all valid rows, nats."""
    network, flat, workers, log_std = backend.bound.network, backend.flat, backend.workers, backend.log_std
    panels, sums = backend.lay_out(backend.bound.laid.to_act), [0.0] * len(workers.scratches)

    def of_rows(part: np.ndarray, k: int) -> None:
        sums[k] = sum_kl(network, flat, panels, log_std, rows, part, workers.scratches[k])

    def of_sequences(part: np.ndarray, k: int) -> None:
        order, memory = sequence_rows(steps, rows.envs, part).reshape(steps, -1), memories[k]
        sums[k] = sum_kl_along(network, flat, panels, log_std, rows, order, rows.state[part], memory)

    if network.core == NO_CORE:
        workers.run(np.flatnonzero(rows.valid), of_rows)
    else:
        memories = workers.step_memories(rows.envs)
        workers.run(np.arange(rows.envs), of_sequences)
    return sum(sums) / int(np.count_nonzero(rows.valid))
