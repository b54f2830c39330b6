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
from scipy.special import ndtr, ndtri
from torch import Tensor

from tailwise.core.errors import CheckpointError
from tailwise.core.golden import golden_fractions
from tailwise.core.loops.discounted import add_discounted
from tailwise.learner.particles import average_law, places_of_levels, stratified_levels
from tailwise.learner.rollout import CriticRecord
from tailwise.learner.targets import law_particles
from tailwise.model.config import CategoricalCritic, QuantileCritic

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Returns are sums of float32 rewards and predictions are float32: closer than this, relative to size, is a tie.
ROUNDING = 2.0**-20


@dataclass(frozen=True)
class Table:
    """Columns of one length, the number of windows n; subclasses name them."""

    widths: ClassVar[Mapping[str, int]]  # second dimension of the columns that have one; `predicted` has N

    @classmethod
    def empty(cls, quantiles: int) -> Self:
        """No window, for laws of N quantiles."""
        shapes = {name: (0, quantiles if name == "predicted" else width) for name, width in cls.widths.items()}
        return cls(**{f.name: np.zeros(shapes.get(f.name, (0,)), cls.dtype(f.name)) for f in fields(cls)})

    @classmethod
    def dtype(cls, name: str) -> DTypeLike:
        """The type of a column: laws are float32, places int64, everything else float64."""
        return {"predicted": np.float32, "column": np.int64, "start": np.int64, "age": np.int64}.get(name, np.float64)

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def take(self, rows: NDArray[Any] | slice) -> Self:
        """The windows that an index, a mask or a slice names; views in the last case."""
        return type(self)(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def joined(self, other: Self) -> Self:
        """These windows, then the others."""
        return type(self)(**{f.name: np.concatenate([getattr(t, f.name) for t in (self, other)]) for f in fields(self)})

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Copies of the columns, for a checkpoint."""
        return {f"{prefix}/{f.name}": torch.from_numpy(getattr(self, f.name).copy()) for f in fields(self)}

    @classmethod
    def from_tensors(cls, prefix: str, tensors: Mapping[str, Tensor], *, quantiles: int, columns: int) -> Self:
        """The inverse of `tensors`; a CheckpointError says what does not fit."""
        blank = cls.empty(quantiles)
        arrays: dict[str, NDArray[Any]] = {}
        rows = tensors[f"{prefix}/{fields(cls)[0].name}"].shape[:1]
        for f in fields(cls):
            name, wanted = f"{prefix}/{f.name}", getattr(blank, f.name)
            array = tensors[name].detach().cpu().numpy()
            if array.dtype != wanted.dtype or array.shape != (*rows, *wanted.shape[1:]):
                raise CheckpointError(
                    f"calibration state {name!r} is {array.dtype} {list(array.shape)}; this model needs {wanted.dtype} "
                    f"{[*rows, *wanted.shape[1:]]}; resume with the configuration that the run was started with"
                )
            arrays[f.name] = array.copy()
        column = arrays["column"]
        if len(column) and not 0 <= column.min() <= column.max() < columns:
            raise CheckpointError(
                f"calibration state '{prefix}/column' names environments {column.min()} to {column.max()}; this run "
                f"follows 0 to {columns - 1}; resume with the same run.environments"
            )
        return cls(**arrays)


@dataclass(frozen=True)
class OpenWindows(Table):
    """Windows that still gather rewards.

    column [n]: environment; start [n]: its first step, counted since the tracker began; age [n]: steps seen;
    total [n]: their discounted reward, raw; luck [n, 3]: uniforms drawn at the start, for the draw at the end, the
    transform and the projection onto atoms; grid [n, 2]: lowest atom and spacing, raw (0 for quantile critics);
    predicted [n, N]: the law at the start, raw, ascending.
    """

    column: Integers
    start: Integers
    age: Integers
    total: Floats
    luck: Floats
    grid: Floats
    predicted: NDArray[np.float32]
    widths: ClassVar[Mapping[str, int]] = {"luck": 3, "grid": 2, "predicted": 0}


@dataclass(frozen=True)
class Completed(Table):
    """Windows whose return is known.

    column, start, predicted as in `OpenWindows`; realised [n]: the return, raw; pit [n]: its probability integral
    transform in [0, 1]; observed [n]: share of the discount that rewards covered, the rest is a draw (1: terminated).
    """

    column: Integers
    start: Integers
    realised: Floats
    pit: Floats
    observed: Floats
    predicted: NDArray[np.float32]
    widths: ClassVar[Mapping[str, int]] = {"predicted": 0}


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


def next_true(flags: Flags) -> Integers:
    """The first row at or after each row in which the flag of the column is set, T if none: [T, E] -> [T+1, E]."""
    steps, columns = flags.shape
    rows = np.full((steps + 1, columns), steps, dtype=np.int64)
    rows[:-1] = np.where(flags, np.arange(steps)[:, None], steps)
    nearest: Integers = np.minimum.accumulate(rows[::-1], axis=0)[::-1]
    return nearest


def raw_laws(
    law: Tensor, record: CriticRecord, critic: QuantileCritic | CategoricalCritic, offset: Floats
) -> NDArray[np.float32]:
    """Raw quantiles [n, N], ascending, of the critics' common law [n, C, N]; NaN where it is not finite.

    Of a categorical law: its values at one level in each of N strata, all moved by the same `offset` [n, 1], so that an
    atom of less mass than a stratum is met as often as it should.
    """
    if isinstance(critic, QuantileCritic):
        values = record.raw(average_law(law))
    else:
        levels = stratified_levels(torch.from_numpy(offset).expand(-1, critic.atoms))
        values = law_particles(law, critic, levels, mu=record.mu, sigma=record.sigma)
    raw: NDArray[np.float32] = _nan_where_broken(values, law).float().numpy()
    return raw


def draw_from_laws(
    law: Tensor, record: CriticRecord, critic: QuantileCritic | CategoricalCritic, uniform: Floats
) -> Floats:
    """One raw draw [n] from each of the laws [n, C, N], by uniforms [n]; NaN where it is not finite."""
    if isinstance(critic, QuantileCritic) and critic.quantiles > 1:  # `law_particles` in arrays, at one level a row
        common, rows = average_law(law).numpy(), np.arange(len(uniform))
        left, fraction = places_of_levels(uniform, critic.quantiles)
        low = common[rows, left]
        with np.errstate(invalid="ignore"):  # a law that is not finite is dropped below
            values = low + fraction.astype(common.dtype) * (common[rows, left + 1] - low)
        draw = torch.from_numpy(record.mu + record.sigma * values)[:, None]
    else:
        levels = torch.from_numpy(uniform)[:, None]
        draw = law_particles(law, critic, levels, mu=record.mu, sigma=record.sigma)
    raw: Floats = _nan_where_broken(draw, law)[:, 0].double().numpy()
    return raw


def _nan_where_broken(values: Tensor, law: Tensor) -> Tensor:
    """values [n, M] of laws [n, C, N]; a law with an entry that is not finite gives NaN: a search in it would not."""
    finite = np.isfinite(law.numpy())
    if finite.all():
        return values
    return torch.where(torch.from_numpy(finite.all((1, 2)))[:, None], values, torch.nan)


def gather_rewards(windows: OpenWindows, reward: Floats, first: Integers, last: Integers, discount: Floats) -> Floats:
    """Discounted reward [n] after the steps first..last of each window; reward [T, E]; discount [ages]: powers of
    gamma."""
    total = windows.total.copy()
    add_discounted(reward, windows.column, first, last, discount[windows.age], float(discount[1]), total)
    return total


def distribution_of_quantiles(theta: Floats, y: Floats, side: Literal["left", "right"]) -> Floats:
    """P(Z < y) ("left") or P(Z <= y) ("right") where `inverse_cdf_quantiles` reads theta: the inverse of that function.

    theta [n, N] ascending, y [n]; returns [n]. Equal neighbours are an atom.
    """
    count = theta.shape[1]
    scores = ndtri((np.arange(count) + 0.5) / count)
    lower = theta < y[:, None] if side == "left" else theta <= y[:, None]
    below = np.count_nonzero(lower, axis=1)
    left = np.clip(below - 1, 0, count - 2)
    rows = np.arange(len(theta))
    low, high = theta[rows, left], theta[rows, left + 1]
    # Equal ones are met only beyond the ends: between two centres the count above puts y strictly apart from one.
    flat = high == low
    share = (y - low) / np.where(flat, 1.0, high - low)
    inside: Floats = ndtr(scores[left] + share * (scores[left + 1] - scores[left]))
    return np.where(flat, (below > 0).astype(np.float64), inside)


def transform_by_quantiles(windows: OpenWindows, realised: Floats) -> Floats:
    """Randomised probability integral transform [n] of realised returns under quantile laws.

    F(y-) + u (F(y) - F(y-)): uniform if the prediction is right, whether its law is smooth, a point or has atoms.
    """
    theta = windows.predicted.astype(np.float64)
    slack = ROUNDING * np.maximum(np.abs(realised), np.maximum(-theta[:, 0], theta[:, -1]))  # ascending
    below = distribution_of_quantiles(theta, realised - slack, "left")
    upto = distribution_of_quantiles(theta, realised + slack, "right")
    return np.asarray(below + windows.luck[:, 1] * (upto - below), dtype=np.float64)


def transform_by_atoms(windows: OpenWindows, realised: Floats, atoms: int) -> Floats:
    """The same under laws on `atoms` equidistant atoms, given by N equally likely values each.

    A categorical critic learns the law of the return *projected* onto its atoms. So the return is projected as well, at
    random onto one of its two neighbours with the probabilities of the projection; otherwise every return between two
    atoms would count as above all the mass of the lower one.
    """
    low, spacing = windows.grid.T
    place = np.clip((realised - low) / spacing, 0.0, atoms - 1.0)
    onto = low + spacing * (np.floor(place) + (windows.luck[:, 2] < place - np.floor(place)))
    slack = spacing / 4  # averages of two critics may lie half way between atoms
    below = (windows.predicted < (onto - slack)[:, None]).mean(1)
    upto = (windows.predicted <= (onto + slack)[:, None]).mean(1)
    return np.asarray(below + windows.luck[:, 1] * (upto - below), dtype=np.float64)
