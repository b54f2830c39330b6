"""What the kernels of an update read and write beside the network: rows of the rollout, weights of the loss, sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Rows(NamedTuple):
    """A rollout by flat row r = t*B + b; float32 unless said. Arrays that do not apply have no rows.

    obs [R, D] normalised; choice int64 [R] (Discrete); action [R, A] (Box); mask bool [R, K]; scalars [R, 3]: the
    log-probability of the action, its advantage, the target of the means, together because minibatches read rows at
    random; old: of the policy that acted, log-probabilities and probabilities [R, 2K] (Discrete) or means and ln(std)
    [R, 2A] (Box); valid bool [R]; start bool [R]; state [B, S, H] before step 0; envs: B.
    """

    obs: np.ndarray
    choice: np.ndarray
    action: np.ndarray
    mask: np.ndarray
    scalars: np.ndarray
    old: np.ndarray
    valid: np.ndarray
    start: np.ndarray
    state: np.ndarray
    envs: int


class Draws(NamedTuple):
    """Random numbers of one epoch, float32: particles [R, m] that each row looks at, side by side so that a row reads
    one cache line instead of m; noise [R, A]: normals for the sampled entropy of a squashed policy, else [0, 0]."""

    particles: np.ndarray
    noise: np.ndarray


class Weights(NamedTuple):
    """Numbers of the loss. per_row: 1 / rows of the minibatch; bounds: of the means' overshoot; value: weight of each
    critic's terms; dual_clip: inf is off; kappa: of the Huber function; lean: 2 tau - 1 of a critic's quantiles,
    float32 [N]."""

    clip: float
    dual_clip: float
    entropy: float
    bounds: float
    value: float
    kappa: float
    per_row: float
    lean: np.ndarray


# Sums over rows, float64 [SUMS + 2 * critics]; the four extremes are not summed.
POLICY, ENTROPY, KL, CLIPPED, DUAL, CLAMPED, NAN, INFINITE, LOGIT_RANGE, DISAGREEMENT, CROSSINGS, MEAN_GAP = range(12)
LOG_RATIO_MAX, RATIO_MAX, ENTROPY_MAX, ENTROPY_MIN, COUNT, BOUNDS = range(12, 18)
SUMS = 18  # then mean loss and law loss of critic 0, of critic 1
_LARGEST = slice(LOG_RATIO_MAX, ENTROPY_MAX + 1)


def empty_sums(critics: int) -> np.ndarray:
    """Before any row."""
    sums = np.zeros(SUMS + 2 * critics)
    sums[_LARGEST] = -np.inf
    sums[ENTROPY_MIN] = np.inf
    return sums


def merged(shares: Sequence[np.ndarray] | Sequence[list[float]]) -> list[float]:
    """The sums of some shares as one; NaN where one of them is."""
    table = np.array(shares)
    with np.errstate(invalid="ignore"):
        result = table.sum(0)
        result[_LARGEST], result[ENTROPY_MIN] = table[:, _LARGEST].max(0), table[:, ENTROPY_MIN].min()
    found: list[float] = result.tolist()
    return found
