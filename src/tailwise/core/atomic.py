"""Write files and folders atomically: complete or absent, also after `kill -9` or a loss of power.

A file is written under a temporary name beside its place, synced, and renamed; a rename within a folder is atomic.
Replacing a *folder* takes two renames, because a folder cannot be renamed onto one that has content. A process killed
between the two leaves the old folder under its `.NAME.replaced` name, and `recover_folder` puts it back.
`user_cache` is the folder for results that can be computed again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
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
        _put_in_place(temporary, path)
    except BaseException:
        recover_folder(path)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync(path.parent)
    _discard(_replaced_beside(path))


def _put_in_place(temporary: Path, path: Path) -> None:
    while True:
        try:
            if path.exists():
                os.rename(path, _replaced_beside(path))
            os.rename(temporary, path)
        except OSError as error:
            # A reader came between the two renames, took this process for dead and put the old folder back.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            recover_folder(path)
        else:
            return


def _discard(folder: Path) -> None:
    """Remove a folder that others may remove as well: whoever renames it does, so that none sees half of it."""
    doomed = _temporary_beside(folder)
    try:
        os.rename(folder, doomed)
    except FileNotFoundError:
        return
    _remove_tree(doomed)


def _remove_tree(folder: Path) -> None:
    while folder.exists():
        with suppress(FileNotFoundError):  # somebody else removes it too and was faster
            shutil.rmtree(folder)


def recover_folder(path: str | Path) -> bool:
    """Finish or undo a replacement of `path` that was cut short; True if the old folder had to be put back.

    Call it before reading a folder that `atomic_folder` may have been replacing when its process was killed.
    """
    path = Path(path)
    replaced = _replaced_beside(path)
    if not replaced.exists():
        return False
    if path.exists():  # the new folder had arrived, only the old one was not removed yet
        _discard(replaced)
        return False
    try:
        os.rename(replaced, path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False  # its writer is alive and went on meanwhile
    _sync(path.parent)
    return True


def recover_folders(folder: str | Path) -> list[Path]:
    """`recover_folder` for everything directly inside `folder`; returns what was put back. For its one writer only."""
    names = sorted(path.name for path in Path(folder).glob(f".*{_REPLACED}"))
    paths = [Path(folder, name.removeprefix(".").removesuffix(_REPLACED)) for name in names]
    return [path for path in paths if recover_folder(path)]


def remove_leftovers(folder: str | Path, *, of: Collection[str] | None = None) -> list[Path]:
    """Remove what writers that were killed left unfinished directly inside `folder`; returns what was removed.

    of: names of the files and folders that were being written, None for all. Only for the one process that writes
    them: the unfinished work of a living writer looks the same.
    """
    leftovers = [
        path
        for path in sorted(Path(folder).iterdir())
        if path.name.startswith(".")
        and _TEMPORARY in path.name
        and (of is None or path.name[1:].rpartition(_TEMPORARY)[0] in of)
    ]
    for leftover in leftovers:
        if leftover.is_dir() and not leftover.is_symlink():
            _remove_tree(leftover)
        else:
            leftover.unlink()
    return leftovers


def sha256_file(path: str | Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def user_cache(part: str) -> Path | None:
    """`$XDG_CACHE_HOME/tailwise/PART`, else `~/.cache/tailwise/PART`; None for a user without a home."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        return given / "tailwise" / part
    try:
        return Path.home() / ".cache" / "tailwise" / part
    except RuntimeError:  # Python found no home
        return None
