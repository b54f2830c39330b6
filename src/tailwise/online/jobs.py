"""Trainings of challengers: done at once, or aside in a process of their own while bars go on to be traded."""

from __future__ import annotations

import hashlib
import multiprocessing
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tailwise.bars.bars import Bars
from tailwise.core.atomic import atomic_folder, write_json
from tailwise.core.errors import CheckpointError, TailwiseError
from tailwise.core.parsing import parse_json
from tailwise.online.settings import LearnSettings

POLICY, FACTS, JOB = "policy", "facts.json", "job.json"
_LARGEST_FACTS = 65_536  # bytes


@dataclass(frozen=True)
class ChallengerJob:
    """A training: deployed policy (a folder), bars, settings and number of the challenger in; `out`, a folder, out.

    trust: execute the code that the policy names (docs/security.md).
    """

    deployed: Path
    bars: tuple[Bars, ...]
    settings: LearnSettings
    number: int
    out: Path
    trust: bool

    def run(self) -> None:
        """Train and write `out`, whole or not at all; what this training has written already is left as it is."""
        from tailwise.online.challenger import train_challenger
        from tailwise.run.agent import load

        if self.done:
            return
        deployed = load(self.deployed, trust=self.trust)
        trained = train_challenger(deployed, self.bars, self.settings, number=self.number)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(self.out) as draft:
            trained.policy.save(draft / POLICY)
            write_json(draft / FACTS, trained.facts())
            write_json(draft / JOB, self._what())

    @property
    def done(self) -> bool:
        """Whether `out` was made from this policy, these bars and these settings."""
        path = self.out / JOB
        if not path.exists():
            return False
        return bool(parse_json(path.read_bytes(), what=str(path), max_bytes=_LARGEST_FACTS) == self._what())

    def _what(self) -> dict[str, Any]:
        """What the outcome depends on, as plain values."""
        return {
            "policy": folder_digest(self.deployed),
            "bars": [one.data_hash() for one in self.bars],
            "settings": self.settings.model_dump(mode="json"),
            "number": self.number,
        }


def folder_digest(folder: Path) -> str:
    """Of the names and contents of all files."""
    digest = hashlib.sha256()
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()


def facts_of(out: Path) -> dict[str, Any]:
    """What a finished training said about itself."""
    path = out / FACTS
    facts = parse_json(path.read_bytes(), what=str(path), max_bytes=_LARGEST_FACTS)
    if not isinstance(facts, dict):
        raise CheckpointError(f"{path}: a mapping is needed; delete the folder, and the challenger is trained again.")
    return facts


class Worker(Protocol):
    """Does one training at a time."""

    def begin(self, job: ChallengerJob) -> None:
        """Start it."""
        ...

    def finish(self) -> None:
        """Wait until it is done; its error is raised here."""
        ...

    def close(self) -> None:
        """Forget what is not done."""
        ...


class AtOnce:
    """Trains where it is called."""

    def begin(self, job: ChallengerJob) -> None:
        job.run()

    def finish(self) -> None:
        return None

    def close(self) -> None:
        return None


class Aside:
    """Trains in another process."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._done: Future[None] | None = None
        self._number = 0  # of the challenger

    def begin(self, job: ChallengerJob) -> None:
        if job.done:
            return
        if self._pool is None:
            # Not forked: the threads of torch and numba do not survive a fork.
            self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        self._done, self._number = self._pool.submit(job.run), job.number

    def finish(self) -> None:
        if self._done is None:
            return
        error, number = self._done.exception(), self._number
        self._done = None
        self.close()  # an idle process could die before the next training
        if isinstance(error, TailwiseError):
            raise error
        if error is not None:
            raise TailwiseError(
                f"the training of challenger {number} failed in its process: {type(error).__name__}: {error}. The "
                "session is written down whole; the same command goes on with it, and repeats this training."
            ) from error

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
