"""Jobs for workers of Ray; apart from the tests, because a worker imports this module."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tailwise.run.jobs import Say, Stop


@dataclass(frozen=True)
class Threads:
    """Returns the threads of numba, torch and OpenMP."""

    label: str = "threads"

    def run(self, stop: Stop, say: Say) -> str | None:
        import numba
        import torch

        numbers = (numba.config.NUMBA_NUM_THREADS, torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS"))
        return " ".join(f"{name} {number}" for name, number in zip(("numba", "torch", "OMP"), numbers, strict=True))


@dataclass(frozen=True)
class Stumbler:
    """A training of which the first attempt, after `file` was written, takes its whole worker down."""

    file: Path
    label: str = "stumbler"

    def run(self, stop: Stop, say: Say) -> str | None:
        if not self.file.exists():
            self.file.write_text("half done")
            os._exit(9)
        return self.file.read_text()
