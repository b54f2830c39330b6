"""Starting processes that leave Ctrl-C to their parent, and how one of them ended."""

from __future__ import annotations

import signal
from multiprocessing.process import BaseProcess


def start_ignoring_sigint(process: BaseProcess) -> None:
    """Start a process that never sees Ctrl-C: the parent does, and tells it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def describe_exit(code: int | None) -> str:
    """'exit code 1', or 'killed by SIGKILL'; code: `exitcode` of a process that ended."""
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
