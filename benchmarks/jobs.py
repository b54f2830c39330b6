"""Independent jobs side by side: one process per core, one thread in each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from benchmarks.journal import Outcome
from benchmarks.report import Options

Job = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]  # a function, its arguments, its named arguments


def run_all(jobs: Sequence[Job], options: Options) -> list[Any]:
    """The results of jobs in their order; see `run_timed`."""
    return [outcome.result for outcome in run_timed(jobs, options)]


def run_timed(jobs: Sequence[Job], options: Options) -> list[Outcome]:
    """The outcomes of jobs in their order. Functions must be importable, because processes are spawned.

    With a journal each outcome is written down when its job ends, and jobs that it holds are not run again.
    """
    journal, names = options.journal, [job_name(job) for job in jobs]
    kept = {} if journal is None else {name: outcome for name in names if (outcome := journal.read(name)) is not None}
    left = {name: job for name, job in zip(names, jobs, strict=True) if name not in kept}
    if kept:
        options.say(f"  {len(kept)} of {len(jobs)} jobs are in the journal")
    workers = max(1, min(os.cpu_count() or 1, len(left)))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_single_thread) as pool:
        futures: dict[Future[Outcome], str] = {pool.submit(_timed, job): name for name, job in left.items()}
        for done, future in enumerate(as_completed(futures), start=1):
            name, outcome = futures[future], future.result()
            kept[name] = outcome
            if journal is not None:
                journal.write(name, outcome)
            options.say(f"  {done} of {len(left)}, {outcome.seconds:.0f} CPU-seconds: {name}")
    return [kept[name] for name in names]


def job_name(job: Job) -> str:
    """Function and arguments: all that a job depends on besides the sources."""
    function, args, kwargs = job
    values = [*map(repr, args), *(f"{key}={value!r}" for key, value in sorted(kwargs.items()))]
    return f"{function.__module__}.{function.__qualname__}({', '.join(values)})"


def _timed(job: Job) -> Outcome:
    function, args, kwargs = job
    clock = time.process_time()
    result = function(*args, **kwargs)
    return Outcome(result, time.process_time() - clock)


def _single_thread() -> None:
    import torch

    torch.set_num_threads(1)
