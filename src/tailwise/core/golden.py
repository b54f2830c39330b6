"""The golden ratio as a way to spread things evenly without drawing anything."""

from __future__ import annotations

from typing import Any

RATIO = (5**0.5 - 1) / 2


def golden_fractions(numbers: Any) -> Any:
    """frac(n x golden ratio) of whole numbers n, an array or a tensor: any stretch of them fills [0, 1) evenly."""
    return numbers * RATIO % 1.0
