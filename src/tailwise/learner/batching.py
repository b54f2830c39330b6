"""How a rollout is cut into minibatches and microbatches.

Without a core a minibatch is a random set of valid rows. With a core it is a random set of environments with all their
steps, so that sequences stay whole. A microbatch is a part of a minibatch; its losses weigh by its share of valid rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Part:
    """A microbatch: `units` [u] are flat rows t*B + b, or with `whole` the environments of whole sequences; size: the
    number n of valid rows.

    Which rows those are is worked out when it is asked: kernels walk through sequences by themselves.
    """

    units: np.ndarray
    valid: Tensor
    whole: bool
    size: int

    @property
    def envs(self) -> Tensor | None:
        """Environments [b] of whole sequences, None without a core."""
        return torch.from_numpy(self.units) if self.whole else None

    @cached_property
    def rows(self) -> Tensor:
        """Flat indices t*B + b [n] of the valid rows."""
        if self.inside is None:
            return torch.from_numpy(self.units)
        steps, environments = self.valid.shape
        return torch.from_numpy(sequence_rows(steps, environments, self.units))[self.inside]

    @cached_property
    def inside(self) -> Tensor | None:
        """Place [n] of each row in the [T, b] block of `envs`, None without a core."""
        return torch.from_numpy(np.flatnonzero(self.valid.numpy()[:, self.units])) if self.whole else None


def minibatches(units: np.ndarray, *, count: int, permutation: np.ndarray) -> Iterator[np.ndarray]:
    """Split what `all_units` gave into `count` parts, in the order given."""
    shuffled, first = units[permutation], 0
    for k in range(min(count, len(units))):  # the first ones take what is left over
        end = first + len(units) // count + (k < len(units) % count)
        yield shuffled[first:end]
        first = end


def all_units(valid: Tensor, *, recurrent: bool) -> np.ndarray:
    """What `minibatches` splits and `parts` cuts: environments [B] when recurrent, else valid flat rows."""
    return np.arange(valid.shape[1]) if recurrent else np.flatnonzero(valid.numpy().reshape(-1))


def sequence_rows(steps: int, environments: int, chosen: np.ndarray) -> np.ndarray:
    """Flat rows t*B + b [T*b] of the sequences of the `chosen` [b] among B environments, step by step."""
    rows: np.ndarray = (np.arange(steps)[:, None] * environments + chosen).reshape(-1)
    return rows


def parts(units: np.ndarray, valid: Tensor, *, microbatches: int, recurrent: bool) -> list[Part]:
    """Cut one minibatch into microbatches; parts without a valid row are dropped (they weigh nothing)."""
    chunks = [units] if microbatches == 1 else np.array_split(units, min(microbatches, len(units)))
    sizes = [int(np.count_nonzero(valid.numpy()[:, chunk])) if recurrent else len(chunk) for chunk in chunks]
    return [Part(chunk, valid, recurrent, size) for chunk, size in zip(chunks, sizes) if size]
