"""Which texts can be names of files and values of a configuration, and which only look like it."""

from __future__ import annotations


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
