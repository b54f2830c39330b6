"""What a feed says, line by line: bars and reports of positions. Nothing of a line is trusted before it was parsed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailwise.bars.frequency import FIRST_YEAR, LAST_YEAR
from tailwise.core.errors import DataError
from tailwise.core.parsing import parse_json

LONGEST_LINE = 65_536  # bytes
LOWEST_PRICE, HIGHEST_PRICE = 1e-12, 1e12
LARGEST_VOLUME = 1e18
_EDGE = 1e-9  # relative; open and close may lie outside [low, high] by this much, as in loaded bars
_FIRST, _LAST = (int(np.datetime64(f"{year}-01-01", "ns").astype(np.int64)) for year in (FIRST_YEAR + 1, LAST_YEAR))
_MS = 1_000_000  # ns
_UTC = re.compile(r"^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?))?(?:Z|\+00:00)?$")
_PRICES = ("open", "high", "low", "close")
_OPTIONAL = ("dividend", "funding")


@dataclass(frozen=True)
class RawBar:
    """A complete bar, checked. time: its open, ns since 1970 UTC; dividend, funding: as in `FeedBar`."""

    symbol: str
    time: int
    open: float
    high: float
    low: float
    close: float
    volume: float
    dividend: float = 0.0
    funding: float = 0.0

    def to_list(self) -> list[float]:
        """Its numbers, without symbol and time."""
        return [self.open, self.high, self.low, self.close, self.volume, self.dividend, self.funding]


@dataclass(frozen=True)
class PositionReport:
    """What a venue says is held of a symbol, units."""

    symbol: str
    units: float


@dataclass(frozen=True)
class Refused:
    """A line that says nothing that can be used, and why."""

    reason: str


Said = RawBar | PositionReport | Refused


def read_line(line: bytes, symbols: tuple[str, ...], *, where: str) -> Said:
    """A JSON line: a bar {"time": ..., "open": ..., "high": ..., "low": ..., "close": ..., "volume": ...} of the only
    symbol or of "symbol", or a report {"position": UNITS}. time: ISO 8601 in UTC, or milliseconds since 1970."""
    try:
        data = parse_json(line, what=where, max_bytes=LONGEST_LINE, max_depth=4)
        if not isinstance(data, dict):
            raise DataError(f"{where}: a mapping is needed, such as {{'time': ..., 'open': ..., ...}}.")
        return said_by(data, symbols, where=where)
    except DataError as error:
        return Refused(str(error))


def said_by(data: Mapping[str, Any], symbols: tuple[str, ...], *, where: str) -> Said:
    """The bar or the report of a mapping; DataError for anything else."""
    symbol = data.get("symbol", symbols[0] if len(symbols) == 1 else None)
    if symbol not in symbols:
        raise DataError(f"{where}: symbol {str(symbol)[:40]!r} is not one of {', '.join(symbols)}.")
    known = {"symbol", "position"} if "position" in data else {"symbol", "time", *_PRICES, "volume", *_OPTIONAL}
    unknown = [key for key in data if key not in known]
    if unknown:
        raise DataError(f"{where}: key {unknown[0][:40]!r} is unknown; {', '.join(sorted(known))} are read.")
    if "position" in data:
        return PositionReport(symbol, _number(data, "position", where))
    bar = RawBar(
        symbol,
        moment_of(data.get("time"), where=where),
        *(_number(data, name, where) for name in (*_PRICES, "volume")),
        **{name: _number(data, name, where) for name in _OPTIONAL if name in data},
    )
    check_bar(bar, where=where)
    return bar


def check_bar(bar: RawBar, *, where: str) -> None:
    """Refuse a bar that no loader would let through, and prices beyond what accounts can be valued at."""
    prices = (bar.open, bar.high, bar.low, bar.close)
    if not all(LOWEST_PRICE <= price <= HIGHEST_PRICE for price in prices):
        raise DataError(f"{where}: prices are {prices}; they must lie from {LOWEST_PRICE:g} to {HIGHEST_PRICE:g}.")
    if not 0 <= bar.volume <= LARGEST_VOLUME:
        raise DataError(f"{where}: volume is {bar.volume}; it must lie from 0 to {LARGEST_VOLUME:g}.")
    if not (abs(bar.dividend) <= bar.close and abs(bar.funding) <= 1):
        raise DataError(f"{where}: dividend {bar.dividend} or funding {bar.funding} is larger than a price.")
    top, bottom = max(bar.open, bar.close), min(bar.open, bar.close)
    if bar.low > bottom * (1 + _EDGE) or bar.high < top * (1 - _EDGE):
        raise DataError(f"{where}: open {bar.open} and close {bar.close} do not lie within {bar.low} and {bar.high}.")


def inside_its_range(bar: RawBar) -> RawBar:
    """The same with high and low that hold open and close exactly, which rounding may have left outside."""
    high, low = max(bar.high, bar.open, bar.close), min(bar.low, bar.open, bar.close)
    if (high, low) == (bar.high, bar.low):
        return bar
    return RawBar(bar.symbol, bar.time, bar.open, high, low, bar.close, bar.volume, bar.dividend, bar.funding)


def moment_of(value: Any, *, where: str) -> int:
    """ns since 1970 of an ISO 8601 text in UTC, or of milliseconds."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise DataError(f"{where}: time is {str(value)[:40]!r}; write 2024-05-01T14:30:00Z or milliseconds since 1970.")
    try:
        if isinstance(value, int):
            stamp = value * _MS
        else:
            match = _UTC.match(value.strip()[:40])
            if match is None:
                raise ValueError("another form")  # numpy would also read "now", and other zones
            stamp = int(np.datetime64("T".join(filter(None, match.groups())), "ns").astype(np.int64))
    except ValueError as error:
        raise DataError(f"{where}: time {str(value)[:40]!r} is no UTC time; write 2024-05-01T14:30:00Z.") from error
    if not _FIRST <= stamp <= _LAST:
        raise DataError(f"{where}: time {str(value)[:40]!r} lies outside {FIRST_YEAR + 1} to {LAST_YEAR}.")
    return stamp


def _number(data: Mapping[str, Any], name: str, where: str) -> float:
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{where}: {name} is {str(value)[:40]!r}; a finite number is needed.")
    return float(value)
