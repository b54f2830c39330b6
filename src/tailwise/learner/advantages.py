"""Normalisation of advantages, once per rollout, and the seam where risk enters them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from tailwise.core.errors import ConfigError, ShapeError
from tailwise.learner.returns import require_flags, require_shape

NormaliseMode = Literal["global", "per_env"]

# Relative to the root mean square: a constant has a standard deviation of rounding errors, in proportion to its size.
_RELATIVE_FLOOR = 1e-6


@dataclass(frozen=True)
class NormaliseReport:
    """Raw advantages over valid rows (None without any), and what was done to them.

    count: valid rows. groups: groups with at least one valid row (1 for "global", up to B for "per_env"). no_signal:
    those among them that were set to zero because their spread is rounding error. non_finite: valid rows that are NaN
    or infinite; above 0 the result of their group is NaN, so that nothing downstream can take it for a signal.
    """

    mean: float | None
    std: float | None
    minimum: float | None
    maximum: float | None
    count: int
    groups: int
    no_signal: int
    non_finite: int


def normalise(adv: Tensor, valid: Tensor, *, mode: NormaliseMode) -> tuple[Tensor, NormaliseReport]:
    """Mean 0 and (population) standard deviation 1 over the valid rows, of all or of each environment.

    Once per rollout and never per minibatch: the same sample must weigh the same however the batch is split. In float64
    and without an additive epsilon, so that rewards x 1e-4 or x 1e4 give the same result. Where std <= 1e-6 * rms there
    is no signal, and the advantages become exactly 0 rather than amplified rounding.

    adv: [T, B]. valid: bool [T, B]. Returns the advantages [T, B] in the dtype of adv, 0 in invalid rows (whatever
    stands there), and the report.
    """
    if mode not in get_args(NormaliseMode):
        raise ConfigError(f"The advantage mode is {mode!r}, expected one of {', '.join(get_args(NormaliseMode))}.")
    if adv.ndim != 2:
        raise ShapeError(f"adv has shape {tuple(adv.shape)}, expected [T, B].")
    require_flags("valid", valid, tuple(adv.shape))
    # numpy: two dozen small steps, and a tensor takes longer for each.
    raw, known = adv.detach().double().numpy(force=True), valid.numpy(force=True)
    whole = bool(known.all())
    clean = raw if whole else np.where(known, raw, 0.0)
    columns, present = (clean, known) if mode == "per_env" else (clean.reshape(-1, 1), known.reshape(-1, 1))

    count = np.count_nonzero(present, axis=0)
    divisor = np.maximum(count, 1)
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is counted below
        # In units of the largest entry, so that squares neither overflow nor vanish.
        peak = np.abs(columns).max(0, initial=0.0)
        scaled = columns / np.where(peak > 0, peak, 1.0)
        mean = scaled.sum(0) / divisor
        centred = scaled - mean if whole else np.where(present, scaled - mean, 0.0)
        std = np.sqrt(np.square(centred).sum(0) / divisor)
        no_signal = std <= _RELATIVE_FLOOR * np.sqrt(np.square(scaled).sum(0) / divisor)
        result = np.where(no_signal | ~present, 0.0, centred / np.where(no_signal, 1.0, std))

        kept = raw.reshape(-1) if whole else raw[known]
        some = len(kept) > 0
        total = float(kept.sum())
        report = NormaliseReport(
            mean=total / len(kept) if some else None,
            std=float(kept.std()) if some else None,
            minimum=float(kept.min()) if some else None,
            maximum=float(kept.max()) if some else None,
            count=len(kept),
            groups=int(np.count_nonzero(count)),
            no_signal=int(np.count_nonzero(no_signal & (count > 0))),
            non_finite=0 if math.isfinite(total) else len(kept) - int(np.count_nonzero(np.isfinite(kept))),
        )
    return torch.from_numpy(result.reshape(adv.shape)).to(adv.device, adv.dtype), report


def part_of_normalised(part: Tensor, whole: Tensor, valid: Tensor, *, mode: NormaliseMode) -> Tensor:
    """What the summand `part` contributes to `normalise(whole)`: centred, divided by the standard deviation of `whole`.

    Contributions of all summands add up to the normalised advantages, so gradients of a loss that is linear in them do
    too. part, whole: [T, B]. valid: bool [T, B]. Returns [T, B], exactly 0 where part or whole have no signal.
    """
    own, total = (normalise(values, valid, mode=mode)[0] for values in (part, whole))
    axis = 0 if mode == "per_env" else None
    count = valid.double().sum(axis, keepdim=True).clamp(min=1.0)

    def spread(values: Tensor) -> Tensor:
        clean = torch.where(valid, values.detach().double(), 0.0)
        centred = torch.where(valid, clean - clean.sum(axis, keepdim=True) / count, 0.0)
        return (centred.square().sum(axis, keepdim=True) / count).sqrt()

    signal = (total != 0).any(axis, keepdim=True) if axis is not None else (total != 0).any()
    ratio = torch.where(signal, spread(part) / spread(whole), 0.0)
    return (own.double() * ratio).to(part.dtype)


def mix_advantages(mean: Tensor, risk: Tensor | None, multiplier: float) -> Tensor:
    """(A_mean + multiplier * A_risk) / (1 + multiplier): the seam through which tail risk reaches the actor.

    Both in the same units (divided by the same sigma), standardised once, after mixing. The division keeps the size of
    the step independent of the multiplier. mean, risk: [T, B]; risk may be None only with multiplier 0.
    """
    if not (math.isfinite(multiplier) and multiplier >= 0.0):
        raise ConfigError(f"The risk multiplier is {multiplier}, expected a finite number of at least 0.")
    if multiplier == 0.0:
        return mean  # not mean + 0 * risk: a NaN in an unused risk would get through
    if risk is None:
        raise ConfigError(
            f"The risk multiplier is {multiplier} but there are no risk advantages; a constraint that reaches nobody "
            "is refused: use a distributional critic with particle targets, or switch the constraint off."
        )
    require_shape("The risk advantages", risk, tuple(mean.shape))
    return (mean + multiplier * risk) / (1.0 + multiplier)
