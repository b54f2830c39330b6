"""Candles as an exchange serves them: when they are over, whether they are bars, how two answers fit together."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from tailwise.core.errors import DataError

Milliseconds: TypeAlias = int  # since 1970 UTC

_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


class Candle(NamedTuple):
    """One bar of the exchange, at its open time."""

    time: Milliseconds
    open: float
    high: float
    low: float
    close: float
    volume: float


@dataclass(frozen=True)
class Gap:
    """Bars that the exchange does not have: `missing` of them after the one that opened at `after`."""

    after: str
    missing: int


def candle_end(opened: Milliseconds, timeframe: str) -> Milliseconds:
    """When a candle is over. Months and years have the length that the calendar gives them."""
    count, unit = int(timeframe[:-1]), timeframe[-1]
    if unit in _UNITS:
        return opened + count * _UNITS[unit]
    moment = np.datetime64(opened, "ms")
    month = moment.astype("datetime64[M]")
    later = month + np.timedelta64(count * (12 if unit == "y" else 1), "M")
    return int((later.astype("datetime64[ms]") + (moment - month.astype("datetime64[ms]"))).astype(np.int64))


def show(moment: Milliseconds) -> str:
    """2020-01-31T09:30:00Z."""
    return f"{np.datetime_as_string(np.datetime64(moment, 'ms'), unit='s')}Z"


def candle_fault(row: list[Any]) -> str | None:
    """Why a candle of an exchange is no bar; None if it is one."""
    values = [math.nan if value is None else float(value) for value in row[1:6]]
    if len(values) < 5 or not all(math.isfinite(value) for value in values):
        return f"a value is missing or not finite: {row[1:6]}"
    opened, high, low, close, volume = values
    if min(opened, high, low, close) <= 0 or volume < 0:
        return f"a price is not positive or the volume is negative: {row[1:6]}"
    if not low <= min(opened, close) <= max(opened, close) <= high:
        return f"open or close lie outside low to high: {row[1:6]}"
    return None


def merge(known: list[Candle], page: list[Candle], source: str, file: Path | None = None) -> list[Candle]:
    """The candles of `page` (in order of time) that come after `known`; what both hold must be the same.

    From the first candle of the page on, every known one has to come again: neither values nor candles may change.
    """
    served: list[Candle] = []
    for candle in page:
        if not served or candle.time > served[-1].time:
            served.append(candle)
        elif candle != served[-1]:
            _differ(served[-1], candle, source, None)
    if not known or not served or served[0].time > known[-1].time:
        return served
    again = bisect_right(served, known[-1].time, key=_time)
    first, last = bisect_left(known, served[0].time, key=_time), bisect_right(known, served[-1].time, key=_time)
    for before, now in zip_longest(known[first:last], served[:again]):
        if before != now:
            _differ(before, now, source, file)
    return served[again:]


def _time(candle: Candle) -> Milliseconds:
    return candle.time


def _differ(known: Candle | None, served: Candle | None, source: str, file: Path | None) -> NoReturn:
    """The sentence on the first bar that the exchange serves otherwise than before."""
    moment = min(candle.time for candle in (known, served) if candle is not None)

    def tell(candle: Candle | None) -> str:
        return "no such bar" if candle is None or candle.time != moment else ", ".join(f"{x!r}" for x in candle[1:])

    raise DataError(
        f"{source}: the bar {show(moment)} differs: {f'{file} has' if file else 'it was'} {tell(known)}; the exchange "
        f"now serves {tell(served)} (open, high, low, close, volume). Fetch into a new file and compare the two."
    )


def find_gaps(rows: list[Candle], timeframe: str) -> list[Gap]:
    """Where bars are missing between the first and the last."""
    gaps = []
    for before, after in pairwise(rows):
        expected = candle_end(before.time, timeframe)
        if after.time > expected:
            length = expected - before.time
            gaps.append(Gap(show(before.time), max(1, round((after.time - expected) / length))))
    return gaps
