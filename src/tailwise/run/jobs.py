"""Several trainings of one command: one after the other or in processes side by side, each to be continued later."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tailwise.cli.output import note
from tailwise.run.progress import PlainProgress, labels_of
from tailwise.cli.training import Recorder, stop_after_update
from tailwise.core.errors import ConfigWarning, DataError, TailwiseError
from tailwise.run.agent import PPO
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.config import Config
from tailwise.run.run_folder import CONFIG
from tailwise.run.trials import TrialBook

LOOK_EVERY = 0.2  # seconds between looks at the keyboard while other processes work
Result = TypeVar("Result", covariant=True)
Found = TypeVar("Found")


class Job(Protocol[Result]):
    """One piece of work; it is pickled on its way to a process."""

    @property
    def label(self) -> str:
        """What its lines begin with."""

    def do(self, asked: Callable[[], bool]) -> Result | None:
        """Work until the end, or until `asked` says stop; then None."""


# ---------------------------------------------------------------- one training


class StopWhen(Callback):
    """Ends a run after its update, with a checkpoint, once `asked` says so."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        self.asked = asked

    def on_update(self, progress: Progress) -> bool | None:
        return False if self.asked() else None


class RunLines(PlainProgress):
    """The lines of one run, each beginning with its name; none when silent."""

    def __init__(self, label: str, config: Config, *, silent: bool) -> None:
        super().__init__(labels_of(config))
        self.label, self.silent = label, silent

    def say(self, text: str) -> None:
        """One write per line, so that the lines of several processes do not mix."""
        if not self.silent:
            sys.stdout.write(f"{self.label}: {text}\n")
            sys.stdout.flush()


class Trained:
    """A run that was trained to its end. ended: why, a sentence."""

    def __init__(self, agent: PPO, ended: str, lines: RunLines) -> None:
        self.agent, self.ended, self.lines = agent, ended, lines


@contextlib.contextmanager
def trained(
    config: Config,
    folder: Path,
    asked: Callable[[], bool],
    *,
    label: str,
    silent: bool,
    trials: TrialBook,
    check: Callable[[PPO], None] | None = None,
) -> Iterator[Trained | None]:
    """Begin the run of a folder, or continue it, and train to the end; None when it was asked to stop before.

    check: looks at the agent before it trains and raises when it must not.
    """
    with _alone(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)  # the command printed them before the first run
        lines = RunLines(label, config, silent=silent)
        callbacks: list[Callback] = [StopWhen(asked), lines]
        notes: list[str] = []
        if (folder / CONFIG).exists():
            agent, notes = PPO.resume(folder, callbacks=callbacks, trials=trials, trust=config)
        else:
            agent = PPO(config=config, run_dir=folder, callbacks=callbacks, trials=trials)
        for sentence in notes:
            note(f"note: {label}: {sentence}")
        trainer = agent.trainer
        try:
            if check is not None:
                check(agent)
            ended = trainer.finished()
            if ended is None:
                if trainer.update:
                    lines.say(f"goes on after update {trainer.update}")
                reason = agent.learn()
                ended = trainer.finished() or reason  # Ctrl-C during the last update changes nothing
                if asked() and trainer.finished() is None:
                    yield None
                    return
            lines.say(f"{ended}; judged out of sample now")
            yield Trained(agent, ended, lines)
        finally:
            trainer.driver.close()


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process works on this run.

    The processes of a command that was killed notice it after their update; the next command must not begin before.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f".{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by a kill
        yield


# ---------------------------------------------------------------- many of them


def do_all(work: Sequence[Job[Found]], *, jobs: int) -> list[Found] | None:
    """All results in the order of `work`; None after Ctrl-C, which lets the runs write a checkpoint first."""
    recorder = Recorder()
    try:
        with stop_after_update(recorder):
            if jobs > 1:
                found = _side_by_side(work, jobs, recorder)
            else:
                found = []
                for job in work:
                    result = None if recorder.stop else job.do(lambda: recorder.stop)
                    if result is None:
                        break
                    found.append(result)
    except KeyboardInterrupt:
        return None
    return found if len(found) == len(work) else None


def _side_by_side(work: Sequence[Job[Found]], jobs: int, recorder: Recorder) -> list[Found]:
    """`jobs` processes at a time, each with one run. The first error stops the others after their update."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    waiting = deque(enumerate(work))
    running: dict[Connection, tuple[Any, int]] = {}
    found: dict[int, Found] = {}
    error: TailwiseError | None = None
    try:
        while waiting or running:
            if recorder.stop or error is not None:
                stop.set()
                waiting.clear()
            while waiting and len(running) < jobs:
                place, job = waiting.popleft()
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_process, args=(job, stop, sender, os.getpid()))
                _start_deaf(process)
                sender.close()  # its other end is in the process now: when that dies, reading here ends
                running[receiver] = (process, place)
            ready = wait(list(running), timeout=LOOK_EVERY)
            for receiver in [one for one in running if one in ready]:
                process, place = running.pop(receiver)
                answer = _answer(receiver, process, work[place])
                if isinstance(answer, TailwiseError):
                    error = error or answer
                elif answer is not None:
                    found[place] = answer
    finally:
        for process, _ in running.values():
            process.kill()
            process.join()
    if error is not None:
        raise error
    return [found[place] for place in sorted(found)]


def _start_deaf(process: BaseProcess) -> None:
    """Start a process that never hears Ctrl-C: the parent does and tells it, so that it ends after an update."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answer(receiver: Connection, process: Any, job: Job[Found]) -> Found | TailwiseError | None:
    try:
        answer: Found | TailwiseError | None = receiver.recv()
    except EOFError:
        process.join()
        return DataError(
            f"{job.label}: its process ended without a result (exit code {process.exitcode}); what it printed is "
            "above. Call the same command again to continue."
        )
    process.join()
    return answer


def _process(job: Job[Any], stop: Event, sender: Connection, parent: int) -> None:
    """What a process does: one job; a sentence about what went wrong is sent like a result."""
    answer: Any
    try:
        # An orphan stops too: it would go on writing into a folder that the next command continues.
        answer = job.do(lambda: stop.is_set() or os.getppid() != parent)
    except TailwiseError as error:
        answer = error
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        sender.send(answer)
    sender.close()
