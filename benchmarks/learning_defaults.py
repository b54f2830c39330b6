"""Learning with defaults alone, and learning that can be relied on: parts of `benchmarks.learning`.

Defaults: the configuration names the environment, the seed, the steps and, where memory is needed, the kind of core;
everything else is what a new user gets. The median of five seeds is judged. Reliability: presets on twenty seeds that
no setting was chosen by; it is counted how many reach the goal, because a mean over three hides one miss in eight.
"""

from __future__ import annotations

import importlib.util
import statistics
from dataclasses import dataclass
from typing import Any

from benchmarks.jobs import run_all, run_timed
from benchmarks.report import Check, Options
from benchmarks.toy_envs import RECALL_MASKED

SEEDS = (500, 501, 502, 503, 504)
FRESH_SEEDS = tuple(range(1030, 1050))
EPISODES = 20


@dataclass(frozen=True)
class Defaults:
    """A task with nothing but its environment, steps and core; goal: of the median of the seeds."""

    name: str
    steps: int
    goal: float
    env: dict[str, Any]
    core: str = "none"
    needs: str | None = None
    episodes: int = EPISODES


@dataclass(frozen=True)
class Reliability:
    """How many of the fresh seeds must reach a goal with a preset."""

    name: str
    preset: str
    goal: float
    at_least: int


CUE = {"id": RECALL_MASKED, "kwargs": {"delay": 20}}
DEFAULTS = (
    Defaults("CartPole-v1", 100_000, 500.0, {"id": "CartPole-v1"}),
    Defaults("CartPole-v1, LSTM", 100_000, 500.0, {"id": "CartPole-v1"}, core="lstm"),
    Defaults("Hopper-v5", 200_000, 900.0, {"id": "Hopper-v5"}, needs="mujoco"),
    Defaults("HalfCheetah-v5", 200_000, 900.0, {"id": "HalfCheetah-v5"}, needs="mujoco"),
    # Half of the answers are right by chance.
    Defaults("cue over 20 steps, LSTM", 500_000, 0.95, CUE, core="lstm", episodes=200),
    Defaults("cue over 20 steps, GRU", 500_000, 0.95, CUE, core="gru", episodes=200),
)
RELIABILITY = (
    Reliability("CartPole-v1", "cartpole", 490.0, 19),
    Reliability("CartPole without velocities, LSTM", "cartpole-memory", 450.0, 17),
)


def defaults_checks(options: Options) -> list[Check]:
    """One check per task with defaults."""
    return [_defaults(task, options) for task in DEFAULTS]


def reliability_checks(options: Options) -> list[Check]:
    """One check per preset."""
    return [_reliability(task, options) for task in RELIABILITY]


def _defaults(task: Defaults, options: Options) -> Check:
    name, goal = f"defaults: {task.name}", f"median of {len(SEEDS)} >= {task.goal:g} at {task.steps:,} steps"
    if task.needs is not None and importlib.util.find_spec(task.needs) is None:
        return Check(name, None, goal, False, f"{task.needs} is not installed: pip install '.[bench]'")
    seeds = SEEDS[:1] if options.quick else SEEDS
    setting = {
        "env": task.env,
        "run": {"total_steps": 1_024 if options.quick else task.steps},
        **({} if task.core == "none" else {"model": {"core": {"kind": task.core}}}),
    }
    episodes = 2 if options.quick else task.episodes
    options.say(f"{name} ...")
    outcomes = run_timed([(score, ({"seed": s, **setting},), {"episodes": episodes}) for s in seeds], options)
    scores = [outcome.result for outcome in outcomes]
    seconds = statistics.fmean(outcome.seconds for outcome in outcomes)
    median = statistics.median(scores)
    detail = f"{', '.join(f'{value:.4g}' for value in scores)}; {seconds:.0f} CPU-seconds a seed"
    return Check(name, median, goal, options.quick or median >= task.goal, detail + _smoke(options))


def _reliability(task: Reliability, options: Options) -> Check:
    from tailwise.run.presets import load_source

    data = load_source(task.preset).data
    steps = data["run"]["total_steps"]
    run = {**data["run"], "total_steps": 1_024} if options.quick else data["run"]
    seeds, episodes = (FRESH_SEEDS[:2], 2) if options.quick else (FRESH_SEEDS, EPISODES)
    options.say(f"{task.name}, fresh seeds ...")
    scores = run_all([(score, ({**data, "seed": s, "run": run},), {"episodes": episodes}) for s in seeds], options)
    reached = sum(value >= task.goal for value in scores)
    missed = ", ".join(f"{value:.1f}" for value in sorted(scores) if value < task.goal) or "none"
    return Check(
        f"{task.name}: fresh seeds that reach {task.goal:g} at {steps:,} steps",
        float(reached),
        f">= {task.at_least} of {len(FRESH_SEEDS)}",
        options.quick or reached >= task.at_least,
        f"misses: {missed}; lowest {min(scores):.1f}" + _smoke(options),
    )


def score(config: dict[str, Any], *, episodes: int) -> float:
    """Mean return of the most likely action after training."""
    from tailwise import PPO

    agent = PPO(config=config)
    agent.learn()
    return agent.evaluate(episodes=episodes).mean


def _smoke(options: Options) -> str:
    return "; smoke run: the goal is not judged" if options.quick else ""
