"""Environments of others on two processes against one: wall time of collecting a rollout, and whether it is the same.

    python -m benchmarks.processes [--json] [--quick] [--only hopper]

Both collect the same rollouts in turn, in one process that trains and in two processes that it starts, with the policy
as it was initialised; times are medians of rollouts. A machine on which others work says so instead of a time.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.report import Check, Options, main
from benchmarks.speed_window import busy_seconds
from tailwise.learner.rollout import Rollout
from tailwise.run.agent import PPO

WANTED = 1.6  # wall time of one process over that of two, for MuJoCo
QUIET = 0.1  # processors that others may have used meanwhile
ROUNDS = 9


@dataclass(frozen=True)
class Task:
    """wanted: the goal; None where a step is so short that no gain is claimed, and the value is told."""

    name: str
    env: str
    wanted: float | None


TASKS = (
    Task("hopper", "Hopper-v5", WANTED),
    Task("halfcheetah", "HalfCheetah-v5", WANTED),
    Task("pendulum", "Pendulum-v1", None),
    Task("cartpole", "CartPole-v1", None),
)


def run(options: Options) -> list[Check]:
    """Two checks per task: its rollouts are equal, and how the wall times compare."""
    return [
        check for task in TASKS if not options.only or task.name in options.only for check in _compared(task, options)
    ]


def _compared(task: Task, options: Options) -> list[Check]:
    environments, steps, rounds = (8, 8, 2) if options.quick else (64, 64, ROUNDS)
    one, two = (_agent(task.env, processes, environments, steps) for processes in (1, 2))
    walls: dict[int, list[float]] = {1: [], 2: []}
    equal, others = True, 0.0
    try:
        for update in range(rounds + 1):  # the first one compiles
            busy, own, started = busy_seconds(), time.process_time(), time.perf_counter()
            plain = one.trainer.collector.collect(update)[0]
            wall, own = time.perf_counter() - started, time.process_time() - own
            after = busy_seconds()
            if update and busy is not None and after is not None:
                others += after - busy - own
            started = time.perf_counter()
            shared = two.trainer.collector.collect(update)[0]
            if update:
                walls[1].append(wall)
                walls[2].append(time.perf_counter() - started)
            equal = equal and _same(plain, shared)
    finally:
        for agent in (one, two):
            agent.trainer.driver.close()
    first, second = statistics.median(walls[1]), statistics.median(walls[2])
    used = others / sum(walls[1])
    quiet = used <= QUIET and len(os.sched_getaffinity(0)) >= 2
    value, rows = first / second, environments * steps
    detail = (
        f"{environments} x {steps} steps in {1e3 * first:.0f} and {1e3 * second:.0f} ms, "
        f"{1e6 * first / rows:.1f} and {1e6 * second / rows:.1f} us each; others used {used:.2f} processors"
    )
    options.say(f"  {task.name}: {value:.2f} x, {detail}")
    judged = task.wanted is not None and quiet and not options.quick
    return [
        Check(
            f"{task.name}: rollouts of two processes that differ from one",
            0.0 if equal else 1.0,
            "0",
            equal,
            f"{rounds + 1} rollouts, every tensor to the last bit",
        ),
        Check(
            f"{task.name}: wall time of collecting, one process over two",
            value if quiet else None,
            "told" if task.wanted is None else f">= {task.wanted:g}",
            not judged or value >= (task.wanted or 0.0),
            detail if quiet else f"not measurable here: the machine is not quiet; {value:.2f} x ({detail})",
        ),
    ]


def _agent(env: str, processes: int, environments: int, steps: int) -> PPO:
    config: dict[str, Any] = {
        "env": {"id": env, "processes": processes},
        "run": {"environments": environments, "rollout_steps": steps},
    }
    agent = PPO(config=config)
    agent.trainer.use_threads()
    agent.trainer.begin()
    return agent


def _same(left: Rollout, right: Rollout) -> bool:
    """Whether two rollouts are equal to the last bit."""
    names = ("obs", "action", "log_prob", "params", "reward", "terminated", "truncated", "valid", "start", "state")
    pairs = [(getattr(left, name), getattr(right, name)) for name in names]
    pairs += [(left.critic.mean, right.critic.mean), (left.critic.final_mean, right.critic.final_mean)]
    return all(torch.equal(one, other) for one, other in pairs)


if __name__ == "__main__":
    main("environments on two processes", run)
