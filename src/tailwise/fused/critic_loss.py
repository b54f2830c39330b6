"""The critics' loss terms of a block of rows and their gradient by the critics' outputs.

The plain twin is `tailwise.learner.losses.compute_losses`. Against particles, the loss of a row is `particle_loss`.
"""

from __future__ import annotations

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.fused.memory import clear
from tailwise.fused.particle_loss import LAW, LAW_CROSSINGS, LOSS, particle_loss
from tailwise.fused.rows import CROSSINGS, DISAGREEMENT, MEAN_GAP, SUMS
from tailwise.fused.vectors import LANES


@kernel(inline=True)
def _lanes(totals: np.ndarray, first: int) -> float:
    """Sum of one of the totals, float64."""
    total = 0.0
    for j in range(first, first + LANES):
        total += np.float64(totals[j])
    return total


@kernel(inline=True)
def critic_rows(
    index: np.ndarray, valid: np.ndarray, particles: np.ndarray, scalars: np.ndarray, shape: tuple[int, int, int, int],
    kappa: float, per_row: float, lean: np.ndarray, out: np.ndarray, totals: np.ndarray, grad: np.ndarray,
    sums: np.ndarray,
) -> None:  # fmt: skip
    """Critic terms of the valid rows `index` [n]; a row that is no transition gets gradient 0, the actor's part too.

    particles [R, m]; scalars [R, 3] as in `Rows`; shape: (numbers of the actor before those of the critics, C, N, lead
    from row to row); out, grad: flat, after the actor's numbers mean 0, quantiles 0, quantiles 1, mean 1, and what the
    lead leaves is cleared; totals: scratch, float32 [C, TOTALS].
    """
    actor, critics, quantiles, lead = shape
    first, width = actor + 1, actor + critics * (1 + quantiles)
    weight, disagreement = per_row / quantiles, 0.0
    for c in range(critics):
        clear(totals[c])
    for i in range(index.shape[0]):
        r, at = index[i], i * lead
        if not valid[r]:
            clear(grad[at : at + lead])
            continue
        clear(grad[at + width : at + lead])
        target, lowest, highest = np.float64(scalars[r, 2]), np.inf, -np.inf
        for c in range(critics):
            law = slice(at + first + c * quantiles, at + first + (c + 1) * quantiles)
            particle_loss(out[law], particles[r], lean, kappa, weight, grad[law], totals[c])
            place = at + actor if c == 0 else at + first + critics * quantiles
            mean = np.float64(out[place])
            error = mean - target
            grad[place] = 2.0 * per_row * error
            sums[SUMS + 2 * c] += error * error
            sums[MEAN_GAP] -= mean
            lowest, highest = min(lowest, mean), max(highest, mean)
        disagreement += highest - lowest
    sums[DISAGREEMENT] += disagreement
    for c in range(critics):
        sums[SUMS + 2 * c + 1] += _lanes(totals[c], LOSS) / (2.0 * kappa * particles.shape[1] * quantiles)
        sums[MEAN_GAP] += _lanes(totals[c], LAW) / quantiles
        sums[CROSSINGS] += _lanes(totals[c], LAW_CROSSINGS)
