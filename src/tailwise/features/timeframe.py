"""Build longer bars from the given ones as these arrive; a longer bar is visible only once it is complete.

The same compiled step serves tables and streams, so that both have the same longer bars, bit for bit. Their definition
is that of bars/resample.py, with which the tests compare them: days begin at 00:00 UTC, weeks on Monday, and a
bar is complete when its interval has passed by the clock of the given bars.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailwise.bars.frequency import DAY, WEEK, Calendar, describe_step
from tailwise.bars.resample import parse_rule
from tailwise.core.compiled import kernel
from tailwise.core.errors import DataError
from tailwise.features.contract import BAR_SIZE, CLOSE, HIGH, LOW, NANOSECONDS, TIME, VOLUME, Floats

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
