"""The critics' loss terms of a block of rows and their gradient by the critics' outputs.

The plain twin is `tailwise.learner.losses.compute_losses`. Against particles, the loss of a row is `particle_loss`.
"""

from __future__ import annotations

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.kernels.memory import clear
from tailwise.kernels.particle_loss import particle_loss
from tailwise.kernels.rows import CROSSINGS, DISAGREEMENT, MEAN_GAP, SUMS


@kernel(reorder=True)
def _law_numbers(laws: np.ndarray, losses: np.ndarray, first: int, end: int) -> tuple[float, float, int]:
    """(sum of losses, sum of quantiles, number of crossings) of one critic's quantiles, laws[first:end]."""
    total, mean, crossings = np.float32(0.0), np.float32(0.0), 0
    law, loss = laws[first:end], losses[first:end]
    for i in range(law.shape[0]):
        total += loss[i]
        mean += law[i]
    upper, lower = law[1:], law[:-1]
    for i in range(upper.shape[0]):
        crossings += 1 if upper[i] < lower[i] else 0
    return total, mean, crossings


@kernel
def critic_rows(
    index: np.ndarray, valid: np.ndarray, particles: np.ndarray, scalars: np.ndarray, shape: tuple[int, int, int, int],
    kappa: float, per_row: float, lean: np.ndarray, out: np.ndarray, loss: np.ndarray, grad: np.ndarray,
    sums: np.ndarray,
) -> None:  # fmt: skip
    """Critic terms of the valid rows `index` [n]; a row that is no transition gets gradient 0, the actor's part too.

    particles [R, m]; scalars [R, 3] as in `Rows`; shape: (numbers of the actor before those of the critics, C, N, lead
    from row to row); out, grad: flat, after the actor's numbers mean 0, quantiles 0, quantiles 1, mean 1, and what the
    lead leaves is cleared; loss: scratch, float32 [C*N].
    """
    actor, critics, quantiles, lead = shape
    laws = critics * quantiles
    first, width = actor + 1, actor + critics * (1 + quantiles)
    weight, bound = np.float32(per_row / quantiles), np.float32(kappa)
    for i in range(index.shape[0]):
        r, at = index[i], i * lead
        if not valid[r]:
            clear(grad[at : at + lead])
            continue
        law, back = out[at + first : at + first + laws], grad[at + first : at + first + laws]
        particle_loss(law, particles[r], lean, bound, weight, loss, back)
        clear(grad[at + width : at + lead])
        target, lowest, highest = np.float64(scalars[r, 2]), np.inf, -np.inf
        for c in range(critics):
            total, summed, crossings = _law_numbers(law, loss, c * quantiles, (c + 1) * quantiles)
            place = at + actor if c == 0 else at + first + laws
            mean = np.float64(out[place])
            error = mean - target
            grad[place] = 2.0 * per_row * error
            sums[SUMS + 2 * c] += error * error
            sums[SUMS + 2 * c + 1] += total / quantiles
            sums[CROSSINGS] += crossings
            sums[MEAN_GAP] += summed / quantiles - mean
            lowest, highest = min(lowest, mean), max(highest, mean)
        sums[DISAGREEMENT] += highest - lowest
