"""Losses and gradients of a minibatch, whose rows are shared by worker threads.

A worker goes forward and back through its share in one call, in blocks of rows that fit into the cache; kernels hold no
lock, so workers run side by side. The split and the order in which gradients are added are fixed, so a run with n
workers is the same every time; it differs from a run with another number of workers by rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.fused.adam import add
from tailwise.fused.critic_loss import TOTALS, critic_rows
from tailwise.fused.dense import backward, forward
from tailwise.fused.inference import StepMemory, step_memory
from tailwise.fused.layout import LSTM, Network, Parameters, aligned_zeros
from tailwise.fused.policy_loss import box_rows, discrete_rows
from tailwise.fused.products import CHUNK
from tailwise.fused.recurrent import Tape, core_backward, core_forward
from tailwise.fused.rows import BLOCK, SUMS, Draws, Rows, Scratch, Weights, empty_sums, gather, merged
from tailwise.fused.vectors import copy


@kernel(inline=True)
def _learn(
    parameters: Parameters,
    log_std: np.ndarray | None,
    rows: Rows,
    index: np.ndarray,
    draws: Draws,
    weights: Weights,
    tape: Tape | None,
    scratch: Scratch,
) -> None:
    """Add losses and gradients of the rows `index` [n] to the scratch's sums and grad.

    Without a core (tape None) the trunk runs here as well. With one, tape.features are its results and
    tape.back_features receives the gradient by them; copies in and out of a block are cheap beside products. The panels
    are those of `Laid.to_learn`; log_std [A] of a Box policy, None for Discrete. What is None here is not compiled at
    all.
    """
    network, flat, panels = parameters.network, parameters.flat, parameters.panels
    work, back, width = scratch.work, scratch.back, network.features_width
    for first in range(0, index.shape[0], BLOCK):
        part = index[first : first + BLOCK]
        n = part.shape[0]
        if tape is None:
            gather(rows.obs, part, work, network.input_lead)
            forward(network.trunk, flat, panels, work, n)
        else:
            copy(tape.features[first * width : (first + n) * width], work)
        forward(network.heads, flat, panels, work, n)
        critic_rows(network, rows, draws, weights, part, scratch)
        if log_std is None:
            discrete_rows(network, rows, weights, part, scratch)
        else:
            box_rows(network, rows, draws, weights, log_std, part, scratch)
        backward(network.heads, panels, work, back, n, scratch.grad)
        if tape is None:
            backward(network.trunk, panels, work, back, n, scratch.grad)
        else:
            copy(back[: n * width], tape.back_features[first * width :])
    # Summed in float64 beside the other gradients, because every row adds to the same few numbers.
    for a in range(scratch.log_std_grad.shape[0]):
        scratch.grad[network.log_std + a] += scratch.log_std_grad[a]
        scratch.log_std_grad[a] = 0.0


@kernel
def learn_rows(
    parameters: Parameters,
    log_std: np.ndarray | None,
    rows: Rows,
    index: np.ndarray,
    draws: Draws,
    weights: Weights,
    scratch: Scratch,
) -> None:
    """Without a core: add losses and gradients of the rows `index` [n]."""
    _learn(parameters, log_std, rows, index, draws, weights, None, scratch)


@kernel
def learn_sequences(
    parameters: Parameters,
    log_std: np.ndarray | None,
    rows: Rows,
    envs: np.ndarray,
    draws: Draws,
    weights: Weights,
    tape: Tape,
    scratch: Scratch,
) -> None:
    """With a core: add losses and gradients of all steps of the environments `envs` [b]."""
    network, flat, panels = parameters.network, parameters.flat, parameters.panels
    b = envs.shape[0]
    steps = rows.valid.shape[0] // rows.envs
    n = steps * b
    index = tape.places[:n]
    for t in range(steps):
        for i in range(b):
            index[t * b + i] = t * rows.envs + envs[i]
    gather(rows.obs, index, tape.work, network.input_lead)
    forward(network.trunk, flat, panels, tape.work, n)
    read, back = tape.work[network.encoded * n :], tape.back[network.encoded * n :]
    core_forward(parameters, rows, envs, read, tape)
    _learn(parameters, log_std, rows, index, draws, weights, tape, scratch)
    core_backward(parameters, rows, envs, read, tape, back, scratch.grad)
    backward(network.trunk, panels, tape.work, tape.back, n, scratch.grad)


Work = Callable[[np.ndarray, int], None]  # (part of the units, number of the worker)


class Workers:
    """The memory of each worker, and the threads."""

    def __init__(self, network: Network, size: int, threads: int) -> None:
        self.network = network
        self.scratches = [_scratch(network, size) for _ in range(threads)]
        self._no_sums = empty_sums(network.critics)
        self._tapes: list[Tape] = []
        self._steps = [step_memory(network, 1) for _ in range(threads)]
        self._rows, self._environments = 0, 0  # what the memory for sequences is large enough for
        self._pool = ThreadPoolExecutor(threads - 1, thread_name_prefix="tailwise-worker") if threads > 1 else None

    def tapes(self, steps: int, environments: int) -> list[Tape]:
        """Memory of each worker for its part of `environments` sequences of `steps` steps."""
        part = -(-environments // len(self.scratches))
        if steps * part > self._rows or part > self._environments:
            self._rows, self._environments = max(self._rows, steps * part), max(self._environments, part)
            self._tapes = [_tape(self.network, self._rows, self._environments) for _ in self.scratches]
        return self._tapes

    def step_memories(self, rows: int) -> list[StepMemory]:
        """Memory of each worker for its part of a vector step of `rows` rows."""
        part = -(-rows // len(self.scratches))
        if part > len(self._steps[0].order):
            self._steps = [step_memory(self.network, part) for _ in self.scratches]
        return self._steps

    def begin(self) -> None:
        """No gradients and no sums yet."""
        for scratch in self.scratches:
            scratch.grad.fill(0.0)
            scratch.sums[:] = self._no_sums

    def run(self, units: np.ndarray, work: Work) -> None:
        """Give each worker its part of `units`, in order; they add to their gradients and sums."""
        if self._pool is None or not len(units):
            if len(units):
                work(units, 0)
            return
        parts = [part for part in np.array_split(units, len(self.scratches)) if len(part)]
        waiting = [self._pool.submit(work, part, k) for k, part in enumerate(parts) if k]
        try:
            work(parts[0], 0)
        finally:
            for future in waiting:
                future.result()

    def result(self) -> tuple[np.ndarray, list[float]]:
        """(gradient [size], sums) of all workers, added in their order."""
        first, *others = self.scratches
        for scratch in others:
            add(first.grad, scratch.grad)
        return first.grad, merged([scratch.sums for scratch in self.scratches]) if others else first.sums.tolist()


def _scratch(network: Network, size: int) -> Scratch:
    return Scratch(
        work=aligned_zeros(BLOCK * network.heads_width).numpy(),
        back=aligned_zeros(BLOCK * network.heads_width).numpy(),
        grad=aligned_zeros(size).numpy(),
        sums=np.zeros(SUMS + 2 * network.critics),
        policy=np.zeros((3, BLOCK * network.actor), dtype=np.float32),
        totals=np.zeros((network.critics, TOTALS), dtype=np.float32),
        log_std_grad=np.zeros(network.actor if network.log_std >= 0 else 0),
    )


def _tape(network: Network, rows: int, environments: int) -> Tape:
    gates = (4 if network.core == LSTM else 3) * network.hidden

    def floats(*shape: int) -> np.ndarray:
        return aligned_zeros(int(np.prod(shape))).numpy()

    hidden, few = network.hidden, max(environments, CHUNK)  # rows of the steps that are taken together
    return Tape(
        work=floats(rows, network.trunk_width),
        back=floats(rows, network.trunk_width),
        places=np.zeros(rows, dtype=np.int64),
        gates=floats(rows, gates),
        before_c=floats(rows, hidden),
        inner=floats(rows, hidden),
        features=floats(rows, hidden),
        back_features=floats(rows, hidden),
        back_gates=floats(few, gates),
        back_hidden=floats(few if network.core != LSTM else 0, gates),
        now=floats(environments, gates),
        carry_h=floats(environments, hidden),
        carry_c=floats(environments, hidden),
    )
