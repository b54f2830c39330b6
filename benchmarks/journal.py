"""Outcomes of single jobs, kept on disk: a benchmark of hours can be stopped at any moment and continued."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What a job returned, and the CPU-seconds that it took."""

    result: Any
    seconds: float


@dataclass(frozen=True)
class Journal:
    """One file per job in a folder. sources: digests of what the benchmark measures (`benchmarks.sources`): an outcome
    of other sources is not found again."""

    folder: Path
    sources: Mapping[str, str]

    def read(self, job: str) -> Outcome | None:
        """The outcome of a job by its name; None where it is not there."""
        file = self._file(job)
        # Pickle, because these are our own files of an interrupted run, not a format that anybody exchanges.
        return pickle.loads(file.read_bytes()) if file.exists() else None

    def write(self, job: str, outcome: Outcome) -> None:
        """Keep the outcome of a job."""
        file = self._file(job)
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp")
        temporary.write_bytes(pickle.dumps(outcome))
        temporary.replace(file)

    def _file(self, job: str) -> Path:
        key = json.dumps([dict(self.sources), job], sort_keys=True)
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.pickle"
