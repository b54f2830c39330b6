"""Raw columns of one symbol: every feature over the bars, before any scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tailwise.bars.bars import Bars
from tailwise.core.errors import DataError
from tailwise.features.config import FeaturesConfig
from tailwise.features.contract import Floats
from tailwise.features.driver import as_matrix, run, run_batch
from tailwise.features.registry import Column, load_registry
from tailwise.features.timeframe import Timeframe

Fitted = Mapping[str, float]


def columns_of(config: FeaturesConfig, folder: str | Path | None = None) -> tuple[Column, ...]:
    """The columns that the configuration names: those on the bars themselves, then those of each timeframe."""
    registry = load_registry(config.modules, folder)
    columns = [registry.column(name) for name in config.include]
    columns += [registry.column(name, rule) for rule, names in config.timeframes.items() for name in names]
    return tuple(columns)


@dataclass(frozen=True, eq=False)
class View:
    """Bars of one length: matrix float64 [K, 6], open times in ns [K], and for each given bar how many of them were
    complete at its close [T] (None: they are the given bars themselves)."""

    bars: Floats
    stamps: NDArray[np.int64]
    complete: NDArray[np.int64] | None

    def first_valid(self, column: Column) -> int:
        """The first given bar whose value is valid."""
        if self.complete is None:
            return column.warm_up
        return int(np.searchsorted(self.complete, column.warm_up, side="right"))


@dataclass(frozen=True, eq=False)
class Views:
    """The bars of one symbol, in all the lengths that the columns need."""

    symbol: str
    rows: int
    by_timeframe: Mapping[str | None, View]

    @classmethod
    def of(cls, bars: Bars, columns: Sequence[Column]) -> Views:
        matrix, stamps = as_matrix(bars)
        views: dict[str | None, View] = {None: View(matrix, stamps, None)}
        step = int(bars.frequency.bar.astype("timedelta64[ns]").astype(np.int64))
        for rule in dict.fromkeys(column.timeframe for column in columns if column.timeframe):
            timeframe = Timeframe.of(rule, step, bars.frequency.calendar)
            views[rule] = View(*timeframe.build(matrix, stamps))
        return cls(bars.symbol, len(bars), views)

    def first_valid(self, columns: Sequence[Column]) -> int:
        """The first bar at which all columns are valid."""
        first = {column.name: self.by_timeframe[column.timeframe].first_valid(column) for column in columns}
        slowest = max(first, key=lambda name: first[name])
        if first[slowest] >= self.rows:
            raise DataError(
                f"bars of {self.symbol}: the {self.rows} bars end within the warm-up of feature '{slowest}'; use more "
                "bars or shorter windows."
            )
        return first[slowest]

    def raw(self, column: Column, fitted: Fitted | None, scratch: Floats | None = None) -> Floats:
        """float64 [T]; NaN before the column's own first valid bar, finite from there on. It may lie in `scratch`."""
        view = self.by_timeframe[column.timeframe]
        if column.feature.kind == "batch":
            values = run_batch(column.feature, column.parameters, view.bars, view.stamps)
        else:
            state = column.feature.new_state(column.parameters, None if fitted is None else dict(fitted))
            values = run(column.feature, state, view.bars, scratch if view.complete is None else None)
        finite = np.isfinite(values[column.warm_up :])
        if not finite.all():
            row = column.warm_up + int(np.argmin(finite))
            when = np.datetime64(int(view.stamps[row]), "ns")
            raise DataError(
                f"feature '{column.name}' of {self.symbol} is {values[row]} at the bar of {when} UTC (row {row}), "
                f"after its warm-up of {column.warm_up}; it must return a finite number from there on."
            )
        values[: column.warm_up] = np.nan
        if view.complete is None:
            return values
        return np.concatenate(([np.nan], values))[view.complete]
