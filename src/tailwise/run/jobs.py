"""Jobs and who runs them: one after the other in this process, or in processes side by side.

A job is a plain description (`training_job.py` has that of a training); it is pickled on its way to a process, so it
holds data and no open files. Executors share one interface: another one, on a cluster for instance, needs `run` and
nothing else.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Event
from typing import Any, Literal, Protocol, TypeVar

from tailwise.core.errors import ConfigError, DataError, TailwiseError
from tailwise.run.processes import start_ignoring_sigint

POLL_SECONDS = 0.2  # between two looks at `stop` while processes work
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


@dataclass(frozen=True)
class Line:
    """One line about a job that runs.

    label   of the job
    kind    "progress", or "note" for what a person should know even when progress is not shown
    """

    label: str
    text: str
    kind: Literal["progress", "note"] = "progress"


Stop = Callable[[], bool]  # whether running jobs shall end after their update, with a checkpoint
Say = Callable[[Line], None]


def never() -> bool:
    """A `stop` that is never asked for."""
    return False


def silent(line: Line) -> None:
    """A `say` that drops the line."""


class Job(Protocol[Result_co]):
    """One piece of work."""

    @property
    def label(self) -> str:
        """Names the job in its lines and errors."""

    def run(self, stop: Stop, say: Say) -> Result_co | None:
        """Work to the end and return the result; None when `stop` was asked for before."""


class Executor(Protocol):
    """Runs jobs somewhere."""

    def run(self, jobs: Sequence[Job[Result]], *, stop: Stop = never, say: Say = silent) -> list[Result] | None:
        """All results in the order of `jobs`; None when `stop` was asked for before the last was done.

        The first error of a job is raised, after the others have ended with a checkpoint. `say` is called in this
        process.
        """


def local_executor(count: int) -> Executor:
    """`count` jobs side by side on this machine; 1 runs them in this process."""
    if count < 1:
        raise ConfigError(f"jobs is {count}; at least 1 is needed.")
    return LocalProcesses(count) if count > 1 else OneByOne()


class OneByOne:
    """Runs jobs one after the other in this process."""

    def run(self, jobs: Sequence[Job[Result]], *, stop: Stop = never, say: Say = silent) -> list[Result] | None:
        results: list[Result] = []
        for job in jobs:
            result = None if stop() else job.run(stop, say)
            if result is None:
                return None
            results.append(result)
        return results


@dataclass(frozen=True)
class LocalProcesses:
    """Runs `count` jobs at a time, each in a process of its own."""

    count: int

    def run(self, jobs: Sequence[Job[Result]], *, stop: Stop = never, say: Say = silent) -> list[Result] | None:
        context = multiprocessing.get_context("spawn")
        stopping = context.Event()
        waiting = deque(enumerate(jobs))
        running: dict[Connection, tuple[Any, int]] = {}
        results: dict[int, Result] = {}
        error: TailwiseError | None = None
        try:
            while waiting or running:
                if stop() or error is not None:
                    stopping.set()
                    waiting.clear()
                while waiting and len(running) < self.count:
                    place, job = waiting.popleft()
                    receiver, sender = context.Pipe(duplex=False)
                    process = context.Process(target=_work, args=(job, stopping, sender, os.getpid()))
                    start_ignoring_sigint(process)
                    sender.close()  # its other end is in the process now: when that dies, reading here ends
                    running[receiver] = (process, place)
                ready = wait(list(running), timeout=POLL_SECONDS)
                for receiver in [one for one in running if one in ready]:
                    process, place = running[receiver]
                    answer = _receive(receiver, process, jobs[place])
                    if isinstance(answer, Line):
                        say(answer)
                        continue
                    running.pop(receiver)
                    process.join()
                    if isinstance(answer, TailwiseError):
                        error = error or answer
                    elif answer is not None:
                        results[place] = answer
        finally:
            for process, _ in running.values():
                process.kill()
                process.join()
        if error is not None:
            raise error
        return [results[place] for place in range(len(jobs))] if len(results) == len(jobs) else None


def _receive(receiver: Connection, process: Any, job: Job[Result]) -> Line | Result | TailwiseError | None:
    """The next line of a process, or its result."""
    try:
        answer: Line | Result | TailwiseError | None = receiver.recv()
    except EOFError:
        process.join()
        return DataError(
            f"{job.label}: its process ended without a result (exit code {process.exitcode}); what it printed is "
            "above. Call the same command again to continue."
        )
    return answer


def _work(job: Job[Any], stopping: Event, sender: Connection, parent: int) -> None:
    """Run one job in a process; its lines, then its result or its error, are sent to the parent."""

    def send(message: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
            sender.send(message)

    try:
        # An orphan stops too: it would go on writing into a folder that the next study continues.
        send(job.run(lambda: stopping.is_set() or os.getppid() != parent, send))
    except TailwiseError as error:
        send(error)
    sender.close()
