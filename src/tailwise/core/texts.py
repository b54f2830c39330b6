"""Texts: which can be names of files and values of a configuration; numbers and durations as people read them."""

from __future__ import annotations

import math


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
