"""One writer per run: a lock that names its owner and that dies with it.

The file `run.lock` in the folder of a run names the process that writes there. While it works it holds an operating
system lock (flock) on that file, which the kernel frees the moment the process dies, however it dies. The record in the
file is for people, and for the cases in which flock does not reach: file systems without it, and other computers that
share the folder over a network. There, an owner on this computer is alive if its process still runs (its start time
tells it from a later process with the same number), and one on another computer is alive if it touches the file, which
it does every few seconds. See docs/commands/resume.md.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import math
import os
import secrets
import socket
import stat
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tailwise.core.errors import LockedError

_LARGEST = 4096  # bytes of the file that are read
_LARGEST_PID = 2**31 - 1
FILE = "run.lock"
LOG = logging.getLogger("tailwise.lock")
BEAT = 5.0  # seconds between touches of the file by its owner
SILENCE = 30.0  # seconds without a touch after which an owner on another computer is dead
DYING = 1.0  # seconds in which a process that was sent kill -9 still looks alive
TEARDOWN = 10.0  # seconds that the system may take to remove a dead process with much memory
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


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


class RunLock:
    """The right to write into the folder of a run, for one agent; taken and given back as often as it trains.

    visiting: changes nothing that an agent relies on, so that the one before may go on; beat, silence: seconds.
    """

    def __init__(self, run_dir: Path, *, visiting: bool = False, beat: float = BEAT, silence: float = SILENCE) -> None:
        self.path = run_dir / FILE
        self._token = secrets.token_hex(8)
        self._visiting, self._beat, self._silence = visiting, beat, silence
        self._previous: Owner | None = None
        self._descriptor: int | None = None
        self._had = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # A process that is forked while the lock is held must not keep it when this one is killed.
        this = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: None if (lock := this()) is None else lock._leave())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock inside the block; LockedError when somebody else writes, or wrote since this agent did."""
        self.take()
        try:
            yield
        finally:
            self.release()

    @contextmanager
    def held_once(self) -> Iterator[None]:
        """The same, inside a block that may hold it already."""
        if self._descriptor is not None:
            yield
            return
        with self.held():
            yield

    def take(self) -> None:
        """Become the owner, or raise LockedError, which names the one that is."""
        if self._descriptor is not None:
            raise LockedError(f"{self.path.parent} is being written by this very agent already; wait until it is done.")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(self.path, _FLAGS, 0o644)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise
            raise LockedError(f"{self.path} is a link or a folder, which Tailwise does not make; remove it.") from error
        try:
            self._claim(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor, self._had = descriptor, True
        self._stop.clear()
        self._thread = threading.Thread(target=self._touch, args=(descriptor,), name="run lock", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Give the run back."""
        descriptor, thread = self._descriptor, self._thread
        if descriptor is None:
            return
        self._stop.set()
        if thread is not None:
            thread.join()
        owner = read_owner(descriptor)
        if owner is not None and owner.token == self._token:
            last = self._previous if self._visiting and self._previous is not None else owner
            write_owner(descriptor, replace(last, released=True))
        self._leave()

    def check(self) -> None:
        """Raise LockedError if somebody else has taken the run meanwhile: this process was silent for too long, or the
        file was deleted."""
        try:
            with open(self.path, "rb") as file:
                owner = read_owner(file.fileno())
        except FileNotFoundError:
            return
        if owner is not None and owner.token != self._token:
            raise LockedError(
                f"{self.path.parent} was taken over by {owner}. This process stops, and writes nothing more into it."
            )

    def _claim(self, descriptor: int) -> None:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise LockedError(f"{self.path} is no file, but a pipe or a device; remove it.")
        by_system = self._flock(descriptor)
        owner = read_owner(descriptor)
        if owner is not None and owner.token != self._token:
            # The kernel knows its own processes: with its lock in hand, no other one on this computer is alive.
            known_dead = owner.released or (by_system and owner.computer == this_computer())
            if not known_dead and (self._is_touched(owner) if (alive := owner.alive()) is None else alive):
                raise self._busy(owner)
            if self._had:
                raise LockedError(
                    f"{self.path.parent} was written by {owner} since this agent did, and going on would mix the two; "
                    f"continue the run as it is now: tailwise resume {self.path.parent}, or PPO.resume."
                )
        self._previous = owner
        write_owner(descriptor, Owner.here(self._token))
        if not by_system:
            time.sleep(0.2)  # of two that came at the same moment, the last one to write is the owner
            owner = read_owner(descriptor)
            if owner is None or owner.token != self._token:
                raise self._busy(owner)

    def _flock(self, descriptor: int) -> bool:
        """Take the system's lock; False where the file system has none."""
        began = time.monotonic()
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = read_owner(descriptor)
                # A process that is being killed still holds it; one that came a moment ago has not signed yet.
                passing = owner is None or owner.released or owner.alive() is False
                if time.monotonic() - began > (TEARDOWN if passing else DYING):
                    raise self._busy(owner) from None
                time.sleep(0.02)
            except OSError as error:
                if error.errno not in _NO_FLOCK:
                    raise
                return False
            else:
                return True

    def _is_touched(self, owner: Owner) -> bool:
        """Watch whether an owner that cannot be seen from here gives a sign of life."""
        message = "%s was last written by %s; watching for %g s whether that is still alive"
        LOG.warning(message, self.path.parent, owner, self._silence)
        before, deadline = self._touched_at(), time.monotonic() + self._silence
        while time.monotonic() < deadline:
            time.sleep(min(1.0, self._silence / 10))
            if self._touched_at() != before:
                return True
        return False

    def _touched_at(self) -> int:
        with open(self.path, "rb") as file:  # opening makes a network file system ask its server
            return os.fstat(file.fileno()).st_mtime_ns

    def _touch(self, descriptor: int) -> None:
        while not self._stop.wait(self._beat):
            with suppress(OSError):  # a disk that is away for a moment: the next touch is due soon
                os.utime(descriptor)

    def _busy(self, owner: Owner | None) -> LockedError:
        return LockedError(
            f"{self.path.parent} is being written by {owner or 'another process'}; two writers would spoil it. Wait "
            "for it, or end it: the lock is free as soon as that process is gone."
        )

    def _leave(self) -> None:
        """Close the file; frees the lock, except in a forked process, where it belongs to the parent."""
        descriptor, self._descriptor, self._thread = self._descriptor, None, None
        if descriptor is not None:
            os.close(descriptor)
