"""What several commands share in printing: JSON for machines, two-column tables, numbers."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on standard output; what is undefined (NaN, infinite) is null."""
    print(json.dumps(_finite(value), indent=1, allow_nan=False))


def note(sentence: str) -> None:
    """A sentence beside the result, on standard error."""
    print(sentence, file=sys.stderr)


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; the first column is text, the others are numbers."""
    from rich.console import Console
    from rich.table import Table

    print(title)  # not as the table's own title, which is broken at the width of the table
    table = Table()
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)


def number(value: float | None, digits: int = 4) -> str:
    """A number for people; a dash when it is undefined."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.{digits - 3}f}" if abs(value) >= 100 else f"{value:.{digits}g}"


def duration(seconds: float) -> str:
    """45 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
