"""The audit log of online learning: one line for everything that was decided, and the same lines when it is replayed.

A session that was killed is replayed from its journal. What it decides again must stand in the log already, in the
same order; only then is the log continued.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailwise.core.errors import CheckpointError
from tailwise.core.parsing import parse_json

AUDIT = "learn.jsonl"
_LONGEST = 1_048_576  # bytes of a line
_LARGEST = 268_435_456  # bytes of a log


class Audit:
    """The file; `write` appends, or checks a line that was written before."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / AUDIT
        self._before, self._whole = _read(self.path)
        self._place = 0
        self.lines: list[dict[str, Any]] = []  # of this session so far
        self.known = 0  # ticks of the journal: all but the newest were noted when they were made
        self.sync: Callable[[], None] = _nothing  # of the journal: what a line follows from is on the disk before it

    @property
    def begun(self) -> bool:
        """Whether it has a line."""
        return bool(self._before or self.lines)

    @property
    def replaying(self) -> bool:
        """Whether the next line stands in the file already."""
        return self._place < len(self._before)

    def write(self, kind: str, n: int, time: int, **facts: Any) -> None:
        """Note an event of tick n; time: of its bar, ns."""
        line = {"kind": kind, "n": n, "time": time, **facts}
        self.lines.append(line)
        if self.replaying:
            before = self._before[self._place]
            if before != json.loads(_encoded(line)):
                raise CheckpointError(
                    f"{self.path}, line {self._place + 1}: it says '{before.get('kind')}' of tick {before.get('n')}, "
                    f"and the replay came to '{kind}' of tick {n}{_difference(before, line)}. The log, the journal, "
                    "the bars from before or the settings were changed; restore them, or begin a new session with "
                    "--out."
                )
            self._place += 1
            return
        if 0 < n < self.known:
            raise CheckpointError(
                f"{self.path}: there is no '{kind}' of tick {n}, to which the replay came, and the journal goes on to "
                f"tick {self.known}: these ticks were made without --learn, or the end of the log is missing. Go on "
                "without --learn where no challenger decides, or begin a new session with --out."
            )
        self.sync()
        with open(self.path, "r+b" if self.path.exists() else "xb") as file:
            file.truncate(self._whole)  # half a line of a process that was killed
            file.seek(self._whole)
            data = _encoded(line)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._whole += len(data)


def _encoded(line: dict[str, Any]) -> bytes:
    return (json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n").encode()


def _nothing() -> None:
    return None


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Which settings another start had, for an error; empty where the lines are of something else."""
    old, new = before.get("settings"), now.get("settings")
    if not isinstance(old, dict) or not isinstance(new, dict):
        return ""
    names = [name for name in new if old.get(name) != new[name]]
    return "".join(f", {name} {str(old.get(name))[:40]} then and {new[name]} now" for name in names[:3])


def read_audit(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a log, oldest first; empty without one."""
    return _read(path)[0]


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The whole lines, and how many bytes of the file they are."""
    if not path.exists():
        return [], 0
    if path.stat().st_size > _LARGEST:
        raise CheckpointError(f"{path} has more than {_LARGEST:,} bytes, which no session writes.")
    whole, end, _ = path.read_bytes().rpartition(b"\n")
    lines = []
    for number, text in enumerate(whole.split(b"\n") if end else [], start=1):
        line = parse_json(text, what=f"{path}, line {number}", max_bytes=_LONGEST)
        if not isinstance(line, dict):
            raise CheckpointError(f"{path}, line {number}: a mapping is needed.")
        lines.append(line)
    return lines, len(whole) + len(end)
