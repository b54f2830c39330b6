"""All loss terms of a block of rows and their gradient by the network's outputs, in one pass.

The plain twin is `tailwise.learner.losses.compute_losses`. A policy has few outputs, so its part is computed in
float64; the critics' part is `particle_loss`.
"""

from __future__ import annotations

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.kernels.memory import clear
from tailwise.kernels.particle_loss import particle_loss
from tailwise.kernels.rows import (
    CLAMPED,
    CLIPPED,
    COUNT,
    CROSSINGS,
    DISAGREEMENT,
    DUAL,
    ENTROPY,
    ENTROPY_MAX,
    ENTROPY_MIN,
    EXCLUDED,
    KL,
    LOG_RATIO_MAX,
    LOGIT_RANGE,
    MEAN_GAP,
    POLICY,
    RATIO_MAX,
    SUMS,
    Draws,
    Rows,
    Weights,
)
from tailwise.learner.surrogate import LOG_RATIO_LIMIT

_FORBIDDEN = float(np.finfo(np.float32).min)  # the logit of a masked action
_HALF_LOG_2PI = 0.9189385332046727
_LN_2 = 0.6931471805599453
_LIMIT = float(LOG_RATIO_LIMIT)


@kernel
def _surrogate(log_prob: float, old: float, advantage: float, clip: float, dual_clip: float, sums: np.ndarray) -> float:
    """Add the clipped surrogate of a row to the sums; returns its derivative by the new log-probability."""
    raw = log_prob - old
    finite = np.isfinite(raw)
    bounded = min(max(raw, -_LIMIT), _LIMIT) if finite else 0.0
    ratio = np.exp(bounded)
    low, high = 1.0 - clip, 1.0 + clip
    plain, clipped = ratio * advantage, min(max(ratio, low), high) * advantage
    dual = advantage < 0.0 and ratio > dual_clip
    objective = dual_clip * advantage if dual else min(plain, clipped)
    clip_active = (advantage > 0.0 and ratio > high) or (advantage < 0.0 and ratio < low)
    clamped = finite and abs(raw) > _LIMIT
    sums[LOG_RATIO_MAX] = max(sums[LOG_RATIO_MAX], abs(raw))
    sums[RATIO_MAX] = max(sums[RATIO_MAX], ratio)
    sums[CLIPPED] += clip_active
    sums[DUAL] += dual
    sums[CLAMPED] += clamped
    sums[EXCLUDED] += not finite
    if not finite:
        return 0.0
    sums[POLICY] -= objective
    if clip_active or dual or clamped:
        return 0.0
    return -plain


@kernel
def _note(entropy: float, kl: float, sums: np.ndarray) -> None:
    sums[KL] += kl
    sums[ENTROPY] += entropy
    sums[ENTROPY_MAX] = max(sums[ENTROPY_MAX], entropy)
    sums[ENTROPY_MIN] = min(sums[ENTROPY_MIN], entropy)


@kernel
def log_softmax(logits: np.ndarray, mask: np.ndarray, log_p: np.ndarray, p: np.ndarray) -> None:
    """log_p and p [K] float64 of logits [K]; mask [K] (False: forbidden), or [0] where everything is allowed."""
    peak = -np.inf
    for k in range(logits.shape[0]):
        forbidden = mask.shape[0] > 0 and not mask[k]
        log_p[k] = _FORBIDDEN if forbidden else np.float64(logits[k])
        peak = max(peak, log_p[k])
    total = 0.0
    for k in range(logits.shape[0]):
        p[k] = np.exp(log_p[k] - peak)
        total += p[k]
    shift, share = peak + np.log(total), 1.0 / total
    for k in range(logits.shape[0]):
        log_p[k] -= shift
        p[k] *= share


@kernel
def log_jacobian(x: float) -> float:
    """ln of the derivative of tanh at x, written so that it neither overflows nor loses digits for large |x|."""
    v = -2.0 * x
    return 2.0 * (_LN_2 - x - max(v, 0.0) - np.log1p(np.exp(-abs(v))))


