"""`tailwise frontier`: the same seeds at several limits, trained, judged out of sample, drawn."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from tailwise.cli.configuring import read_effective
from tailwise.cli.main import CHECK_FAILED, DONE, INTERRUPTED
from tailwise.cli.output import note, print_json, print_table
from tailwise.cli.progress import PlainProgress
from tailwise.cli.training import Recorder, require_environment, run_folder, stop_after_update
from tailwise.core.atomic import write_json
from tailwise.core.discount import tail_horizon
from tailwise.core.errors import ConfigError, DataError, TailwiseError
from tailwise.evaluate.frontier import (
    EPISODES,
    MOST_LIKELY,
    SAMPLED,
    Cell,
    Frontier,
    Result,
    alpha_of,
    cell_config,
    check_base,
    check_folder,
    judge_run,
    open_run,
    plan,
)
from tailwise.evaluate.frontier_page import HOW, headings, legend, table_rows, warnings_about, write_frontier_page
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.config import Config, GymEnv, warnings_of
from tailwise.run.worlds import MarketWorld, World, make_world

SUMMARY, PAGE = "frontier.json", "frontier.html"
LOOK_EVERY = 0.2  # seconds between looks at the keyboard while other processes work


@dataclass(frozen=True)
class Job:
    """One run that a process works on."""

    cell: Cell
    config: Config
    folder: Path
    episodes: int
    silent: bool


def run_frontier(
    config: str,
    overrides: list[str],
    *,
    limits: str | None,
    seeds: int,
    unconstrained: bool,
    episodes: int | None,
    out: Path | None,
    jobs: int,
    as_json: bool,
) -> int:
    """Train what is not trained yet, judge everything, print and keep it; returns the exit code."""
    wanted = read_limits(limits)
    source, base = read_effective(config, overrides)
    require_environment(base, source.label)
    check_base(base)
    cells = plan(wanted, first_seed=base.seed, seeds=seeds, unconstrained=unconstrained)
    configs = [cell_config(base, cell) for cell in cells]
    if episodes is not None and not isinstance(base.env, GymEnv):
        raise ConfigError(f"{source.label} is a market: its test window is played whole, once; leave out --episodes.")
    played = episodes or max(base.evaluate.episodes, EPISODES)
    world = check_world(base, played)
    for sentence in [*warnings_of(configs[0]), *_about_limits(wanted, base)]:
        note(f"warning: {sentence}")
    with run_folder(out, "frontier") as folder:
        check_folder(folder, base)
        folder.mkdir(parents=True, exist_ok=True)
    facts = _facts(base, world)
    if not as_json:
        for sentence in facts:
            print(sentence)
        names = ", ".join(str(seed) for seed in range(base.seed, base.seed + seeds))
        print(f"{len(cells)} runs of {base.run.total_steps:,} steps, seeds {names}, in {folder}", flush=True)
    work = [Job(cell, full, folder / cell.folder, played, as_json) for cell, full in zip(cells, configs, strict=True)]
    results = do_all(work, jobs=jobs)
    if results is None:
        note(f"interrupted; continue with the same command and --out {folder}")
        return INTERRUPTED
    frontier = Frontier(
        name=f"{source.name}: return against realised CVaR",
        environment=world.name,
        label=world.dataset.label if isinstance(world, MarketWorld) else "",
        market=isinstance(world, MarketWorld),
        alpha=alpha_of(configs[0]),
        gamma=base.learner.gamma,
        horizon=tail_horizon(base.learner.gamma),
        episodes=None if isinstance(world, MarketWorld) else played,
        facts=tuple(facts),
        results=tuple(results),
    )
    write_json(folder / SUMMARY, frontier.to_json())
    write_frontier_page(folder / PAGE, frontier)
    if as_json:
        print_json({"folder": str(folder), **frontier.to_json()})
    else:
        print_frontier(frontier, folder)
    return CHECK_FAILED if any(one.refused for one in results) else DONE


def read_limits(text: str | None) -> list[float]:
    """The limits of "-0.02,-0.05"; every mistake is a sentence."""
    example = "write for example --limits -0.02,-0.05,-0.1"
    if text is None or not text.strip():
        raise ConfigError(f"there are no limits; {example}.")
    found: list[float] = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError as error:
            raise ConfigError(f"the limit '{part.strip()}' is not a number; {example} (-0.02 for -2%).") from error
        if not math.isfinite(value):
            raise ConfigError(f"the limit '{part.strip()}' is not finite; {example}.")
        if value in found:
            raise ConfigError(f"the limit {value!r} is given twice; give each limit once.")
        found.append(value)
    return found


def check_world(base: Config, episodes: int) -> World:
    """Build what the runs will be judged on before hours are spent on training; raise when it cannot judge them."""
    world = make_world(base)
    driver = world.judging("test", episodes=episodes, seed=base.seed)
    driver.close()
    horizon = tail_horizon(base.learner.gamma)
    if isinstance(world, MarketWorld):
        tables = world.dataset.tables("test", together=world.portfolio)
        longest = max(len(table.close) - 1 - table.first_valid for table in tables)
        if longest < horizon:
            raise DataError(
                f"the test window has {longest} bars, and the tail of learner.gamma {base.learner.gamma:g} looks "
                f"{horizon} bars ahead, so the realised CVaR could not be measured; widen the test window or lower "
                "learner.gamma."
            )
    return world


def _about_limits(limits: Sequence[float], base: Config) -> list[str]:
    if isinstance(base.env, GymEnv):
        return []
    return [
        f"the limit {limit!r} is not below 0: it demands a gain, or at least no loss, even in the worst cases; losses "
        "are negative"
        for limit in limits
        if limit >= 0
    ]


def _facts(base: Config, world: World) -> list[str]:
    """What is trained, a sentence each."""
    found = world.dataset.describe() if isinstance(world, MarketWorld) else [f"environment {world.name}"]
    return [
        *found,
        f"core {base.model.core.kind}, {base.model.critic.kind} critic, gamma {base.learner.gamma:g}, "
        f"{base.run.total_steps:,} steps a run",
    ]


def print_frontier(frontier: Frontier, folder: Path) -> None:
    """The table, what its numbers mean, and where the page is."""
    for played in (SAMPLED, MOST_LIKELY):
        print_table(f"{frontier.environment}: {HOW[played]}", headings(frontier), table_rows(frontier, played))
    for sentence in legend(frontier):
        print(sentence)
    for sentence in warnings_about(frontier):
        print(f"warning: {sentence}")
    print(f"page: {folder / PAGE}")


# ---------------------------------------------------------------- the runs


class StopWhen(Callback):
    """Ends a run after its update, with a checkpoint, once `asked` says so."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        self.asked = asked

    def on_update(self, progress: Progress) -> bool | None:
        return False if self.asked() else None


