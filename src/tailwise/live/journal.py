"""The journal of a paper session: JSON lines that are only appended, and the session continued from them.

    begin    what the session is: run, policy, features, symbols, beginning; once
    state    everything that continues the session bit for bit, arrays in base 64; every STATE_EVERY ticks
    tick     the bars of one time with what they did to every account and what was decided at their close; one line, so
             that a tick is in the journal with its decision or not at all
    event    what happened between two ticks: a reason that was given, cleared or acknowledged

A line is handed to the system as soon as it is written, so that `kill -9` loses at most the half of one, which is cut
off at the next start; and it is synced to the disk whenever a target changed and at least each second.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field

from tailwise.core.errors import CheckpointError, DataError
from tailwise.core.parsing import Stored, as_stored, parse_json
from tailwise.live.states import RULES

JOURNAL = "journal.jsonl"
STATE_EVERY = 256  # ticks; those after the newest state are played again at a start, in a tenth of a second
SYNC_EVERY = 1.0  # seconds of wall time
LONGEST = 16_777_216  # bytes of a line
_COMPACT = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_DTYPES = {"float64", "float32", "int64", "int8", "bool"}


def _of_rules(reasons: dict[str, str]) -> dict[str, str]:
    """Refuse reasons that no session gives."""
    odd = [name for name in reasons if name not in RULES]
    if odd:
        raise ValueError(f"there is no reason {odd[0][:40]!r}")
    return reasons


Number = Annotated[float, Field(allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0, lt=2**63)]
Stamp = Annotated[int, Field(ge=-(2**62), le=2**62)]  # ns since 1970
BarNumbers = Annotated[list[Number], Field(min_length=7, max_length=7)]  # of `RawBar.to_list`
Reasons = Annotated[dict[str, str], AfterValidator(_of_rules)]


class StoredArray(Stored):
    """A numpy array."""

    dtype: str
    shape: list[Whole]
    data: str


class BeginLine(Stored):
    """See `begin` above. policy, features, config: sha256."""

    kind: Literal["begin"]
    format: Literal[1]
    run: str
    checkpoint: str
    policy: str
    features: str
    config: str
    symbols: list[str]
    bar_ns: Whole
    periods_per_year: Number
    calendar: str
    since: str | None
    seed: Whole
    deterministic: bool


class LastBar(Stored):
    """The newest bar of a symbol."""

    time: Stamp
    bar: BarNumbers


class StateLine(Stored):
    """See `state` above. n: ticks so far; time: of the newest one, ns; arrays: those of each account; policy: digest of
    the policy that decides from here on, where another than that of the run was deployed."""

    kind: Literal["state"]
    n: Whole
    time: Stamp
    last: dict[str, LastBar]
    arrays: list[dict[str, StoredArray]]
    reasons: Reasons
    policy: str | None = None


class TickDesk(Stored):
    """One account in one tick. bars: by symbol, what `RawBar.to_list` has; ledger: what is not 0."""

    bars: dict[str, BarNumbers]
    ledger: dict[str, Number | list[Number]]
    equity: Number
    units: list[Number]
    wanted: list[Number] | None
    target: list[Number] | None
    guards: list[str]


class TickLine(Stored):
    """See `tick` above."""

    kind: Literal["tick"]
    n: Whole
    time: Stamp
    wall: Number
    state: Literal["RUNNING", "REDUCE_ONLY", "FLAT", "STOPPED"]
    reasons: Reasons
    desks: list[TickDesk | None]


class EventLine(Stored):
    """See `event` above. reasons: all that hold after it."""

    kind: Literal["event"]
    wall: Number
    what: str
    reasons: Reasons


Line = BeginLine | StateLine | TickLine | EventLine
_KINDS: dict[str, type[Line]] = {"begin": BeginLine, "state": StateLine, "tick": TickLine, "event": EventLine}


class Journal:
    """The file, open for appending. Made by one process at a time: the folder is locked."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        self._descriptor: int | None = None
        self._synced = time.monotonic()
        self.syncs = 0

    def open(self, *, begin_again: bool = False) -> None:
        """Cut off half a line that a killed process left, or everything, and open for appending."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        self._descriptor = os.open(self.path, flags, 0o644)
        whole = 0 if begin_again else _end_of_lines(self._descriptor)
        os.ftruncate(self._descriptor, whole)
        self.sync()

    def close(self) -> None:
        if self._descriptor is not None:
            self.sync()
            os.close(self._descriptor)
            self._descriptor = None

    def write(self, value: Mapping[str, Any], *, sync: bool) -> None:
        """Append one line; sync: to the disk as well, which otherwise happens once a second."""
        assert self._descriptor is not None
        data = (_COMPACT.encode(value) + "\n").encode()
        while data:
            data = data[os.write(self._descriptor, data) :]
        if sync or time.monotonic() - self._synced >= SYNC_EVERY:
            self.sync()

    def sync(self) -> None:
        """To the disk."""
        assert self._descriptor is not None
        os.fsync(self._descriptor)
        self._synced = time.monotonic()
        self.syncs += 1


def _end_of_lines(descriptor: int) -> int:
    """Bytes up to and including the last line break."""
    size = os.fstat(descriptor).st_size
    end = size
    while end > 0:
        first = max(0, end - 65_536)
        block = os.pread(descriptor, end - first, first)
        at = block.rfind(b"\n")
        if at >= 0:
            return first + at + 1
        end = first
    return 0


@dataclass
class Resumed:
    """What of a journal continues its session. first: its first line; part: the newest `state` and the lines after it;
    wall: of the newest tick, None: there is none; desks: the newest entry of each account, by its place, which the
    newest state does not hold."""

    first: Line | None = None
    part: list[Line] = field(default_factory=list)
    wall: float | None = None
    desks: dict[int, TickDesk] = field(default_factory=dict)


def resumed_from(path: Path) -> Resumed:
    """All lines are checked; nothing where there is no journal."""
    found = Resumed()
    for line in read_journal(path) if path.exists() else ():
        found.first = found.first or line
        if isinstance(line, StateLine):
            found.part = [line]
        elif found.part:
            found.part.append(line)
        if isinstance(line, TickLine):
            found.wall = line.wall
            found.desks |= {k: one for k, one in enumerate(line.desks) if one is not None}
    return found


def check_arrays(given: Mapping[str, npt.NDArray[Any]], own: Mapping[str, npt.NDArray[Any]], *, source: str) -> None:
    """Refuse a state with other names, types or shapes than an account of this session has."""
    odd = sorted(set(given) ^ set(own))
    if odd:
        raise CheckpointError(f"{source}: '{odd[0]}' is in one of the stored state and this account only.")
    for name, mine in own.items():
        theirs = given[name]
        waits = name.endswith("feed_target")  # empty where nothing waits
        if theirs.dtype != mine.dtype or (theirs.shape != mine.shape and not waits):
            raise CheckpointError(
                f"{source}: '{name}' is {theirs.dtype} {theirs.shape}; {mine.dtype} {mine.shape} is needed."
            )


def read_journal(path: Path) -> Iterator[Line]:
    """The whole lines of a journal, checked; half a line at the end is left out."""
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(LONGEST + 1):
            number += 1
            where = f"{path}, line {number}"
            if not line.endswith(b"\n"):
                if len(line) > LONGEST:
                    raise CheckpointError(f"{where}: it has more than {LONGEST:,} bytes, which nothing here writes.")
                return
            try:
                data = parse_json(line, what=where, max_bytes=LONGEST)
                kind = data.get("kind") if isinstance(data, dict) else None
                if not isinstance(kind, str) or kind not in _KINDS:
                    raise DataError(f"{where}: kind is {str(kind)[:40]!r}; it is one of {', '.join(_KINDS)}.")
                yield as_stored(_KINDS[kind], data, source=where)
            except DataError as error:
                raise CheckpointError(
                    f"{error}\nThe journal is damaged; restore it, or begin a new session in another folder."
                ) from error


def pack(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, dict[str, Any]]:
    """Arrays as plain values."""
    return {
        name: {
            "dtype": str(array.dtype),
            "shape": list(array.shape),
            "data": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii"),
        }
        for name, array in arrays.items()
    }


def unpack(stored: Mapping[str, StoredArray], *, source: str) -> dict[str, npt.NDArray[Any]]:
    """Inverse of `pack`, checked; who takes the arrays checks their shapes against its own."""
    arrays = {}
    for name, one in stored.items():
        if one.dtype not in _DTYPES:
            raise CheckpointError(f"{source}: '{name}' is of type {one.dtype[:20]!r}, which no state has.")
        try:
            data = base64.b64decode(one.data, validate=True)
        except ValueError as error:
            raise CheckpointError(f"{source}: '{name}' is no base 64 ({error}).") from error
        dtype, count = np.dtype(one.dtype), int(np.prod([1, *one.shape], dtype=object))
        if len(data) != count * dtype.itemsize:
            raise CheckpointError(
                f"{source}: '{name}' has {len(data)} bytes; {one.shape} {one.dtype} has another number."
            )
        arrays[name] = np.frombuffer(data, dtype=dtype).reshape(one.shape).copy()
    return arrays
