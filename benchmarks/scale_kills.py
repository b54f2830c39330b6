"""kill -9 of the driver, of a worker, of a raylet at random moments: the same lineage, no lost interval, no orphan."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.journal import Outcome
from benchmarks.report import Check, Options
from benchmarks.scale_work import CHECKPOINT_EVERY, Started, finish, lineage_of, start, updates_in, wait_for

KILLS, QUICK_KILLS = 20, 3
ATTEMPTS = 2  # searches per kill that is wanted, at most
AFTER = 0.3  # a kill comes up to so many seconds after an update that was drawn
LONGEST_LINE = 60  # characters of a command line that is shown
GRACE = 40.0  # seconds that Ray's own processes have to notice that their driver is gone
# (victim, where the search runs, what the command line of the victim holds)
VICTIMS = (("driver", "ray", ""), ("worker", "ray", "ray::_work"), ("raylet", "cluster", "/raylet/raylet "))


@dataclass(frozen=True)
class Killed:
    """What became of one search. killed: whether the kill came in time; wrong: whether its lineage differs; lost: most
    updates between metrics and checkpoint of a run whose driver was killed; orphans: command lines of what is left."""

    victim: str
    killed: bool
    wrong: bool
    lost: int
    orphans: tuple[str, ...]


@dataclass(frozen=True)
class Undisturbed:
    """The search that nobody kills. updates: all that its trainings write down."""

    lineage: Any
    updates: int


def checks(options: Options) -> list[Check]:
    """Each kill is of one search, which is then brought to its end. With a journal, kills that were made are kept."""
    wanted = QUICK_KILLS if options.quick else KILLS
    found: list[Killed] = []
    whole: Undisturbed = _kept(options, "undisturbed", _undisturbed)
    # A kill that comes too late is none.
    while (number := sum(one.killed for one in found)) < wanted and len(found) < ATTEMPTS * wanted:
        attempt, kind = len(found), number % len(VICTIMS)
        one: Killed = _kept(options, f"attempt {attempt}", partial(_attempt, attempt, kind, whole))
        found.append(one)
        told = f"{one.victim}{'' if one.killed else ', too late'}; {'wrong' if one.wrong else 'the same lineage'}"
        options.say(f"  {number + one.killed} of {wanted}: {told}, {len(one.orphans)} orphans {one.orphans or ''}")
    happened = Counter(one.victim if one.killed else f"{one.victim}, too late" for one in found)
    detail = ", ".join(f"{count} {what}" for what, count in sorted(happened.items()))
    wrong, left = sum(one.wrong for one in found), [line for one in found for line in one.orphans]
    lost, made = max(one.lost for one in found), sum(one.killed for one in found)
    return [
        Check("kills: made before the search was over", made, f"{wanted}", made == wanted, f"{len(found)} attempts"),
        Check("kills: lineages that differ from the undisturbed one", wrong, "0", wrong == 0, detail),
        Check(
            "kills: processes left behind", len(left), "0", not left, "; ".join([f"after {GRACE:g} s at most", *left])
        ),
        Check(
            "kills: updates between metrics and checkpoint of a killed driver's runs",
            lost,
            f"<= {CHECKPOINT_EVERY}",
            lost <= CHECKPOINT_EVERY,
            f"run.checkpoint_every is {CHECKPOINT_EVERY}",
        ),
    ]


def _kept(options: Options, name: str, work: Callable[[], Any]) -> Any:
    """The result of some work, from the journal where it was done before."""
    journal = options.journal
    if journal is None:
        return work()
    name = f"kills, {name}"
    outcome = journal.read(name)
    if outcome is None:
        outcome = Outcome(work(), 0.0)
        journal.write(name, outcome)
    return outcome.result


def _undisturbed() -> Undisturbed:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "whole"
        finish(start(str(folder), "one"))
        return Undisturbed(lineage_of(folder), updates_in(folder))


def _attempt(attempt: int, kind: int, whole: Undisturbed) -> Killed:
    """Start a search, kill a part of it at a moment that was drawn, bring it to its end."""
    draw, (victim, place, words) = random.Random(attempt), VICTIMS[kind]
    lost, orphans = 0, list[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "search"
        started = start(str(folder), place)
        moment = draw.randrange(whole.updates)
        killed = wait_for(started, folder, updates=moment, then=draw.uniform(0.0, AFTER)) and _kill(started, words)
        if victim == "driver" and killed:
            started.process.wait()
            orphans += _left_over(started, GRACE)
            lost = _updates_behind(folder)
            started = start(str(folder), place)
        finish(started)
        orphans += _left_over(started, GRACE)
        return Killed(victim, killed, lineage_of(folder) != whole.lineage, lost, tuple(orphans))


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


def _left_over(started: Started, seconds: float) -> list[str]:
    """Command lines of the processes of an ended search that still live after so many seconds; they are ended."""
    until = time.monotonic() + seconds
    while started.family() and time.monotonic() < until:
        time.sleep(0.5)
    left = started.family()
    for pid in left:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(pid, signal.SIGKILL)
    return [line[:LONGEST_LINE] for line in left.values()]


def _updates_behind(folder: Path) -> int:
    """The most updates of a run that are in its metrics and not in its newest checkpoint."""
    from tailwise.run.checkpoint import latest_good, read_training
    from tailwise.run.run_list import newest_rows

    behind = 0
    for metrics in folder.glob("*/metrics.jsonl"):
        rows = newest_rows(metrics.parent, 1)
        newest, _ = latest_good(metrics.parent)
        kept = 0 if newest is None else int(read_training(newest).json["update"])
        behind = max(behind, int(rows[-1]["update"]) - kept if rows else 0)
    return behind