# Rows take numbers and slices instead of `Rows` and `Weights`: each array that a kernel takes is compiled into it.


@kernel
def _discrete(
    logits: np.ndarray, mask: np.ndarray, old: np.ndarray, chosen: int, log_prob: float, advantage: float, clip: float,
    dual_clip: float, bonus: float, per_row: float, work: np.ndarray, grad: np.ndarray, sums: np.ndarray,
) -> None:  # fmt: skip
    """Policy terms of a row with logits [K]; old [2K]: log-probabilities and probabilities that acted; grad [K].

    work: float64 [2, K]."""
    choices, log_p, p = logits.shape[0], work[0], work[1]
    log_softmax(logits, mask, log_p, p)
    entropy, kl, low, high = 0.0, 0.0, np.inf, -np.inf
    for k in range(choices):
        if p[k] > 0.0:
            entropy -= p[k] * log_p[k]
        before = np.float64(old[choices + k])
        if before > 0.0:
            kl += before * (np.float64(old[k]) - log_p[k])
        allowed = mask.shape[0] == 0 or mask[k]
        high = max(high, np.float64(logits[k]) if allowed else _FORBIDDEN)
        if allowed:
            low = min(low, np.float64(logits[k]))
    slope = per_row * _surrogate(log_p[chosen], log_prob, advantage, clip, dual_clip, sums)
    _note(entropy, kl, sums)
    sums[LOGIT_RANGE] += high - low
    for k in range(choices):
        g = -slope * p[k]
        if p[k] > 0.0:
            g += bonus * p[k] * (log_p[k] + entropy)
        if k == chosen:
            g += slope
        grad[k] = g if mask.shape[0] == 0 or mask[k] else 0.0


@kernel
def _box(
    mean: np.ndarray, log_std: np.ndarray, old: np.ndarray, action: np.ndarray, noise: np.ndarray, log_prob: float,
    advantage: float, clip: float, dual_clip: float, bonus: float, per_row: float, grad: np.ndarray,
    log_std_grad: np.ndarray, sums: np.ndarray,
) -> None:  # fmt: skip
    """Policy terms of a row of a Gaussian with means [A]; old [2A]: means and ln(std) that acted; grad [A].

    noise: [0], or normals [A] of a squashed policy: its entropy is that of the Gaussian plus the mean of ln tanh',
    which one sample x = mean + std * noise estimates, and whose gradient goes through x."""
    size, squashed = mean.shape[0], noise.shape[0] > 0
    new, entropy, kl = 0.0, 0.0, 0.0
    for a in range(size):
        spread = np.float64(log_std[a])
        z = (np.float64(action[a]) - np.float64(mean[a])) * np.exp(-spread)
        new += -0.5 * z * z - spread - _HALF_LOG_2PI
        entropy += spread + _HALF_LOG_2PI
        if squashed:
            n = np.float64(noise[a])
            new -= log_jacobian(np.float64(action[a]))
            entropy += 0.5 * n * n + log_jacobian(np.float64(mean[a]) + np.exp(spread) * n)
        else:
            entropy += 0.5
        twice = 2.0 * (np.float64(old[size + a]) - spread)
        moved = (np.float64(old[a]) - np.float64(mean[a])) * np.exp(-spread)
        kl += 0.5 * (np.expm1(twice) - twice + moved * moved)
    slope = per_row * _surrogate(new, log_prob, advantage, clip, dual_clip, sums)
    _note(entropy, kl, sums)
    for a in range(size):
        scale = np.exp(-np.float64(log_std[a]))
        z = (np.float64(action[a]) - np.float64(mean[a])) * scale
        by_mean, by_spread = slope * z * scale, slope * (z * z - 1.0) - bonus
        if squashed:
            moved = np.float64(noise[a]) / scale
            pull = 2.0 * bonus * np.tanh(np.float64(mean[a]) + moved)
            by_mean += pull
            by_spread += pull * moved
        grad[a] = by_mean
        log_std_grad[a] += by_spread


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
def _critics(
    out: np.ndarray, critics: int, quantiles: int, particles: np.ndarray, target: float, kappa: float, per_row: float,
    lean: np.ndarray, loss: np.ndarray, grad: np.ndarray, sums: np.ndarray,
) -> None:  # fmt: skip
    """Critic terms of a row; out and grad [C*(1+N)]: mean 0, quantiles 0, quantiles 1, mean 1. loss: float32 [C*N]."""
    laws = critics * quantiles
    law = out[1 : 1 + laws]
    weight = np.float32(per_row / quantiles)
    particle_loss(law, particles, lean, np.float32(kappa), weight, loss, grad[1 : 1 + laws])
    lowest, highest = np.inf, -np.inf
    for c in range(critics):
        total, summed, crossings = _law_numbers(law, loss, c * quantiles, (c + 1) * quantiles)
        at = 0 if c == 0 else 1 + laws
        mean = np.float64(out[at])
        error = mean - target
        grad[at] = 2.0 * per_row * error
        sums[SUMS + 2 * c] += error * error
        sums[SUMS + 2 * c + 1] += total / quantiles
        sums[CROSSINGS] += crossings
        sums[MEAN_GAP] += summed / quantiles - mean
        lowest, highest = min(lowest, mean), max(highest, mean)
    sums[DISAGREEMENT] += highest - lowest


