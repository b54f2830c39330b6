"""The policy's loss terms of a block of rows and their gradient by the actor's outputs.

The plain twins are `tailwise.learner.losses` and the laws of `tailwise.model.distributions`. A policy has few
outputs, so everything after probabilities, log-probabilities and ratios, which are float32, is float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from tailwise.core.compiled import kernel
from tailwise.fused.layout import Network
from tailwise.fused.rows import (
    BOUNDS,
    CLAMPED,
    CLIPPED,
    COUNT,
    DUAL,
    ENTROPY,
    ENTROPY_MAX,
    ENTROPY_MIN,
    INFINITE,
    KL,
    LOG_RATIO_MAX,
    LOGIT_RANGE,
    NAN,
    POLICY,
    PRIOR,
    RATIO_MAX,
    Draws,
    Rows,
    Scratch,
    Weights,
)
from tailwise.fused.vectors import Vectors, address
from tailwise.learner.losses import LOG_RATIO_LIMIT

FORBIDDEN = np.float32(np.finfo(np.float32).min)  # the logit of a masked action
_LOWEST = np.float32(-np.inf)
HALF_LOG_2PI = 0.9189385332046727
_LN_2 = 0.6931471805599453
_LIMIT = float(LOG_RATIO_LIMIT)


@kernel(inline=True)
def _bounded(raw: float) -> float:
    """A log-ratio that can be exponentiated; 0 where it is not finite."""
    return min(max(raw, -_LIMIT), _LIMIT) if np.isfinite(raw) else 0.0


@kernel(inline=True)
def surrogate(raw: float, ratio: float, advantage: float, weights: Weights, sums: np.ndarray) -> float:
    """Add the clipped surrogate of a row to the sums; returns its derivative by the new log-probability.

    raw: new log-probability minus the old one; ratio: exp(_bounded(raw)).
    """
    finite, dual_clip = np.isfinite(raw), weights.dual_clip
    low, high = 1.0 - weights.clip, 1.0 + weights.clip
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
    sums[NAN] += np.isnan(raw)
    sums[INFINITE] += np.isinf(raw)
    if not finite:
        return 0.0
    sums[POLICY] -= objective
    if clip_active or dual or clamped:
        return 0.0
    return -plain


@kernel(inline=True)
def _add_entropy_and_kl(entropies: float, divergence: float, largest: float, smallest: float, sums: np.ndarray) -> None:
    sums[KL] += divergence
    sums[ENTROPY] += entropies
    sums[ENTROPY_MAX] = max(sums[ENTROPY_MAX], largest)
    sums[ENTROPY_MIN] = min(sums[ENTROPY_MIN], smallest)


def _each(function: Callable[[Vectors, Any], Any]) -> Any:
    """A function for kernels: in place `function` of so many floats at an address."""

    @intrinsic
    def each(context: Any, numbers: Any, count: Any) -> Any:
        return types.void(types.intp, types.intp), generate

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        numbers, count = values
        v = Vectors(builder)

        def one(places: list[Any], mask: Any) -> None:
            place = v.at(numbers, places[0])
            v.store(function(v, v.load(place, mask)), place, mask)

        v.over(count, one)
        return context.get_dummy_value()

    return each


_exp, _log = _each(Vectors.exp), _each(Vectors.log)


@kernel
def log_softmax(
    logits: np.ndarray, lead: int, index: np.ndarray, choices: int, mask: np.ndarray, work: np.ndarray
) -> None:
    """work [3, at least n * K] float32: log-probabilities, probabilities, and the logarithms of their sums before.

    logits: of n rows, flat, `lead` apart, of which the first K count; mask bool [R, K] (False: forbidden) whose rows
    are index [n], or [0, 0] where everything is allowed.
    """
    masked, rows = mask.shape[0] > 0, index.shape[0]
    log_p, p, shift = work[0], work[1], work[2]
    for i in range(rows):
        at, here, peak = i * lead, i * choices, _LOWEST
        for k in range(choices):
            logit = logits[at + k] if not masked or mask[index[i], k] else FORBIDDEN
            log_p[here + k] = logit
            peak = peak if peak >= logit else logit  # written so that NaN passes
        for k in range(choices):
            below = log_p[here + k] - peak
            log_p[here + k], p[here + k] = below, below
    _exp(address(p), rows * choices)
    for i in range(rows):
        here, total = i * choices, 0.0
        for k in range(choices):
            total += np.float64(p[here + k])
        share, shift[i] = np.float32(1.0 / total), total
        for k in range(choices):
            p[here + k] *= share
    _log(address(shift), rows)
    for i in range(rows):
        here = i * choices
        for k in range(choices):
            log_p[here + k] -= shift[i]


@kernel
def log_jacobian(x: float) -> float:
    """ln of the derivative of tanh at x, written so that it neither overflows nor loses digits for large |x|."""
    v = -2.0 * x
    return 2.0 * (_LN_2 - x - max(v, 0.0) - np.log1p(np.exp(-abs(v))))


@kernel(inline=True)
def discrete_rows(network: Network, rows: Rows, weights: Weights, index: np.ndarray, scratch: Scratch) -> None:
    """Add the policy terms of the valid rows `index` [n] of a Discrete policy with K choices to the scratch's sums;
    write their gradient by the logits, the first K numbers of each row of the outputs, to its `back`."""
    n, lead, work, sums = index.shape[0], network.output_width, scratch.policy, scratch.sums
    out, grad = scratch.work[network.output * n :], scratch.back[network.output * n :]
    per_row, bonus = weights.per_row, weights.entropy * weights.per_row
    prior, pull = weights.prior_law, weights.prior * weights.per_row if weights.prior_law.shape[0] > 0 else 0.0
    old, mask = rows.old, rows.mask
    choices, masked = old.shape[1] // 2, mask.shape[0] > 0
    log_softmax(out, lead, index, choices, mask, work)
    ratios = work[2]
    for i in range(n):
        r, here = index[i], i * choices
        raw = np.float64(work[0, here + rows.choice[r]]) - np.float64(rows.scalars[r, 0]) if rows.valid[r] else 0.0
        ratios[i] = _bounded(raw)
    _exp(address(ratios), n)
    count, entropies, divergence, ranges, largest, smallest = 0, 0.0, 0.0, 0.0, -np.inf, np.inf
    for i in range(n):
        r = index[i]
        if not rows.valid[r]:
            continue
        count += 1
        at, here, action = i * lead, i * choices, rows.choice[r]
        log_p, p = work[0, here : here + choices], work[1, here : here + choices]
        entropy, kl, low, high = 0.0, 0.0, np.inf, -np.inf
        for k in range(choices):
            if p[k] > 0.0:
                entropy -= np.float64(p[k]) * np.float64(log_p[k])
            before = np.float64(old[r, choices + k])
            if before > 0.0:
                kl += before * (np.float64(old[r, k]) - np.float64(log_p[k]))
            usable = not masked or mask[r, k]
            logit = np.float64(out[at + k])
            high = max(high, logit if usable else np.float64(FORBIDDEN))
            if usable:
                low = min(low, logit)
        raw = np.float64(log_p[action]) - np.float64(rows.scalars[r, 0])
        slope = per_row * surrogate(raw, np.float64(ratios[i]), np.float64(rows.scalars[r, 1]), weights, sums)
        away, allowed = 0.0, 0.0  # KL to the prior, and the prior's share of what is allowed
        if prior.shape[0] > 0:
            for k in range(choices):
                if not masked or mask[r, k]:
                    allowed += math.exp(prior[k])
                if p[k] > 0.0:
                    away += np.float64(p[k]) * (np.float64(log_p[k]) - prior[k])
            sums[PRIOR] += away + math.log(allowed)
        for k in range(choices):
            share = np.float64(p[k])
            g = -slope * share
            if share > 0.0:
                g += bonus * share * (np.float64(log_p[k]) + entropy)
                if pull > 0.0:
                    g += pull * share * (np.float64(log_p[k]) - prior[k] - away)
            if k == action:
                g += slope
            grad[at + k] = g if not masked or mask[r, k] else 0.0
        divergence += kl
        entropies += entropy
        ranges += high - low
        largest, smallest = max(largest, entropy), min(smallest, entropy)
    sums[COUNT] += count
    sums[LOGIT_RANGE] += ranges
    _add_entropy_and_kl(entropies, divergence, largest, smallest, sums)


@kernel(inline=True)
def box_rows(
    network: Network,
    rows: Rows,
    draws: Draws,
    weights: Weights,
    log_std: np.ndarray,
    index: np.ndarray,
    scratch: Scratch,
) -> None:
    """Add the policy terms of the valid rows `index` [n] of a Gaussian with A components and ln(std) log_std [A] to the
    scratch's sums; write their gradient by the means, the first A numbers of each row of the outputs, to its `back`.

    scratch.log_std_grad grows. The entropy of a squashed policy is that of the Gaussian plus the mean of ln tanh',
    which one sample x = mean + std * noise estimates, and whose gradient goes through x.
    """
    n, lead, sums = index.shape[0], network.output_width, scratch.sums
    out, grad = scratch.work[network.output * n :], scratch.back[network.output * n :]
    per_row, bonus, bounds = weights.per_row, weights.entropy * weights.per_row, weights.bounds * weights.per_row
    size, squashed, old = log_std.shape[0], draws.noise.shape[0] > 0, rows.old
    prior, pull = weights.prior_law, weights.prior * weights.per_row
    for i in range(n):
        r = index[i]
        if not rows.valid[r]:
            continue
        at = i * lead
        sums[COUNT] += 1.0
        new, entropy, kl = 0.0, 0.0, 0.0
        for a in range(size):
            spread, mean, done = np.float64(log_std[a]), np.float64(out[at + a]), np.float64(rows.action[r, a])
            z = (done - mean) * np.exp(-spread)
            new += -0.5 * z * z - spread - HALF_LOG_2PI
            entropy += spread + HALF_LOG_2PI
            if squashed:
                z = np.float64(draws.noise[r, a])
                new -= log_jacobian(done)
                entropy += 0.5 * z * z + log_jacobian(mean + np.exp(spread) * z)
            else:
                entropy += 0.5
            twice = 2.0 * (np.float64(old[r, size + a]) - spread)
            moved = (np.float64(old[r, a]) - mean) * np.exp(-spread)
            kl += 0.5 * (np.expm1(twice) - twice + moved * moved)
        raw = new - np.float64(rows.scalars[r, 0])
        slope = per_row * surrogate(raw, np.exp(_bounded(raw)), np.float64(rows.scalars[r, 1]), weights, sums)
        _add_entropy_and_kl(entropy, kl, entropy, entropy, sums)
        for a in range(size):
            scale, mean = np.exp(-np.float64(log_std[a])), np.float64(out[at + a])
            z = (np.float64(rows.action[r, a]) - mean) * scale
            by_mean, by_spread = slope * z * scale, slope * (z * z - 1.0) - bonus
            if squashed:
                moved = np.float64(draws.noise[r, a]) / scale
                outwards = 2.0 * bonus * np.tanh(mean + moved)
                by_mean += outwards
                by_spread += outwards * moved
            if prior.shape[0] > 0:
                narrow, width = 1.0 / np.exp(prior[size + a]), np.exp(np.float64(log_std[a]) - prior[size + a])
                gap = (mean - prior[a]) * narrow
                sums[PRIOR] += 0.5 * (width * width + gap * gap - 1.0) - np.log(width)
                by_mean += pull * gap * narrow
                by_spread += pull * (width * width - 1.0)
            over = max(abs(mean) - 1.0, 0.0)
            sums[BOUNDS] += over * over
            grad[at + a] = by_mean + 2.0 * bounds * math.copysign(over, mean)
            scratch.log_std_grad[a] += by_spread