class RunLines(PlainProgress):
    """The lines of one run, each beginning with its name; none when silent."""

    def __init__(self, label: str, alpha: float | None, *, silent: bool) -> None:
        super().__init__(alpha)
        self.label, self.silent = label, silent

    def say(self, text: str) -> None:
        """One write per line, so that the lines of several processes do not mix."""
        if not self.silent:
            sys.stdout.write(f"{self.label}: {text}\n")
            sys.stdout.flush()


def do_job(job: Job, asked: Callable[[], bool]) -> Result | None:
    """Train to the end what is not there yet and judge it; None when it was asked to stop before."""
    lines = RunLines(job.cell.label, job.config.tail_alpha, silent=job.silent)
    agent, notes = open_run(job.config, job.folder, [StopWhen(asked), lines])
    for sentence in notes:
        note(f"note: {job.cell.label}: {sentence}")
    trainer = agent.trainer
    try:
        ended = trainer.finished()
        if ended is None:
            if trainer.update:
                lines.say(f"goes on after update {trainer.update}")
            reason = agent.learn()
            ended = trainer.finished() or reason  # Ctrl-C during the last update changes nothing
            if asked() and trainer.finished() is None:
                return None
        lines.say(f"{ended}; judged out of sample now")
        return judge_run(
            job.cell,
            job.folder,
            agent.world(),
            episodes=job.episodes,
            steps=trainer.steps,
            ended=ended,
            refused=trainer.failed,
        )
    finally:
        trainer.driver.close()


def do_all(work: Sequence[Job], *, jobs: int) -> list[Result] | None:
    """All results in the order of `work`; None after Ctrl-C, which lets the runs write a checkpoint first."""
    recorder = Recorder()
    try:
        with stop_after_update(recorder):
            if jobs > 1:
                found = _side_by_side(work, jobs, recorder)
            else:
                found = []
                for job in work:
                    result = None if recorder.stop else do_job(job, lambda: recorder.stop)
                    if result is None:
                        break
                    found.append(result)
    except KeyboardInterrupt:
        return None
    return found if len(found) == len(work) else None


def _side_by_side(work: Sequence[Job], jobs: int, recorder: Recorder) -> list[Result]:
    """`jobs` processes at a time, each with one run. The first error stops the others after their update."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    waiting = deque(work)
    running: dict[Connection, tuple[Any, Job]] = {}
    found: dict[Cell, Result] = {}
    error: TailwiseError | None = None
    try:
        while waiting or running:
            if recorder.stop or error is not None:
                stop.set()
                waiting.clear()
            while waiting and len(running) < jobs:
                job = waiting.popleft()
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_process, args=(job, stop, sender, os.getpid()))
                _start_deaf(process)
                sender.close()  # its other end is in the process now: when that dies, reading here ends
                running[receiver] = (process, job)
            ready = wait(list(running), timeout=LOOK_EVERY)
            for receiver in [one for one in running if one in ready]:
                process, job = running.pop(receiver)
                answer = _answer(receiver, process, job)
                if isinstance(answer, Result):
                    found[job.cell] = answer
                elif answer is not None:
                    error = error or answer
    finally:
        for process, _ in running.values():
            process.kill()
            process.join()
    if error is not None:
        raise error
    return [found[job.cell] for job in work if job.cell in found]


def _start_deaf(process: BaseProcess) -> None:
    """Start a process that never hears Ctrl-C: the parent does and tells it, so that it ends after an update."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answer(receiver: Connection, process: Any, job: Job) -> Result | TailwiseError | None:
    try:
        answer = receiver.recv()
    except EOFError:
        process.join()
        return DataError(
            f"{job.cell.label}: its process ended without a result (exit code {process.exitcode}); what it printed is "
            "above. Call the same command again to continue."
        )
    process.join()
    assert answer is None or isinstance(answer, Result | TailwiseError)
    return answer


def _process(job: Job, stop: Event, sender: Connection, parent: int) -> None:
    """What a process does: one job; a sentence about what went wrong is sent like a result."""
    answer: Result | TailwiseError | None
    try:
        # An orphan stops too: it would go on writing into a folder that the next command continues.
        answer = do_job(job, lambda: stop.is_set() or os.getppid() != parent)
    except TailwiseError as error:
        answer = error
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        sender.send(answer)
    sender.close()
