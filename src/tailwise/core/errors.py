"""The errors that Tailwise raises on purpose, and texts in them: names, numbers and durations as people read them.

Every message is a sentence for the person who has to fix the cause: what is wrong, where, which value, and what to
do. The command line prints that sentence without a traceback and exits with code 2.
"""

from __future__ import annotations

import math


class TailwiseError(Exception):
    """Base of all errors that Tailwise raises on purpose; `str(error)` is a sentence for the user."""


# Four of the classes below are ValueErrors as well: pydantic turns only those that leave a validator into a
# validation error that knows the key, and callers who know nothing of Tailwise may catch the built-in type.


class ConfigError(TailwiseError, ValueError):
    """A configuration has an unknown key, a wrong type, a value out of range or an impossible combination."""


class DataError(TailwiseError, ValueError):
    """Input data (bars, observations, info numbers) are malformed or not finite."""


class ShapeError(TailwiseError, ValueError):
    """An array or tensor has another shape or dtype than its contract says."""


class EnvironmentContractError(TailwiseError, ValueError):
    """An environment breaks the Gymnasium contract, or uses a space that Tailwise does not support."""


class CheckpointError(TailwiseError):
    """A checkpoint is missing, truncated, corrupted, of another version or of another model."""


class NotFiniteError(CheckpointError):
    """A checkpoint holds NaN or infinite numbers where nothing can be computed with them."""


class ConfigWarning(UserWarning):
    """A setting, or what the data make of it, works but is likely not meant; commands print these themselves, once."""


class NotBuiltError(TailwiseError):
    """An option is planned but not built yet; it is refused because a no-op would be a lie."""


class TrustError(TailwiseError):
    """A run that is not known to be this user's names code that opening it would execute."""


class LockedError(TailwiseError):
    """Another process writes into the folder of a run."""


def text_problem(text: str) -> str | None:
    """What makes a text unusable as a name or a value, as the end of a sentence; None when nothing does.

    A file name with a NUL character cannot be opened, and half of a surrogate pair (what Python makes of bytes that are
    not UTF-8) cannot be written to any file.
    """
    if "\0" in text:
        return "contains a NUL character; remove it"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "is not UTF-8 text; rename it"
    return None


def path_problem(path: str) -> str | None:
    """What makes a text unusable as the path of a file or folder; None when nothing does."""
    return "is empty; name a file or folder, . for the one you are in" if not path else text_problem(path)


def number(value: float | None, digits: int = 4) -> str:
    """A number for people; a dash when it is undefined."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.{digits - 3}f}" if 100 <= abs(value) < 1e15 else f"{value:.{digits}g}"


def duration(seconds: float) -> str:
    """45 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
