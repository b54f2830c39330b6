"""Do whole runs reach the same scores with each backend? Many seeds of small control tasks, side by side.

Rounding parts two runs of one seed after a while, and a single seed that misses says nothing: about one in eight does
on CartPole without velocities, with either backend.

    python -m benchmarks.backends [--json] [--quick] [--only cartpole-memory]
"""

from __future__ import annotations

import dataclasses
import statistics

import numpy as np
import scipy.stats

from benchmarks.learning import Task, train
from benchmarks.report import Check, Options, main

EPISODES = 20
# Two backends count as apart when so large a difference of means would come by chance this rarely.
CHANCE = 0.01

# With budgets of the presets, and how many seeds. Goals are what shows that the task is learnt: random policies get
# about 22, 22 and -1200.
TASKS = (
    (Task("CartPole-v1", "cartpole", 100_000, 450.0), 10),
    (Task("CartPole without velocities, LSTM", "cartpole-memory", 50_000, 400.0), 60),
    (Task("Pendulum-v1", "pendulum", 100_000, -250.0), 10),
)


def run(options: Options) -> list[Check]:
    """Two checks per task: both backends learn it, and their scores are not apart."""
    return [
        check
        for task, seeds in TASKS
        if not options.only or task.preset in options.only
        for check in _compared(task, 2 if options.quick else seeds, options)
    ]


def _compared(task: Task, seeds: int, options: Options) -> list[Check]:
    scores: dict[str, list[float]] = {"torch": [], "fused": []}
    for seed in range(seeds):
        for backend, found in scores.items():
            work = dataclasses.replace(task, overrides={"backend": backend})
            steps, episodes = (1_024, 2) if options.quick else (task.steps, EPISODES)
            found.append(train(work, seed, steps, episodes=episodes))
            options.say(f"{task.name}, {backend}: seed {seed}, mean return {found[-1]:.1f}")
    medians = {backend: statistics.median(found) for backend, found in scores.items()}
    chance = chance_of_difference(scores["torch"], scores["fused"])
    told = "; ".join(
        f"{backend}: mean {statistics.fmean(found):.1f}, {sum(score < task.goal for score in found)} of {seeds} below "
        f"{task.goal:g}, lowest {min(found):.1f}"
        for backend, found in scores.items()
    )
    smoke = "; smoke run: the goal is not judged" if options.quick else ""
    least = min(medians.values())
    return [
        Check(
            f"{task.name}: median score, the lower of both backends", least, f">= {task.goal:g}",
            bool(np.isfinite(least)) if options.quick else least >= task.goal,
            ", ".join(f"{backend} {median:.1f}" for backend, median in medians.items()) + smoke,
        ),
        Check(
            f"{task.name}: chance of a difference as large between equals", chance, f">= {CHANCE:g}",
            options.quick or chance >= CHANCE, told + smoke,
        ),
    ]  # fmt: skip


def chance_of_difference(first: list[float], second: list[float]) -> float:
    """Two-sided p of the difference of means when scores are dealt out anew to both sides."""
    result = scipy.stats.permutation_test(
        (np.array(first), np.array(second)), lambda a, b: a.mean() - b.mean(), n_resamples=9_999, vectorized=False,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    return float(result.pvalue)


if __name__ == "__main__":
    main("Whole runs with each backend", run)
