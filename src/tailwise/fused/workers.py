"""Worker threads that share the rows of a minibatch; kernels hold no lock, so they run side by side.

The split and the order in which gradients are added are fixed, so a run with n workers is the same every time; it
differs from a run with another number of workers by rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tailwise.fused.adam import add
from tailwise.fused.inference import StepMemory, step_memory
from tailwise.fused.layout import LSTM, Network, aligned_zeros
from tailwise.fused.particle_loss import TOTALS
from tailwise.fused.products import CHUNK
from tailwise.fused.recurrent import Tape
from tailwise.fused.rows import SUMS, empty_sums, merged
from tailwise.fused.shares import BLOCK, Scratch, Trunk

Work = Callable[[np.ndarray, int], None]  # (part of the units, number of the worker)


class Workers:
    """The memory of each worker, and the threads."""

    def __init__(self, network: Network, size: int, threads: int) -> None:
        self.network = network
        self.scratches = [_scratch(network, size) for _ in range(threads)]
        self._no_sums = empty_sums(network.critics)
        self._sequences: list[tuple[Trunk, Tape]] = []
        self._steps = [step_memory(network, 1) for _ in range(threads)]
        self._rows, self._environments = 0, 0  # what the memory for sequences is large enough for
        self._pool = ThreadPoolExecutor(threads - 1, thread_name_prefix="tailwise-worker") if threads > 1 else None

    def sequences(self, steps: int, environments: int) -> list[tuple[Trunk, Tape]]:
        """Memory of each worker for its part of `environments` sequences of `steps` steps."""
        part = -(-environments // len(self.scratches))
        if steps * part > self._rows or part > self._environments:
            self._rows, self._environments = max(self._rows, steps * part), max(self._environments, part)
            self._sequences = [_sequence_memory(self.network, self._rows, self._environments) for _ in self.scratches]
        return self._sequences

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


def _sequence_memory(network: Network, rows: int, environments: int) -> tuple[Trunk, Tape]:
    gates = (4 if network.core == LSTM else 3) * network.hidden

    def floats(*shape: int) -> np.ndarray:
        return aligned_zeros(int(np.prod(shape))).numpy()

    hidden, few = network.hidden, max(environments, CHUNK)  # rows of the steps that are taken together
    trunk = Trunk(floats(rows, network.trunk_width), floats(rows, network.trunk_width), np.zeros(rows, dtype=np.int64))
    tape = Tape(
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
    return trunk, tape
