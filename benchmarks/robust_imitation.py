"""Do demonstrations of a rule that is not the best save steps, and is the end as good as without them?

Each task is trained without demonstrations, with them, and with cloning before, and evaluated on the same episodes
every few updates. The plain agent's score is its mean at the end; what counts is the share of its steps after which
the other ones have reached it.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.jobs import run_all
from benchmarks.report import Check, Options

FASTER, LAST = 0.5, 0.1  # share of the plain agent's steps; share of the evaluations whose mean is the end
TASKS: dict[str, dict[str, Any]] = {
    "CartPole": {"env": {"id": "CartPole-v1"}, "run": {"total_steps": 20_000}, "rule": "hasty"},
    "Pendulum": {
        "env": {"id": "Pendulum-v1"}, "run": {"total_steps": 100_000}, "learner": {"gamma": 0.95}, "rule": "swing",
    },
}  # fmt: skip
METHODS: dict[str, dict[str, Any] | None] = {"plain": None, "demonstrations": {}, "cloning first": {"clone": 500}}


@dataclass(frozen=True)
class Course:
    """Mean return of evaluations after so many steps; rule: mean return of what was demonstrated."""

    steps: tuple[int, ...]
    returns: tuple[float, ...]
    rule: float | None

    @property
    def end(self) -> float:
        """Mean of the last evaluations."""
        return float(np.mean(self.returns[-max(round(LAST * len(self.returns)), 1) :]))

    def reaches(self, score: float) -> int | None:
        """Steps after which an evaluation first has this score."""
        return next((s for s, r in zip(self.steps, self.returns, strict=True) if r >= score), None)


def course(task: str, method: str, seed: int, *, quick: bool = False) -> Course:
    """Train one agent."""
    from tailwise.run.agent import PPO
    from tailwise.run.config import parse_config

    settings = dict(TASKS[task])
    rule, changes = settings.pop("rule"), METHODS[method]
    learner = dict(settings.get("learner", {}))
    if changes is not None:
        source = {"kind": "rule", "rule": f"benchmarks.robust_rules:{rule}", "steps": 500 if quick else 10_000}
        learner["imitation"] = {"kind": "demonstrations", "source": source, **changes}
    if quick:
        settings["run"] = {"total_steps": 1024}
    # One backend for all: a difference between two implementations is none between methods.
    evaluate = {"every": 1 if quick else 4, "episodes": 10}
    data = {**settings, "learner": learner, "seed": seed, "backend": "torch", "evaluate": evaluate}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agent = PPO(config=parse_config(data, source=task))
        agent.learn()
    rows = [row for row in agent.history if "evaluate/return" in row]
    demos, mean = agent.trainer.extra.demos, None
    if demos is not None:
        starts = np.flatnonzero(demos.start.numpy())
        # Undiscounted again: r[t] = G[t] - gamma G[t + 1] inside an episode.
        following = demos.following.numpy().astype(np.float64)
        after = np.where(np.append(demos.start.numpy()[1:], True), 0.0, np.append(following[1:], 0.0))
        reward = following - agent.config.learner.gamma * after
        whole = np.add.reduceat(reward, starts)
        mean = float(whole.mean())
    return Course(tuple(int(row["steps"]) for row in rows), tuple(row["evaluate/return"] for row in rows), mean)


def checks(options: Options, seeds: Sequence[int]) -> list[Check]:
    """Two for each task and way of using demonstrations."""
    tasks = list(TASKS)[:1] if options.quick else list(TASKS)
    cases = [(task, method, seed) for task in tasks for method in METHODS for seed in seeds]
    courses = dict(
        zip(cases, run_all([(course, case, {"quick": options.quick}) for case in cases], options), strict=True)
    )
    found = []
    for task in tasks:
        plain = [courses[task, "plain", seed] for seed in seeds]
        for method in list(METHODS)[1:]:
            found += checks_of(f"{task}, {method}", plain, [courses[task, method, seed] for seed in seeds])
    return found


def checks_of(name: str, plain: Sequence[Course], shown: Sequence[Course]) -> list[Check]:
    """Steps to the plain agent's score and the end, medians over seeds."""
    shares, gaps, told = [], [], []
    for one, other in zip(plain, shown, strict=True):
        needed, own = other.reaches(one.end), one.reaches(one.end)
        assert own is not None, "its best evaluations are not below their mean"
        shares.append(float("inf") if needed is None else needed / own)
        gaps.append(other.end - one.end)
        text = "never" if needed is None else f"{needed:,}"
        told.append(f"plain {one.end:.4g} at {own:,}, with {other.end:.4g}, there at {text}; rule {other.rule:.4g}")
    share, gap = statistics.median(shares), statistics.median(gaps)
    allowed = max(1e-9, 0.02 * abs(statistics.median(one.end for one in plain)))
    value = share if np.isfinite(share) else None
    detail = "; ".join(told)
    return [
        Check(f"{name}: steps to the plain score over the plain agent's", value, f"<= {FASTER:g}, median",
              share <= FASTER, detail),
        Check(f"{name}: end against the plain agent's", gap, ">= -2% of it, median", gap >= -allowed, detail),
    ]  # fmt: skip
