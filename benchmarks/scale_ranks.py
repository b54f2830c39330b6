"""torchrun: two ranks against one process with the same shards, to the last bit; and how much faster two are."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import Check, Options
from benchmarks.sources import ROOT

GYM = {"env": {"id": "CartPole-v1", "hide": [1, 3]}}
MARKET = {
    "data": {"kind": "synthetic", "market": "regime_switching", "seeds": [1, 2], "parameters": {"length": 3000}},
    "env": {"kind": "market", "episode_length": 128},
}
LSTM, MLP = {"kind": "lstm", "hidden": 64}, {"kind": "none"}
CASES = {
    "gym, mlp": {**GYM, "model": {"core": MLP}},
    "gym, lstm": {**GYM, "model": {"core": LSTM}},
    "market, mlp": {**MARKET, "model": {"core": MLP}},
    "market, lstm": {**MARKET, "model": {"core": LSTM}},
}
WANTED, IDLE = 1.5, 0.5  # speed-up; load of the machine below which it is judged


def checks(options: Options) -> list[Check]:
    """Equality for both backends, speed for the fused one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        backends = ("fused",) if options.quick else ("torch", "fused")
        return [*(_equal(folder, backend, options) for backend in backends), *_speed(folder, options)]


def _train(folder: Path, config: dict[str, Any], *, ranks: int) -> Path:
    """Train by the command, on so many ranks."""
    from tailwise.core.config import dump_yaml
    from tailwise.run.config import parse_config

    source = folder.with_suffix(".yaml")
    source.write_text(dump_yaml(parse_config(config, source="benchmark")))
    torchrun = ["torch.distributed.run", "--nproc-per-node", str(ranks), "-m"] if ranks > 1 else []
    command = [sys.executable, "-m", *torchrun, "tailwise", "train", str(source), "--out", str(folder), "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command[1:])}\n{done.stderr}")
    return folder


def _equal(folder: Path, backend: str, options: Options) -> Check:
    import torch

    from tailwise.run.checkpoint import checkpoints_in, read_policy, read_training

    compared, different = 0, []
    for case, settings in CASES.items():
        config = {
            **settings,
            "backend": backend,
            "learner": {"minibatches": 2, "epochs": 2},
            "run": {
                "environments": 16,
                "rollout_steps": 32,
                "total_steps": 8 * 512,
                "shards": 4,
                "checkpoint_every": 2,
            },
        }
        stem = f"{case.replace(', ', '-')}-{backend}"
        one, two = (_train(folder / f"{stem}-{ranks}", config, ranks=ranks) for ranks in (1, 2))
        pairs = list(zip(checkpoints_in(one), checkpoints_in(two), strict=True))
        for left, right in pairs:
            for read in (read_policy, read_training):
                ours, theirs = read(left).tensors, read(right).tensors
                compared += len(ours)
                if ours.keys() != theirs.keys() or not all(torch.equal(ours[key], theirs[key]) for key in ours):
                    different.append(f"{case}, {left.name}")
        options.say(f"  {case}, {backend}: {len(pairs)} checkpoints")
    return Check(
        f"ranks, {backend}: checkpoints of two ranks that differ from one process",
        len(different),
        "0",
        not different and compared > 0,
        f"4 shards; MLP and LSTM, market and Gymnasium; {compared} tensors{'; ' + different[0] if different else ''}",
    )


def _speed(folder: Path, options: Options) -> list[Check]:
    """Steps per second of two ranks over those of one process with one shard, medians of the updates."""
    found = []
    updates = 6 if options.quick else 30
    for case in ("market, lstm", "market, mlp"):
        config = {
            **CASES[case],
            "backend": "fused",
            "run": {"environments": 64, "rollout_steps": 128, "total_steps": updates * 8192},
        }
        load = os.getloadavg()[0]
        stem = case.replace(", ", "-")
        rates = []
        for ranks in (1, 2):
            shared = {**config, "run": {**config["run"], "shards": ranks}}
            rates.append(_rate(_train(folder / f"speed-{stem}-{ranks}", shared, ranks=ranks)))
        one, two = rates
        quiet, value = load <= IDLE and len(os.sched_getaffinity(0)) >= 2, two / one
        detail = f"{one:,.0f} and {two:,.0f} steps per second; load {load:.1f} before"
        found.append(
            Check(
                f"ranks, {case}: speed of two over one",
                value if quiet else None,
                f">= {WANTED:g}",
                value >= WANTED if quiet else True,
                detail if quiet else f"not measurable here: the machine is not quiet; {value:.2f} x ({detail})",
            )
        )
    return found


def _rate(run: Path) -> float:
    from tailwise.run.metric_store import FILE, read_rows

    rows = read_rows(run / FILE)[2:]  # the first ones compile
    return 1 / statistics.median(1 / row["time/steps_per_second"] for row in rows)
