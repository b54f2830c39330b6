"""Jobs of benchmarks: order, and runs that continue."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.jobs import Job, job_name, run_all, run_timed
from benchmarks.journal import Journal
from benchmarks.report import Options


def _options(journal: Journal | None = None, said: list[str] | None = None) -> Options:
    return Options(True, lambda text: said.append(text) if said is not None else None, (), journal)


def test_results_come_in_the_order_of_the_jobs() -> None:
    # The first job ends last.
    jobs: list[Job] = [(time.sleep, (0.5,), {}), (divmod, (7, 2), {}), (sorted, ([1, 3, 2],), {"reverse": True})]
    assert run_all(jobs, _options()) == [None, (3, 1), [3, 2, 1]]


def test_jobs_are_named_by_function_and_arguments() -> None:
    assert job_name((sorted, ([1],), {"reverse": True})) == "builtins.sorted([1], reverse=True)"


def test_a_journal_continues_and_forgets_when_sources_change(tmp_path: Path) -> None:
    here, sources = os.getpid(), {"benchmark": "1"}
    jobs: list[Job] = [(os.getpid, (), {}), (divmod, (7, 2), {})]
    first = run_timed(jobs[:1], _options(Journal(tmp_path, sources)))
    assert first[0].result != here  # a process of its own

    said: list[str] = []
    again = run_timed(jobs, _options(Journal(tmp_path, sources), said))
    assert again[0] == first[0]
    assert again[1].result == (3, 1)
    assert said[0] == "  1 of 2 jobs are in the journal"
    assert "1 of 1" in said[1]

    other = run_timed(jobs[:1], _options(Journal(tmp_path, {"benchmark": "2"})))
    assert other[0].result != first[0].result
    assert not list(tmp_path.glob("*.tmp"))