@kernel(inline=True)
def losses(
    index: np.ndarray, rows: Rows, draws: Draws, weights: Weights, shape: tuple[int, int, int],
    log_std: np.ndarray, work: np.ndarray, loss: np.ndarray, out: np.ndarray, grad: np.ndarray,
    log_std_grad: np.ndarray, sums: np.ndarray,
) -> None:  # fmt: skip
    """Gradient of the whole loss by the outputs of a block, and the sums that describe it.

    index int64 [n]: flat rows of the rollout; shape: (actor outputs, C, N); log_std [A] of a Box policy, [0] for
    Discrete; out, grad: flat, n rows of outputs. Rows that are no transition get gradient 0. Scratch: work float64
    [2, K], loss float32 [C*N].
    """
    actor, critics, quantiles = shape
    width = actor + critics * (1 + quantiles)
    clip, dual_clip, per_row = weights.clip, weights.dual_clip, weights.per_row
    bonus, value = weights.entropy * per_row, weights.value * per_row
    everything, exact = np.empty(0, dtype=np.bool_), np.empty(0, dtype=np.float32)
    for i in range(index.shape[0]):
        r = index[i]
        at = i * width
        if not rows.valid[r]:
            clear(grad[at : at + width])
            continue
        sums[COUNT] += 1.0
        policy, back = out[at : at + actor], grad[at : at + actor]
        old, log_prob, advantage = rows.old[r], np.float64(rows.scalars[r, 0]), np.float64(rows.scalars[r, 1])
        if log_std.shape[0]:
            noise = draws.noise[r] if draws.noise.shape[0] > 0 else exact
            _box(
                policy, log_std, old, rows.action[r], noise, log_prob, advantage, clip, dual_clip, bonus, per_row,
                back, log_std_grad, sums,
            )  # fmt: skip
        else:
            mask = rows.mask[r] if rows.mask.shape[0] > 0 else everything
            choice = rows.choice[r]
            _discrete(policy, mask, old, choice, log_prob, advantage, clip, dual_clip, bonus, per_row, work, back, sums)
        target = np.float64(rows.scalars[r, 2])
        _critics(
            out[at + actor : at + width], critics, quantiles, draws.particles[r], target, weights.kappa, value,
            weights.lean, loss, grad[at + actor : at + width], sums,
        )  # fmt: skip
