"""Read the files of a run folder that another process is writing: names, values, files, lines as they are appended.

Reading follows the rules of `tailwise.run.run_files`, but what these refuse counts as missing here: the page shows runs
that are being written, and goes on.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tailwise.core.errors import DataError
from tailwise.core.parsing import parse_json
from tailwise.run import run_files

# Names of files in a run folder, repeated so that the page does not import torch; a test compares them.
CONFIG, ALERTS = "config.yaml", "alerts.jsonl"
METRICS, METRICS_TABLE = "metrics.jsonl", "metrics.parquet"
SEVERITIES = ("info", "warn", "error")
EVALUATIONS, EQUITY, SUMMARY = "evaluations", "equity.parquet", "summary.json"
LARGEST_WHOLE = 2**53 - 1  # a browser holds no larger whole number exactly
CHUNK = 8 * 2**20  # bytes read in one poll at most; the next poll goes on
LONGEST_LINE = 2**20  # bytes; what is longer is no line of ours and is skipped
MOST_VALUES = 2000  # of one line
DEEPEST = 8  # lists and mappings within each other
_PROBE = 64  # bytes before the offset that must still be what they were


def finite(value: Any) -> float | None:
    """The value if it is a finite number, else None."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return None
    return number if math.isfinite(number) else None


def whole(value: Any) -> int | None:
    """A count: a whole number from 0 that a browser holds exactly, or None."""
    return value if type(value) is int and 0 <= value <= LARGEST_WHOLE else None


def short_text(value: Any, most: int = 200) -> str:
    """A value as text of at most `most` characters; empty for None."""
    return "" if value is None else str(value)[:most]


def to_json(value: Any) -> str:
    """Compact JSON without NaN, in ASCII."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Stamp:
    """Identifies a version of a file without reading it."""

    inode: int
    size: int  # bytes
    changed: float  # seconds since 1970


def inside(folder: Path, *parts: str) -> Path | None:
    """Resolve folder/parts if it exists and lies inside the (resolved) folder, else None."""
    try:
        path = run_files.inside(folder.joinpath(*parts), folder)
    except DataError:
        return None
    return path if path.is_relative_to(folder) else None  # the folder itself may have become a link


def open_inside(folder: Path, *parts: str) -> BinaryIO | None:
    """Open a regular file inside the folder for reading; None for anything else, without blocking on a pipe."""
    path = inside(folder, *parts)
    if path is None:
        return None
    try:
        return run_files.open_real(path)
    except (DataError, run_files.NotOpenedError):
        return None


def stamp_inside(folder: Path, *parts: str) -> Stamp | None:
    """Inode, size and time of change of a file inside the folder; None if it is missing."""
    path = inside(folder, *parts)
    if path is None:
        return None
    try:
        status = path.stat()
    except OSError:
        return None
    return Stamp(status.st_ino, status.st_size, status.st_mtime)


def read_inside(folder: Path, *parts: str, limit: int) -> bytes | None:
    """Read a small file inside the folder; None if it is missing or larger than `limit` bytes."""
    file = open_inside(folder, *parts)
    if file is None:
        return None
    with file:
        try:
            data = file.read(limit + 1)
        except OSError:
            return None
    return data if len(data) <= limit else None


@dataclass(frozen=True)
class News:
    """Result of a poll. reset: the file was replaced or cut back; forget what was read before."""

    rows: list[dict[str, Any]]
    reset: bool = False
    more: bool = False  # whether there is more to read at once


class Tail:
    """Follow a file of JSON lines that another process appends to; each poll reads only what is new.

    An incomplete last line is kept until it is complete; a line that is no row is counted.
    """

    def __init__(self, folder: Path, name: str, accept: Callable[[bytes], dict[str, Any] | None] | None = None) -> None:
        """accept: the row in a line, None for one that is none; by default `parse_row`."""
        self.folder, self.name, self._accept = folder, name, accept or parse_row
        self.bad_lines = 0
        self._inode = -1
        self._offset = 0
        self._probe = b""
        self._rest = b""
        self._skipping = False  # inside a line that is too long

    def poll(self) -> News:
        """Read the rows that were completed since the last poll."""
        file = open_inside(self.folder, self.name)
        if file is None:
            return self._restart(News([], reset=self._offset > 0))
        with file:
            status = os.fstat(file.fileno())
            reset = self._offset > 0 and not self._continues(file.fileno(), status)
            if reset or self._inode != status.st_ino:
                self._restart(News([]))
            self._inode = status.st_ino
            if status.st_size == self._offset:
                return News([], reset=reset)
            file.seek(self._offset)
            data = file.read(CHUNK)
        self._offset += len(data)
        self._probe = (self._probe + data)[-_PROBE:]
        return News(self._rows(data), reset=reset, more=len(data) == CHUNK)

    def _continues(self, handle: int, status: os.stat_result) -> bool:
        if status.st_ino != self._inode or status.st_size < self._offset:
            return False
        # Cut back and written again in place: same inode, another past.
        return os.pread(handle, len(self._probe), self._offset - len(self._probe)) == self._probe

    def _restart(self, news: News) -> News:
        self._inode, self._offset, self._probe, self._rest, self._skipping = -1, 0, b"", b"", False
        self.bad_lines = 0
        return news

    def _rows(self, data: bytes) -> list[dict[str, Any]]:
        *lines, rest = (self._rest + data).split(b"\n")
        if self._skipping and lines:
            lines, self._skipping = lines[1:], False
        self._rest = rest
        if len(rest) > LONGEST_LINE or self._skipping:
            self.bad_lines += not self._skipping
            self._rest, self._skipping = b"", True
        rows = []
        for line in lines:
            row = self._accept(line)
            if row is not None:
                rows.append(row)
            elif line.strip():
                self.bad_lines += 1
        return rows


def parse_row(line: bytes) -> dict[str, Any] | None:
    """Parse one JSON object with a count `update`; None for anything else, also for NaN and numbers beyond 64 bits."""
    try:
        row = parse_json(line, what="line", max_bytes=LONGEST_LINE, max_depth=DEEPEST)
    except DataError:
        return None
    fits = isinstance(row, dict) and len(row) <= MOST_VALUES and whole(row.get("update")) is not None
    return row if fits else None


def last_row(folder: Path, name: str, *, window: int = 2**17) -> dict[str, Any] | None:
    """Read the newest complete row, from the last `window` bytes of the file; None when there is none."""
    file = open_inside(folder, name)
    if file is None:
        return None
    with file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - window))
        data = file.read(window)
    for line in reversed(data.split(b"\n")[:-1]):
        row = parse_row(line)
        if row is not None:
            return row
    return None
