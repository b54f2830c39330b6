"""The quantile Huber loss of one row against its particles, with its gradient, in one pass and without a table.

    rho_ij = |tau_i - 1{u_ij < 0}| * L_kappa(u_ij) / kappa,   u_ij = y_j - theta_i

With c = clamp(u, -kappa, kappa) the weighted pull is  |tau - 1{u < 0}| c = c/2 + (tau - 1/2) |c|: no comparison, and
L_kappa(u) = c (u - c/2) in both branches. Working in half units (u/2, kappa/2) saves the halves, so that a pair costs
eight arithmetic instructions. Eight particles are taken together: each quantile is then read and written once, and sums
over particles need no chain of dependent additions. That is the whole speed: sorting the particles and reading prefix
sums takes a scalar search per quantile, which is slower than all eight pairs of eight quantiles at once.

The plain twin is `tailwise.learner.quantile.quantile_huber_loss`.
"""

from __future__ import annotations

import numpy as np

from tailwise.core.compiled import kernel

_HALF, _ONE, _TWO, _ZERO = np.float32(0.5), np.float32(1.0), np.float32(2.0), np.float32(0.0)
TOGETHER = 8


@kernel(fuse=True)
def _pair(y: float, theta: float, lean: float, kappa: float) -> tuple[float, float]:
    """(pull, error - clamped/2) of one quantile and one particle, all in half units; lean = 2 tau - 1."""
    u = y - theta
    c = min(max(u, -kappa), kappa)
    return c + lean * abs(c), u - _HALF * c


@kernel(fuse=True)
def particle_loss(
    theta: np.ndarray,
    particles: np.ndarray,
    lean: np.ndarray,
    kappa: float,
    weight: float,
    loss: np.ndarray,
    grad: np.ndarray,
) -> None:
    """loss [N] = mean over particles of rho; grad [N] = weight * its gradient by theta.

    theta [N], particles [m], lean [N] = 2 tau - 1; all float32. theta may hold several critics one after the other.
    """
    count, m = theta.shape[0], particles.shape[0]
    half_kappa = _HALF * kappa
    # pull and error are in half units, so a product of both is a quarter of the loss: twice the scale of the gradient.
    scale = _ONE / (kappa * np.float32(m))
    slope_scale, loss_scale = -weight * scale, _TWO * scale
    for i in range(count):
        loss[i] = _ZERO
        grad[i] = _ZERO
    first = 0
    while first + TOGETHER <= m:
        y0, y1 = _HALF * particles[first], _HALF * particles[first + 1]
        y2, y3 = _HALF * particles[first + 2], _HALF * particles[first + 3]
        y4, y5 = _HALF * particles[first + 4], _HALF * particles[first + 5]
        y6, y7 = _HALF * particles[first + 6], _HALF * particles[first + 7]
        for i in range(count):
            t, d = _HALF * theta[i], lean[i]
            p0, e0 = _pair(y0, t, d, half_kappa)
            p1, e1 = _pair(y1, t, d, half_kappa)
            p2, e2 = _pair(y2, t, d, half_kappa)
            p3, e3 = _pair(y3, t, d, half_kappa)
            p4, e4 = _pair(y4, t, d, half_kappa)
            p5, e5 = _pair(y5, t, d, half_kappa)
            p6, e6 = _pair(y6, t, d, half_kappa)
            p7, e7 = _pair(y7, t, d, half_kappa)
            grad[i] += slope_scale * (((p0 + p1) + (p2 + p3)) + ((p4 + p5) + (p6 + p7)))
            first_half = (p0 * e0 + p1 * e1) + (p2 * e2 + p3 * e3)
            loss[i] += loss_scale * (first_half + ((p4 * e4 + p5 * e5) + (p6 * e6 + p7 * e7)))
        first += TOGETHER
    while first < m:
        y0 = _HALF * particles[first]
        for i in range(count):
            p0, e0 = _pair(y0, _HALF * theta[i], lean[i], half_kappa)
            grad[i] += slope_scale * p0
            loss[i] += loss_scale * (p0 * e0)
        first += 1
