"""Who writes a run: the record in `run.lock`, and whether the process that it names is still alive."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

_LARGEST = 4096  # bytes of the file that are read
_LARGEST_PID = 2**31 - 1


@dataclass(frozen=True)
class Owner:
    """The process that writes a run, as the file names it.

    token     of this ownership: changes with every agent that takes the run
    pid       its number, in the numbering `numbering` (containers have their own)
    started   when the process began, in the system's own unit; empty where that is unknown
    computer  the boot of the computer that it runs on; host: its name, for people
    since     seconds since the epoch at which it took the run
    released  it gave the run back
    """

    token: str
    pid: int
    numbering: str
    started: str
    computer: str
    host: str
    since: float
    released: bool

    @classmethod
    def here(cls, token: str) -> Owner:
        """This process."""
        pid = os.getpid()
        return cls(token, pid, _numbering(), _started(pid), this_computer(), socket.gethostname(), time.time(), False)

    def alive(self) -> bool | None:
        """Whether its process runs; None when that cannot be seen from here."""
        if self.computer != this_computer() or self.numbering != _numbering():
            return None
        return _started(self.pid) == self.started and _exists(self.pid)

    def __str__(self) -> str:
        here = self.computer == this_computer() and self.numbering == _numbering() and self.pid == os.getpid()
        who = "this very process" if here and self.alive() else f"process {self.pid} on {self.host!r}"
        return f"{who}, which has had it for {_duration(time.time() - self.since)}"


def read_owner(descriptor: int) -> Owner | None:
    """The owner that an open file names; None when it names none that can be understood."""
    try:
        owner = Owner(**json.loads(os.pread(descriptor, _LARGEST, 0)))
    except (ValueError, TypeError, RecursionError):
        return None
    kinds = {"pid": int, "since": float, "released": bool}
    if not all(type(value) is kinds.get(name, str) for name, value in vars(owner).items()):
        return None
    return owner if 0 < owner.pid <= _LARGEST_PID and math.isfinite(owner.since) else None


def write_owner(descriptor: int, owner: Owner) -> None:
    """Name the owner in an open file, on the disk when this returns."""
    text = json.dumps(asdict(owner)).encode() + b"\n"
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text, 0)
    os.fsync(descriptor)


def this_computer() -> str:
    """This boot of this computer; where the system does not name it, the computer's name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def _numbering() -> str:
    """In which numbering of processes this one lives: containers on one computer have different ones."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process began, in clock ticks since boot; empty when there is none, or where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]  # a zombie is dead; field 22 of the line, see proc(5)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _duration(seconds: float) -> str:
    """12 s, 3 min, 5 h, 2 days."""
    whole = max(round(seconds), 0)
    for size, limit, unit in ((1, 60, "s"), (60, 3600, "min"), (3600, 172_800, "h")):
        if whole < limit:
            return f"{whole // size} {unit}"
    return f"{whole // 86_400} days"
