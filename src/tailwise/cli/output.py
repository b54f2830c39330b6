"""Output of the commands: exit codes, JSON, tables, notes, and standard streams whose reader may leave."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from tailwise.market.leaks.features import LeakVerdict

DONE, CHECK_FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130  # exit codes
CELL = 3  # columns that a cell takes beside its text: a line and two blanks


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object; NaN and infinity become null."""
    print(json.dumps(_finite(value), indent=1, allow_nan=False))


def note(sentence: str) -> None:
    """Print a sentence on standard error, beside the result."""
    print(sentence, file=sys.stderr)


def alarm(sentence: str) -> None:
    """Print an important sentence on standard error, in red where the terminal has colours."""
    from rich.console import Console

    Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(sentence, style="bold red")


def say_leak_check(verdict: LeakVerdict | None) -> None:
    """Print in red that the user's own features were not checked for look-ahead; nothing if they were."""
    if verdict is not None and verdict.doubtful:
        alarm(f"leak-check: {verdict.sentence}")


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: first column text, the others numbers. One too wide for the terminal is split."""
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
    """Split columns into tables that each fit into `room` characters; column 0 is in all of them."""
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


class _TolerantFile(io.FileIO):
    """A pipe whose reader may leave (`tailwise train ... | head`): later output is discarded.

    Any other error, such as a full disk, is raised once; what is still buffered is discarded as well.
    """

    reader_left = False

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if not isinstance(error, BrokenPipeError):
                raise
            self.reader_left = True
            return len(data)


@contextlib.contextmanager
def tolerant_streams() -> Iterator[None]:
    """Within this context a reader who leaves stops neither the command nor its exit code, and a character that the
    terminal cannot show (`PYTHONIOENCODING=ascii`) is printed as its escape, such as \\u2264."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_tolerant(stream) for stream in before)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream not in before:
                stream.flush()
        sys.stdout, sys.stderr = before


def reader_left() -> bool:
    """Whether the reader of standard output has left."""
    raw = _file_below(sys.stdout)
    return isinstance(raw, _TolerantFile) and raw.reader_left


def _file_below(stream: Any) -> Any:
    """Raw file of a text stream, with or without (`python -u`) a buffer between them."""
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)


def _tolerant(stream: TextIO | None) -> TextIO:
    """Wrap a stream around a tolerant file; a replaced stream (by a test, say) is left as it is.

    None is what Python makes of a stream that was closed before the start (`>&-`).
    """
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper) or not isinstance(_file_below(stream), io.FileIO):
        return stream
    stream.flush()
    raw = _TolerantFile(stream.fileno(), "wb", closefd=False)
    unbuffered = isinstance(stream.buffer, io.FileIO)
    wrapper = io.TextIOWrapper(
        cast(Any, raw) if unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    return cast(TextIO, wrapper)
