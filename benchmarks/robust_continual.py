"""Which optimiser keeps learning when the inputs of a problem are permuted ten times, and is starting afresh better?

The measure is the area under the curve: the mean reward over all updates after the first change. Settings of every
optimiser were set beforehand, from what is published, and not tuned on this problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks.jobs import run_all
from benchmarks.report import Check, Options
from benchmarks.toy_continual import PermutedVector

CHANGES = 10
ENVIRONMENTS, STEPS = 64, 32
UPDATES, QUICK_UPDATES = 24, 3  # of a phase
ADAM: dict[str, Any] = {"kind": "adam"}
METHODS: dict[str, dict[str, Any]] = {
    "Adam": ADAM,
    "AdamW, betas .99": {"kind": "adamw", "beta1": 0.99, "beta2": 0.99, "weight_decay": 1e-3},
    "decay to the start": {"kind": "adamw", "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "decay_to": "initial"},
    "shrink and perturb": {
        "kind": "adamw", "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "shrink_perturb": 1e-4,
    },
    "AdaUPGD": {"kind": "ada_upgd"},
}  # fmt: skip
AFRESH = "starting afresh"
LEVEL = 0.95


def phases(seed: int, optimiser: dict[str, Any], *, updates: int, first_phase: int, count: int) -> list[float]:
    """Mean reward of each of `count` phases of one agent."""
    from tailwise import PPO

    per_phase = updates * ENVIRONMENTS * STEPS
    environment = PermutedVector(ENVIRONMENTS, task=1000 + seed, phase_steps=updates * STEPS, first_phase=first_phase)
    agent = PPO(
        environment,
        {
            "seed": seed,
            "backend": "torch",
            "model": {
                "encoder": {"kind": "mlp", "hidden": [64, 64]},
                "actor": {"hidden": []},
                "critic": {"kind": "scalar", "hidden": []},
            },
            "learner": {
                "gamma": 0.5, "learning_rate": 1e-3, "schedule": {"kind": "constant"}, "epochs": 4, "minibatches": 4,
                "target_kl": None, "optimiser": optimiser,
            },
            "risk": {"mode": "off"},
            "health": {"gradients_every": 1_000_000},
            "run": {"environments": ENVIRONMENTS, "rollout_steps": STEPS, "total_steps": count * per_phase},
        },
    )  # fmt: skip
    agent.learn()
    rewards = np.array([row["reward/mean"] for row in agent.history]).reshape(count, updates)
    return [float(mean) for mean in rewards.mean(axis=1)]


def afresh(seed: int, *, updates: int, count: int) -> list[float]:
    """The same with a new agent for each phase: what a change costs when nothing is kept."""
    return [phases(seed, ADAM, updates=updates, first_phase=phase, count=1)[0] for phase in range(count)]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of its Student interval; no width for one value."""
    array = np.asarray(values)
    if len(array) < 2:
        return float(array.mean()), float("nan")
    half = student.ppf(0.5 + LEVEL / 2, len(array) - 1) * array.std(ddof=1) / np.sqrt(len(array))
    return float(array.mean()), float(half)


def checks(options: Options, seeds: Sequence[int]) -> list[Check]:
    """Area under the curve of each method, and what it gains on Adam, paired by seed."""
    updates = QUICK_UPDATES if options.quick else UPDATES
    count = 3 if options.quick else CHANGES + 1
    names = [*METHODS, AFRESH]
    jobs: list[Any] = [
        (phases, (seed, METHODS[name]), {"updates": updates, "first_phase": 0, "count": count})
        if name in METHODS
        else (afresh, (seed,), {"updates": updates, "count": count})
        for name in names
        for seed in seeds
    ]
    outcomes = iter(run_all(jobs, options))
    curves = {name: np.array([next(outcomes) for _ in seeds]) for name in names}  # [seeds, phases]
    areas = {name: curve[:, 1:].mean(axis=1) for name, curve in curves.items()}
    found = []
    for name in names:
        mean, half = interval(areas[name])
        gain, gain_half = interval(areas[name] - areas["Adam"])
        seen = ", ".join(f"{area:.3f}" for area in areas[name])
        compared = "" if name == "Adam" else f"; against Adam {gain:+.4f} +- {gain_half:.4f}"
        last = ", ".join(f"{value:.3f}" for value in curves[name][:, -1])
        found.append(
            Check(
                f"continual: area under the curve, {name}",
                mean,
                "measured on every seed; docs/optimisers.md says what follows",
                bool(np.isfinite(areas[name]).all()),
                f"+- {half:.3f}, seeds {seen}{compared}; last phase {last}",
            )
        )
    return found
