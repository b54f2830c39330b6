"""Values from files of a run, of the kind that they should have or none at all, and JSON for the page."""

from __future__ import annotations

import json
import math
from typing import Any

LARGEST_WHOLE = 2**53 - 1  # a browser holds no larger whole number exactly


def finite(value: Any) -> float | None:
    """A finite number, or None."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return None
    return number if math.isfinite(number) else None


def whole(value: Any) -> int | None:
    """A count: a whole number from 0 that a browser holds exactly, or None."""
    return value if type(value) is int and 0 <= value <= LARGEST_WHOLE else None


def short_text(value: Any, most: int = 200) -> str:
    """A value as text of at most `most` characters; empty for None."""
    return "" if value is None else str(value)[:most]


def to_json(value: Any) -> str:
    """Compact JSON without NaN, in ASCII."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
