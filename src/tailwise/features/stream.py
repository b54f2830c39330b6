"""Compute features bar by bar, with the same machine code, scaling and longer bars as the table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailwise.bars.frequency import Calendar
from tailwise.core.compiled import compiled_for, kernel
from tailwise.core.errors import CheckpointError, ConfigError, DataError
from tailwise.features.contract import BAR_SIZE, NANOSECONDS, Column, Floats
from tailwise.features.table import STATE_SIZE, Timeframe

_EDGE = 1e-9  # relative; open and close may lie outside [low, high] by this much, as in loaded bars
_COMPLETE, _WARMING_UP = -1, -2  # answers of `_write_row`


@kernel
def _write_row(values: Any, counts: Any, warm_up: Any, scales: Any, clip: float, row: Any) -> int:
    """Write the newest raw values [F], scaled and clipped, to row float32 [F or more], as `FeatureSpec` does for whole
    columns. counts, warm_up: of each column. Returns the column whose value is not finite, or one of the above."""
    for k in range(values.shape[0]):
        if counts[k] <= warm_up[k]:
            return _WARMING_UP
    for k in range(values.shape[0]):
        if not np.isfinite(values[k]):
            return k
    for k in range(values.shape[0]):
        scaled = (values[k] - scales[k, 0]) / scales[k, 1]
        if scaled < -clip:  # NaN passes, as in numpy's clip
            scaled = -clip
        elif scaled > clip:
            scaled = clip
        row[k] = scaled
    return _COMPLETE


class FeatureStream:
    """The features of one symbol as its bars arrive. Made by `FeatureSpec.stream`."""

    def __init__(
        self,
        symbol: str,
        columns: tuple[Column, ...],
        fitted: Mapping[str, Mapping[str, float] | None],
        scales: Floats,
        clip: float,
        step: int,
        calendar: Calendar,
        instrument: tuple[tuple[str, ...], NDArray[np.float32]],
    ) -> None:
        """scales [F, 2]: mean and divisor of each column; step in ns; instrument: names and values of the constant
        columns that tell symbols apart."""
        for column in columns:
            if column.feature.kind == "batch":
                raise ConfigError(
                    f"feature '{column.name}' is batch only (a pandas function) and cannot be streamed; write it with "
                    "@feature, or leave it out."
                )
        self.symbol, self._columns = symbol, tuple(column.name for column in columns)
        self.names = (*self._columns, *instrument[0])
        self._row = np.concatenate([np.zeros(len(columns), dtype=np.float32), instrument[1]])  # its end stays
        self._scales, self._clip = np.ascontiguousarray(scales, dtype=np.float64), float(clip)
        self._states = [
            column.feature.new_state(column.parameters, None if (fit := fitted[column.name]) is None else dict(fit))
            for column in columns
        ]
        rules = dict.fromkeys(column.timeframe for column in columns)
        self._members = {rule: [k for k, one in enumerate(columns) if one.timeframe == rule] for rule in rules}
        self._places = {rule: _places(members) for rule, members in self._members.items()}
        self._frames = {rule: Timeframe.of(rule, step, calendar) for rule in rules if rule is not None}
        self._longer = {rule: np.zeros(STATE_SIZE) for rule in self._frames}
        self._counts = np.zeros(len(columns), dtype=np.int64)  # bars of its own timeframe that each column has had
        self._values = np.full(len(columns), np.nan)  # newest raw values
        self._warm_up = np.array([column.warm_up for column in columns])
        self._last = np.array([np.iinfo(np.int64).min])  # open time of the newest bar, ns
        self._done = np.empty((2, BAR_SIZE))
        self._updates = [  # all are called at every bar, and always with such arrays
            compiled_for(column.feature.compile(), (state, self._done[0]))
            for column, state in zip(columns, self._states, strict=True)
        ]

    def update(
        self,
        time: np.datetime64 | datetime | int,
        open: float,
        high: float,
        low: float,
        close: float,
        volume: float,
    ) -> NDArray[np.float32] | None:
        """Take in the bar that opened at `time` (UTC; integers are ns since 1970) and is now complete.

        Returns float32 [F], the row of the table, or None during the warm-up.
        """
        stamp = _nanoseconds(time)
        bar = np.array([stamp / NANOSECONDS, open, high, low, close, volume], dtype=np.float64)
        self._check(stamp, bar)
        self._last[0] = stamp
        for rule, members in self._members.items():
            if rule is None:
                self._take_in(members, self._places[rule], bar)
                continue
            for k in range(self._frames[rule].update(self._longer[rule], stamp, bar, self._done)):
                self._take_in(members, self._places[rule], self._done[k])
        row = self._row.copy()
        at = _write_row(self._values, self._counts, self._warm_up, self._scales, self._clip, row)
        if at == _WARMING_UP:
            return None
        if at != _COMPLETE:
            raise DataError(
                f"feature '{self.names[at]}' of {self.symbol} is {self._values[at]} at the bar of "
                f"{np.datetime64(stamp, 'ns')} UTC, after its warm-up; it must return a finite number from there on."
            )
        return row

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Copy the whole state of the stream into plain arrays."""
        arrays = {"last": self._last, "seen": self._counts, "values": self._values}
        arrays |= {f"longer:{rule}": state for rule, state in self._longer.items()}
        arrays |= {f"column:{name}": state for name, state in zip(self._columns, self._states, strict=True)}
        return {name: array.copy() for name, array in arrays.items()}

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from `get_state`; a state of other features is refused and changes nothing."""
        mine = self.get_state()
        if set(mine) != set(state):
            odd = sorted(set(mine) ^ set(state))[0]
            raise CheckpointError(f"the state of the feature stream does not fit: '{odd}' is in one of the two only.")
        for name, array in mine.items():
            given = np.asarray(state[name])
            if given.shape != array.shape or given.dtype != array.dtype:
                raise CheckpointError(
                    f"the state of the feature stream does not fit: '{name}' is {given.dtype} {given.shape}; "
                    f"{array.dtype} {array.shape} is needed."
                )
        self._last[:], self._counts[:], self._values[:] = state["last"], state["seen"], state["values"]
        for rule, longer in self._longer.items():
            longer[:] = state[f"longer:{rule}"]
        for name, own in zip(self._columns, self._states, strict=True):
            own[:] = state[f"column:{name}"]

    def _take_in(self, members: list[int], places: slice | list[int], bar: Floats) -> None:
        values, updates, states = self._values, self._updates, self._states
        for k in members:
            values[k] = updates[k](states[k], bar)
        self._counts[places] += 1

    def _check(self, stamp: int, bar: Floats) -> None:
        """Refuse a bar that no loader would let through, before anything is changed."""
        _, first, high, low, last, volume = bar.tolist()
        if (
            stamp > self._last[0]
            and first > 0 < last  # Python's min and max pass over NaN
            and 0 < low <= min(first, last) * (1 + _EDGE)
            and max(first, last) * (1 - _EDGE) <= high < math.inf
            and 0 <= volume < math.inf
        ):
            return
        where = f"bar of {self.symbol} at {np.datetime64(stamp, 'ns')} UTC"
        if stamp <= self._last[0]:
            raise DataError(
                f"{where}: it does not open after the one before ({np.datetime64(int(self._last[0]), 'ns')})."
            )
        if not (all(math.isfinite(x) for x in bar.tolist()) and low > 0 and volume >= 0):
            raise DataError(
                f"{where}: open {first}, high {high}, low {low}, close {last}, volume {volume}; prices must be positive"
                ", volume at least 0 and all numbers finite."
            )
        if low > min(first, last) * (1 + _EDGE) or high < max(first, last) * (1 - _EDGE):
            raise DataError(f"{where}: open {first} and close {last} do not lie within low {low} and high {high}.")


def _places(members: list[int]) -> slice | list[int]:
    """The same columns; a slice, which numpy reads ten times as fast, where there is no gap between them."""
    first, end = members[0], members[-1] + 1
    return slice(first, end) if members == list(range(first, end)) else members


def _nanoseconds(time: np.datetime64 | datetime | int) -> int:
    if isinstance(time, int | np.integer):
        return int(time)
    if isinstance(time, datetime):
        if hasattr(time, "to_datetime64"):  # a pandas Timestamp, which knows nanoseconds
            time = time.to_datetime64()
        else:
            time = np.datetime64(time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time)
    moment: np.datetime64 = time  # type: ignore[assignment]  # all else was turned into one above
    return int(moment.astype("datetime64[ns]").astype(np.int64))
