"""The categorical law on fixed atoms (C51, Bellemare et al. 2017, arXiv 1707.06887)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tailwise.core.errors import ConfigError
from tailwise.learner.returns import require_shape


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
