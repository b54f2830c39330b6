"""Reading inside a run folder, and only there: a link that leads out of it is treated as if it did not exist."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO


@dataclass(frozen=True)
class Stamp:
    """What tells one version of a file from another without reading it."""

    inode: int
    size: int  # bytes
    changed: float  # seconds since 1970


def inside(folder: Path, *parts: str) -> Path | None:
    """The real path of folder/parts if it exists and lies inside the (resolved) folder, else None."""
    try:
        path = folder.joinpath(*parts).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):  # not there; a NUL in the name; a loop of links
        return None
    return path if path.is_relative_to(folder) else None


def open_inside(folder: Path, *parts: str) -> BinaryIO | None:
    """A regular file inside the folder, opened for reading; None for anything else, without ever blocking on a pipe."""
    path = inside(folder, *parts)
    if path is None:
        return None
    try:
        # NOFOLLOW: a link that was put there after the path was resolved is not followed either.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        return None
    return os.fdopen(handle, "rb")


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
