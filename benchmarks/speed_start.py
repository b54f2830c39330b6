"""How long until something happens? The help text, the first update of a second start, and the compiler's first time.

python -m benchmarks.speed_start FOLDER     train the preset of the demo until its first update, say the CPU time
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import Check, Options

HELP, SECOND, COMPILED = 0.5, 4.0, 15.0  # CPU-seconds
REPEATS = 5
PRESET = "sp500"


def measure_start(options: Options) -> list[Check]:
    checks = [_help(options)]
    if options.quick:
        return checks
    with tempfile.TemporaryDirectory() as folder:
        checks += _second_start(Path(folder), options)
        checks.append(_compiling(Path(folder), options))
    return checks


def cpu_of(command: list[str], environment: dict[str, str] | None = None) -> tuple[float, str]:
    """CPU-seconds of a Python command with its children, and what it printed; an error when it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def _help(options: Options) -> Check:
    times = [cpu_of(["-m", "tailwise", "--help"])[0] for _ in range(2 if options.quick else REPEATS)]
    value = statistics.median(times)
    return Check(
        "CPU-seconds of tailwise --help",
        value,
        f"< {HELP:g}",
        options.quick or value < HELP,
        f"median of {len(times)}",
    )


def _second_start(folder: Path, options: Options) -> list[Check]:
    """The same training started again and again; the first start fills the cache."""
    options.say(f"  starting the preset {PRESET} {REPEATS} times")
    times = []
    for number in range(REPEATS):
        _, said = cpu_of(["-m", "benchmarks.speed_start", str(folder / f"second-{number}")])
        times.append(float(said.split()[-1]))
    value = statistics.median(times[1:])
    return [
        Check(
            "CPU-seconds of a second start until its first update",
            value,
            f"<= {SECOND:g}",
            value <= SECOND,
            f"preset {PRESET}, from the start of the interpreter; median of {len(times) - 1}; the start before took "
            f"{times[0]:.1f}",
        )
    ]


def _compiling(folder: Path, options: Options) -> Check:
    """The demo with an empty cache of compiled code, and again with what the first one left there."""
    options.say("  the demo with an empty cache, then again")
    times = []
    for number in range(2):
        command = ["-m", "tailwise", "demo", "--steps", "1", "--quiet", "--out", str(folder / f"demo-{number}")]
        times.append(cpu_of(command, {"NUMBA_CACHE_DIR": str(folder / "cache")})[0])
    value = times[0] - times[1]
    return Check(
        "CPU-seconds that the first demo compiles",
        value,
        f"<= {COMPILED:g}",
        value <= COMPILED,
        f"one update and the judgement: {times[0]:.1f} CPU-seconds with an empty cache, {times[1]:.1f} with a full one",
    )


def train_until_first_update(folder: Path) -> float:
    """CPU-seconds of this process when the first update of the preset is done."""
    from tailwise.run.agent import PPO
    from tailwise.run.callbacks import Callback, Progress
    from tailwise.run.config import effective_config

    class First(Callback):
        seen = 0.0

        def on_update(self, progress: Progress) -> bool:
            self.seen = time.process_time()
            return False

    first = First()
    config = effective_config(PRESET).config
    PPO(config=config, run_dir=folder, callbacks=[first]).learn()
    return first.seen


if __name__ == "__main__":
    print(train_until_first_update(Path(sys.argv[1])))
