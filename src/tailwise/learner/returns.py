"""Returns and advantages of a rollout: GAE, lambda-returns, SR(lambda) particles of the return's law, normalisation.

Why particles: the law of the scalar lambda-return is not the law of the return. Averaging bootstraps shrinks its
spread, so quantiles that are regressed on it describe a return that is far too calm. A particle follows *one* sampled
path of mixing decisions instead and keeps the spread. Particles are in raw return units and are never clipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from tailwise.core.errors import ConfigError, ShapeError


def require_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse a shape that broadcasting would accept without a word, such as [T, B, 1] beside [T, B]."""
    if tuple(tensor.shape) != tuple(shape):
        raise ShapeError(
            f"{name} has shape {tuple(tensor.shape)}, expected {tuple(shape)}; pass tensors of exactly that shape, "
            "nothing is broadcast here."
        )


def require_flags(name: str, flags: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse flags that are not bool [shape]: `~` of a float or integer flag means something else."""
    require_shape(name, flags, shape)
    if flags.dtype != torch.bool:
        raise ShapeError(f"{name} has dtype {flags.dtype}, expected torch.bool; convert it with `{name}.bool()`.")


def require_fraction(name: str, value: float) -> None:
    """Refuse a discount or lambda outside [0, 1]."""
    if not (math.isfinite(value) and 0.0 <= value <= 1.0):
        raise ConfigError(f"{name} is {value}, expected a number between 0 and 1.")


def next_values(value: Tensor, final_value: Tensor, terminated: Tensor, truncated: Tensor) -> Tensor:
    """The value of what follows each step.

    value: [T+1, B, ...], the last row is the state after the rollout. final_value: [T, B, ...], the value of
    `final_obs[t]`, only meaningful (and only read) where truncated: with SAME_STEP autoreset value[t+1] belongs to the
    next episode there. terminated, truncated: bool [T, B]. Returns [T, B, ...].
    """
    steps, environments = terminated.shape
    require_flags("terminated", terminated, (steps, environments))
    require_flags("truncated", truncated, (steps, environments))
    trailing = tuple(value.shape[2:])
    require_shape("value", value, (steps + 1, environments, *trailing))
    require_shape("final_value", final_value, (steps, environments, *trailing))
    flag_shape = (steps, environments, *(1 for _ in trailing))
    following = torch.where(truncated.reshape(flag_shape), final_value, value[1:])
    return torch.where(terminated.reshape(flag_shape), torch.zeros_like(following), following)


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    lam: float,
    valid: Tensor | None = None,
) -> Tensor:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438).

        delta[t] = r[t] + gamma * next_value[t] - V[t]
        A[t] = delta[t] + gamma * lam * (0 at a boundary, else A[t+1]),  A[T] = 0

    The carry is cut at *every* boundary, the bootstrap only at termination.

    reward, value, next_value: [T, B]; value[t] is V(s[t]); next_value[t] is V(s[t+1]) inside an episode and
    V(final_obs[t]) where truncated (see `next_values`), and is taken as 0 where terminated whatever stands there.
    terminated, truncated: bool [T, B]. valid: bool [T, B] or None (all valid); a row that is no transition (the reset
    step of NEXT_STEP autoreset, whose action was ignored) gets advantage 0 and passes nothing on to the row before it.
    Returns the advantages [T, B] in the dtype of the reward.
    """
    require_fraction("gamma", gamma)
    require_fraction("lambda", lam)
    shape = tuple(reward.shape)
    if len(shape) != 2:
        raise ShapeError(f"reward has shape {shape}, expected [T, B].")
    require_shape("value", value, shape)
    require_shape("next_value", next_value, shape)
    require_flags("terminated", terminated, shape)
    require_flags("truncated", truncated, shape)
    if valid is not None:
        require_flags("valid", valid, shape)

    zero = torch.zeros_like(reward)
    delta = reward + gamma * torch.where(terminated, zero, next_value) - value
    boundary = terminated | truncated
    if valid is not None:
        delta = torch.where(valid, delta, zero)
        boundary = boundary | ~valid

    # A loop over steps on small rows: numpy takes a tenth of torch's time for each of its operations.
    rows, ends = delta.detach().clone().numpy(force=True), boundary.numpy(force=True)
    carry, discount = np.empty(shape[1], dtype=rows.dtype), gamma * lam
    some_end: list[bool] = np.asarray(ends.any(1)).tolist()
    with np.errstate(over="ignore", invalid="ignore"):  # not finite, which the update refuses with a sentence
        for row, after, end, some in zip(rows[-2::-1], rows[:0:-1], ends[-2::-1], some_end[-2::-1]):
            np.multiply(after, discount, out=carry)
            if some:
                carry[end] = 0.0
            row += carry
    return torch.from_numpy(rows).to(delta.device)


def lambda_return(advantage: Tensor, value: Tensor) -> Tensor:
    """The lambda-return, target of the scalar mean: advantage [T, B] + value [T, B]."""
    require_shape("value", value, tuple(advantage.shape))
    return advantage + value


def sr_lambda(
    reward: Tensor,
    z: Tensor,
    z_final: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    bootstrap_uniform: Tensor,
    *,
    gamma: float,
    lam: float,
    valid: Tensor | None = None,
) -> Tensor:
    """Sample-replacement lambda-return (Nam et al. 2021, arXiv 2105.11366), M particles per step.

        Y[T][j] = Z(s[T])[j]
        Y[t][j] = r[t] + gamma * ( 0                                          where terminated
                                 | Z(final_obs[t])[j]                         where truncated
                                 | Y[t+1][j] if b[t][j] else Z(s[t+1])[j] )   inside an episode

    with b = (uniform < lam), a Bernoulli(lam) variable per step, environment and particle, ignored at boundaries.

    reward: [T, B]. z: [T+1, B, M], particles of Z at each state, the last row after the rollout. z_final: [T, B, M],
    particles at `final_obs[t]`, read only where truncated. terminated, truncated: bool [T, B]. bootstrap_uniform:
    [T, B, M] in (0, 1). valid: bool [T, B] or None; an invalid row follows a boundary, so nothing of it reaches another
    row; its own output is z of that row with non-finite numbers replaced by 0, so that a masked sum stays finite.
    Returns Y [T, B, M].
    """
    require_fraction("gamma", gamma)
    require_fraction("lambda", lam)
    if reward.ndim != 2 or z.ndim != 3:
        raise ShapeError(
            f"reward has shape {tuple(reward.shape)} and z {tuple(z.shape)}, expected [T, B], [T+1, B, M]."
        )
    steps, environments = reward.shape
    particles = z.shape[2]
    require_shape("z", z, (steps + 1, environments, particles))
    require_shape("z_final", z_final, (steps, environments, particles))
    require_shape("bootstrap_uniform", bootstrap_uniform, (steps, environments, particles))
    require_flags("terminated", terminated, (steps, environments))
    require_flags("truncated", truncated, (steps, environments))
    if valid is not None:
        require_flags("valid", valid, (steps, environments))

    follow_path = bootstrap_uniform < lam
    zero = torch.zeros_like(z[0])
    target = torch.empty_like(z_final)
    carry = z[steps]
    for step in range(steps - 1, -1, -1):
        following = torch.where(follow_path[step], carry, z[step + 1])
        following = torch.where(truncated[step, :, None], z_final[step], following)
        following = torch.where(terminated[step, :, None], zero, following)
        carry = reward[step, :, None] + gamma * following
        if valid is not None:
            stand_in = torch.where(torch.isfinite(z[step]), z[step], zero)
            carry = torch.where(valid[step, :, None], carry, stand_in)
        target[step] = carry
    return target


def stratified_levels(u: Tensor) -> Tensor:
    """One level in each of M equal strata: (j + u_j) / M. u: [..., M] in (0, 1); returns [..., M], increasing."""
    count = u.shape[-1]
    return (torch.arange(count, dtype=u.dtype, device=u.device) + u) / count


def inverse_cdf_quantiles(theta_sorted: Tensor, levels: Tensor) -> Tensor:
    """The quantile function through the centres ((i+0.5)/N, theta_i), linear in normal scores, read at `levels`.

    Between two centres, and beyond the outermost ones with the slope of the last pair, theta is a linear function of
    the normal quantile of the level: a normal law is exact at every level. Straight lines in the level itself would cut
    off the tails, a little more with every bootstrap.

    theta_sorted: [..., N], ascending. levels: [..., M] in [0, 1], the same leading dimensions or 1 in their place.
    Returns [..., M]. Levels are held 2^-24 away from 0 and 1, which lie at infinity. With N = 1 the law is a point.
    """
    count = theta_sorted.shape[-1]
    shape = (*theta_sorted.shape[:-1], levels.shape[-1])
    if levels.ndim != len(shape) or any(own not in (1, whole) for own, whole in zip(levels.shape, shape, strict=True)):
        raise ShapeError(f"levels has shape {tuple(levels.shape)}, expected {shape} or 1 in place of a dimension.")
    if count == 1:
        return theta_sorted.expand(*shape).clone()
    return read_between(theta_sorted, *places_between(levels, count))


def places_between(levels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`places_of_levels` for tensors."""
    left, fraction = places_of_levels(levels.detach().numpy(force=True), count)
    return torch.from_numpy(left).to(levels.device), torch.from_numpy(fraction).to(levels.device)


def places_of_levels(levels: NDArray[Any], count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Where `inverse_cdf_quantiles` reads N = `count` > 1 quantiles at levels [..., M]: the index of the one below, and
    how far it is to the next one, below 0 and above 1 in the tails."""
    level = np.minimum(np.maximum(levels.astype(np.float64), 2.0**-24), 1.0 - 2.0**-24)
    left = np.minimum(np.maximum(np.floor(level * count - 0.5), 0.0), count - 2.0).astype(np.int64)
    scores = normal_scores(count)
    below = scores[left]
    return left, (ndtri(level) - below) / (scores[left + 1] - below)


@cache
def normal_scores(count: int) -> NDArray[np.float64]:
    """The normal quantiles [N] of the centres (i+0.5)/N of N = `count` equal shares, to be read only."""
    scores: NDArray[np.float64] = ndtri((np.arange(count) + 0.5) / count)
    scores.setflags(write=False)
    return scores


def read_between(theta_sorted: Tensor, left: Tensor, fraction: Tensor) -> Tensor:
    """Values [..., M] of laws theta_sorted [..., N] at the places of `places_between`, which may be common to rows."""
    index = left.expand(*theta_sorted.shape[:-1], left.shape[-1])
    low = theta_sorted.gather(-1, index)
    high = theta_sorted.gather(-1, index + 1)
    particles: Tensor = low + fraction.to(theta_sorted.dtype) * (high - low)
    return particles


def average_law(law: Tensor) -> Tensor:
    """The critics' common law: the average over C of their sorted quantiles, [..., C, N] -> [..., N]."""
    ordered = ascending(law.detach().numpy(force=True))
    return torch.from_numpy(average_of([ordered[..., c, :] for c in range(law.shape[-2])])).to(law.device)


def ascending(laws: NDArray[Any]) -> NDArray[Any]:
    """Quantiles [..., N], each law in order, NaN last.

    Those of a trained critic are in order already, which is quickly seen; numpy sorts many short rows in a tenth of
    torch's time.
    """
    flat = laws.reshape(-1)  # one long comparison: numpy takes twice as long for many short ones
    rising = flat[:-1] <= flat[1:]  # False also for NaN
    rising[laws.shape[-1] - 1 :: laws.shape[-1]] = True  # from one law to the next
    return laws if rising.all() else np.sort(laws, axis=-1)


def average_of(critics: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The average of equal shapes, one for each critic: of two, in a quarter of the time of `mean`."""
    average = critics[0].copy()
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite shows in the result
        for other in critics[1:]:
            average += other
        average /= len(critics)
    return average


def inverse_cdf_atoms(atoms: Tensor, probs: Tensor, levels: Tensor) -> Tensor:
    """The step inverse CDF of a law on atoms: the lowest atom whose cumulative probability reaches the level.

    atoms: [N], ascending. probs: [..., N], non-negative; levels: [..., M] in (0, 1], the same leading dimensions.
    Returns [..., M]. The cumulative sum is divided by its own end: rounding that leaves it at 0.9999999 would
    otherwise send a level above it to the last atom, even one without mass.
    """
    require_shape("probs", probs, (*levels.shape[:-1], atoms.shape[0]))
    cumulative = probs.double().cumsum(-1)
    cumulative = cumulative / cumulative[..., -1:]
    index = torch.searchsorted(cumulative.contiguous(), levels.double().contiguous())
    return atoms[index.clamp(max=atoms.shape[0] - 1)]


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
