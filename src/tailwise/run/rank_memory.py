"""Memory that the ranks of one machine share, through which they exchange messages.

An update exchanges some twenty messages. gloo's way through TCP wakes a sleeping process for each, which takes
milliseconds; here a rank that waits looks at a number in memory until it changes.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import platform
import re
import secrets
import stat
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tailwise.core.errors import TailwiseError
from tailwise.run.rank_messages import size_of

MEMORY = Path("/dev/shm")  # a file system in memory, where there is one
NAME = "tailwise-{}"
OURS = re.compile(r"tailwise-[0-9a-f]{32}")
OLD_SECONDS = 3 * 3600.0  # of a file that nobody holds, longer than ranks wait for one another
MOST = 32 << 20  # bytes of the whole file: a container has 64 MB unless it was given more
PAGE = 4096
LINE = 8  # int64 in a cache line: ranks that write beside one another slow each other down
BUSY_SECONDS = 0.01  # of waiting, after which a rank sleeps between two looks
LONGEST_SLEEP = 0.002  # seconds
ALIVE_SECONDS = 0.2  # between two looks whether the others live
# A number is written after the message that it counts. Other processors may show the two in another order.
IN_ORDER = ("x86_64", "AMD64")


class PeerGoneError(RuntimeError):
    """Another rank has ended, or did not answer in time."""


class NoMemoryError(TailwiseError):
    """This machine has no memory that ranks could share; the message says why."""


class SharedMemory:
    """One file, mapped by every rank before any of them exchanges something: numbers of rounds [ranks], and two places
    for messages of each rank.

    A message is exchanged in rounds: each rank writes a piece of its own and then the number of the round, waits until
    all have written it, and reads theirs. Who has written round k has read round k - 1 to its end, so two places, taken
    in turn, are enough. While a rank lives it holds a lock on one byte, which the system frees in any case.
    """

    def __init__(self, path: Path, rank: int, ranks: int, *, patience: float) -> None:
        self.rank, self.ranks, self.patience = rank, ranks, patience
        self._file = os.open(path, os.O_RDWR)
        self._map = mmap.mmap(self._file, _size(ranks))
        self._bytes: np.ndarray = np.frombuffer(self._map, dtype=np.uint8)
        numbers = self._bytes[: 8 * LINE * 2 * ranks].view(np.int64).reshape(2 * ranks, LINE)
        self._rounds, self._sizes = numbers[:ranks, 0], numbers[ranks:]  # sizes of the messages of even and odd rounds
        self._places = self._bytes[_head(ranks) :].reshape(2, ranks, _piece(ranks))
        self._round = 0
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)

    @staticmethod
    def create(ranks: int) -> Path:
        """A new file for so many ranks; whoever calls this discards it once all have opened it, or cannot."""
        why = unsuited()
        if why is not None:
            raise NoMemoryError(why)
        path = MEMORY / NAME.format(secrets.token_hex(16))
        try:
            sweep()
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise NoMemoryError(f"no file can be made in {MEMORY} ({error.strerror})") from error
        try:
            os.posix_fallocate(file, 0, _size(ranks))  # memory that is missing later would end the process
        except OSError as error:
            path.unlink()
            raise NoMemoryError(f"{MEMORY} has no {MOST >> 20} MB for them ({error.strerror})") from error
        finally:
            os.close(file)
        return path

    def exchange(self, message: Sequence[memoryview]) -> list[np.ndarray]:
        """The messages uint8 [n] of all ranks, in their order; nothing in place of the own one. All have to call it."""
        piece, most, own = self._places.shape[2], 1, _Source(message)
        others = [np.empty(0, dtype=np.uint8)] * self.ranks
        done = 0
        while done < most:
            self._round += 1
            place = self._round % 2
            own.read_into(self._places[place, self.rank])
            self._sizes[self.rank, place] = own.size
            self._rounds[self.rank] = self._round
            self._wait()
            sizes = self._sizes[:, place].tolist()
            most = max(1, -(-max(sizes) // piece))
            for rank, size in enumerate(sizes):
                if rank == self.rank:
                    continue
                first = done * piece
                if done == 0:
                    others[rank] = np.empty(size, dtype=np.uint8)
                if first < size:
                    others[rank][first : first + piece] = self._places[place, rank, : size - first]
            done += 1
        return others

    def _wait(self) -> None:
        """Until all ranks have written this round."""
        rounds, wanted = self._rounds, self._round
        started, pause, looked = 0.0, 0.0, 0.0
        while int(rounds.min()) < wanted:
            now = time.monotonic()
            started = started or now
            waited = now - started
            if waited < BUSY_SECONDS:
                os.sched_yield()
                continue
            if now - looked > ALIVE_SECONDS:
                looked = now
                self._check_alive(waited)
            pause = min(LONGEST_SLEEP, pause + 5e-5)
            time.sleep(pause)

    def _check_alive(self, waited: float) -> None:
        for rank in range(self.ranks):
            if rank == self.rank or int(self._rounds[rank]) >= self._round:
                continue
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
            except OSError:  # it holds its lock, so it lives
                if waited > self.patience:
                    raise PeerGoneError(f"rank {rank} did not answer for {self.patience:g} seconds") from None
                continue
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, rank)
            if int(self._rounds[rank]) < self._round:  # else it wrote its last message and ended
                raise PeerGoneError(f"rank {rank} has ended")

    def close(self) -> None:
        """Give the lock back, by which the others see that this rank has ended; what was read stays."""
        os.close(self._file)


class _Source:
    """A message that is read piece by piece."""

    def __init__(self, message: Sequence[memoryview]) -> None:
        self.size = size_of(message)
        self._left = [np.frombuffer(part, dtype=np.uint8) for part in message if part.nbytes]

    def read_into(self, place: np.ndarray) -> None:
        """Copy what comes next, as much as there is room for."""
        at, room = 0, len(place)
        while self._left and at < room:
            part = self._left[0][: room - at]
            place[at : at + len(part)] = part
            at += len(part)
            rest = self._left[0][len(part) :]
            self._left[:1] = [rest] if len(rest) else []


def _head(ranks: int) -> int:
    """Bytes before the places of messages: whole pages."""
    return -(-8 * LINE * 2 * ranks // PAGE) * PAGE


def _piece(ranks: int) -> int:
    """Bytes of a place: whole pages."""
    return max(PAGE, (MOST - _head(ranks)) // (2 * ranks) // PAGE * PAGE)


def _size(ranks: int) -> int:
    return _head(ranks) + 2 * ranks * _piece(ranks)


def unsuited() -> str | None:
    """Why ranks share no memory on a machine of this kind; None where they can."""
    if platform.machine() not in IN_ORDER:
        return f"processors of kind {platform.machine()} may show two writes in another order"
    return None if MEMORY.is_dir() else f"there is no {MEMORY}"


def sweep() -> None:
    """Remove old files of this user that nobody holds: of ranks that were killed before all had opened theirs."""
    for path in MEMORY.iterdir():
        if OURS.fullmatch(path.name):
            with contextlib.suppress(OSError):  # somebody else's, or held, or gone meanwhile
                _remove_if_left(path)


def _remove_if_left(path: Path) -> None:
    """Raise an OSError where somebody holds the file."""
    known = path.lstat()
    if known.st_uid != os.getuid() or not stat.S_ISREG(known.st_mode) or time.time() - known.st_mtime < OLD_SECONDS:
        return
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(file)


def discard(path: Path) -> None:
    """Remove the name of the file; who has mapped it keeps it."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
