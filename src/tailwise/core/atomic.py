"""Files and folders that are there whole or not at all, also after `kill -9` or a loss of power.

A file is written under a temporary name beside its place, synced, and renamed; a rename within a folder is atomic.
Replacing a *folder* takes two renames, because a folder cannot be renamed onto one that has content. A process killed
between the two leaves the old folder under its `.NAME.replaced` name, and `recover_folder` puts it back.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tailwise.core.errors import DataError

_TEMPORARY = ".tmp-"
_REPLACED = ".replaced"


def _temporary_beside(path: Path) -> Path:
    return path.with_name(f".{path.name}{_TEMPORARY}{secrets.token_hex(6)}")


def _replaced_beside(path: Path) -> Path:
    return path.with_name(f".{path.name}{_REPLACED}")


def _sync(path: Path) -> None:
    """Ask the system to put a file's content, or a folder's list of names, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_tree(folder: Path) -> None:
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            _sync(Path(parent, name))
        _sync(Path(parent))


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file so that any reader, at any moment, finds the old content or the new, never a part."""
    path = Path(path)
    if path.is_dir():  # `.` and `/` have no name that a temporary one could be made of
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = _temporary_beside(path)
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def write_text(path: str | Path, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, value: Any) -> None:
    """`write_bytes` of indented JSON. Inf and NaN are no JSON and are refused: undefined is null."""
    try:
        text = json.dumps(value, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: the value cannot be written as JSON: {error}.") from error
    write_text(path, text + "\n")


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Fill the folder that is yielded; when the block ends well it becomes `path`, else it is removed.

    A folder that exists at `path` stays whole until the new one is complete and synced, and is then replaced.
    """
    path = Path(path)
    recover_folder(path)
    temporary = _temporary_beside(path)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        _sync_tree(temporary)
        replaced = _replaced_beside(path)
        if path.exists():
            os.rename(path, replaced)
        os.rename(temporary, path)
    except BaseException:
        recover_folder(path)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync(path.parent)
    if replaced.exists():
        shutil.rmtree(replaced)


def recover_folder(path: str | Path) -> bool:
    """Finish or undo a replacement of `path` that was cut short; True if the old folder had to be put back.

    Call it before reading a folder that `atomic_folder` may have been replacing when its process was killed.
    """
    path = Path(path)
    replaced = _replaced_beside(path)
    if not replaced.exists():
        return False
    if path.exists():  # the new folder had arrived, only the old one was not removed yet
        shutil.rmtree(replaced)
        return False
    os.rename(replaced, path)
    _sync(path.parent)
    return True


def remove_leftovers(folder: str | Path) -> list[Path]:
    """Remove what writers that were killed left unfinished directly inside `folder`; returns what was removed.

    Only for the one process that writes there: the unfinished work of a living writer looks the same.
    """
    leftovers = sorted(p for p in Path(folder).iterdir() if p.name.startswith(".") and _TEMPORARY in p.name)
    for leftover in leftovers:
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
    return leftovers


def sha256_file(path: str | Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
