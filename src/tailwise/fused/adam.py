"""Norms of the gradient, clipping, Adam and decay over the flat buffer; twins of torch's Adam and `learner.lasting`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tailwise.core.compiled import kernel
from tailwise.fused.layout import Bound, aligned_zeros
from tailwise.learner.optimiser_config import AdamOptimiser, AdamWOptimiser
from tailwise.learner.optimisers import ADAM_KEYS, check_tensors, scaled_heads
from tailwise.model.actor_critic import ActorCritic

BETA1, BETA2 = 0.9, 0.999
FlatKind = AdamOptimiser | AdamWOptimiser  # what the kernel covers


class FlatAdam:
    """Adam's state in two flat buffers of the layout of the parameters; an `Optimiser` whose steps the kernels make.

    decay: float32 [parameters], weight decay of each; anchor: float32 [size], the weights that they decay to.
    """

    def __init__(self, model: ActorCritic, bound: Bound, config: FlatKind) -> None:
        self._named = dict(model.named_parameters())
        size = bound.flat.shape[0]
        self.betas = (BETA1, BETA2) if isinstance(config, AdamOptimiser) else (config.beta1, config.beta2)
        decay = 0.0 if isinstance(config, AdamOptimiser) else config.weight_decay
        heads = scaled_heads(model)
        self.decay = np.array([0.0 if p in heads else decay for p in self._named.values()], dtype=np.float32)
        self._anchored = {
            name
            for name, p in self._named.items()
            if isinstance(config, AdamWOptimiser) and config.decay_to == "initial" and decay > 0 and p not in heads
        }
        self._anchor = aligned_zeros(size)
        if self._anchored:
            self._anchor.copy_(bound.flat)
        self.anchor: np.ndarray = self._anchor.numpy()
        self._begun_with = self._anchor.clone()
        self._anchors = bound.views(self._anchor)
        self._keys = {name: (*ADAM_KEYS, *(("initial",) if name in self._anchored else ())) for name in self._named}
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

    def rescale(self, parameter: Tensor, factor: float, weights: float) -> None:
        """See `Optimiser.rescale`."""
        if factor == 1.0:
            return
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
        } | {f"optimiser/{name}/initial": self._anchors[name].clone() for name in sorted(self._anchored)}

    def check(self, tensors: Mapping[str, Tensor], *, fresh: bool) -> None:
        """See `Optimiser.check`."""
        check_tensors(self._named, self._keys, tensors, fresh=fresh)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """See `Optimiser.load`."""
        if not tensors:
            for buffer in (self._average, self._square, self._step):
                buffer.zero_()
            self._anchor.copy_(self._begun_with)
            return
        for name in self._anchored:
            self._anchors[name].copy_(tensors[f"optimiser/{name}/initial"])
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
    beta1: float
    beta2: float


class Decay(NamedTuple):
    """w <- w - learning rate x rate x (w - anchor); rate float32 [parameters], 0 for none; anchor float32 [size]."""

    rate: np.ndarray
    anchor: np.ndarray


@kernel(fuse=True)
def adam_step(
    flat: np.ndarray,
    grad: np.ndarray,
    moments: tuple[np.ndarray, np.ndarray],
    segments: np.ndarray,
    settings: AdamSettings,
    decay: Decay,
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
    beta1, beta2 = settings.beta1, settings.beta2
    size = np.float32(learning_rate / (1.0 - beta1**step))
    root = np.float32(np.sqrt(1.0 - beta2**step))
    factor = np.float32(scale)
    rest1, keep2, rest2 = np.float32(1.0 - beta1), np.float32(beta2), np.float32(1.0 - beta2)
    shorter = 0.0
    for k in range(segments.shape[0]):
        first, end = segments[k, 0], segments[k, 0] + segments[k, 1]
        epsilon = np.float32(settings.critic_epsilon if segments[k, 2] else settings.epsilon)
        p, g, m, v = flat[first:end], grad[first:end], average[first:end], square[first:end]
        if decay.rate[k] > 0.0:
            shrink, target = np.float32(learning_rate * decay.rate[k]), decay.anchor[first:end]
            for i in range(p.shape[0]):
                p[i] -= shrink * (p[i] - target[i])
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
