"""Features of a whole history: longer bars, the loop over the bars, raw columns of one symbol, and the table.

A longer bar is visible only once it is complete. The same compiled step serves tables and streams, so that both have
the same longer bars, bit for bit. Their definition is that of `bars.resample`, with which the tests compare them: days
begin at 00:00 UTC, weeks on Monday, and a bar is complete when its interval has passed by the clock of the given bars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numba import types
from numba.extending import is_jitted
from numpy.typing import NDArray

from tailwise.bars.bars import Bars
from tailwise.bars.frequency import DAY, WEEK, Calendar, describe_step, parse_rule
from tailwise.core.compiled import kernel
from tailwise.core.errors import DataError, ShapeError
from tailwise.features.contract import (
    BAR_SIZE,
    CLOSE,
    HIGH,
    LOW,
    NANOSECONDS,
    TIME,
    UPDATE_SIGNATURE,
    VOLUME,
    Column,
    Feature,
    Floats,
)

# ---------------------------------------------------------------------- longer bars
_MONDAY = 4 * DAY  # 1970-01-05
# Places in the state; the unfinished bar follows from _BAR on.
_STARTED, _ORIGIN, _INTERVAL, _DROPPED, _BAR = 0, 1, 2, 3, 4
STATE_SIZE = _BAR + BAR_SIZE
_STRADDLES = -1


class _Lengths(NamedTuple):
    """Lengths of the longer and of the given bars in ns, and whether the market never closes."""

    size: int
    step: int
    around_the_clock: bool


@dataclass(frozen=True)
class Timeframe:
    """Longer bars, such as "4h", out of given ones."""

    rule: str
    lengths: _Lengths

    @classmethod
    def of(cls, rule: str, step: int, calendar: Calendar) -> Timeframe:
        size = parse_rule(rule)
        if size <= step or size % step:
            raise DataError(
                f"features.timeframes: '{rule}' is not a multiple of the bars' step of {describe_step(step)}; choose a "
                "longer one that is."
            )
        return cls(rule, _Lengths(size, step, calendar == "24/7"))

    def update(self, state: Floats, stamp: int, bar: Floats, done: Floats) -> int:
        """Add one bar [6] that opens at `stamp` ns; write the longer bars that it completed to done [2, 6] and return
        their number."""
        count = int(_step(state, stamp, bar, self.lengths, done))
        if count == _STRADDLES:
            self._refuse_straddling(stamp)
        return count

    def build(self, bars: Floats, stamps: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
        """Build the longer bars [K, 6] of bars [T, 6]; also return their open times in ns [K], and how many were
        complete at the close of each given bar [T]."""
        longer, complete = np.empty((len(bars) + 1, BAR_SIZE)), np.empty(len(bars), dtype=np.int64)
        opens = np.empty(len(bars) + 1, dtype=np.int64)
        state = np.zeros(STATE_SIZE)
        done = np.empty((2, BAR_SIZE))
        count = int(_build(state, stamps, bars, self.lengths, done, longer, opens, complete))
        if count < 0:
            self._refuse_straddling(int(stamps[-1 - count]))
        return np.ascontiguousarray(longer[:count]), opens[:count], complete

    def _refuse_straddling(self, stamp: int) -> None:
        raise DataError(
            f"features.timeframes: the bar that opens at {np.datetime64(stamp, 'ns')} UTC lasts beyond the end of its "
            f"'{self.rule}' bar and would carry the future into it; choose a timeframe whose bars begin where the "
            "given ones do."
        )


@kernel
def _step(state: Any, stamp: int, bar: Any, lengths: _Lengths, done: Any) -> int:
    """Add one given bar; return the number of longer bars that it completed (0, 1 or 2), or _STRADDLES."""
    size, step = lengths.size, lengths.step
    first = state[_STARTED] == 0.0
    origin = int(state[_ORIGIN])
    if first:
        origin = _MONDAY if size % WEEK == 0 else stamp % step if size < DAY else 0
    interval = (stamp - origin) // size
    opens = interval * size + origin
    if stamp + step > opens + size:
        return _STRADDLES
    state[_STARTED] = 1.0
    state[_ORIGIN] = origin
    count = 0
    if first or interval != int(state[_INTERVAL]):
        if not first and state[_DROPPED] == 0.0:
            for i in range(BAR_SIZE):  # its interval had passed when this bar opened
                done[count, i] = state[_BAR + i]
            count += 1
        # Where the market never closes, a first bar whose beginning lies before the data is not whole.
        state[_DROPPED] = 1.0 if first and lengths.around_the_clock and stamp > opens else 0.0
        state[_INTERVAL] = interval
        for i in range(BAR_SIZE):
            state[_BAR + i] = bar[i]
        state[_BAR + TIME] = opens / NANOSECONDS
    else:
        state[_BAR + HIGH] = max(state[_BAR + HIGH], bar[HIGH])
        state[_BAR + LOW] = min(state[_BAR + LOW], bar[LOW])
        state[_BAR + CLOSE] = bar[CLOSE]
        state[_BAR + VOLUME] += bar[VOLUME]
    if stamp + step == opens + size and state[_DROPPED] == 0.0:
        for i in range(BAR_SIZE):
            done[count, i] = state[_BAR + i]
        count += 1
        state[_DROPPED] = 1.0  # published: not to be published again
    return count


@kernel
def _build(
    state: Any,
    stamps: Any,
    bars: Any,
    lengths: _Lengths,
    done: Any,
    longer: Any,
    opens: Any,
    complete: Any,
) -> int:
    """Add all given bars; return the number of longer ones, or -1 - row of a bar that straddles two of them.

    done [2, 6] is scratch.
    """
    count = 0
    for t in range(len(bars)):
        before, pending = int(state[_INTERVAL]), state[_STARTED] == 1.0 and state[_DROPPED] == 0.0
        new = _step(state, stamps[t], bars[t], lengths, done)
        if new == _STRADDLES:
            return -1 - t
        for i in range(new):
            # What was pending comes first, if this bar opened a new interval; then perhaps the bar's own.
            old = i == 0 and pending and int(state[_INTERVAL]) != before
            for j in range(BAR_SIZE):
                longer[count, j] = done[i, j]
            opens[count] = (before if old else int(state[_INTERVAL])) * lengths.size + int(state[_ORIGIN])
            count += 1
        complete[t] = count
    return count


# ---------------------------------------------------------------------- columns and tables
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
        for rule in dict.fromkeys(column.timeframe for column in columns if column.timeframe):
            timeframe = Timeframe.of(rule, bars.frequency.bar_ns, bars.frequency.calendar)
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
