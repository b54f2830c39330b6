"""One stretch of measured time: CPU time of this process, wall time, and what other processes used meanwhile."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
_USER, _NICE, _SYSTEM, _IRQ, _SOFT_IRQ, _STEAL = 0, 1, 2, 5, 6, 7


@dataclass(frozen=True)
class Window:
    """cpu, wall: seconds; others: cores that everything else kept busy, None where the system does not say."""

    cpu: float
    wall: float
    others: float | None


class Stopwatch:
    """Runs from its making to `stop`."""

    def __init__(self) -> None:
        self._busy = busy_seconds()
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def stop(self) -> Window:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        busy = busy_seconds()
        others = None if busy is None or self._busy is None else max(0.0, busy - self._busy - cpu) / wall
        return Window(cpu, wall, others)


def busy_seconds() -> float | None:
    """CPU time that all processes of the machine have used since it started, seconds, in steps of a clock tick."""
    try:
        fields = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    except FileNotFoundError:
        return None
    ticks = sum(int(fields[at]) for at in (_USER, _NICE, _SYSTEM, _IRQ, _SOFT_IRQ, _STEAL))
    return ticks / os.sysconf("SC_CLK_TCK")


def peak_bytes() -> int:
    """Largest resident memory of this process so far."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
