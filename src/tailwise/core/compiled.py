"""`kernel`: compile a function with numba and cache the machine code on disk until any of its sources changes.

numba renews its copy of a function when the file that defines it changes. The machine code also holds the functions and
constants of other files that it uses, and an edit or an upgrade of those would go unnoticed. So kernels are kept in a
folder named after all sources that a kernel of this package can reach: other sources, another folder.
docs/decisions/0006-compiled-code-follows-its-sources.md has the reasons.

numba is imported on first use: commands that compile nothing do not wait for it.
"""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import warnings
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

# Kernels live in these packages, and import from these alone.
SOURCES = ("core", "bars", "features", "market", "fused")
# "_nrt": no kernel allocates an array, so none needs code that counts references to them
# (docs/decisions/0011-kernels-inside-kernels.md).
OPTIONS = {"error_model": "numpy", "nogil": True, "_nrt": False}
# Fused multiply-adds; sums keep the order in which they are written.
FUSE = frozenset({"contract", "arcp", "nsz"})
# Sums in any order as well, which SIMD needs for them. NaN and infinity keep their meaning in both (no "nnan", no
# "ninf"), because they are how a broken number is found.
REORDER = FUSE | {"reassoc"}
PREFIX = "kernels-"
FOLDERS_KEPT = 4  # of the versions used last: going back to one of them compiles nothing

_PACKAGE = Path(__file__).parents[1]


def kernel(
    function: Any = None,
    *,
    fuse: bool = False,
    reorder: bool = False,
    inline: bool = False,
    calls: Sequence[str] = (),
) -> Any:
    """Decorate a function: compile it in nopython mode, with numpy's rules for division and without Python's lock.

    `@kernel(fuse=True)` and `@kernel(reorder=True)` let the compiler round differently, see FUSE and REORDER.
    `@kernel(inline=True)` becomes part of the source of the kernels that call it: with one caller there is less to
    compile, above all where arguments are large records. A kernel allocates and returns no arrays: its caller passes
    the memory that it needs.
    Cached on disk, unless it has no file of its own (a prompt, a notebook) or there is no folder to write to. The cache
    of a function outside this package lasts until its file, this package or one of the files `calls` changes; name
    there the other files outside this package whose kernels it calls.
    """
    if function is None:
        return partial(kernel, fuse=fuse, reorder=reorder, inline=inline, calls=calls)
    freedom = REORDER if reorder else FUSE if fuse else frozenset()
    options: dict[str, Any] = {**OPTIONS, "fastmath": set(freedom)} if freedom else OPTIONS
    if inline:
        return _njit()(inline="always", **options)(function)
    if compiler_is_off():
        return function
    if "ndarray" in str(function.__annotations__.get("return")):
        raise TypeError(
            f"kernel '{function.__qualname__}' returns an array, and kernels do not count references: let the caller "
            "pass the array that is to be filled."
        )
    folder = cache_folder()
    if folder is not None and calls:
        folder /= hashlib.sha256(b"".join(Path(file).read_bytes() for file in calls)).hexdigest()[:16]
    cached = _cached_in(folder, function, options) if folder is not None else None
    return cached if cached is not None else _njit()(**options)(function)


def record_dtype(fields: Sequence[Any]) -> np.dtype[Any]:
    """The dtype of records whose fields kernels read and write as attributes.

    Elements are numpy.record: without the compiler (NUMBA_DISABLE_JIT) a plain record has no attributes. Its own ones,
    such as `flatten`, would hide a field of that name.
    """
    hidden = [name for name, *_ in fields if hasattr(np.record, name)]
    if hidden:
        raise ValueError(f"A record has an attribute '{hidden[0]}' of its own; give the field another name.")
    return np.dtype((np.record, list(fields)))


