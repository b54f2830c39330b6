"""Where bars come from: JSON lines on standard input, files that may grow, a replay of them, candles of an exchange.

A feed yields what was said, one thing at a time, and None while there is nothing: then the session looks at its clock.
A bar is said once it is complete.
"""

from __future__ import annotations

import csv
import io
import os
import select
import time as wall_time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.bars.dialects import assign_columns
from tailwise.core.errors import DataError
from tailwise.live.lines import LONGEST_LINE, RawBar, Refused, Said, read_line, said_by

POLL = 0.2  # seconds between two looks at a file
IDLE = 1.0  # seconds without a line after which a feed says None
_BLOCK = 65_536
_AT_ONCE = 4096  # bars whose order is turned into Python's numbers at a time: a week of seconds is 600,000
_NUMBERS = ("open", "high", "low", "close", "volume")


class Feed(Protocol):
    """A source of bars. live: whether bars arrive as time passes, so that the clock of the wall means something."""

    live: bool

    def said(self) -> Iterator[Said | None]:
        """What is said, in its order; ends where the source ends."""

    def go_on_after(self, time: int) -> None:
        """Bars up to the one that opened at `time`, ns, are known; a source that says them again does no harm."""

    def history(self, symbol: str, after: int, before: int) -> list[RawBar]:
        """Complete bars that opened between two times in ns, both left out, as far as the source keeps them."""


class StreamFeed:
    """JSON lines of an open descriptor, such as standard input; see `lines.read_line`."""

    live = True

    def __init__(self, descriptor: int, symbols: tuple[str, ...], *, idle: float = IDLE) -> None:
        self._descriptor, self._symbols, self._idle = descriptor, symbols, idle

    def said(self) -> Iterator[Said | None]:
        splitter, number = LineSplitter(), 0
        while True:
            ready, _, _ = select.select([self._descriptor], [], [], self._idle)
            if not ready:
                yield None
                continue
            data = os.read(self._descriptor, _BLOCK)
            for line in splitter.lines(data, last=not data):
                number += 1
                if line.strip():
                    yield said_of(line, self._symbols, where=f"line {number}")
            if not data:
                return

    def go_on_after(self, time: int) -> None:
        return None  # who writes decides

    def history(self, symbol: str, after: int, before: int) -> list[RawBar]:
        return []


class LineSplitter:
    """Cuts what arrives into lines; one that is too long is passed on cut, so that it is refused and not kept."""

    def __init__(self) -> None:
        self._rest, self._skipping = b"", False

    def lines(self, data: bytes, *, last: bool = False) -> Iterator[bytes]:
        """The whole lines; last: nothing follows, so the rest is one too."""
        *whole, rest = (self._rest + data).split(b"\n")
        for line in whole:
            if not self._skipping:
                yield line
            self._skipping = False
        self._rest = rest
        if len(rest) > LONGEST_LINE:
            if not self._skipping:
                yield rest[: LONGEST_LINE + 1]
            self._rest, self._skipping = b"", True
        elif last and rest and not self._skipping:
            yield rest


def said_of(line: bytes, symbols: tuple[str, ...], *, where: str) -> Said:
    return read_line(line, symbols, where=where)


class FileFeed:
    """A file that may grow: JSON lines (.jsonl, .json), or CSV with a header and the newest row last.

    symbol: whose bars a CSV without a column `symbol` has. follow: wait for more at its end; speed: bars per second,
    None: as fast as they are read. A last line without its line break is not complete, and waits.
    """

    def __init__(
        self,
        path: Path,
        symbols: tuple[str, ...],
        *,
        symbol: str | None = None,
        follow: bool = False,
        speed: float | None = None,
        pause: Callable[[float], None] = wall_time.sleep,
    ) -> None:
        self.path, self._symbols, self._symbol = path, symbols, symbol
        self.live, self._speed, self._pause = follow, speed, pause
        self._columns: dict[str, int] | None = None

    def said(self) -> Iterator[Said | None]:
        csv_file = self.path.suffix.lower() not in (".jsonl", ".json")
        splitter, number, idle = LineSplitter(), 0, 0.0
        with open(self.path, "rb") as file:
            while True:
                data = file.read(_BLOCK)
                if not data:
                    if not self.live:
                        break
                    self._pause(POLL)
                    idle += POLL
                    if idle >= IDLE:
                        idle = 0.0
                        yield None
                    continue
                for line in splitter.lines(data):
                    number += 1
                    what = self._line(line, number, csv_file)
                    if what is not None:
                        yield what
                        if self._speed is not None:
                            self._pause(1.0 / self._speed)
            for line in splitter.lines(b"", last=True):
                what = self._line(line, number + 1, csv_file)
                if what is not None:
                    yield what

    def go_on_after(self, time: int) -> None:
        return None

    def history(self, symbol: str, after: int, before: int) -> list[RawBar]:
        return []  # whatever it holds was said in its order

    def _line(self, line: bytes, number: int, csv_file: bool) -> Said | None:
        where = f"{self.path}, line {number}"
        if not line.strip():
            return None
        if not csv_file:
            return said_of(line, self._symbols, where=where)
        try:
            cells = next(csv.reader(io.StringIO(line.decode("utf-8-sig"))), [])
        except (UnicodeDecodeError, csv.Error) as error:
            return Refused(f"{where}: this is no row of a CSV file ({error}).")
        if self._columns is None:
            self._columns, _ = assign_columns(cells, str(self.path))  # no feed without a header that can be read
            return None
        return self._row(cells, where)

    def _row(self, cells: list[str], where: str) -> Said:
        assert self._columns is not None
        columns = self._columns
        try:
            if len(cells) <= max(columns.values()):
                raise DataError(f"{where}: {len(cells)} cells; the header has more.")
            time = cells[columns["time"]].strip()
            data: dict[str, object] = {"time": int(time) * _unit(time) if time.lstrip("-").isdigit() else time}
            for name in _NUMBERS:
                data[name] = _as_number(cells[columns[name]]) if name in columns else 0.0
            if "dividends" in columns and cells[columns["dividends"]].strip():
                data["dividend"] = _as_number(cells[columns["dividends"]])
            if "symbol" in columns:
                data["symbol"] = cells[columns["symbol"]].strip()
            elif self._symbol is not None:
                data["symbol"] = self._symbol
            return said_by(data, self._symbols, where=where)
        except DataError as error:
            return Refused(str(error))


