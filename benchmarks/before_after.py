"""Does training cost what it cost before? Two source trees train in turn, in one run on one machine.

    python -m benchmarks.before_after --before REVISION_OR_FOLDER [--after FOLDER] [--json] [--quick] [--only demo]

Each side of a configuration is a process of its own whose PYTHONPATH names its tree. Both compile and warm up first;
then they take turns (before, after, after, before, ...), a few updates at a time, and report the CPU-seconds of their
process. The value is the median ratio of neighbouring turns, after / before, with a bootstrap interval.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.equality import ROOT, tree_of
from benchmarks.measured import facts_of
from benchmarks.report import Check, present

ROWS = {"total_steps": 10**9, "environments": 64, "rollout_steps": 128, "tensorboard": False}
MARKET: dict[str, Any] = {
    "data": {"kind": "synthetic", "market": "ar1", "parameters": {"length": 20_000, "phi": 0.3}},
    "features": {"include": ["return_1", "return_2", "return_5", "return_10", "momentum_20", "volatility_20"]},
    "env": {"kind": "market", "action": {"kind": "positions", "positions": [-1, 0, 1]}, "episode_length": 256},
    "costs": {"impact_bps": 0},
    "learner": {"gamma": 0.9},
    "run": ROWS,
}
# Name -> configuration, or the preset that it is.
CASES: dict[str, Mapping[str, Any] | str] = {
    "MLP 64": MARKET,
    "LSTM 64": {**MARKET, "model": {"core": {"kind": "lstm", "hidden": 64}}},
    "LSTM 128": {**MARKET, "model": {"core": {"kind": "lstm", "hidden": 128}}},
    "demo": "sp500",
    "MLP 64, torch": {**MARKET, "backend": "torch"},
    "LSTM 64, torch": {**MARKET, "backend": "torch", "model": {"core": {"kind": "lstm", "hidden": 64}}},
}
WARM_UP, TURN, ROUNDS = 6, 12, 12  # updates, updates of a turn, pairs of turns
ALLOWED = 0.05
RESAMPLES = 2000


def work(case: str) -> None:
    """One side: warm up, then train a turn for every line on standard input and print its CPU-seconds."""
    import time
    import warnings

    import torch

    import tailwise

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    source = CASES[case]
    if isinstance(source, str):
        from tailwise.run.presets import load_source

        config = dict(load_source(source).data)
        config["run"] = {**config.get("run", {}), **ROWS}
    else:
        config = dict(source)
    agent = tailwise.PPO(config={**config, "seed": 0})
    rows = ROWS["environments"] * ROWS["rollout_steps"]
    agent.learn(WARM_UP * rows)
    print(json.dumps({"file": tailwise.__file__}), flush=True)
    for _ in sys.stdin:
        started = time.process_time()
        agent.learn(TURN * rows)
        print(json.dumps(time.process_time() - started), flush=True)


class Side:
    """A process that trains with a source tree."""

    def __init__(self, tree: Path, case: str) -> None:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(ROOT)]),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.before_after", "--work", case]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        file = Path(self._answer()["file"]).resolve()
        if tree.resolve() not in file.parents:
            raise SystemExit(f"{file} was imported where {tree} was meant; is another tailwise installed in its place?")

    def turn(self) -> float:
        """Train a turn; its CPU-seconds."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a side ended with exit code {self.process.wait()} before it was done")
        return json.loads(line)


def ratio_check(name: str, before: Sequence[float], after: Sequence[float], *, judged: bool) -> Check:
    """Median of after / before over pairs of turns, with a 95% bootstrap interval of it."""
    ratios = np.asarray(after) / np.asarray(before)
    draws = np.random.default_rng(0).integers(0, len(ratios), (RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[draws], axis=1), [0.025, 0.975])
    value = float(np.median(ratios))
    detail = (
        f"95% interval {low:.3f} to {high:.3f}; CPU-seconds an update {np.median(before) / TURN:.4f} before, "
        f"{np.median(after) / TURN:.4f} after; {len(ratios)} pairs of {TURN} updates in turn"
    )
    detail += "" if judged else "; smoke run: the goal is not judged"
    passed = not judged or value <= 1 + ALLOWED
    return Check(f"{name}: CPU time of training, after / before", value, f"<= {1 + ALLOWED:g}", passed, detail)


def compare(before: Path, after: Path, names: Sequence[str], *, quick: bool, say: Callable[[str], None]) -> list[Check]:
    """One check per configuration."""
    checks = []
    for name in names:
        sides = {"before": Side(before, name), "after": Side(after, name)}
        seconds: dict[str, list[float]] = {"before": [], "after": []}
        for number in range(2 if quick else ROUNDS):
            for side in ("before", "after") if number % 2 == 0 else ("after", "before"):
                seconds[side].append(sides[side].turn())
        for process in sides.values():
            process.close()
        checks.append(ratio_check(name, seconds["before"], seconds["after"], judged=not quick))
        say(f"{checks[-1].name}: {checks[-1].value:.3f}; {checks[-1].detail}")
    return checks


def main() -> None:
    """Parse the command line, compare, print; exit with 1 where training became slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="REVISION_OR_FOLDER", help="what speed is compared with")
    parser.add_argument("--after", type=Path, default=ROOT, metavar="FOLDER", help="the later tree; default: this one")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on standard output")
    parser.add_argument("--quick", action="store_true", help="a smoke run: two pairs of turns")
    parser.add_argument("--only", action="append", default=[], choices=list(CASES), help="this configuration")
    parser.add_argument("--work", choices=list(CASES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work)
        return
    if arguments.before is None:
        parser.error("--before names a revision or a folder")
    measured = {
        **facts_of("before_after"),
        "before": arguments.before,
        "quick": arguments.quick,
        "only": arguments.only,
    }
    console = Console(stderr=arguments.json)
    with tree_of(arguments.before) as before:
        checks = compare(
            before,
            arguments.after.resolve(),
            arguments.only or list(CASES),
            quick=arguments.quick,
            say=lambda text: console.print(text, highlight=False, markup=False),
        )
    present("Training speed before and after", checks, measured=measured, as_json=arguments.json, console=console)


if __name__ == "__main__":
    main()
