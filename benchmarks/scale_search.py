"""Population-based training against random search of the same budget, from a bad range of step sizes."""

from __future__ import annotations

import math
import tempfile
import warnings
from pathlib import Path
from typing import Any

from benchmarks.jobs import run_timed
from benchmarks.report import Check, Options

REPETITIONS, LIMIT = 5, 30.0  # CPU-minutes
MEMBERS = 10  # the first six trials of Optuna are random, whatever it learnt
EPISODES = 50  # of a test; a market's window is played whole
SPACE = {"learner.learning_rate": {"low": 1e-7, "high": 1e-2, "scale": "log"}}  # most of it is too small
RUN = {"environments": 16, "rollout_steps": 64, "checkpoint_every": 1000, "tensorboard": False}
TASKS: dict[str, dict[str, Any]] = {
    "CartPole without velocities": {
        "env": {"id": "CartPole-v1", "hide": [1, 3]},
        "model": {"core": {"kind": "lstm", "hidden": 16}},
        "evaluate": {"episodes": 10},
        "run": {**RUN, "total_steps": 30 * 1024},
    },
    "regime market": {
        "data": {"kind": "synthetic", "market": "regime_switching", "seeds": [1, 2], "parameters": {"length": 4000}},
        "env": {"kind": "market", "episode_length": 64},
        "model": {"core": {"kind": "lstm", "hidden": 16}},
        "run": {**RUN, "total_steps": 30 * 1024},
    },
}
SEARCHES: dict[str, dict[str, Any]] = {
    "pbt": {"population": MEMBERS, "generations": 6},
    "random": {"trials": MEMBERS, "round": MEMBERS, "generations": 1, "prune": False},
    "optuna": {"trials": MEMBERS, "round": 2, "generations": 1, "prune": False},
}


def result_of(task: str, search: str, repetition: int) -> float:
    """What the best member of a search comes to on its test: mean return, or log-return of the whole window."""
    import tailwise

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = {**TASKS[task], "seed": 100 * repetition}
        result = tailwise.tune(config, SPACE, search=search, settings=SEARCHES[search], out=Path(folder) / "tune")
        if result.best_run is None:
            return -math.inf
        return tailwise.load(result.best_run).evaluate(episodes=EPISODES).mean


def checks(options: Options) -> list[Check]:
    """Wins of each task, the sign test over all pairs, and the time of all searches."""
    repetitions = range(1 if options.quick else REPETITIONS)
    jobs: list[Any] = [
        (result_of, (task, search, repetition), {})
        for task in TASKS
        for repetition in repetitions
        for search in SEARCHES
    ]
    outcomes = run_timed(jobs, options)
    scores = {job[1]: outcome.result for job, outcome in zip(jobs, outcomes, strict=True)}
    minutes = sum(outcome.seconds for outcome in outcomes) / 60
    found, wins, ties = [], 0, 0
    for task in TASKS:
        pairs = [(scores[task, "pbt", k], scores[task, "random", k]) for k in repetitions]
        better, equal = sum(a > b for a, b in pairs), sum(a == b for a, b in pairs)
        wins, ties = wins + better, ties + equal
        others = " ".join(f"{scores[task, 'optuna', k]:.4g}" for k in repetitions)
        detail = "pbt/random: " + " ".join(f"{a:.4g}/{b:.4g}" for a, b in pairs) + f"; optuna: {others}"
        goal = "more than half"
        found.append(Check(f"search, {task}: repetitions won", better, goal, 2 * better > len(pairs) - equal, detail))
    p = sign_test(wins, len(TASKS) * len(repetitions) - ties)
    return [
        *found,
        Check("search: sign test, p", p, "<= 0.05", p <= 0.05, f"{wins} won, {ties} equal, one-sided, both tasks"),
        Check("search: CPU-minutes", minutes, f"<= {LIMIT:g}", minutes <= LIMIT, f"{len(jobs)} searches"),
    ]


def sign_test(wins: int, pairs: int) -> float:
    """Probability of at least so many wins by fair coins."""
    return sum(math.comb(pairs, k) for k in range(wins, pairs + 1)) / 2**pairs