def _unit(text: str) -> int:
    """Milliseconds of a count since 1970: of ten digits or fewer it counts seconds."""
    return 1000 if len(text.lstrip("-")) <= 10 else 1


def _as_number(text: str) -> float | str:
    try:
        return float(text[:64])
    except ValueError:
        return text[:64]


class BarsFeed:
    """Bars that are there already, of one or several symbols in the order of their times; speed as in `FileFeed`."""

    live = False

    def __init__(
        self,
        bars: list[Bars],
        *,
        speed: float | None = None,
        after: int | None = None,
        pause: Callable[[float], None] = wall_time.sleep,
    ) -> None:
        """after: open time in ns of a bar; it and those before it are left out."""
        self._bars, self._speed, self._after, self._pause = bars, speed, after, pause

    def said(self) -> Iterator[Said | None]:
        times = np.concatenate([one.time.astype("int64") for one in self._bars])
        owner = np.repeat(np.arange(len(self._bars)), [len(one) for one in self._bars])
        row = np.concatenate([np.arange(len(one)) for one in self._bars])
        order = np.lexsort((owner, times))
        if self._after is not None:
            order = order[times[order] > self._after]
        for first in range(0, len(order), _AT_ONCE):
            some = order[first : first + _AT_ONCE]
            for bar in raw_bars(self._bars, owner[some], row[some]):
                yield bar
                if self._speed is not None:
                    self._pause(1.0 / self._speed)

    def go_on_after(self, time: int) -> None:
        self._after = time

    def history(self, symbol: str, after: int, before: int) -> list[RawBar]:
        return []


class ParquetFeed:
    """A Parquet file that is written anew with more bars: read again when it changes."""

    live = True

    def __init__(
        self, path: Path, read: Callable[[], Bars], *, pause: Callable[[float], None] = wall_time.sleep
    ) -> None:
        self.path, self._read, self._pause = path, read, pause
        self._newest: int | None = None

    def said(self) -> Iterator[Said | None]:
        seen: tuple[int, int] | None = None
        while True:
            now = self.path.stat()
            version = (now.st_mtime_ns, now.st_size)
            if version != seen:
                try:
                    bars = self._read()
                except DataError as error:  # half of it may be written: the next change shows the rest
                    yield Refused(str(error).splitlines()[0])
                else:
                    yield from BarsFeed([bars], after=self._newest).said()
                    self._newest = int(bars.time[-1].astype("int64"))
                seen = version
            self._pause(IDLE)
            yield None

    def go_on_after(self, time: int) -> None:
        self._newest = time

    def history(self, symbol: str, after: int, before: int) -> list[RawBar]:
        return []


def raw_bars(
    bars: Sequence[Bars], owner: npt.NDArray[np.integer[Any]], row: npt.NDArray[np.integer[Any]]
) -> Iterator[RawBar]:
    """Bar number row[n] of bars[owner[n]], one after the other; whole columns are turned into Python's numbers."""
    table = np.zeros((6, len(row)))
    times = np.empty(len(row), dtype=np.int64)
    for k, one in enumerate(bars):
        own = owner == k
        times[own] = one.time[row[own]].astype("int64")
        for column, values in zip(table, (*(getattr(one, name) for name in _NUMBERS), one.dividends), strict=True):
            if values is not None:
                column[own] = values[row[own]]
    symbols = [one.symbol for one in bars]
    for k, time, *numbers in zip(owner.tolist(), times.tolist(), *table.tolist(), strict=True):
        yield RawBar(symbols[k], time, *numbers)


def raw_bar(bars: Bars, i: int) -> RawBar:
    """Bar number i."""
    return RawBar(
        bars.symbol,
        bars.time[i].astype("int64").item(),
        bars.open.item(i),
        bars.high.item(i),
        bars.low.item(i),
        bars.close.item(i),
        bars.volume.item(i),
        0.0 if bars.dividends is None else bars.dividends.item(i),
    )
