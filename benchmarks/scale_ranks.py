"""torchrun: two ranks against one process with the same shards, to the last bit; and how much faster two are."""

from __future__ import annotations

import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
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
    "market, lstm 128": {**MARKET, "model": {"core": {**LSTM, "hidden": 128}}},
}
WANTED, ROUNDS, ROWS = 1.5, 3, 64 * 128  # speed-up; rounds; environment steps of an update
IDLE = 0.1  # cores that others use, up to which a round is judged


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
    """Updates per second of two ranks over those of one process with one shard, everything between two updates
    included: medians of the updates, in rounds that take turns. Rounds in which others worked too are not judged."""
    return [_speed_up(folder, case, options) for case in ("market, lstm 128", "market, lstm", "market, mlp")]


def _speed_up(folder: Path, case: str, options: Options) -> Check:
    updates, rounds = (8, 1) if options.quick else (40, ROUNDS)
    size = {"environments": 64, "rollout_steps": 128, "total_steps": updates * ROWS}
    quiet, disturbed, fastest = list[list[float]](), list[list[float]](), []
    for number in range(rounds):
        periods, tenths, busy = [], [], 0.0
        for ranks in (1, 2):
            config = {**CASES[case], "backend": "fused", "run": {**size, "shards": ranks}}
            others = _Others()
            run = _train(folder / f"speed-{case.replace(', ', '-')}-{ranks}-{number}", config, ranks=ranks)
            busy = max(busy, others.cores())
            every = _periods(run)
            periods.append(statistics.median(every))
            tenths.append(statistics.quantiles(every, n=10)[0])
        (quiet if busy <= IDLE else disturbed).append(periods)
        fastest.append(tenths)
        options.say(f"  {case}: {periods[0] / periods[1]:.2f} x, {busy:.2f} cores were busy with something else")
    judged = len(quiet) > 0 and len(os.sched_getaffinity(0)) >= 2
    one, two = min(quiet or disturbed, key=sum)  # whoever disturbs makes it longer, never shorter
    value = one / two
    tenth = min(one for one, _ in fastest) / min(two for _, two in fastest)
    detail = f"{ROWS / one:,.0f} and {ROWS / two:,.0f} steps per second, {len(quiet)} of {rounds} rounds were quiet"
    detail = f"{tenth:.2f} x for the fastest tenth of the updates; {detail}"
    return Check(
        f"ranks, {case}: speed of two over one",
        value if judged else None,
        f">= {WANTED:g}",
        value >= WANTED if judged else True,
        detail if judged else f"not measurable here: the machine is not quiet; {value:.2f} x ({detail})",
    )


class _Others:
    """CPU time that processes besides the children of this one take, from now on."""

    def __init__(self) -> None:
        self.started, self.busy, self.own = time.monotonic(), _busy_seconds(), _own_seconds()

    def cores(self) -> float:
        """Mean number of cores."""
        others = _busy_seconds() - self.busy - (_own_seconds() - self.own)
        return max(0.0, others) / (time.monotonic() - self.started)


def _busy_seconds() -> float:
    """CPU-seconds of all processes of this machine since it was started."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def _periods(run: Path) -> list[float]:
    """Seconds from each update to the next."""
    from tailwise.run.metric_store import FILE, read_rows

    elapsed = [row["time/elapsed"] for row in read_rows(run / FILE)[2:]]  # the first ones compile
    return [after - before for before, after in itertools.pairwise(elapsed)]
