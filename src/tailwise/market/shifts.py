"""Shifted bars: other paths of the same market, within a budget, for adversaries.

A shift is added to the log-return from the close before a bar to that bar, and everything after it moves along. Whole
bars are moved by one factor, as in resampled worlds, so a bar stays valid, keeps its own shape, and what changes is the
gap before it. Shifts are measured in units of the volatility that was known before the bar. The budget is on their mean
size over a window, a Wasserstein distance between paths (arXiv 2508.14757), and on the largest of them. Features and
base rules are computed anew from the shifted bars, by the same code: what is seen stays causal and belongs to what is
earned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.core.errors import ConfigError
from tailwise.core.streams import Streams
from tailwise.features.table import FeatureTable
from tailwise.market.base import WARM_UP, recent_variance
from tailwise.market.dataset import Dataset, Purpose, scaled_exposures
from tailwise.market.env_config import Base

Floats = npt.NDArray[np.float64]
STREAM = "adversary/path"
ROUNDING = 1e-9  # of a budget, relative to it
_BISECTIONS = 100


@dataclass(frozen=True)
class ShiftBudget:
    """How far a path may be moved, in units of the volatility of each bar.

    mean     largest mean |shift| over the bars of a window
    largest  largest |shift| of a bar
    """

    mean: float
    largest: float

    def __post_init__(self) -> None:
        if not 0 <= self.mean <= self.largest < np.inf:
            raise ConfigError(
                f"a budget of shifts has the mean {self.mean:g} and the largest {self.largest:g}; 0 <= mean <= largest "
                "must hold."
            )

    def excess(self, shifts: Floats) -> float:
        """By how much shifts [n] exceed it, in units of volatility; 0 or less where they are within."""
        if not len(shifts):
            return 0.0
        size = np.abs(shifts)
        return float(max(size.mean() - self.mean, size.max() - self.largest))


def project(shifts: Floats, budget: ShiftBudget) -> Floats:
    """The nearest shifts [n] (in squares) within a budget: sign(z) x min(max(|z| - level, 0), largest).

    The level is 0 where cutting at `largest` is enough, else found by bisection from the side that is within.
    """
    size = np.abs(shifts)
    total = budget.mean * len(shifts)

    def cut(level: float) -> Floats:
        return np.clip(size - level, 0.0, budget.largest)

    if cut(0.0).sum() > total:
        low, high = 0.0, float(size.max())
        for _ in range(_BISECTIONS):
            level = 0.5 * (low + high)
            if cut(level).sum() > total:
                low = level
            else:
                high = level
        size = cut(high)
    else:
        size = cut(0.0)
    within: Floats = np.sign(shifts) * size
    excess = budget.excess(within)
    assert excess <= ROUNDING * budget.largest, f"shifts exceed their budget by {excess:g}"
    return within


def random_shifts(count: int, budget: ShiftBudget, *, seed: int, draw: int, symbol: int) -> Floats:
    """Shifts [count] that use up a budget: the largest up or down, by chance, at bars that are chosen by chance."""
    address = np.array([symbol])
    uniform = Streams(seed).uniforms(STREAM, update=draw, environments=address, steps=count, draws=2)[:, 0]
    sizes = np.zeros(count)
    if budget.mean > 0:
        left = budget.mean * count - budget.largest * np.arange(count)
        sizes[np.argsort(uniform[:, 0])] = np.clip(left, 0.0, budget.largest)
    return np.where(uniform[:, 1] < 0.5, -sizes, sizes)


def volatility_before(bars: Bars) -> Floats:
    """Volatility of the log-return to each bar [T] as the bars before it say; 0 while that is not to be trusted."""
    volatility = np.zeros(len(bars))
    known = np.sqrt(recent_variance(bars))  # at the closes of the bars from 1 on
    volatility[2:] = known[:-1]
    volatility[: WARM_UP + 1] = 0.0
    return volatility


def shifted_bars(bars: Bars, first: int, shifts: Floats) -> Bars:
    """The bars with the log-returns of the bars `first`, `first` + 1, ... shifted by `shifts` [n] x their volatility.

    One factor for the whole bar: rounding is monotone, so high and low stay around open and close. Volume stays.
    """
    moves = np.zeros(len(bars))
    moves[first : first + len(shifts)] = shifts * volatility_before(bars)[first : first + len(shifts)]
    factor = np.exp(np.cumsum(moves))
    prices = {name: getattr(bars, name) * factor for name in ("open", "high", "low", "close")}
    dividends = None if bars.dividends is None else bars.dividends * factor
    return replace(bars, **prices, dividends=dividends, label=f"{bars.label}, shifted")


def shifted_rows(dataset: Dataset, purpose: Purpose) -> list[tuple[int, int]]:
    """Rows [first, end) of each symbol that may be shifted: those of the window that an account can live through."""
    return [
        (max(window.first, features.first_valid + 1), window.end)
        for window, features in zip(dataset.window(purpose), dataset.features, strict=True)
    ]


def shifted_dataset(
    dataset: Dataset,
    purpose: Purpose,
    shifts: Sequence[Floats],
    *,
    base: Base | None,
    scales: Mapping[str, float],
) -> Dataset:
    """The same dataset with shifted bars in a window: shifts [n] of each symbol at its `shifted_rows`. What was fitted
    stays as it is; symbols that only train are not shifted."""
    loaded, tables, bases = [], [], []
    rows = shifted_rows(dataset, purpose)
    for item, features, (first, _), own in zip(dataset.loaded, dataset.features, rows, shifts, strict=True):
        bars = shifted_bars(item.bars, first, own)
        table = dataset.spec.table(bars)
        given = features.values[:, len(table.names) :]  # columns that came with the bars
        values = np.concatenate([table.values, given], axis=1) if given.shape[1] else table.values
        loaded.append(replace(item, bars=bars))
        tables.append(FeatureTable(values, features.names, features.first_valid))
        bases += [] if base is None else [scaled_exposures(base, bars, scales)]
    return replace(dataset, loaded=tuple(loaded), features=tuple(tables), bases=tuple(bases))


def joined_symbols(datasets: Sequence[Dataset], purpose: Purpose) -> Dataset:
    """The symbols of several datasets with one window each, one dataset after the other, to be played side by side."""
    return Dataset(
        tuple(item for one in datasets for item in one.loaded),
        datasets[0].spec,
        tuple(table for one in datasets for table in one.features),
        {purpose: tuple(window for one in datasets for window in one.window(purpose))},
        bases=tuple(base for one in datasets for base in one.bases),
    )
