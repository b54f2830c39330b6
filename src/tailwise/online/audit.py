"""The audit log of online learning: one line for everything that was decided, and the same lines when it is replayed.

A session that was killed is replayed from its journal. What it decides again must stand in the log already, in the
same order; only then is the log continued.
"""

from __future__ import annotations

import json
import os
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
        self._before = read_audit(self.path)
        self._place = 0
        self._whole = sum(len(_encoded(line)) for line in self._before)
        self.lines: list[dict[str, Any]] = []  # of this session so far

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
                    f"and the replay came to '{kind}' of tick {n}. The log, the journal, the bars from before or the "
                    "settings were changed; restore them, or begin a new session with --out."
                )
            self._place += 1
            return
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


def read_audit(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a log, oldest first; empty without one."""
    if not path.exists():
        return []
    if path.stat().st_size > _LARGEST:
        raise CheckpointError(f"{path} has more than {_LARGEST:,} bytes, which no session writes.")
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    lines = []
    for number, text in enumerate(whole.split(b"\n") if whole else [], start=1):
        line = parse_json(text, what=f"{path}, line {number}", max_bytes=_LONGEST)
        if not isinstance(line, dict):
            raise CheckpointError(f"{path}, line {number}: a mapping is needed.")
        lines.append(line)
    return lines
