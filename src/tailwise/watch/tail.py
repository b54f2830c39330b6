"""Follows a file of JSON lines that another process appends to: each poll reads only what is new."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailwise.core.errors import DataError
from tailwise.core.limited_json import parse_json
from tailwise.watch.safe_files import open_inside
from tailwise.watch.values import whole

CHUNK = 8 * 2**20  # bytes read in one poll at most; the next poll goes on
LONGEST_LINE = 2**20  # bytes; what is longer is no line of ours and is skipped
MOST_VALUES = 2000  # of one line
DEEPEST = 8  # lists and mappings within each other
_PROBE = 64  # bytes before the offset that must still be what they were


@dataclass(frozen=True)
class News:
    """What a poll found. reset: the file was replaced or cut back, forget what was read before."""

    rows: list[dict[str, Any]]
    reset: bool = False
    more: bool = False  # whether there is more to read at once


class Tail:
    """Position in one file. A line without its end is kept until it is whole; a line that is no row is counted."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.bad_lines = 0
        self._inode = -1
        self._offset = 0
        self._probe = b""
        self._rest = b""
        self._skipping = False  # inside a line that is too long

    def poll(self) -> News:
        """Rows that were completed since the last poll."""
        file = open_inside(self.folder, self.name)
        if file is None:
            return self._restart(News([], reset=self._offset > 0))
        with file:
            found = os.fstat(file.fileno())
            reset = self._offset > 0 and not self._goes_on(file.fileno(), found)
            if reset or self._inode != found.st_ino:
                self._restart(News([]))
            self._inode = found.st_ino
            if found.st_size == self._offset:
                return News([], reset=reset)
            file.seek(self._offset)
            data = file.read(CHUNK)
        self._offset += len(data)
        self._probe = (self._probe + data)[-_PROBE:]
        return News(self._rows(data), reset=reset, more=len(data) == CHUNK)

    def _goes_on(self, handle: int, found: os.stat_result) -> bool:
        if found.st_ino != self._inode or found.st_size < self._offset:
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
            row = parse_row(line)
            if row is not None:
                rows.append(row)
            elif line.strip():
                self.bad_lines += 1
        return rows


def parse_row(line: bytes) -> dict[str, Any] | None:
    """One JSON object with a count `update`; None for anything else, also for NaN and numbers beyond 64 bits."""
    try:
        row = parse_json(line, what="line", max_bytes=LONGEST_LINE, max_depth=DEEPEST)
    except DataError:
        return None
    fits = isinstance(row, dict) and len(row) <= MOST_VALUES and whole(row.get("update")) is not None
    return row if fits else None


def last_row(folder: Path, name: str, *, window: int = 2**17) -> dict[str, Any] | None:
    """The newest whole row, from the last `window` bytes of the file; None when there is none."""
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
