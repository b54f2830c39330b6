"""kill -9 of the driver, of a worker, of a raylet at random moments: the same lineage, no lost interval, no orphan."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.report import Check, Options
from benchmarks.scale_work import CHECKPOINT_EVERY, Started, finish, lineage_of, start, updates_in, wait_for

KILLS, QUICK_KILLS = 20, 3
AFTER = 0.3  # a kill comes up to so many seconds after an update that was drawn
GRACE = 40.0  # seconds that Ray's own processes have to notice that their driver is gone
# (victim, where the search runs, what the command line of the victim holds)
VICTIMS = (("driver", "ray", ""), ("worker", "ray", "ray::_work"), ("raylet", "cluster", "/raylet/raylet "))


def checks(options: Options) -> list[Check]:
    """Each kill is of one search, which is then brought to its end."""
    draw, wrong, orphans, lost = random.Random(0), 0, 0, 0
    happened: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        whole = Path(name) / "whole"
        finish(start(str(whole), "one"))
        updates, wanted, number = updates_in(whole), QUICK_KILLS if options.quick else KILLS, 0
        while number < wanted:  # a kill that comes too late is none
            victim, place, words = VICTIMS[number % len(VICTIMS)]
            folder = Path(name) / f"{sum(happened.values())}-{victim}"
            started = start(str(folder), place)
            moment = draw.randrange(updates)
            alive = wait_for(started, folder, updates=moment, then=draw.uniform(0.0, AFTER))
            killed = alive and _kill(started, words)
            happened[victim if killed else f"{victim}, too late"] += 1
            number += killed
            if victim == "driver" and killed:
                started.process.wait()
                orphans += _left_over(started, GRACE)
                lost = max(lost, _updates_behind(folder))
                started = start(str(folder), place)
            finish(started)
            orphans += _left_over(started, GRACE)
            wrong += lineage_of(folder) != lineage_of(whole)
            told = f"{victim} after {moment} of {updates} updates{'' if killed else ', too late'}"
            options.say(f"  {number} of {wanted}: {told}; {wrong} wrong, {orphans} orphans")
    detail = ", ".join(f"{count} {what}" for what, count in sorted(happened.items()))
    return [
        Check("kills: lineages that differ from the undisturbed one", wrong, "0", wrong == 0, detail),
        Check("kills: processes left behind", orphans, "0", orphans == 0, f"after {GRACE:g} s at most"),
        Check(
            "kills: updates between metrics and checkpoint of a killed driver's runs",
            lost,
            f"<= {CHECKPOINT_EVERY}",
            lost <= CHECKPOINT_EVERY,
            f"run.checkpoint_every is {CHECKPOINT_EVERY}",
        ),
    ]


def _kill(started: Started, words: str) -> bool:
    """Kill the driver, or the last process whose command line holds `words`; whether there was one."""
    if not words:
        started.process.kill()
        return True
    while started.process.poll() is None:
        if chosen := [pid for pid, line in sorted(started.family().items()) if words in line]:
            os.kill(chosen[-1], signal.SIGKILL)
            return True
        time.sleep(0.02)  # no task runs between two generations
    return False


def _left_over(started: Started, seconds: float) -> int:
    """Processes of an ended search that still live after so many seconds; they are ended."""
    until = time.monotonic() + seconds
    while started.family() and time.monotonic() < until:
        time.sleep(0.5)
    left = started.family()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return len(left)


def _updates_behind(folder: Path) -> int:
    """The most updates of a run that are in its metrics and not in its newest checkpoint."""
    from tailwise.run.checkpoint import latest_good, read_training
    from tailwise.run.run_list import newest_rows

    behind = 0
    for metrics in folder.glob("**/metrics.jsonl"):
        rows = newest_rows(metrics.parent, 1)
        newest, _ = latest_good(metrics.parent)
        kept = 0 if newest is None else int(read_training(newest).json["update"])
        behind = max(behind, int(rows[-1]["update"]) - kept if rows else 0)
    return behind
