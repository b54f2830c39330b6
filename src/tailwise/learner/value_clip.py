"""Value clipping for distributional critics: keep a prediction near the one that the rollout was made with.

Modes, for a law with mean m and standard deviation s, around its *own* old law (m_old, s_old):

    disable            nothing is moved
    mean_only          theta + (m_c - m),                  m_c = m_old + clamp(m - m_old, -range, range)
    mean_and_variance  m_c + (theta - m) * min(1, factor * max(s_old, 0.05) / s)
    per_quantile       q_old + clamp(q - q_old, -range, range), quantile by quantile

`range` is in units of the return's standard deviation, like the predictions. Targets are never clipped. The loss is the
larger of the unclipped and the clipped one, so that clipping can only remove the incentive to move further. The bounds
hold for the clipped branch, not for the trained output.

Order of the quantiles. Corrections are computed between *sorted* old and new quantiles (otherwise per_quantile would
compare quantiles of different rank wherever predictions cross) and are given back to each quantile by its rank. Both
branches thus keep the order of the prediction, index i with its own tau_i: what crossing costs, it costs in both, so it
can neither hide the clip nor be mistaken for it; and with nothing clipped the branches are the same bit for bit.

The moves are written as `theta + correction` with a correction that is exactly 0 when nothing is clipped. Gradients
flow through the correction: a mean at its bound has no gradient left in the clipped branch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from tailwise.core.errors import ConfigError
from tailwise.learner.categorical import project
from tailwise.learner.quantile import quantile_huber_loss
from tailwise.learner.returns import require_shape

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
