"""The folder in which one user keeps what can be computed again: results of checks that take a while."""

from __future__ import annotations

import os
from pathlib import Path

NAME = "tailwise"


def user_cache(part: str) -> Path | None:
    """`$XDG_CACHE_HOME/tailwise/PART`, else `~/.cache/tailwise/PART`; None for a user without a home."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        return given / NAME / part
    try:
        return Path.home() / ".cache" / NAME / part
    except RuntimeError:  # Python found no home
        return None
