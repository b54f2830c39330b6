"""What attacks take from plain PPO and from SA-PPO, at a budget that is chosen on plain PPO alone.

A policy is trained without an adversary and attacked over a grid of budgets; the smallest one at which the strongest
attack takes 30% of what it had over random actions is the budget of the task. A second policy is trained against an
adversary with that budget, nothing else being different, and attacked with it. Weight and steps of the adversary were
set beforehand, for all tasks alike. With memory and without, on episodes and on a market with costs.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.jobs import run_all
from benchmarks.report import Check, Options

GRID = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
ENOUGH = 0.3  # of the range between random actions and the trained policy
HALF, CLEAN = 0.5, 0.1  # what SA-PPO may lose of what plain PPO loses, and without attack
ADVERSARY = {"kind": "sa_ppo", "weight": 0.3}
ADVERSARY_STEPS, EPISODES = 50_000, 20
TASKS: dict[str, dict[str, Any]] = {
    "CartPole": {"preset": "cartpole"},
    "CartPole without velocities, LSTM": {"preset": "cartpole-memory"},
    "Pendulum": {"preset": "pendulum"},
    "Hopper": {"env": {"id": "Hopper-v5"}, "run": {"total_steps": 200_000}},
    "AR(1) market": {"preset": "ar1"},
}


@dataclass(frozen=True)
class Measured:
    """One task and seed, returns as they are.

    budget    that was chosen; None where plain PPO loses less than 30% at every one
    chance    random actions
    plain, plain_attacked, robust, robust_attacked   mean returns; attacked: under the strongest attack
    by        names of the strongest attacks; changed: share of decisions (or size of changes) under it
    excess    largest move beyond a budget, standard deviations
    """

    budget: float | None
    chance: float
    plain: float
    plain_attacked: float
    plain_by: str
    plain_changed: float
    robust: float | None
    robust_attacked: float | None
    robust_by: str | None
    robust_changed: float | None
    excess: float

    @property
    def plain_lost(self) -> float:
        """Share of the range that the attack takes from plain PPO."""
        return (self.plain - self.plain_attacked) / (self.plain - self.chance)

    @property
    def robust_lost(self) -> float | None:
        """The same of SA-PPO, in the range of plain PPO."""
        if self.robust is None or self.robust_attacked is None:
            return None
        return (self.robust - self.robust_attacked) / (self.plain - self.chance)

    @property
    def clean_lost(self) -> float | None:
        """What SA-PPO has less without attack, a share of the range of plain PPO."""
        return None if self.robust is None else (self.plain - self.robust) / (self.plain - self.chance)


def trained(task: str, seed: int, learner: dict[str, Any], *, quick: bool) -> Any:
    """A policy of a task."""
    from tailwise.run.agent import PPO
    from tailwise.run.config import parse_config
    from tailwise.run.presets import load_source

    settings = dict(TASKS[task])
    preset = settings.pop("preset", None)
    data = {**({} if preset is None else load_source(preset).data), **settings}
    data = {**data, "seed": seed, "learner": {**data.get("learner", {}), **learner}}
    data["evaluate"] = {name: value for name, value in data.get("evaluate", {}).items() if name == "episodes"}
    if quick:
        data["run"] = {**data.get("run", {}), "total_steps": 2000}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agent = PPO(config=parse_config(data, source=task))
        agent.learn()
    return agent


def measure(task: str, seed: int, *, quick: bool = False) -> Measured:
    """Train, choose the budget, train against it, attack."""
    from tailwise.evaluate.attack import AttackPlan, attack_policy

    def attacked(agent: Any, budget: float) -> Any:
        plan = AttackPlan(
            budgets=(budget,),
            adversary_steps=512 if quick else ADVERSARY_STEPS,
            episodes=None if agent.config.env.judged_whole else 2 if quick else EPISODES,
            seed=seed + 1000,
        )
        return attack_policy(agent, plan)

    plain = trained(task, seed, {}, quick=quick)
    chosen, result, excess = None, None, 0.0
    for budget in GRID[-1:] if quick else GRID:
        result = attacked(plain, budget)
        excess = max(excess, *(one.excess for one in result.outcomes))
        lost = result.strongest(budget).lost
        if quick or (lost is not None and lost >= ENOUGH):
            chosen = budget
            break
    assert result is not None
    worst = result.strongest(budget)
    first = (result.random_actions, result.clean.mean_return, worst.mean_return, worst.attack, worst.changed)
    if chosen is None:
        return Measured(None, *first, None, None, None, None, excess)
    adversary = {**ADVERSARY, "budget": {"kind": "std", "size": chosen}}
    robust = attacked(trained(task, seed, {"adversary": adversary}, quick=quick), chosen)
    hit = robust.strongest(chosen)
    excess = max(excess, *(one.excess for one in robust.outcomes))
    return Measured(chosen, *first, robust.clean.mean_return, hit.mean_return, hit.attack, hit.changed, excess)


def checks(options: Options, seeds: Sequence[int]) -> list[Check]:
    """Three for each task: what is lost under attack, without, and whether budgets were kept."""
    tasks = list(TASKS)[:1] if options.quick else list(TASKS)
    cases = [(task, seed) for task in tasks for seed in seeds]
    measured = run_all([(measure, case, {"quick": options.quick}) for case in cases], options)
    found = []
    for task in tasks:
        found += checks_of(task, [one for one, case in zip(measured, cases, strict=True) if case[0] == task])
    return found


def checks_of(task: str, measured: Sequence[Measured]) -> list[Check]:
    """The checks of one task; medians over seeds, and every seed in the detail."""
    told = "; ".join(described(one) for one in measured)
    excess = max(one.excess for one in measured)
    kept = Check(f"{task}: largest move beyond a budget, std", excess, "<= 1e-5", excess <= 1e-5, "every attack")
    under = [one for one in measured if one.robust_lost is not None]
    name = f"{task}: what the strongest attack takes from SA-PPO, of what it takes from plain PPO"
    if not under:
        reason = f"plain PPO loses less than {ENOUGH:.0%} of its range at every budget up to {GRID[-1]:g}: {told}"
        return [Check(name, None, f"<= {HALF:g}", False, reason), kept]
    shares = statistics.median((one.robust_lost or 0.0) / one.plain_lost for one in under)
    clean = statistics.median(one.clean_lost or 0.0 for one in under)
    return [
        Check(name, shares, f"<= {HALF:g}, median", shares <= HALF, told),
        Check(f"{task}: what SA-PPO has less without attack", clean, f"<= {CLEAN:g}, median", clean <= CLEAN, told),
        kept,
    ]


def described(one: Measured) -> str:
    """The numbers of one seed."""
    text = f"chance {one.chance:.4g}, plain {one.plain:.4g} -> {one.plain_attacked:.4g} by {one.plain_by}"
    if one.robust is None:
        return text
    return f"budget {one.budget:g}: {text}, SA-PPO {one.robust:.4g} -> {one.robust_attacked:.4g} by {one.robust_by}"
