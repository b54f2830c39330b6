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
import logging
import os
import secrets
import stat
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tailwise.core.errors import LockedError
from tailwise.run.lock_owner import Owner, read_owner, this_computer, write_owner

FILE = "run.lock"
LOG = logging.getLogger("tailwise.lock")
BEAT = 5.0  # seconds between touches of the file by its owner
SILENCE = 30.0  # seconds without a touch after which an owner on another computer is dead
DYING = 1.0  # seconds in which a process that was sent kill -9 still looks alive
TEARDOWN = 10.0  # seconds that the system may take to remove a dead process with much memory
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


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
        told = "%s was last written by %s; watching for %g s whether that is still alive"
        LOG.warning(told, self.path.parent, owner, self._silence)
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
