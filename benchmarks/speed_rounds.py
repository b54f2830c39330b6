"""Contenders in turn, round by round, each in its own process on one core, so that a busy machine slows them alike."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.speed_contenders import GEMM, Entry
from benchmarks.speed_work import Work
from tailwise.core.errors import TailwiseError

Say = Callable[[str], None]
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class ContenderError(TailwiseError):
    """A contender ended, or did other work than the rest."""


@dataclass(frozen=True)
class Round:
    """One turn: CPU and wall seconds per iteration; others: cores that everything else used; facts: see `Contender`."""

    cpu: float
    wall: float
    others: float | None
    facts: dict[str, float]


@dataclass(frozen=True)
class Result:
    """All turns of one contender.

    start_cpu: CPU-seconds until it could begin (imports, building); first_cpu, first_wall: its first iteration, with
    what it compiles; peak_bytes: largest resident memory.
    """

    entry: Entry
    work: Work
    rounds: tuple[Round, ...]
    start_cpu: float
    first_cpu: float
    first_wall: float
    peak_bytes: int

    @property
    def per_cpu_second(self) -> list[float]:
        """Samples per CPU-second of each round."""
        return [self.work.samples / turn.cpu for turn in self.rounds]

    @property
    def per_second(self) -> list[float]:
        """Samples per second of wall time of each round."""
        return [self.work.samples / turn.wall for turn in self.rounds]


class Running:
    """A contender's process; see `benchmarks.speed_serve`."""

    def __init__(
        self, entry: Entry, work: Work, *, core: int | None, environment: dict[str, str] | None = None
    ) -> None:
        self.entry, self.work = entry, work
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        command = [sys.executable, "-m", "benchmarks.speed_serve", entry.maker, work.to_json()]
        self._process = subprocess.Popen(
            command if core is None else [*command, str(core)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **dict.fromkeys(_THREADS, "1"), "PYTHONPATH": paths, **(environment or {})},
        )
        self._iterations = 0
        self.peak_bytes = 0

    def first(self) -> dict[str, Any]:
        """Wait for the first iteration."""
        return self._read(1)

    def turn(self, iterations: int) -> Round:
        """Let it iterate, alone."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the process has ended; the empty answer says so
            self._process.stdin.write(f"{iterations}\n")
            self._process.stdin.flush()
        answer = self._read(iterations)
        return Round(answer["cpu"] / iterations, answer["wall"] / iterations, answer["others"], answer["facts"])

    def _read(self, iterations: int) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise ContenderError(f"{self.entry.name} ended with code {code}; what it said stands above")
        answer: dict[str, Any] = json.loads(line)
        self._iterations += iterations
        self.peak_bytes = answer["peak_bytes"]
        if self.entry != GEMM:
            self._check(answer)
        return answer

    def _check(self, answer: dict[str, Any]) -> None:
        wanted = (self._iterations * self.work.samples, self._iterations * self.work.gradient_steps)
        counted = (answer["samples"], answer["gradient_steps"])
        if counted != wanted:
            raise ContenderError(
                f"{self.entry.name} made {counted[0]} samples and {counted[1]} gradient steps where the comparison "
                f"needs {wanted[0]} and {wanted[1]}: its settings do not describe the same work"
            )

    def close(self) -> None:
        """Let it end by itself."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def last_core() -> int | None:
    """The core that contenders are bound to; None where the system cannot bind."""
    return max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def compare(
    work: Work,
    entries: Sequence[Entry],
    *,
    rounds: int,
    seconds: float,
    say: Say,
    works: Sequence[Work] | None = None,
    environment: dict[str, str] | None = None,
) -> list[Result]:
    """Give every contender `rounds` turns of about `seconds` CPU-seconds; one iteration at least.

    works: the work of each contender where they differ (a table of sizes); environment: more variables for them.
    """
    core, running = last_core(), []
    firsts: list[dict[str, Any]] = []
    turns: list[list[Round]] = [[] for _ in entries]
    try:
        # One after the other: two that start side by side would slow each other's first iteration.
        for entry, its in zip(entries, works or [work] * len(entries), strict=True):
            contender = Running(entry, its, core=core, environment=environment)
            running.append(contender)
            firsts.append(contender.first())
            say(f"  {entry.name}: ready after {firsts[-1]['start_cpu'] + firsts[-1]['cpu']:.1f} CPU-seconds")
        iterations = [max(1, round(seconds / contender.turn(1).cpu)) for contender in running]
        for _ in range(rounds):
            for contender, times, kept in zip(running, iterations, turns, strict=True):
                kept.append(contender.turn(times))
        return [
            Result(
                contender.entry,
                contender.work,
                tuple(kept),
                first["start_cpu"],
                first["cpu"],
                first["wall"],
                contender.peak_bytes,
            )
            for contender, kept, first in zip(running, turns, firsts, strict=True)
        ]
    finally:
        for contender in running:
            contender.close()


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median over rounds of ours / theirs; a round's two stand next to one another in time."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def limits(limit: Result) -> list[float]:
    """Operations per CPU-second of matrix products in each round, of the shape and code that are fastest by median.

    Not the fastest of each round: where a machine is noisy that is the luckiest moment of a turn, and everybody else is
    measured over a whole one.
    """
    speeds = [turn.facts for turn in limit.rounds]
    best = max(speeds[0], key=lambda side: statistics.median(facts[side] for facts in speeds))
    return [facts[best] for facts in speeds]
