"""Jobs that wait; apart from the tests, because the processes that run them import this module and need no torch."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from tailwise.core.errors import DataError
from tailwise.run.jobs import Line, Say, Stop


@dataclass(frozen=True)
class Sleeper:
    """Says a line, works for as long as it is told, and returns its number; `error` is raised instead."""

    number: int
    seconds: float = 0.0
    error: str = ""

    @property
    def label(self) -> str:
        return f"job {self.number}"

    def run(self, stop: Stop, say: Say) -> int | None:
        say(Line(self.label, f"process {os.getpid()}"))
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            if stop():
                return None
            time.sleep(0.01)
        if self.error == "die":
            os._exit(3)
        if self.error:
            raise DataError(self.error)
        return self.number
