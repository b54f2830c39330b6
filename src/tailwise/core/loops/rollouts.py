"""One pass over a rollout for the health rules.

An update can be as short as 7 ms. The code of numpy has left the caches by its end, and a dozen calls of it then take a
hundredth of that.
"""

from __future__ import annotations

import numpy as np

from tailwise.core.compiled import kernel

KEPT, SMALLEST, LARGEST, TOTAL, LOGIT_NORM, TOP_SHARE, ENTROPY, FOUND = range(8)  # entries of `found`; how many
# The same of `follow_moments`; ABSORBED: 0 where something is not finite, and nothing was done.
ABSORBED, COMPARED, SHIFT, WIDEST, NARROWEST, FOLLOWED = range(6)


@kernel
def count_rollout(
    valid: np.ndarray,
    reward: np.ndarray,
    params: np.ndarray,
    action: np.ndarray,
    mask: np.ndarray,
    sizes: np.ndarray,
    sampled: int,
    forbidden: float,
    counts: np.ndarray,
    found: np.ndarray,
) -> None:
    """Write what the real transitions of a rollout come to into found [FOUND], float64.

    KEPT: how many there are. SMALLEST, LARGEST, TOTAL: of the rewards; TOTAL is not finite where a reward is not.
    LOGIT_NORM: mean distance of the logits of allowed actions from their mean, over about `sampled` rows.
    TOP_SHARE: share of the action that was taken most often, of the component where it is smallest; a row with one
    allowed action says nothing; NaN where no row says anything. ENTROPY: mean over rows of the log of the number of
    allowed actions, components summed; NaN without a mask.

    valid bool, reward float32 [n]; params float32 [n, P]: logits of categorical actions, those that the mask forbids at
    `forbidden` or below; action int64 [n, C]; mask bool [n, P], or [0, P] for none; sizes int64 [C] with the sum P:
    choices of each component, none of them where actions are not categorical; counts int64 [P]: scratch.
    """
    rows, components = reward.shape[0], sizes.shape[0]
    masked = mask.shape[0] > 0
    kept, total = 0, 0.0
    low, high = np.inf, -np.inf
    for i in range(rows):
        if valid[i]:
            value = np.float64(reward[i])
            low, high = min(low, value), max(high, value)
            total += value
            kept += 1
    for k in range(counts.shape[0]):
        counts[k] = 0
    stride = max(1, kept // sampled)
    place, looked, choosing = 0, 0, 0
    distance, logs = 0.0, 0.0
    for i in range(rows):
        if components == 0 or not valid[i]:
            continue
        looks = place % stride == 0
        place += 1
        first, square, chooses = 0, 0.0, True
        for c in range(components):
            end = first + sizes[c]
            if masked:
                allowed = 0
                for k in range(first, end):
                    allowed += mask[i, k]
                logs += np.log(np.float64(allowed))
                chooses = components > 1 or allowed > 1
            if chooses and 0 <= action[i, c] < sizes[c]:  # memory beyond must not be written, whatever is logged
                counts[first + action[i, c]] += 1
            if looks:
                number, mean = 0, 0.0
                for k in range(first, end):
                    if not params[i, k] <= forbidden:  # NaN counts, and is seen in the result
                        number += 1
                        mean += params[i, k]
                mean /= max(number, 1)
                for k in range(first, end):
                    if not params[i, k] <= forbidden:
                        square += (params[i, k] - mean) ** 2
            first = end
        choosing += chooses
        if looks:
            distance += np.sqrt(square)
            looked += 1
    share, first = np.inf, 0
    for c in range(components):
        most = 0
        for k in range(first, first + sizes[c]):
            most = max(most, counts[k])
        share = min(share, most / max(choosing, 1))
        first += sizes[c]
    found[KEPT], found[SMALLEST], found[LARGEST], found[TOTAL] = kept, low, high, total
    found[LOGIT_NORM] = distance / looked if looked > 0 else np.nan
    found[TOP_SHARE] = share if choosing > 0 else np.nan
    found[ENTROPY] = logs / place if masked else np.nan


@kernel
def follow_moments(
    mean: np.ndarray,
    variance: np.ndarray,
    columns: np.ndarray,
    new_mean: np.ndarray,
    new_variance: np.ndarray,
    rate: float,
    smallest: float,
    found: np.ndarray,
) -> None:
    """Compare the moments of a rollout with moving ones, then move those; write into found [FOLLOWED], float64.

    SHIFT: largest distance of the means, in moving standard deviations. WIDEST, NARROWEST: largest and smallest ratio
    of standard deviations, new over moving. COMPARED: of how many entries; one whose standard deviation is at most
    `smallest` of its size counts as constant.

    mean, variance float64 [E] move; columns int64 [E]: where these entries stand in new_mean, new_variance float64 [D].
    """
    found[:] = 0.0
    total = 0.0
    for i in range(len(columns)):
        total += new_variance[columns[i]] + np.abs(new_mean[columns[i]])
    if not np.isfinite(total):
        return
    compared, largest, widest, narrowest = 0, 0.0, 0.0, np.inf
    for i in range(len(columns)):
        shift, now = new_mean[columns[i]] - mean[i], new_variance[columns[i]]
        spread = np.sqrt(variance[i])
        if not spread <= smallest * (np.abs(mean[i]) + 1e-12):
            compared += 1
            largest = max(largest, np.abs(shift / spread))
            ratio = np.sqrt(now) / spread
            widest, narrowest = max(widest, ratio), min(narrowest, ratio)
        variance[i] = (1 - rate) * variance[i] + rate * now + rate * (1 - rate) * (shift * shift)
        mean[i] += rate * shift
    found[ABSORBED], found[COMPARED] = 1.0, compared
    found[SHIFT], found[WIDEST], found[NARROWEST] = largest, widest, narrowest
