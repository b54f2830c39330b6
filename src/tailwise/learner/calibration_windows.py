"""Windows of the calibration check: the law that was predicted at a state, and the return that then came.

Plain tables of numpy arrays, one row per window. `calibration.py` fills them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from tailwise.core.errors import CheckpointError
from tailwise.core.numerics import golden_fractions
from tailwise.learner.calibration_laws import Floats, Integers, Laws

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Table:
    """Columns of one length, the number of windows n; subclasses name them.

    law [n]: row of the window's predicted law in a table of all of them [rows, N], raw, ascending. A law is the heavy
    part of a window and stays in its row while the window moves from table to table.
    """

    law: Integers
    widths: ClassVar[Mapping[str, int]]  # second dimension of the columns that have one

    @classmethod
    def empty(cls) -> Self:
        """No window."""
        shapes = {name: (0, width) for name, width in cls.widths.items()}
        return cls(**{f.name: np.zeros(shapes.get(f.name, (0,)), cls.dtype(f.name)) for f in fields(cls)})

    @classmethod
    def dtype(cls, name: str) -> DTypeLike:
        """The type of a column: places are int64, everything else float64."""
        return np.int64 if name in ("column", "start", "age", "law") else np.float64

    def __len__(self) -> int:
        return len(self.law)

    def take(self, rows: Integers | Flags) -> Self:
        """Copies of the windows that an index or a mask names."""
        index = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return type(self)(**{name: column.take(index, axis=0) for name, column in vars(self).items()})

    def since(self, row: int) -> Self:
        """Views of the windows from this row on."""
        return type(self)(**{name: column[row:] for name, column in vars(self).items()})

    def joined(self, other: Self) -> Self:
        """These windows, then the others."""
        pairs = zip(vars(self).items(), vars(other).values(), strict=True)
        return type(self)(**{name: np.concatenate([own, new]) for (name, own), new in pairs})

    def tensors(self, prefix: str, laws: Laws) -> dict[str, Tensor]:
        """Copies of the columns, for a checkpoint; in place of `law` the laws themselves, as `predicted`."""
        columns = {name: column.copy() for name, column in vars(self).items() if name != "law"}
        columns["predicted"] = laws[self.law]
        return {f"{prefix}/{name}": torch.from_numpy(column) for name, column in columns.items()}

    @classmethod
    def from_tensors(cls, prefix: str, tensors: Mapping[str, Tensor], laws: Laws, *, columns: int) -> tuple[Self, Laws]:
        """The inverse of `tensors`, with the laws [rows, N] and those of these windows after them; a CheckpointError
        says what does not fit."""
        blank = {**vars(cls.empty()), "predicted": laws[:0]}
        del blank["law"]
        arrays: dict[str, NDArray[Any]] = {}
        rows = tensors[f"{prefix}/column"].shape[:1]
        for column_name, wanted in blank.items():
            name = f"{prefix}/{column_name}"
            array = tensors[name].detach().cpu().numpy()
            if array.dtype != wanted.dtype or array.shape != (*rows, *wanted.shape[1:]):
                raise CheckpointError(
                    f"calibration state {name!r} is {array.dtype} {list(array.shape)}; this model needs {wanted.dtype} "
                    f"{[*rows, *wanted.shape[1:]]}; resume with the configuration that the run was started with"
                )
            arrays[column_name] = array.copy()
        column = arrays["column"]
        if len(column) and not 0 <= column.min() <= column.max() < columns:
            raise CheckpointError(
                f"calibration state '{prefix}/column' names environments {column.min()} to {column.max()}; this run "
                f"follows 0 to {columns - 1}; resume with the same run.environments"
            )
        predicted = arrays.pop("predicted")
        return cls(law=len(laws) + np.arange(len(predicted)), **arrays), np.concatenate([laws, predicted])


@dataclass(frozen=True)
class OpenWindows(Table):
    """Windows that still gather rewards.

    column [n]: environment; start [n]: its first step, counted since the tracker began; age [n]: steps seen;
    total [n]: their discounted reward, raw; luck [n, 3]: uniforms drawn at the start, for the draw at the end, the
    transform and the projection onto atoms; grid [n, 2]: lowest atom and spacing, raw (0 for quantile critics).
    The law is that of the state at the start.
    """

    column: Integers
    start: Integers
    age: Integers
    total: Floats
    luck: Floats
    grid: Floats
    widths: ClassVar[Mapping[str, int]] = {"luck": 3, "grid": 2}


@dataclass(frozen=True)
class Completed(Table):
    """Windows whose return is known.

    column, start and law as in `OpenWindows`; realised [n]: the return, raw; pit [n]: its probability integral
    transform in [0, 1]; observed [n]: share of the discount that rewards covered, the rest is a draw (1: terminated).
    """

    column: Integers
    start: Integers
    realised: Floats
    pit: Floats
    observed: Floats
    widths: ClassVar[Mapping[str, int]] = {}


def start_rows(clock: int, steps: int, columns: int, stride: int) -> Integers:
    """Rows of a rollout that begins at `clock` in which windows start: [stretches, columns], some outside 0 .. steps-1.

    One in each stretch of `stride` steps, never at a fixed beat: the place within the stretch moves on by the golden
    ratio, from stretch to stretch and from environment to environment. On a fixed grid, episodes of a multiple of its
    length would show the same few of their states forever.
    """
    stretch = np.arange(clock // stride, (clock + steps - 1) // stride + 1)[:, None]
    place = np.floor(stride * golden_fractions(stretch + np.arange(columns))).astype(np.int64)
    rows: Integers = stretch * stride + place - clock
    return rows