def compiled_for(function: Any, arguments: Sequence[Any]) -> Any:
    """Return the machine code of a kernel for arguments of exactly these types, for loops that call it often.

    A kernel inspects the types of its arguments at every call, which takes 5 microseconds where one of them is a long
    tuple. The machine code does not: dtype, number of axes, layout and what is None must stay as they are here.
    """
    if not hasattr(function, "overloads"):
        return function  # NUMBA_DISABLE_JIT: the Python function itself
    types = tuple(function.typeof_pyval(argument) for argument in arguments)
    if types not in function.overloads:
        function.compile(types)
    return function.overloads[types].entry_point


class Repeated:
    """A kernel whose arguments have the same types in every call; it inspects them in the first one alone."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._code: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """What the kernel returns."""
        if self._code is None:
            self._code = compiled_for(self._function, arguments)
        return self._code(*arguments)


@cache
def cache_folder() -> Path | None:
    """Folder in which this process caches kernels: `kernels-<digest of the sources>` inside the one numba would use."""
    if compiler_is_off():
        return None
    try:
        folder = Path(_njit()(cache=True)(_probe).stats.cache_path) / f"{PREFIX}{source_digest()}"
    except RuntimeError as error:  # numba found no folder to write to
        _warn_not_kept(str(error))
        return None
    if _cached_in(folder, _probe) is None:
        _warn_not_kept(f"numba does not use {folder}")
        return None
    os.utime(folder)
    _remove_old(folder)
    return folder


def source_digest(package: Path = _PACKAGE) -> str:
    """Fingerprint of the names and contents of all Python files in SOURCES, 16 hex digits."""
    digest = hashlib.sha256()
    for part in SOURCES:
        for path in sorted((package / part).rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()[:16]


def _cached_in(folder: Path, function: Any, options: dict[str, Any] = OPTIONS) -> Any:
    """Compile `function` with its cache below `folder`; None when numba caches it elsewhere or not at all."""
    config = _config()
    before, config.CACHE_DIR = config.CACHE_DIR, str(folder)  # read by numba while it decorates, and not later
    try:
        dispatcher = _njit()(cache=True, **options)(function)
    except RuntimeError:  # there is no file that numba could compare
        return None
    finally:
        config.CACHE_DIR = before
    return dispatcher if folder in Path(dispatcher.stats.cache_path).parents else None


def _probe() -> int:
    return 0


def _warn_not_kept(why: str) -> None:
    warnings.warn(
        f"compiled code cannot be kept ({why}), so that each start compiles it again, which takes many seconds; set "
        "the environment variable NUMBA_CACHE_DIR to a folder that can be written to.",
        RuntimeWarning,
        stacklevel=4,
    )


def _remove_old(folder: Path) -> None:
    """Remove all but the folders used last. A process that still uses a removed one compiles again, and no more."""
    used = {}
    for other in folder.parent.glob(f"{PREFIX}*"):
        try:
            used[other] = other.stat().st_mtime_ns
        except FileNotFoundError:
            continue  # another process was faster
    for other in sorted(used, key=lambda one: used[one], reverse=True)[FOLDERS_KEPT:]:
        shutil.rmtree(other, ignore_errors=True)


def compiler_is_off() -> bool:
    """Whether kernels are the Python functions themselves (NUMBA_DISABLE_JIT=1), to step through them in a debugger."""
    return bool(_config().DISABLE_JIT)


def _config() -> Any:
    from numba import config

    return config


@cache
def _njit() -> Any:
    """`numba.njit`, without garbage collection while it compiles: that would walk over torch's objects many times."""
    from numba import njit
    from numba.core import event

    class PauseCollection(event.Listener):
        """Counts compilations that are under way: a kernel is compiled while its caller is. numba locks them."""

        depth, was_enabled = 0, False

        def on_start(self, _: Any) -> None:
            if self.depth == 0:
                self.was_enabled = gc.isenabled()
                gc.disable()
            self.depth += 1

        def on_end(self, _: Any) -> None:
            self.depth -= 1
            if self.depth == 0 and self.was_enabled:
                gc.enable()

    event.register("numba:compile", PauseCollection())  # type: ignore[no-untyped-call]
    return njit
