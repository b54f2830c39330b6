"""Reading inside a run folder, and only there, by the rules of `tailwise.run.run_files`; but what is refused there is
treated here as if it did not exist, because the page shows runs that are being written, and goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tailwise.core.errors import DataError
from tailwise.run import run_files


@dataclass(frozen=True)
class Stamp:
    """What tells one version of a file from another without reading it."""

    inode: int
    size: int  # bytes
    changed: float  # seconds since 1970


def inside(folder: Path, *parts: str) -> Path | None:
    """The real path of folder/parts if it exists and lies inside the (resolved) folder, else None."""
    try:
        path = run_files.inside(folder.joinpath(*parts), folder)
    except DataError:
        return None
    return path if path.is_relative_to(folder) else None  # the folder itself may have become a link


def open_inside(folder: Path, *parts: str) -> BinaryIO | None:
    """A regular file inside the folder, opened for reading; None for anything else, without ever blocking on a pipe."""
    path = inside(folder, *parts)
    if path is None:
        return None
    try:
        return run_files.open_real(path)
    except (DataError, run_files.NotOpenedError):
        return None


def stamp_inside(folder: Path, *parts: str) -> Stamp | None:
    """Inode, size and time of change of a file inside the folder; None when there is none."""
    path = inside(folder, *parts)
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return Stamp(found.st_ino, found.st_size, found.st_mtime)


def read_inside(folder: Path, *parts: str, limit: int) -> bytes | None:
    """The content of a small file inside the folder; None when it is missing or larger than `limit` bytes."""
    file = open_inside(folder, *parts)
    if file is None:
        return None
    with file:
        try:
            data = file.read(limit + 1)
        except OSError:
            return None
    return data if len(data) <= limit else None
