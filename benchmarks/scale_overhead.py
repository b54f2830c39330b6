"""What processes and Ray cost beside the trainings that they run: CPU time of everything over that of the jobs."""

from __future__ import annotations

import os
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.report import Check, Options
from benchmarks.scale_work import CARTPOLE, Started, refuse_failure, start

JOBS, SECONDS, ALLOWED = 4, 20.0, 0.10
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Timed:
    """A training that goes on until it has used so many CPU-seconds; returns how many."""

    label: str
    folder: Path
    seconds: float

    def run(self, stop: Any, say: Any) -> float | None:
        """Train; importing and compiling belong to the job."""
        clock = time.process_time()
        from tailwise.run.agent import PPO

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = {**CARTPOLE, "run": {**CARTPOLE["run"], "total_steps": 10**9, "checkpoint_every": 20}}
            agent = PPO(config=config, run_dir=self.folder)
        while time.process_time() - clock < self.seconds:
            agent.learn(4096, progress=False)
        return time.process_time() - clock


def checks(options: Options) -> list[Check]:
    """Two jobs side by side, in local processes and on Ray."""
    seconds = 5.0 if options.quick else SECONDS
    found = []
    for place in ("local", "ray"):
        with TemporaryDirectory() as folder:
            started = start("overhead", folder, place, str(seconds))
            total = _cpu_seconds_until_end(started)
            jobs = [float(word) for word in (started.process.stdout.read() if started.process.stdout else "").split()]
        refuse_failure(started)
        if len(jobs) != JOBS:
            raise SystemExit(f"{len(jobs)} of {JOBS} jobs of place {place} said how long they took")
        value = total / sum(jobs) - 1
        detail = f"{JOBS} jobs of {sum(jobs) / JOBS:.1f} CPU-seconds, {total - sum(jobs):.1f} CPU-seconds beside them"
        name = f"overhead of {'processes' if place == 'local' else 'Ray'}, share of the jobs' CPU time"
        found.append(Check(name, value, f"<= {ALLOWED:g}", value <= ALLOWED, detail))
    return found


def _cpu_seconds_until_end(started: Started) -> float:
    """CPU-seconds of all processes of a program, read until it ends."""
    used: dict[int, float] = {}
    while started.process.poll() is None:
        for pid in started.family():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            used[pid] = (int(fields[11]) + int(fields[12])) / TICKS
        time.sleep(0.25)
    return sum(used.values())


def work(folder: Path, place: str, seconds: float) -> None:
    """Run the jobs; print the CPU-seconds of each."""
    from tailwise.run.placement import Placement

    executor = Placement("local" if place == "local" else "ray", 2).executor(jobs=2, threads=1)
    results = executor.run([Timed(f"job {k}", folder / str(k), seconds) for k in range(JOBS)])
    print(*(results or []), file=sys.stdout)
