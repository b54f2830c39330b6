"""Generalised advantage estimates and lambda-returns of a rollout.

Shapes: T steps, B environments. Two facts about an episode's end are kept apart: `terminated` (the process ended, the
future is worth 0) and `truncated` (a time limit or the end of the data, the future is bootstrapped). If both are set,
terminated wins.

Rows that must not matter are selected away with `torch.where`, never multiplied by 0: 0 * NaN is NaN, and a NaN in the
value of a state that nobody visited would reach every earlier step.
"""

from __future__ import annotations

import math

import numpy as np
import torch
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
