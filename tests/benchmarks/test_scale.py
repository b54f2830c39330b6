"""Parts of benchmarks.scale that decide what counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scale_ranks import _busy_seconds, _own_seconds
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
    started = Started(process, "none")
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


def test_the_sign_test_is_that_of_fair_coins() -> None:
    assert sign_test(5, 5) == 1 / 32 and sign_test(10, 10) == 1 / 1024
    assert sign_test(8, 10) == pytest.approx((45 + 10 + 1) / 1024) and sign_test(0, 3) == 1.0
