"""Windows of the calibration check: the law that was predicted at a state, and the return that then came.

Plain tables of numpy arrays, one row per window, and the mathematics on them. `calibration.py` fills them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from scipy.special import ndtr
from torch import Tensor

from tailwise.core.errors import CheckpointError
from tailwise.core.golden import golden_fractions
from tailwise.learner.particles import (
    ascending,
    average_of,
    normal_scores,
    places_of_levels,
    stratified_levels,
)
from tailwise.learner.rollout import CriticRecord
from tailwise.learner.targets import law_particles
from tailwise.model.config import CategoricalCritic, QuantileCritic

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Laws = NDArray[np.float32]

# Returns are sums of float32 rewards and predictions are float32: closer than this, relative to size, is a tie.
ROUNDING = 2.0**-20


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


def raw_laws(
    law: NDArray[Any], record: CriticRecord, critic: QuantileCritic | CategoricalCritic, offset: Floats
) -> Laws:
    """Raw quantiles [n, N], ascending, of the critics' common law [n, C, N]; not finite where that is not.

    Of a categorical law: its values at one level in each of N strata, all moved by the same `offset` [n, 1], so that an
    atom of less mass than a stratum is met as often as it should.
    """
    if isinstance(critic, QuantileCritic):
        ordered = ascending(law)
        common = average_of([ordered[:, c] for c in range(law.shape[1])])
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(common * record.sigma + record.mu, dtype=np.float32)
    levels = stratified_levels(torch.from_numpy(offset).expand(-1, critic.atoms))
    return np.asarray(_from_atoms(law, record, critic, levels), dtype=np.float32)


def draw_from_laws(
    law: NDArray[Any], record: CriticRecord, critic: QuantileCritic | CategoricalCritic, uniform: Floats
) -> Floats:
    """One raw draw [n] from each of the laws [n, C, N], by uniforms [n]; NaN where it is not finite."""
    if not isinstance(critic, QuantileCritic):
        return np.asarray(_from_atoms(law, record, critic, torch.from_numpy(uniform)[:, None])[:, 0], dtype=np.float64)
    # `law_particles` in arrays, at one level a row, for which two quantiles are read and averaged, and not all.
    ordered, rows = ascending(law), np.arange(len(law))
    left, fraction = places_of_levels(uniform, critic.quantiles)
    low, high = (average_of([ordered[rows, c, at] for c in range(law.shape[1])]) for at in (left, left + 1))
    with np.errstate(invalid="ignore", over="ignore"):
        raw = np.asarray(record.mu + record.sigma * (low + fraction.astype(law.dtype) * (high - low)), dtype=np.float64)
    finite = np.isfinite(ordered[..., [0, -1]])  # in order: what is not finite lies at the ends
    if not finite.all():
        raw[~finite.all((1, 2))] = np.nan
    return raw


def _from_atoms(law: NDArray[Any], record: CriticRecord, critic: CategoricalCritic, levels: Tensor) -> NDArray[Any]:
    """Raw values [n, M] of laws [n, C, N] on atoms at levels [n, M]; NaN where a law is not finite."""
    values = law_particles(torch.from_numpy(law), critic, levels, mu=record.mu, sigma=record.sigma).numpy()
    return np.where(np.isfinite(law).all((1, 2))[:, None], values, np.nan)


def distribution_of_quantiles(theta: Floats, y: Floats, side: Literal["left", "right"]) -> Floats:
    """P(Z < y) ("left") or P(Z <= y) ("right") where `inverse_cdf_quantiles` reads theta: the inverse of that function.

    theta [n, N] ascending, y [n]; returns [n]. Equal neighbours are an atom.
    """
    return _distribution(theta, y, _count_below(theta, y, side))


def _count_below(theta: Floats, y: Floats, side: Literal["left", "right"]) -> Integers:
    """How many of theta [n, N], ascending, are below y [n], for "right" also those that equal it: [n]."""
    lower = theta < y[:, None] if side == "left" else theta <= y[:, None]
    first_above: Integers = lower.argmin(1)  # sooner found than a sum
    return np.where(lower[:, -1], theta.shape[1], first_above)


def _distribution(theta: Floats, y: Floats, below: Integers) -> Floats:
    """`distribution_of_quantiles` at y [..., n], where `below` [..., n] of theta [n, N] count as lower."""
    count, rows = theta.shape[1], np.arange(len(theta))
    scores = normal_scores(count)
    left = np.minimum(np.maximum(below - 1, 0), count - 2)
    low, high = theta[rows, left], theta[rows, left + 1]
    # Equal ones are met only beyond the ends: between two centres the count above puts y strictly apart from one.
    flat = high == low
    share = (y - low) / np.where(flat, 1.0, high - low)
    start = scores[left]
    return np.where(flat, below > 0, ndtr(start + share * (scores[left + 1] - start)))


def transform_by_quantiles(windows: OpenWindows, predicted: Laws, realised: Floats) -> Floats:
    """Randomised probability integral transform [n] of realised returns under quantile laws `predicted` [n, N].

    F(y-) + u (F(y) - F(y-)): uniform if the prediction is right, whether its law is smooth, a point or has atoms.
    """
    theta = predicted.astype(np.float64)
    slack = ROUNDING * np.maximum(np.abs(realised), np.maximum(-theta[:, 0], theta[:, -1]))  # ascending
    least, most = realised - slack, realised + slack
    counts = np.stack([_count_below(theta, least, "left"), _count_below(theta, most, "right")])
    below, upto = _distribution(theta, np.stack([least, most]), counts)
    return np.asarray(below + windows.luck[:, 1] * (upto - below), dtype=np.float64)


def transform_by_atoms(windows: OpenWindows, predicted: Laws, realised: Floats, atoms: int) -> Floats:
    """The same under laws on `atoms` equidistant atoms, `predicted` [n, N] as N equally likely values each.

    A categorical critic learns the law of the return *projected* onto its atoms. So the return is projected as well, at
    random onto one of its two neighbours with the probabilities of the projection; otherwise every return between two
    atoms would count as above all the mass of the lower one.
    """
    low, spacing = windows.grid.T
    place = np.clip((realised - low) / spacing, 0.0, atoms - 1.0)
    onto = low + spacing * (np.floor(place) + (windows.luck[:, 2] < place - np.floor(place)))
    slack = spacing / 4  # averages of two critics may lie half way between atoms
    below = (predicted < (onto - slack)[:, None]).mean(1)
    upto = (predicted <= (onto + slack)[:, None]).mean(1)
    return np.asarray(below + windows.luck[:, 1] * (upto - below), dtype=np.float64)
