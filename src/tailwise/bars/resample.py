"""Resample bars to a longer step, and join the two so that a bar is visible only once it is complete.

A longer bar is labelled at its OPEN time like every other bar, so its label says nothing about when its close was
known. It is complete when its interval has passed by the clock: a bar of [00:00, 24:00) is not complete when the
exchange closes at 21:00, because nothing in the data says that no trade will follow. That is one bar late at times,
and never early.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tailwise.bars.bars import Bars
from tailwise.bars.frequency import DAY, HOUR, SECOND, WEEK, describe_step, with_calendar
from tailwise.core.errors import DataError

_UNITS = {"s": SECOND, "min": 60 * SECOND, "h": HOUR, "d": DAY, "w": WEEK}
_MONDAY = 4 * DAY  # 1970-01-05: weeks begin on Monday 00:00 UTC


def parse_rule(rule: str) -> int:
    """Nanoseconds of '15min', '4h', '1D' or '1W'."""
    match = re.fullmatch(r"\s*(\d{0,9})\s*(s|min|h|d|w)\s*", rule.lower())
    size = int(match.group(1) or 1) * _UNITS[match.group(2)] if match else 0
    if not 0 < size <= 366 * DAY:
        raise DataError(
            f"resampling rule is {rule!r}; write a number of s, min, h, D or W, such as 15min, 4h, 1D or 1W."
        )
    return size


def resample(bars: Bars, rule: str) -> Bars:
    """Resample to bars of length `rule`, labelled at their open time; an incomplete last bar is left out.

    Days begin at 00:00 UTC and weeks on Monday. Bars below a day are aligned like the given ones (those at half past
    give 4 h bars at half past). Intervals without trades have no bar. A first bar whose beginning lies before the data
    is left out where the market never closes; an exchange may simply have opened later.
    """
    size, step = parse_rule(rule), int(bars.frequency.bar.astype(np.int64))
    if size < step or size % step:
        raise DataError(
            f"bars of {bars.symbol}: {rule!r} is not a multiple of their step of {describe_step(step)}; "
            "choose one that is."
        )
    stamps = bars.time.astype(np.int64)
    origin = _MONDAY if size % WEEK == 0 else int(stamps[0] % step) if size < DAY else 0
    start = (stamps - origin) // size * size + origin
    _refuse_straddling(bars, stamps + step, start + size, rule)
    first = np.flatnonzero(np.diff(start, prepend=start[0] - size))
    opens = start[first]
    # By the clock of the last bar given, which intervals have passed?
    keep = opens + size <= stamps[-1] + step
    notes = [*bars.notes, f"resampled from {describe_step(step)} to {rule}"]
    if not keep[-1]:
        notes.append("the incomplete last bar is left out")
    if bars.frequency.calendar == "24/7" and stamps[0] > opens[0]:
        keep[0] = False
        notes.append("the first bar, whose beginning lies before the data, is left out")
    if not keep.any():
        raise DataError(
            f"bars of {bars.symbol}: the {len(bars)} bars do not complete one bar of {rule!r}; use more data."
        )
    last = np.append(first[1:], len(stamps)) - 1
    time = opens[keep].astype("datetime64[ns]")
    frequency = with_calendar(time, np.timedelta64(size, "ns"), bars.frequency.calendar, "that of the shorter bars")
    return replace(
        bars,
        time=time,
        open=bars.open[first][keep],
        high=np.maximum.reduceat(bars.high, first)[keep],
        low=np.minimum.reduceat(bars.low, first)[keep],
        close=bars.close[last][keep],
        volume=np.add.reduceat(bars.volume, first)[keep],
        dividends=None if bars.dividends is None else np.add.reduceat(bars.dividends, first)[keep],
        frequency=frequency,
        notes=tuple(notes),
    )


def _refuse_straddling(bars: Bars, close: NDArray[np.int64], end: NDArray[np.int64], rule: str) -> None:
    """A short bar that ends after the long bar it opened in would carry the future into it."""
    over = close > end
    if over.any():
        at = int(np.argmax(over))
        raise DataError(
            f"bars of {bars.symbol} row {at + 1}: the bar that opens at {bars.time[at]} UTC lasts beyond the end "
            f"of its {rule!r} bar ({int(over.sum())} bars do); use a rule whose bars begin where the given ones do."
        )


def completion_index(fine: Bars, coarse: Bars) -> NDArray[np.int64]:
    """For each fine bar, the newest coarse bar that was complete at the fine bar's close; -1 for none: int64 [T].

    A bar is complete at its open time plus its length. Joining by open time instead would show, at the first minute of
    a day, that day's close.
    """
    fine_close = fine.time + fine.frequency.bar
    coarse_end = coarse.time + coarse.frequency.bar
    return np.searchsorted(coarse_end, fine_close, side="right").astype(np.int64) - 1
