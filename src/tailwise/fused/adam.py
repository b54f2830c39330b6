"""Norms of the gradient, clipping and Adam over the flat buffer. The twin: `learner.optimisers.Adam`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from tailwise.core.compiled import kernel
from tailwise.fused.layout import Bound, aligned_zeros
from tailwise.learner.optimisers import ADAM_KEYS, check_adam_tensors

BETA1, BETA2 = 0.9, 0.999


class FlatAdam:
    """Adam's state in two flat buffers of the layout of the parameters; an `Optimiser` whose steps the kernels make."""

    def __init__(self, model: nn.Module, bound: Bound) -> None:
        self._named = dict(model.named_parameters())
        size = bound.flat.shape[0]
        self._average, self._square, self._step = aligned_zeros(size), aligned_zeros(size), torch.zeros(())
        # The same memory as arrays: a tensor that is touched after a kernel costs tens of microseconds.
        self.moments: tuple[np.ndarray, np.ndarray] = (self._average.numpy(), self._square.numpy())
        self._steps: np.ndarray = self._step.numpy()
        averages, squares = bound.views(self._average), bound.views(self._square)
        self._views = {name: (averages[name], squares[name]) for name in self._named}
        self._of: dict[Tensor, tuple[Tensor, Tensor]] = {p: self._views[name] for name, p in self._named.items()}

    @property
    def steps(self) -> int:
        """Steps taken."""
        return int(self._steps)

    @steps.setter
    def steps(self, value: int) -> None:
        self._steps.fill(value)

    def count_step(self) -> int:
        """One more step; returns its number."""
        self.steps += 1
        return self.steps

    def rescale(self, parameter: Tensor, factor: float) -> None:
        """See `Optimiser.rescale`."""
        average, square = self._of[parameter]
        average.mul_(factor)
        square.mul_(factor**2)

    def tensors(self) -> dict[str, Tensor]:
        """See `Optimiser.tensors`."""
        if self.steps == 0:
            return {}
        return {
            f"optimiser/{name}/{key}": value.clone()
            for name, (average, square) in self._views.items()
            for key, value in zip(ADAM_KEYS, (self._step, average, square), strict=True)
        }

    def check(self, tensors: Mapping[str, Tensor], *, fresh: bool) -> None:
        """See `Optimiser.check`."""
        check_adam_tensors(self._named, tensors, fresh=fresh)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """See `Optimiser.load`."""
        if not tensors:
            for buffer in (self._average, self._square, self._step):
                buffer.zero_()
            return
        for name, (average, square) in self._views.items():
            for key, buffer in zip(ADAM_KEYS, (self._step, average, square), strict=True):
                buffer.copy_(tensors[f"optimiser/{name}/{key}"])


@kernel(reorder=True)
def add(total: np.ndarray, part: np.ndarray) -> None:
    """total += part, both float32 [size]: gradients of workers, always summed in the order of the workers."""
    for i in range(total.shape[0]):
        total[i] += part[i]


class AdamSettings(NamedTuple):
    """Settings of one step; clip: largest norm of the gradient; critic_epsilon: epsilon of the critics' parameters."""

    learning_rate: float
    clip: float
    epsilon: float
    critic_epsilon: float


@kernel(fuse=True)
def adam_step(
    flat: np.ndarray,
    grad: np.ndarray,
    moments: tuple[np.ndarray, np.ndarray],
    segments: np.ndarray,
    settings: AdamSettings,
    step: int,
    squares: np.ndarray,
) -> tuple[float, float]:
    """Take the `step`-th step on the gradient, clipped to its largest norm; none where its norm is not finite.

    Returns the norm before and after clipping; squares float64 [parameters] becomes the sum of squares of each
    parameter's gradient, before. moments: averages of gradients and of their squares; segments as in `Bound`.
    """
    average, square = moments
    learning_rate, clip = settings.learning_rate, settings.clip
    whole = 0.0
    for k in range(segments.shape[0]):
        squares[k] = _squares(grad[segments[k, 0] : segments[k, 0] + segments[k, 1]], np.float32(1.0))
        whole += squares[k]
    before = np.sqrt(whole)
    if not before < np.inf:
        return before, before
    scale = clip / before if before > clip else 1.0
    size = np.float32(learning_rate / (1.0 - BETA1**step))
    root = np.float32(np.sqrt(1.0 - BETA2**step))
    factor = np.float32(scale)
    rest1, keep2, rest2 = np.float32(1.0 - BETA1), np.float32(BETA2), np.float32(1.0 - BETA2)
    shorter = 0.0
    for k in range(segments.shape[0]):
        first, end = segments[k, 0], segments[k, 0] + segments[k, 1]
        epsilon = np.float32(settings.critic_epsilon if segments[k, 2] else settings.epsilon)
        p, g, m, v = flat[first:end], grad[first:end], average[first:end], square[first:end]
        for i in range(p.shape[0]):
            d = g[i] * factor
            m[i] += rest1 * (d - m[i])
            v[i] = keep2 * v[i] + rest2 * (d * d)
            p[i] -= size * (m[i] / (np.sqrt(v[i]) / root + epsilon))
        shorter += _squares(g, factor)
    return before, np.sqrt(shorter)


@kernel(reorder=True)
def _squares(grad: np.ndarray, factor: float) -> float:
    """Sum of squares of grad [n] times `factor`, in float64."""
    total = 0.0
    for i in range(grad.shape[0]):
        d = grad[i] * factor
        total += np.float64(d) * np.float64(d)
    return total
