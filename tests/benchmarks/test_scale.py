"""Parts of benchmarks.scale that decide what counts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.journal import Journal, Outcome
from benchmarks.report import Options
from benchmarks.scale_kills import ATTEMPTS, QUICK_KILLS, Killed, Undisturbed
from benchmarks.scale_kills import checks as kill_checks
from benchmarks.scale_ranks import _busy_seconds, _Others, _own_seconds
from benchmarks.scale_search import sign_test
from benchmarks.scale_work import Started, updates_in, wait_for

#: Writes a line every tenth of a second into the metrics of a run, ten in all.
SEARCH = """
import sys, time
from pathlib import Path
run = Path(sys.argv[1]) / "member"
run.mkdir(parents=True)
with open(run / "metrics.jsonl", "a") as file:
    for update in range(10):
        print(update, file=file, flush=True)
        time.sleep(0.1)
"""
BUSY = "import time\nwhile time.process_time() < 1.0: pass"


@pytest.mark.parametrize(("updates", "then", "alive"), [(4, 0.0, True), (9, 5.0, False), (11, 0.0, False)])
def test_a_kill_that_comes_too_late_is_told(updates: int, then: float, alive: bool, tmp_path: Path) -> None:
    """Rejects moments that are counted from the start of the process: on a fast machine all of them came too late, and
    a search that nobody had killed was called resumed."""
    process = subprocess.Popen([sys.executable, "-c", SEARCH, str(tmp_path)], text=True)
    started = Started(process, "none", sys.stderr)
    assert wait_for(started, tmp_path, updates=updates, then=then) is alive
    process.kill()
    process.wait()
    assert updates_in(tmp_path) >= updates if alive else updates_in(tmp_path) == 10


def test_what_a_child_used_is_not_what_others_use() -> None:
    """Rejects a disturbance that counts the trainings themselves: what a child used that was waited for is ours."""
    busy, own = _busy_seconds(), _own_seconds()
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    used = _own_seconds() - own
    assert used >= 1.0
    assert _busy_seconds() - busy >= used - 0.1, "whoever is busy, this child was"


def test_others_are_those_whom_nobody_here_has_waited_for() -> None:
    """A child that is busy for a second, before and after it is waited for, at the same moment: whatever else this
    machine does is in both numbers. Rejects one that never counts, and one that counts the trainings themselves."""
    others, own = _Others(), _own_seconds()
    with subprocess.Popen([sys.executable, "-c", BUSY]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has waited for it
        before = others.cores() * (time.monotonic() - others.started)
        child.wait()
        after = others.cores() * (time.monotonic() - others.started)
    used = _own_seconds() - own
    assert used >= 1.0 and before >= used - 0.1
    assert before - after == pytest.approx(used, abs=0.3)


def test_kills_that_always_come_too_late_end(tmp_path: Path) -> None:
    """A machine on which each search is over before it is killed. Rejects searching for ever, and a check that passes
    without the kills."""
    journal = Journal(tmp_path, {})
    journal.write("kills, undisturbed", Outcome(Undisturbed([], 1), 0.0))
    for attempt in range(12):
        killed = attempt % 3 == 2
        journal.write(f"kills, attempt {attempt}", Outcome(Killed("driver", killed, False, 0, ()), 0.0))
    said = list[str]()
    made, *_ = kill_checks(Options(quick=True, say=said.append, only=(), journal=journal))
    assert len(said) == ATTEMPTS * QUICK_KILLS == 6
    assert (made.value, made.passed, made.detail) == (2, False, "6 attempts")


def test_the_sign_test_is_that_of_fair_coins() -> None:
    assert sign_test(5, 5) == 1 / 32 and sign_test(10, 10) == 1 / 1024
    assert sign_test(8, 10) == pytest.approx((45 + 10 + 1) / 1024) and sign_test(0, 3) == 1.0
