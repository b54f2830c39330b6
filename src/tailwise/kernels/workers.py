"""Worker threads that share the rows of a minibatch; kernels hold no lock, so they run side by side.

The split and the order in which gradients are added are fixed, so a run with n workers is the same every time. It differs
from a run with another number of workers by rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tailwise.kernels.adam import add
from tailwise.kernels.layout import Network, aligned_zeros
from tailwise.kernels.rows import SUMS, empty_sums, merge_sums
from tailwise.kernels.shares import BLOCK, Scratch
from tailwise.learner.config import LearnerConfig
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.config import QuantileCritic


class Workers:
    """The memory of each worker, and the threads."""

    def __init__(self, network: Network, size: int, threads: int, config: LearnerConfig, model: ActorCritic) -> None:
        critic = model.config.critic
        assert isinstance(critic, QuantileCritic)
        self.network = network
        self.scratches = [_scratch(network, size, critic.minibatch_particles) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads - 1, thread_name_prefix="tailwise-worker") if threads > 1 else None

    def run(self, units: np.ndarray, work: Callable[[np.ndarray, Scratch], None]) -> tuple[np.ndarray, np.ndarray]:
        """Give each worker its part of `units`, in order; returns (gradient [size], sums) of all of them."""
        parts = [part for part in np.array_split(units, len(self.scratches)) if len(part)]
        busy = self.scratches[: len(parts)]
        for scratch in busy:
            scratch.grad.fill(0.0)
            scratch.sums[:] = empty_sums(self.network.critics)
        self.each(parts, work)
        for scratch in busy[1:]:
            add(busy[0].grad, scratch.grad)
        return busy[0].grad, merge_sums(np.stack([scratch.sums for scratch in busy]))

    def each(self, parts: list[np.ndarray], work: Callable[[np.ndarray, Scratch], None]) -> None:
        """Call work(part, scratch) for every part, the first one here and the others in their threads."""
        if self._pool is None or len(parts) < 2:
            for part, scratch in zip(parts, self.scratches):
                work(part, scratch)
            return
        waiting = [self._pool.submit(work, part, s) for part, s in zip(parts[1:], self.scratches[1:])]
        try:
            work(parts[0], self.scratches[0])
        finally:
            for future in waiting:
                future.result()


def _scratch(network: Network, size: int, particles: int) -> Scratch:
    return Scratch(
        work=aligned_zeros(BLOCK * network.heads_width).numpy(),
        back=aligned_zeros(BLOCK * network.heads_width).numpy(),
        grad=aligned_zeros(size).numpy(),
        sums=np.zeros(SUMS + 2 * network.critics),
        policy=np.zeros(network.actor),
        loss=aligned_zeros(network.critics * network.quantiles).numpy(),
        particles=aligned_zeros(particles).numpy(),
        log_std_grad=np.zeros(network.actor if network.log_std >= 0 else 0),
    )
