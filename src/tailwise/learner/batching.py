"""How a rollout is cut into minibatches and microbatches.

Without a core a minibatch is a random set of valid rows. With a core it is a random set of environments with all their
steps, so that sequences stay whole. A microbatch is a part of a minibatch; its losses weigh by its share of valid rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Part:
    """Rows of one microbatch: `rows` [n] flat indices t*B + b of valid rows; `envs` [b] for whole sequences, else None.

    `inside` [n]: position of each row in the [T, b] block of `envs`, None without a core.
    """

    rows: Tensor
    envs: Tensor | None
    inside: Tensor | None


def minibatches(units: np.ndarray, *, count: int, permutation: np.ndarray) -> Iterator[np.ndarray]:
    """Split what `all_units` gave into `count` parts, in the order given."""
    yield from (part for part in np.array_split(units[permutation], count) if len(part))


def all_units(valid: Tensor, *, recurrent: bool) -> np.ndarray:
    """What `minibatches` splits and `parts` cuts: environments [B] when recurrent, else valid flat rows."""
    return np.arange(valid.shape[1]) if recurrent else np.flatnonzero(valid.numpy().reshape(-1))


def sequence_rows(steps: int, environments: int, chosen: np.ndarray) -> np.ndarray:
    """Flat rows t*B + b [T*b] of the sequences of the `chosen` [b] among B environments, step by step."""
    rows: np.ndarray = (np.arange(steps)[:, None] * environments + chosen).reshape(-1)
    return rows


def parts(units: np.ndarray, valid: Tensor, *, microbatches: int, recurrent: bool) -> list[Part]:
    """Cut one minibatch into microbatches; parts without a valid row are dropped (they weigh nothing)."""
    result = []
    for chunk in [units] if microbatches == 1 else np.array_split(units, min(microbatches, len(units))):
        if not recurrent:
            result.append(Part(torch.from_numpy(chunk), None, None))
            continue
        # numpy: these are many small steps, and a tensor takes longer for each.
        rows = sequence_rows(valid.shape[0], valid.shape[1], chunk)
        inside = np.flatnonzero(valid.numpy()[:, chunk])
        result.append(Part(torch.from_numpy(rows[inside]), torch.from_numpy(chunk), torch.from_numpy(inside)))
    return [part for part in result if len(part.rows)]
