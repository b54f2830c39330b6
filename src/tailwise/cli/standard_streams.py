"""Standard output and error as a long command needs them: no reader, encoding or name can end it half-way."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast


class _Patient(io.FileIO):
    """A pipe whose reader may leave (`tailwise train ... | head`): what is written after that goes nowhere.

    Any other error, such as a full disk, is raised, but once: what is still buffered goes nowhere as well.
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
def patient_streams() -> Iterator[None]:
    """Within this context a reader who leaves stops neither the command nor its exit code, and a character that the
    terminal cannot show (`PYTHONIOENCODING=ascii`) is printed as its escape, such as \\u2264."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_patient(stream) for stream in before)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream not in before:
                stream.flush()
        sys.stdout, sys.stderr = before


def reader_left() -> bool:
    """Whether nobody reads standard output any more."""
    raw = _file_below(sys.stdout)
    return isinstance(raw, _Patient) and raw.reader_left


def _file_below(stream: Any) -> Any:
    """The file that a text stream writes to, with or without (`python -u`) a buffer between them."""
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)


def _patient(stream: TextIO | None) -> TextIO:
    """The stream with a patient file below; a stream that somebody put in its place is left as it is.

    None is what Python makes of a stream that was closed before the start (`>&-`).
    """
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper) or not isinstance(_file_below(stream), io.FileIO):
        return stream
    stream.flush()
    raw = _Patient(stream.fileno(), "wb", closefd=False)
    unbuffered = isinstance(stream.buffer, io.FileIO)
    wrapper = io.TextIOWrapper(
        cast(Any, raw) if unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    return cast(TextIO, wrapper)
