"""Parts of benchmarks.scale that decide what counts."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.scale_ranks import _Others
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
BUSY = "import time; end = time.monotonic() + {}\nwhile time.monotonic() < end: pass"


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


def test_what_others_use_is_not_what_children_use() -> None:
    """A child that keeps a core busy is no disturbance; somebody else's process is."""
    others = _Others()
    subprocess.run([sys.executable, "-c", BUSY.format(1.5)], check=True)
    own = others.cores()
    others = _Others()
    stranger = subprocess.Popen([sys.executable, "-c", BUSY.format(4.0)])
    time.sleep(1.5)
    strange = others.cores()  # not waited for yet, so it is not counted as a child
    stranger.kill()
    stranger.wait()
    assert strange > own + 0.5


def test_the_sign_test_is_that_of_fair_coins() -> None:
    assert sign_test(5, 5) == 1 / 32 and sign_test(10, 10) == 1 / 1024
    assert sign_test(8, 10) == pytest.approx((45 + 10 + 1) / 1024) and sign_test(0, 3) == 1.0
