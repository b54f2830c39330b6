"""Norms of the gradient, clipping and Adam over the flat buffer. The twins: `learner.gradients` and torch's Adam."""

from __future__ import annotations

import numpy as np

from tailwise.core.compiled import kernel

BETA1, BETA2 = 0.9, 0.999


@kernel(reorder=True)
def add(total: np.ndarray, part: np.ndarray) -> None:
    """total += part, both float32 [size]: gradients of workers, always summed in the order of the workers."""
    for i in range(total.shape[0]):
        total[i] += part[i]


@kernel(fuse=True)
def adam_step(
    flat: np.ndarray, grad: np.ndarray, average: np.ndarray, square: np.ndarray, segments: np.ndarray, clip: float,
    learning_rate: float, step: int, epsilons: tuple[float, float], squares: np.ndarray,
) -> tuple[float, float]:  # fmt: skip
    """One step on the gradient, scaled to the norm `clip` where it is longer; no step where its norm is not finite.

    Returns the norm before and after clipping; squares float64 [parameters] becomes the sum of squares of each
    parameter's gradient, before. segments as in `Bound`; epsilons: of the critics' parameters second, of the others
    first.
    """
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
        epsilon = np.float32(epsilons[1] if segments[k, 2] else epsilons[0])
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
