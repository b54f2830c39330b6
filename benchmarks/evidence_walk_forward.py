"""Walk-forward on the shipped S&P 500: 5 folds x 3 seeds in two processes, killed in the middle and called again."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import Check, Options

FOLDS, SEEDS, JOBS = 5, 3, 2
STEPS = 200_000  # a run; the demo has four times as many
UPDATES = 24  # of a run; 8 in a smoke run, which is over before it can be caught half way
LONGEST_CPU = 25 * 60.0  # seconds
PATIENCE = 3 * 3600.0  # seconds until the kill or the end; a machine that is shared may be slow
_TICKS = os.sysconf("SC_CLK_TCK")
_SMALL = ("-s", "run.environments=16", "-s", "run.rollout_steps=64", "-s", "run.total_steps=8192")


def walk_forward(options: Options) -> list[Check]:
    """Call the command, kill it with all its processes, call it again; CPU time of both, and what was repeated."""
    folds, seeds = (2, 2) if options.quick else (FOLDS, SEEDS)
    sizes = _SMALL if options.quick else ("-s", f"run.total_steps={STEPS}")
    every = ("-s", "evaluate.every=1" if options.quick else "evaluate.every=5", "-s", "run.tensorboard=false")
    often = ("-s", "run.checkpoint_every=2")
    with tempfile.TemporaryDirectory() as place:
        command = [
            *(sys.executable, "-m", "tailwise", "walk-forward", "sp500", *sizes, *every, *often),
            *("--folds", str(folds), "--seeds", str(seeds), "--jobs", str(JOBS), "--out", "w"),
        ]
        first = _killed_in_the_middle(command, Path(place), _environment(), wanted=folds * seeds // 3)
        out = Path(place, "w")
        finished = sorted(path.parent for path in out.glob("*/fold_result.json"))
        before = {folder: _state(folder) for folder in finished}
        options.say(f"killed after {first / 60:.1f} CPU-minutes with {len(finished)} of {folds * seeds} runs finished")
        clock = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            command, cwd=place, env=_environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        second = after.ru_utime + after.ru_stime - clock.ru_utime - clock.ru_stime
        options.say(done.stdout[-3000:] if done.returncode == 0 else done.stderr[-3000:])
        repeated = sum(_state(folder) != known for folder, known in before.items())
        told = json.loads((out / "walk_forward.json").read_text()) if done.returncode == 0 else {"rows": []}
        trained = [row for row in told["rows"] if row["seed"] is not None]
        lines = (Path(place) / "trials.jsonl").read_text().splitlines()
    starts = sum(json.loads(line)["kind"] == "training" for line in lines)
    resumed = done.stdout.count("goes on after update")
    cpu = first + second
    note = "; smoke run: the goal is not judged" if options.quick else ""
    return [
        Check(
            f"walk-forward on the S&P 500, {folds} folds x {seeds} seeds: CPU-minutes",
            cpu / 60,
            "< 25, interrupted and resumed",
            done.returncode == 0 and len(trained) == folds * seeds and (options.quick or cpu < LONGEST_CPU),
            f"{first / 60:.1f} until the kill, {second / 60:.1f} afterwards; {JOBS} processes{note}",
        ),
        Check(
            "finished folds that were repeated or touched after the kill",
            repeated,
            f"0 of the {len(finished)} that were finished; a run in the middle is continued",
            repeated == 0
            and 0 < len(finished) < folds * seeds
            and starts == folds * seeds
            and (options.quick or resumed > 0),
            f"{resumed} runs were continued from a checkpoint; {starts} trainings are written down as trials",
        ),
    ]


def _environment() -> dict[str, str]:
    """That of this process, with the package that is measured here, whatever folder the command runs in."""
    import tailwise

    root = str(Path(tailwise.__file__).resolve().parents[1])
    given = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": root if not given else f"{root}{os.pathsep}{given}"}


def _killed_in_the_middle(command: list[str], place: Path, environment: dict[str, str], *, wanted: int) -> float:
    """Start the command, SIGKILL its whole group when `wanted` runs are finished and another is half way.

    Returns the CPU seconds of the group until then.
    """
    process = subprocess.Popen(
        command,
        cwd=place,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    spent, gone, until = 0.0, 0.0, time.monotonic() + PATIENCE
    living: dict[int, float] = {}
    try:
        while time.monotonic() < until and process.poll() is None:
            now = _group_seconds(process.pid)
            gone += sum(seconds for pid, seconds in living.items() if pid not in now)  # ended since the last look
            living, spent = now, gone + sum(now.values())
            finished = len(list(place.glob("w/*/fold_result.json")))
            if finished >= wanted and _half_way(place):
                break
            time.sleep(0.1)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return spent


def _half_way(place: Path) -> bool:
    """Whether a run has a checkpoint and yet more than half of its updates before it."""
    for run in place.glob("w/*/checkpoints"):
        updates = [int(path.name.removeprefix("update-")) for path in run.glob("update-*")]
        if updates and max(updates) <= UPDATES // 2 and not (run.parent / "fold_result.json").exists():
            return True
    return False


def _group_seconds(group: int) -> dict[int, float]:
    """CPU seconds of every living process of a group, by its id."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended while the list was read
            continue
        if int(fields[2]) == group:
            found[int(folder.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
    return found


def _state(folder: Path) -> str:
    """What is in a folder and when it was written, as one number."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"{path} {path.stat().st_mtime_ns}".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
