"""The one way in which files of a run are read: inside the run, regular, within a limit, and parsed into a known shape.

A run folder may come from anybody. Nothing in it is followed out of the folder, nothing is read before its size is
known, and nothing is used before it has the types that this version writes. Everything else is a sentence.
"""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tailwise.core.errors import DataError
from tailwise.core.parsing import StoredType, as_stored, parse_json

if TYPE_CHECKING:
    import pandas

SMALL = 2**20  # bytes of a manifest, an evaluation of a few numbers
LARGE = 2**28  # bytes of a log, a summary, a table
LARGEST_TENSORS = 2**34  # bytes of the weights or of the training state
LARGEST_COUNT = 2**53  # of steps, updates, rows: whole numbers that a float64 still tells apart


def inside(path: Path, root: Path, *, must_exist: bool = True) -> Path:
    """The real path of `path`; DataError when it is not there, or when a link leads out of the folder `root`."""
    try:
        real, home = path.resolve(strict=must_exist), root.resolve(strict=True)
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file; restore it from a copy.") from error
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a NUL in the name
        raise DataError(f"{path} cannot be read ({error}); restore it from a copy.") from error
    if not real.is_relative_to(home):
        raise DataError(
            f"{path} is a link that leads out of {root}, to {real}; nothing outside of it is read or written. "
            "Put the file or folder itself there."
        )
    return real


def check_links(run_dir: Path) -> None:
    """Refuse a run of which anything in its folder, or a checkpoint, is a link that leads out of it.

    Whoever opens a run writes into some of them: metrics, alerts, checkpoints, evaluations.
    """
    for folder in (run_dir, run_dir / "checkpoints", run_dir / "evaluations"):
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.is_symlink():
                inside(entry, run_dir, must_exist=False)  # what is written through a link need not exist yet


class NotOpenedError(OSError):
    """A file cannot be opened for the moment (no permission, too many open files); it may be whole."""


def open_file(path: Path, *, root: Path) -> BinaryIO:
    """A regular file inside `root`, opened for reading; DataError for anything else, NotOpenedError for now."""
    return open_real(inside(path, root))


def open_real(real: Path) -> BinaryIO:
    """The regular file at a path that `inside` returned, opened for reading; see `open_file`."""
    # NOFOLLOW: a link that was put there meanwhile is not followed; NONBLOCK: a pipe without a writer does not block.
    try:
        handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NotOpenedError(error.errno, error.strerror, str(real)) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise DataError(f"{real} is a folder, a pipe or a device instead of a file; restore it from a copy.")
    return open(handle, "rb")


def read_file(path: Path, *, root: Path, limit: int) -> bytes:
    """The content of a file inside `root` that has at most `limit` bytes; DataError for a larger one."""
    with open_file(path, root=root) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise DataError(f"{path} has {size:,} bytes; at most {limit:,} are read, so it is no file of a run.")
        return file.read(size)  # not `limit`: as many bytes as are asked for are set aside first


def read_end(path: Path, *, root: Path, count: int) -> bytes:
    """The last `count` bytes of a file inside `root`, all of it when it is shorter."""
    with open_file(path, root=root) as file:
        file.seek(max(os.fstat(file.fileno()).st_size - count, 0))
        return file.read(count)


def read_parquet(path: Path, *, root: Path, limit: int = LARGE) -> tuple[pandas.DataFrame, Any]:
    """The frame of a Parquet file inside `root`, and its pyarrow schema."""
    import pyarrow
    import pyarrow.parquet

    data = read_file(path, root=root, limit=limit)
    try:
        table = pyarrow.parquet.read_table(io.BytesIO(data))
        return table.to_pandas(), table.schema
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        first = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DataError(f"{path} is not a whole Parquet file ({first}); restore it from a copy.") from error


def read_json(path: Path, *, root: Path, limit: int = SMALL) -> Any:
    """The value of a JSON file inside `root`."""
    return parse_json(read_file(path, root=root, limit=limit), what=str(path), max_bytes=limit)


def read_stored(path: Path, model: type[StoredType], *, root: Path, limit: int = SMALL) -> StoredType:
    """A JSON file inside `root` in the shape of `model`."""
    return as_stored(model, read_json(path, root=root, limit=limit), source=str(path))
