"""Starting processes that leave Ctrl-C to their parent, and how one of them ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess


def start_ignoring_sigint(process: BaseProcess) -> None:
    """Start a process that never sees Ctrl-C: the parent does, and tells it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def sigint_deferred() -> Iterator[None]:
    """Let Ctrl-C come after what is done inside, which must not take long."""
    python_handles_it = signal.getsignal(signal.SIGINT) is not None
    if threading.current_thread() is not threading.main_thread() or not python_handles_it:
        yield  # nothing is interrupted here
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def describe_exit(code: int | None) -> str:
    """'exit code 1', or 'killed by SIGKILL'; code: `exitcode` of a process that ended."""
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
