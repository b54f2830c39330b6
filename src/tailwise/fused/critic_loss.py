"""Quantile Huber loss of predicted quantiles against sampled particles, with its gradient, and no N x M table.

rho(u) = |tau - 1{u < 0}| * L_kappa(u) / kappa for u = particle - quantile. With c = u clamped to [-kappa, kappa] and
w = 2 tau - 1, the slope is (c + w * |c|) / (2 kappa): the weight |tau - 1{u < 0}| = (1 + w * sign(u)) / 2 needs no
comparison. rho is that slope times (u - c/2). A pair of a quantile and a particle costs eight instructions for a whole
vector of quantiles; quantiles and sums stay in registers while all particles pass, and two vectors take
turns so that no addition waits for the one before. Sorting the particles and reading prefix sums takes a scalar search
per quantile, which is slower than eight pairs of eight quantiles at once.

The plain twin is `tailwise.learner.critic_losses.quantile_huber_loss`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from tailwise.core.compiled import kernel
from tailwise.fused.layout import Network
from tailwise.fused.rows import CROSSINGS, DISAGREEMENT, MEAN_GAP, SUMS, Draws, Rows, Scratch, Weights
from tailwise.fused.vectors import LANES, Vectors, address, clear

LOSS, LAW, LAW_CROSSINGS = 0, LANES, 2 * LANES  # places in `totals`
TOTALS = 3 * LANES
_TOGETHER = 2


@intrinsic
def _law(context: Any, arrays: Any, count: Any, width: Any, kappa: Any, scale: Any) -> Any:
    """`particle_loss` on the addresses of law, particles [count], tau_weight, grad [width], totals [TOTALS]."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        arrays, count, width, kappa, scale = values
        law, particles, tau_weight, grad, totals = (builder.extract_value(arrays, k) for k in range(5))
        v = Vectors(builder)
        bound, to_grad, half = v.spread(kappa), v.spread(scale), v.constant(-0.5)
        one, zero = v.constant(1.0), v.constant(0.0)
        summed = [v.variable(v.load(v.at(totals, place))) for place in (LOSS, LAW, LAW_CROSSINGS)]

        previous = v.variable(v.constant(float("-inf")))  # nothing is below the first quantile

        def add(place: int, value: Any, mask: Any) -> None:
            if mask is not None:
                value = builder.select(mask, value, zero)
            builder.store(builder.fadd(builder.load(summed[place]), value), summed[place])

        def vectors(places: list[Any], mask: Any) -> None:
            """Some vectors of quantiles against all particles."""
            thetas = [v.load(v.at(law, place), mask) for place in places]
            slopes = [v.load(v.at(tau_weight, place), mask) for place in places]
            pulls, losses = ([v.variable(zero) for _ in places] for _ in range(2))
            with v.count(count) as k:
                y = v.load_all(v.at(particles, k))
                for theta, slope, pull, loss in zip(thetas, slopes, pulls, losses):
                    u = builder.fsub(y, theta)
                    c = v.within(u, bound)
                    p = v.multiply_add(slope, v.absolute(c), c)
                    builder.store(builder.fadd(builder.load(pull), p), pull)
                    builder.store(v.multiply_add(p, v.multiply_add(half, c, u), builder.load(loss)), loss)
            for place, theta, pull, loss in zip(places, thetas, pulls, losses):
                v.store(builder.fmul(to_grad, builder.load(pull)), v.at(grad, place), mask)
                add(0, builder.load(loss), mask)
                add(1, theta, mask)
                below = v.shift_in(builder.load(previous), theta)
                add(2, builder.select(builder.fcmp_ordered("<", theta, below), one, zero), mask)
                builder.store(theta, previous)

        v.over(width, vectors, _TOGETHER)
        for place, total in zip((LOSS, LAW, LAW_CROSSINGS), summed):
            v.store(builder.load(total), v.at(totals, place))
        return context.get_dummy_value()

    n, f = types.intp, types.float32
    return types.void(types.UniTuple(n, 5), n, n, f, f), generate


@kernel
def particle_loss(
    theta: np.ndarray,
    particles: np.ndarray,
    tau_weight: np.ndarray,
    kappa: float,
    weight: float,
    grad: np.ndarray,
    totals: np.ndarray,
) -> None:
    """grad [N] = weight * the gradient of the mean of rho over particles by theta, for the quantiles of one critic.

    theta [N], particles [m], tau_weight [N] = 2 tau - 1; all float32. totals [TOTALS] grows, lane by lane: from LOSS on
    by 2 kappa m times the loss, from LAW on by the quantiles, from LAW_CROSSINGS on by the number of quantiles below
    their neighbour.
    """
    scale = np.float32(-weight / (2.0 * kappa * particles.shape[0]))
    arrays = (address(theta), address(particles), address(tau_weight), address(grad), address(totals))
    _law(arrays, particles.shape[0], theta.shape[0], np.float32(kappa), scale)


@kernel(inline=True)
def _lanes(totals: np.ndarray, first: int) -> float:
    """Sum of one of the totals, float64."""
    total = 0.0
    for j in range(first, first + LANES):
        total += np.float64(totals[j])
    return total


@kernel(inline=True)
def critic_rows(
    network: Network, rows: Rows, draws: Draws, weights: Weights, index: np.ndarray, scratch: Scratch
) -> None:
    """Add the critic terms of the valid rows `index` [n] to the scratch's sums; write their gradient to its `back`.

    Outputs and gradients lie, after the actor's numbers, as mean 0, quantiles 0, quantiles 1, mean 1, without quantiles
    where critics predict means only; what the width leaves is cleared. A row that is no transition gets gradient 0, the
    actor's part too. The plain twin is `tailwise.learner.losses.compute_losses`.
    """
    n, actor, critics, quantiles = index.shape[0], network.actor, network.critics, network.quantiles
    out, grad = scratch.work[network.output * n :], scratch.back[network.output * n :]
    lead, sums, totals, kappa = network.output_width, scratch.sums, scratch.totals, weights.kappa
    first, width, per_row = actor + 1, actor + critics * (1 + quantiles), weights.value * weights.per_row
    weight, disagreement = per_row / max(quantiles, 1), 0.0
    for c in range(critics):
        clear(totals[c])
    for i in range(n):
        r, at = index[i], i * lead
        if not rows.valid[r]:
            clear(grad[at : at + lead])
            continue
        clear(grad[at + width : at + lead])
        target, lowest, highest = np.float64(rows.scalars[r, 2]), np.inf, -np.inf
        for c in range(critics):
            if quantiles > 0:
                law = slice(at + first + c * quantiles, at + first + (c + 1) * quantiles)
                particle_loss(out[law], draws.particles[r], weights.tau_weight, kappa, weight, grad[law], totals[c])
            place = at + actor if c == 0 else at + first + critics * quantiles
            mean = np.float64(out[place])
            error = mean - target
            grad[place] = 2.0 * per_row * error
            sums[SUMS + 2 * c] += error * error
            sums[MEAN_GAP] -= mean
            lowest, highest = min(lowest, mean), max(highest, mean)
        disagreement += highest - lowest
    sums[DISAGREEMENT] += disagreement
    for c in range(critics if quantiles > 0 else 0):
        sums[SUMS + 2 * c + 1] += _lanes(totals[c], LOSS) / (2.0 * kappa * draws.particles.shape[1] * quantiles)
        sums[MEAN_GAP] += _lanes(totals[c], LAW) / quantiles
        sums[CROSSINGS] += _lanes(totals[c], LAW_CROSSINGS)
