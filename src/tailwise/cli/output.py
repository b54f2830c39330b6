"""What several commands share in answering: exit codes, JSON for machines, tables, notes."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailwise.market.leaks.own_features import LeakVerdict

DONE, CHECK_FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130  # exit codes
CELL = 3  # columns that a cell takes beside its text: a line and two blanks


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on standard output; what is undefined (NaN, infinite) is null."""
    print(json.dumps(_finite(value), indent=1, allow_nan=False))


def note(sentence: str) -> None:
    """A sentence beside the result, on standard error."""
    print(sentence, file=sys.stderr)


def alarm(sentence: str) -> None:
    """A sentence that nobody may miss: on standard error, in red where the terminal has colours."""
    from rich.console import Console

    Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(sentence, style="bold red")


def say_leak_check(verdict: LeakVerdict | None) -> None:
    """Say in red that own features were not checked for look-ahead; nothing where they were."""
    if verdict is not None and verdict.doubtful:
        alarm(f"leak-check: {verdict.sentence}")


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; the first column is text, the others are numbers. One too wide for the terminal is split."""
    from rich.console import Console
    from rich.table import Table

    print(title)  # not as the table's own title, which is broken at the width of the table
    console = Console()
    # On a terminal a heading may be broken between its words; a cell never is.
    headings = [name.split() if console.is_terminal else [name] for name in header]
    widths = [
        max(len(text) for text in (*headings[at], *(row[at] for row in rows), "")) + CELL for at in range(len(header))
    ]
    room = console.width if console.is_terminal else max(console.width, sum(widths) + 1)
    for chosen in columns_that_fit(widths, room):
        table = Table()
        for at in chosen:
            table.add_column(
                header[at], justify="left" if at == 0 else "right", overflow="fold", min_width=widths[at] - CELL
            )
        for row in rows:
            table.add_row(*(row[at] for at in chosen))
        Console(highlight=False, markup=False, width=room).print(table)


def columns_that_fit(widths: Sequence[int], room: int) -> list[list[int]]:
    """Columns of the tables into which one is split so that each fits into `room`; the first one is in all of them."""
    tables = [[0]]
    for at in range(1, len(widths)):
        wide = sum(widths[k] for k in tables[-1]) + widths[at] + 1 > room
        if wide and len(tables[-1]) > 1:
            tables.append([0])
        tables[-1].append(at)
    return tables


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
