"""Features of a whole history: the loop over the bars, raw columns of one symbol, and the table with a row per bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numba import types
from numba.extending import is_jitted
from numpy.typing import NDArray

from tailwise.bars.bars import Bars
from tailwise.core.compiled import kernel
from tailwise.core.errors import DataError, ShapeError
from tailwise.features.config import FeaturesConfig
from tailwise.features.contract import BAR_SIZE, NANOSECONDS, TIME, UPDATE_SIGNATURE, Feature, Floats
from tailwise.features.registry import Column, load_registry
from tailwise.features.timeframe import Timeframe

Fitted: TypeAlias = Mapping[str, float]  # fitted numbers of a column by name

_VECTOR, _MATRIX = types.Array(types.float64, 1, "C"), types.Array(types.float64, 2, "C")
_RUN_SIGNATURE = types.void(types.FunctionType(UPDATE_SIGNATURE), _VECTOR, _MATRIX, _VECTOR)


@kernel
def _run(update: Any, state: Any, bars: Any, out: Any) -> None:
    """Compute out[t] = update(state, bars[t]). `update` points to the machine code that streams call as well: the loop
    is compiled once for all features, and nothing can be reordered across the call."""
    for t in range(len(bars)):
        out[t] = update(state, bars[t])


def run(feature: Feature, state: Floats, bars: Floats, out: Floats | None = None) -> Floats:
    """Compute the column of a streaming feature, float64 [T], over bars [T, 6], into `out` if given; `state` ends as
    after the last bar."""
    if is_jitted(_run) and not _run.overloads:  # with NUMBA_DISABLE_JIT a plain function
        _run.compile(_RUN_SIGNATURE)
        _run.disable_compile()  # from here on a function is passed as a pointer, never compiled in
    out = np.empty(len(bars)) if out is None else out
    _run(feature.compile(), state, bars, out)
    return out


def run_batch(feature: Feature, parameters: tuple[int, ...], bars: Floats, stamps: NDArray[np.int64]) -> Floats:
    """Compute the column of a batch-only feature, float64 [T]; stamps are open times in ns [T]."""
    import pandas as pd

    index = pd.DatetimeIndex(stamps.astype("datetime64[ns]"), tz="UTC", name="time")
    columns = ("open", "high", "low", "close", "volume")
    frame = pd.DataFrame({name: bars[:, 1 + k].copy() for k, name in enumerate(columns)}, index=index)
    assert feature.function is not None
    try:
        result = feature.function(frame, *parameters)
    except Exception as error:  # anything may go wrong in a user's function
        raise DataError(f"batch feature '{feature.name}' failed: {type(error).__name__}: {error}") from error
    if not isinstance(result, pd.Series) or not result.index.equals(index):
        shape = getattr(result, "shape", "")
        raise DataError(
            f"batch feature '{feature.name}' returned a {type(result).__name__} {shape}; return a Series with the "
            f"index of the frame it was given ({len(index)} rows)."
        )
    return np.ascontiguousarray(result.to_numpy(dtype=np.float64, na_value=np.nan))


def seconds(stamps: NDArray[np.int64]) -> Floats:
    """Nanoseconds since 1970 as seconds; exact to a microsecond."""
    result: Floats = stamps / NANOSECONDS
    return result


def as_matrix(bars: Bars) -> tuple[Floats, NDArray[np.int64]]:
    """Bars as `update` reads them, float64 [T, 6], and their open times in ns, int64 [T]."""
    stamps = bars.time.astype(np.int64)
    matrix = np.empty((len(bars), BAR_SIZE))
    matrix[:, TIME] = seconds(stamps)
    for place, values in enumerate((bars.open, bars.high, bars.low, bars.close, bars.volume), start=1):
        matrix[:, place] = values
    return matrix, stamps


def columns_of(config: FeaturesConfig, folder: str | Path | None = None) -> tuple[Column, ...]:
    """List the columns that the configuration names: those on the bars themselves, then those of each timeframe."""
    registry = load_registry(config.modules, folder)
    columns = [registry.column(name) for name in config.include]
    columns += [registry.column(name, rule) for rule, names in config.timeframes.items() for name in names]
    return tuple(columns)


@dataclass(frozen=True, eq=False)
class View:
    """Bars of one length: matrix float64 [K, 6], open times in ns [K], and the number of them complete at the close of
    each given bar [T] (None: they are the given bars themselves)."""

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


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """values float32 [T, F], read-only: row t is known at the close of bar t and uses nothing later.

    Rows before `first_valid` are warm-up: they hold NaN in every column, so that using one by mistake shows.
    """

    values: NDArray[np.float32]
    names: tuple[str, ...]
    first_valid: int

    def __post_init__(self) -> None:
        if self.values.dtype != np.float32 or self.values.ndim != 2 or self.values.shape[1] != len(self.names):
            raise ShapeError(
                f"a feature table has values {self.values.dtype} {self.values.shape} and {len(self.names)} names; "
                "float32 [bars, features] with one name per column is needed."
            )
        if not 0 <= self.first_valid < len(self.values):
            raise DataError(
                f"a feature table of {len(self.values)} bars has {self.first_valid} of warm-up: no bar is left; "
                "give more bars or shorter windows."
            )
        finite = np.isfinite(self.values[self.first_valid :])
        if not finite.all():
            row, column = (int(place) for place in np.argwhere(~finite)[0])
            raise DataError(
                f"feature '{self.names[column]}' is {self.values[self.first_valid + row, column]} in row "
                f"{self.first_valid + row}, after its warm-up; every value after the warm-up must be finite."
            )
        view = self.values.view()
        view.flags.writeable = False
        object.__setattr__(self, "values", view)

    def __len__(self) -> int:
        return len(self.values)
