"""What an update against an adversary costs beside a plain one: CPU time, in turn in one process."""

from __future__ import annotations

import statistics
import time
import warnings
from typing import Any

from benchmarks.report import Check, Options

ROUNDS, ALLOWED = 5, 3.0
CORES = {"LSTM 64": {"kind": "lstm", "hidden": 64}, "MLP 64x64": {"kind": "none"}}


def checks(options: Options) -> list[Check]:
    """The default adversary, with memory and without; torch, one thread, 64 x 128 rows, one epoch of 4 minibatches."""
    return [_ratio(name, core, rounds=2 if options.quick else ROUNDS) for name, core in CORES.items()]


def _ratio(name: str, core: dict[str, Any], *, rounds: int) -> Check:
    from tailwise.run.agent import PPO

    run = {"environments": 64, "rollout_steps": 128, "total_steps": 10**6}
    trainers = []
    for adversary in ({"kind": "none"}, {"kind": "sa_ppo", "ramp": 0.0}):
        learner = {"adversary": adversary, "epochs": 1, "minibatches": 4, "target_kl": None}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            settings = {"backend": "torch", "model": {"core": core}, "learner": learner, "run": run}
            trainers.append(PPO("CartPole-v1", settings).trainer)
    times: list[list[float]] = [[], []]
    for _ in range(rounds + 1):
        for trainer, spent in zip(trainers, times, strict=True):
            trainer.begin()
            rollout, _ = trainer.collector.collect(trainer.update)
            knobs = trainer.controllers.knobs(
                trainer.config.learner,
                None,
                None,
                update=trainer.update,
                steps=0,
                total_steps=10**6,
                measure_terms=False,
            )
            clock = time.process_time()
            report = trainer.backend.update(rollout, knobs)
            spent.append(time.process_time() - clock)
            assert report.committed, report.reason
            trainer.update += 1
    ratios = [other / plain for plain, other in list(zip(*times, strict=True))[1:]]  # the first one is warm-up
    value = statistics.median(ratios)
    return Check(
        f"SA-PPO, {name}: CPU time of an update over a plain one",
        value,
        f"<= {ALLOWED:g}",
        value <= ALLOWED,
        "rounds: " + " ".join(f"{ratio:.2f}" for ratio in ratios),
    )
