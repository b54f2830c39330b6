"""Losses of critics as pure functions: quantile regression, cross-entropy on atoms, and the value clips of both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tailwise.core.errors import ConfigError
from tailwise.learner.returns import require_shape
from tailwise.model.config import quantile_midpoints

_CACHE_BLOCK = 2**15  # numbers per block: five blocks of float32 are half a megabyte
_IN_A_ROW = 16  # particles


def midpoints(n: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
    """The levels tau_i = (i + 0.5) / N that the N quantiles stand for. Returns [N]."""
    if n < 1:
        raise ConfigError(f"The number of quantiles is {n}, expected at least 1.")
    return _midpoints(n, torch.get_default_dtype() if dtype is None else dtype, device)


@cache
def _midpoints(n: int, dtype: torch.dtype, device: torch.device | None) -> Tensor:
    """To be read only."""
    return quantile_midpoints(n).to(dtype=dtype, device=device)


def quantile_huber_loss(theta: Tensor, target: Tensor, *, kappa: float) -> Tensor:
    """Loss of each predicted quantile against M target particles; the mean over the particles only.

        u_ij = y_j - theta_i,   rho_ij = |tau_i - 1{u_ij < 0}| * L_kappa(u_ij) / kappa

    with the Huber function L_k(u) = u^2/2 for |u| <= k, else k(|u| - k/2). Divided by kappa, the slope outside kappa is
    that of plain quantile regression, 1. A quantile with a high tau pays more for being too low (u > 0); the inverted
    weight would turn the order of the quantiles round and report the best tail as the worst.

    theta: [..., N], theta_i belongs to tau_i. target: [..., M], the same leading dimensions, without gradient.
    kappa: > 0, in the units of theta (normalised return); inside it the minimiser blends quantile and expectile.
    Returns [..., N], not yet averaged over i, because the `per_quantile` value clip compares each i on its own.
    Memory: a few times N numbers per sample, whatever M is; loss and gradient come from one pass over the particles.
    """
    if not (math.isfinite(kappa) and kappa > 0.0):
        raise ConfigError(f"kappa is {kappa}, expected a finite number above 0, typically 0.02.")
    require_shape("target", target, (*theta.shape[:-1], target.shape[-1]))
    loss: Tensor = _QuantileHuber.apply(theta, target.detach(), kappa)  # type: ignore[no-untyped-call]
    return loss


class _QuantileHuber(torch.autograd.Function):
    """`quantile_huber_loss` with its gradient written out; the broadcast form that autograd derives is its test twin.

    With c = u clamped to +-kappa and w = 2 tau - 1, the weighted slope of the Huber function is (c + w |c|) / 2, and
    the loss is that times u - c/2, both branches without squaring a large error. Autograd would keep several
    [..., N, M] tensors alive; here rows are taken as many at a time as the cache holds, and their particles one by one.
    """

    @staticmethod
    def forward(ctx: Any, theta: Tensor, target: Tensor, kappa: float) -> Tensor:
        count = theta.shape[-1]
        weight = 2.0 * midpoints(count, dtype=theta.dtype, device=theta.device) - 1.0
        rows, particles = theta.reshape(-1, count), target.reshape(-1, target.shape[-1])
        loss, slope = torch.empty_like(rows), torch.empty_like(rows)
        together = max(1, _CACHE_BLOCK // count)
        parts = (torch.split(part, together) for part in (rows, particles, loss, slope))
        for some, own, some_loss, some_slope in zip(*parts, strict=True):
            sums = _sums_over_particles(some, own, weight, kappa)
            some_loss.copy_(sums[0])
            some_slope.copy_(sums[1])
        scale = 1.0 / (2.0 * kappa * target.shape[-1])
        ctx.save_for_backward(slope.mul_(scale).view_as(theta))
        return loss.mul_(scale).view_as(theta)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope, None, None


def _sums_over_particles(theta: Tensor, particles: Tensor, weight: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    """2 kappa times the losses of theta [n, N] on particles [n, M], and their slopes, both summed over M. [n, N] each.

    Many particles are summed by halves: one after the other, rounding would grow with their number.
    """
    if particles.shape[1] > _IN_A_ROW:
        (loss, slope), others = (
            _sums_over_particles(theta, half, weight, kappa) for half in particles.tensor_split(2, dim=1)
        )
        return loss.add_(others[0]), slope.add_(others[1])
    loss, slope = torch.zeros_like(theta), torch.zeros_like(theta)
    error, inner, pull = (torch.empty_like(theta) for _ in range(3))
    for particle in particles.unsqueeze(-1).unbind(1):
        torch.sub(particle, theta, out=error)
        torch.clamp(error, -kappa, kappa, out=inner)
        torch.abs(inner, out=pull)
        torch.addcmul(inner, weight, pull, out=pull)
        slope.sub_(pull)
        loss.addcmul_(pull, error.sub_(inner, alpha=0.5))
    return loss, slope


def quantile_loss(theta: Tensor, target: Tensor, *, kappa: float) -> Tensor:
    """Loss per sample: the mean of `quantile_huber_loss` over the quantiles too. Returns [...]."""
    return quantile_huber_loss(theta, target, kappa=kappa).mean(-1)


def check_atoms(atoms: Tensor) -> None:
    """Refuse atoms [N] that are not at least two, ascending and evenly spaced: the projection divides by one step."""
    if atoms.ndim != 1 or atoms.shape[0] < 2:
        raise ConfigError(f"The atoms have shape {tuple(atoms.shape)}, expected [N] with N of at least 2.")
    gaps = atoms.diff()
    span = float(atoms[-1] - atoms[0])
    even = span / (atoms.shape[0] - 1)
    # Rounding of an atom is relative to its own size, not to the gap.
    rounding = 4.0 * torch.finfo(atoms.dtype).eps * float(atoms.abs().max())
    if not (span > 0.0 and float((gaps - even).abs().max()) <= rounding + 1e-4 * even):
        raise ConfigError(
            f"The atoms from {float(atoms[0])} to {float(atoms[-1])} are not ascending with equal gaps (smallest gap "
            f"{float(gaps.min())}, largest {float(gaps.max())}); build them with torch.linspace."
        )


def project(target_values: Tensor, target_weights: Tensor | None, atoms: Tensor) -> Tensor:
    """Project a law of weighted points onto the atoms: m_i = sum_j clip(1 - |clip(y_j) - z_i| / dz, 0, 1) p_j.

    Each point is clipped into the support and its weight shared between its two neighbouring atoms in proportion to
    nearness, which keeps the mean of points inside the support. A point exactly on an atom gives it all its weight (the
    usual floor/ceil form loses it). Differentiable in the values and the weights.

    target_values: [..., M]. target_weights: [..., M], or None for 1/M each. atoms: [N], ascending, evenly spaced.
    Returns [..., N], with the total weight of the input.
    """
    check_atoms(atoms)
    count = atoms.shape[0]
    if target_weights is None:
        target_weights = torch.full_like(target_values, 1.0 / target_values.shape[-1])
    require_shape("target_weights", target_weights, tuple(target_values.shape))
    gap = (atoms[-1] - atoms[0]) / (count - 1)
    position = ((target_values - atoms[0]) / gap).clamp(0, count - 1)
    # The clamp on integers keeps the index legal for a NaN value, whose NaN then shows in its own row of the result.
    left = position.detach().floor().long().clamp(0, count - 2)
    fraction = position - left
    projected = target_values.new_zeros((*target_values.shape[:-1], count))
    projected = projected.scatter_add(-1, left, target_weights * (1.0 - fraction))
    return projected.scatter_add(-1, left + 1, target_weights * fraction)


def out_of_support_fraction(values: Tensor, atoms: Tensor) -> Tensor:
    """Share of the values [...] that the projection has to clip (NaN counts too). Returns a scalar tensor."""
    inside = (values >= atoms[0]) & (values <= atoms[-1])
    return (~inside).to(values.dtype).mean()


def cross_entropy(logits: Tensor, target_probs: Tensor) -> Tensor:
    """Cross-entropy per sample in units of log(N): a uniform prediction costs exactly 1 for any N.

    logits: [..., N] (log-probabilities are logits too). target_probs: [..., N], without gradient. Returns [...].
    """
    require_shape("target_probs", target_probs, tuple(logits.shape))
    log_probs = torch.log_softmax(logits, dim=-1)
    return -(target_probs.detach() * log_probs).sum(-1) / math.log(logits.shape[-1])


ClipMode = Literal["disable", "mean_only", "mean_and_variance", "per_quantile"]

# A law that has collapsed to a point could otherwise never widen again: factor * 0 = 0. In return-std units.
STD_FLOOR = 0.05
# The projection makes exact zeros, where the cross-entropy would be infinite.
UNIFORM_MIX = 1e-6


@dataclass(frozen=True)
class ClippedLoss:
    """loss: [...], what to train on. loss_new, loss_clipped: [...], the two branches. active: bool [...]."""

    loss: Tensor
    loss_new: Tensor
    loss_clipped: Tensor
    active: Tensor


def _check_options(mode: str, range: float, factor: float) -> None:
    if mode not in get_args(ClipMode):
        raise ConfigError(f"The value clip mode is {mode!r}, expected one of {', '.join(get_args(ClipMode))}.")
    if mode != "disable" and not (math.isfinite(range) and range > 0.0):
        raise ConfigError(f"The value clip range is {range}, expected a finite number above 0 (in return-std units).")
    if mode == "mean_and_variance" and not (math.isfinite(factor) and factor >= 1.0):
        raise ConfigError(
            f"The value clip factor is {factor}, expected a finite number of at least 1: below 1 it would shrink even "
            "a prediction that has not changed."
        )


def _beyond(difference: Tensor, range: float) -> Tensor:
    """What has to be added so that |difference| <= range: exactly 0 inside. Same shape."""
    return difference.clamp(-range, range) - difference


def _spread_change(variance: Tensor, variance_old: Tensor, factor: float) -> Tensor:
    """min(1, factor * max(s_old, floor) / s) - 1, exactly 0 when the spread is allowed. Same shape.

    The root is taken only where the bound is exceeded: its gradient at variance 0 is infinite.
    """
    limit = factor * variance_old.sqrt().clamp(min=STD_FLOOR)
    exceeded = variance > limit.square()
    safe_variance = torch.where(exceeded, variance, torch.ones_like(variance))
    return torch.where(exceeded, limit / safe_variance.sqrt() - 1.0, torch.zeros_like(variance))


def _quantile_correction(new: Tensor, old: Tensor, mode: ClipMode, range: float, factor: float) -> Tensor:
    """What clipping adds to the sorted new quantiles. new, old: [..., N], sorted. Returns [..., N]."""
    if mode == "disable":
        return torch.zeros_like(new)
    if mode == "per_quantile":
        return _beyond(new - old, range)
    mean = new.mean(-1, keepdim=True)
    mean_old = old.mean(-1, keepdim=True)
    shift = _beyond(mean - mean_old, range).expand_as(new)
    if mode == "mean_only":
        return shift
    centred = new - mean
    variance = centred.square().mean(-1, keepdim=True)
    variance_old = (old - mean_old).square().mean(-1, keepdim=True)
    return shift + centred * _spread_change(variance, variance_old, factor)


def clip_quantiles(new: Tensor, old: Tensor, *, mode: ClipMode, range: float, factor: float = 2.0) -> Tensor:
    """The clipped branch of a quantile critic, in the order of `new`; differentiable in `new`.

    new, old: [..., N]; with twin critics [..., C, N], each critic around its own old output (the same shape is
    demanded, so that one old output cannot be broadcast over both critics). Returns [..., N].
    """
    _check_options(mode, range, factor)
    require_shape("The old quantiles", old, tuple(new.shape))
    new_sorted, order = new.sort(dim=-1)
    old_sorted = old.detach().sort(dim=-1).values
    correction = _quantile_correction(new_sorted, old_sorted, mode, range, factor)
    return new + correction.gather(-1, order.argsort(-1))


def quantile_clip_active(new: Tensor, old: Tensor, *, mode: ClipMode, range: float, factor: float = 2.0) -> Tensor:
    """Whether clipping changes the prediction of a sample. new, old: [..., N]. Returns bool [...]."""
    _check_options(mode, range, factor)
    require_shape("The old quantiles", old, tuple(new.shape))
    new_sorted = new.detach().sort(dim=-1).values
    old_sorted = old.detach().sort(dim=-1).values
    return (_quantile_correction(new_sorted, old_sorted, mode, range, factor) != 0).any(-1)


def clip_mean(new: Tensor, old: Tensor, range: float) -> Tensor:
    """The ordinary PPO clip of a scalar prediction: old + clamp(new - old, -range, range). Shapes equal."""
    _check_options("mean_only", range, 1.0)
    require_shape("The old mean", old, tuple(new.shape))
    return new + _beyond(new - old.detach(), range)


def clipped_loss(loss_new: Tensor, loss_clipped: Tensor) -> Tensor:
    """The larger loss, per element: [...] per sample and critic, or [..., N] per quantile (before the mean over i)."""
    require_shape("The clipped loss", loss_clipped, tuple(loss_new.shape))
    return torch.maximum(loss_new, loss_clipped)


def clipped_quantile_loss(
    theta: Tensor,
    old: Tensor,
    target: Tensor,
    *,
    mode: ClipMode,
    range: float,
    factor: float = 2.0,
    kappa: float,
) -> ClippedLoss:
    """Quantile loss with value clipping: the maximum stands per sample and critic, for per_quantile per quantile.

    theta, old: [..., N]. target: [..., M], the same particles whatever the clip. Returns losses [...].
    """
    per_new = quantile_huber_loss(theta, target, kappa=kappa)
    if mode == "disable":
        loss = per_new.mean(-1)
        return ClippedLoss(loss, loss.detach(), loss.detach(), torch.zeros_like(loss, dtype=torch.bool))
    per_clipped = quantile_huber_loss(
        clip_quantiles(theta, old, mode=mode, range=range, factor=factor), target, kappa=kappa
    )
    loss_new, loss_clipped = per_new.mean(-1), per_clipped.mean(-1)
    if mode == "per_quantile":
        loss = clipped_loss(per_new, per_clipped).mean(-1)
    else:
        loss = clipped_loss(loss_new, loss_clipped)
    active = quantile_clip_active(theta, old, mode=mode, range=range, factor=factor)
    return ClippedLoss(loss, loss_new.detach(), loss_clipped.detach(), active)


def _atom_correction(
    probs_new: Tensor, probs_old: Tensor, atoms: Tensor, mode: ClipMode, range: float, factor: float
) -> Tensor:
    """What clipping adds to the place of each atom. probs: [..., N]; atoms: [N]. Returns [..., N]."""
    if mode == "per_quantile":
        raise ConfigError(
            "The value clip mode per_quantile needs a quantile critic; a categorical critic moves whole atoms: choose "
            "mean_only, mean_and_variance or disable."
        )
    if mode == "disable":
        return torch.zeros_like(probs_new)
    mean = (probs_new * atoms).sum(-1, keepdim=True)
    mean_old = (probs_old * atoms).sum(-1, keepdim=True)
    shift = _beyond(mean - mean_old, range).expand_as(probs_new)
    if mode == "mean_only":
        return shift
    centred = atoms - mean
    variance = (probs_new * centred.square()).sum(-1, keepdim=True)
    variance_old = (probs_old * (atoms - mean_old).square()).sum(-1, keepdim=True)
    return shift + centred * _spread_change(variance, variance_old, factor)


def clip_categorical(
    logits_new: Tensor, probs_old: Tensor, atoms: Tensor, *, mode: ClipMode, range: float, factor: float = 2.0
) -> Tensor:
    """The clipped branch of a categorical critic as log-probabilities; differentiable in the logits.

    The atoms move as the quantiles would, the moved law is projected back onto the fixed atoms and mixed with 1e-6 of
    the uniform law. A sample that is not clipped keeps its log-probabilities exactly. Two limits of the projection: the
    variance may grow by up to dz^2/4, and mass that the move pushes out of the support stays on its edge, so that the
    bound on the mean holds only as far as the support reaches.

    logits_new, probs_old: [..., N], for twin critics [..., C, N]. atoms: [N]. Returns log-probabilities [..., N].
    """
    _check_options(mode, range, factor)
    require_shape("The old probabilities", probs_old, tuple(logits_new.shape))
    log_probs = torch.log_softmax(logits_new, dim=-1)
    probs = log_probs.exp()
    correction = _atom_correction(probs, probs_old.detach(), atoms, mode, range, factor)
    if mode == "disable":
        return log_probs
    moved = project(atoms + correction, probs, atoms)
    mixed = (1.0 - UNIFORM_MIX) * moved + UNIFORM_MIX / atoms.shape[0]
    active = (correction != 0).any(-1, keepdim=True)
    return torch.where(active, mixed.log(), log_probs)


def categorical_clip_active(
    logits_new: Tensor, probs_old: Tensor, atoms: Tensor, *, mode: ClipMode, range: float, factor: float = 2.0
) -> Tensor:
    """Whether clipping changes the prediction of a sample. logits_new, probs_old: [..., N]. Returns bool [...]."""
    _check_options(mode, range, factor)
    require_shape("The old probabilities", probs_old, tuple(logits_new.shape))
    probs = torch.softmax(logits_new.detach(), dim=-1)
    return (_atom_correction(probs, probs_old.detach(), atoms, mode, range, factor) != 0).any(-1)
