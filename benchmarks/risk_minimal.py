"""A limit and nothing else: what users get who set risk.mode, risk.limit, risk.alpha, learner.gamma and total_steps.

The same problems as in the other parts, with every other setting at its default. Exposure is judged by the most likely
action, which is what is deployed; the lottery, whose optimum is mixed, by sampled ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.jobs import run_all
from benchmarks.report import Check, Options
from benchmarks.risk_toys import JUDGES, play
from benchmarks.risk_truth import (
    CONTINUING,
    EXPOSURES,
    ONE_STEP,
    RISKY_SHARES,
    ExposureProblem,
    LotteryProblem,
    exposure_cvar,
    lottery_cvar,
)

ENVIRONMENTS = 64  # copies that the problem is made with; a vector environment brings its own number
ONE_STEP_STEPS = 1_000_000
# A policy with one constant observation learns by its biases alone and moves by .01 of half the range in an update,
# less as it narrows: with 3 M steps 5 of 30 runs had no way back from a late overshoot (+17 to +22% of w*).
CONTINUING_STEPS = 6_000_000
# Of 8,192 decisions about 37 lose where q* is .1: the measure of a rollout scatters by 16%, so many are needed.
LOTTERY_STEPS = 3_000_000
QUICK_STEPS = 4_096
ALLOWED = 0.15  # of w*, and of q*


def _agent(env: Any, *, seed: int, gamma: float, alpha: float, limit: float, steps: int) -> Any:
    from tailwise import PPO

    agent = PPO(
        env,
        {
            "seed": seed,
            "learner": {"gamma": gamma},
            "risk": {"mode": "constraint", "limit": limit, "alpha": alpha},
            "run": {"total_steps": steps, "environments": env.num_envs, "tensorboard": False},
        },
    )
    agent.learn()
    return agent


def exposure(problem: ExposureProblem, w: float, *, seed: int, steps: int) -> float:
    """The most likely action of the trained policy over w*, minus 1."""
    import numpy as np

    gamma, limit = problem.gamma or 0.99, exposure_cvar(problem, w)
    agent = _agent(problem.make(ENVIRONMENTS), seed=seed, gamma=gamma, alpha=problem.alpha, limit=limit, steps=steps)
    action, _ = agent.predict(np.ones((1, 1), dtype=np.float32), deterministic=True)
    return float(action[0, 0]) / w - 1


def lottery(problem: LotteryProblem, share: float, *, seed: int, steps: int) -> float:
    """The risky share of sampled actions over q*, minus 1."""
    limit = lottery_cvar(problem, share)
    agent = _agent(problem.make(ENVIRONMENTS), seed=seed, gamma=0.99, alpha=problem.alpha, limit=limit, steps=steps)
    actions, _, _ = play(agent, problem.make(JUDGES), steps=100, seed=10_000 + seed)
    return float(actions.mean()) / share - 1


def checks(options: Options, seeds: Sequence[int]) -> list[Check]:
    """Every limit, every law of the noise, every seed."""
    first = slice(0, 1) if options.quick else slice(None)
    groups: list[tuple[str, list[Any]]] = []
    for title, base, steps in (("one step", ONE_STEP, ONE_STEP_STEPS), ("continuing", CONTINUING, CONTINUING_STEPS)):
        for noise in ("normal", "student4")[first]:
            budget = {"steps": QUICK_STEPS if options.quick else steps}
            cases = [(replace(base, noise=noise), w) for w in EXPOSURES[first]]
            jobs = [(exposure, case, {"seed": s, **budget}) for case in cases for s in seeds]
            groups.append((f"exposure, {title}, {noise}: most likely action against w*", jobs))
    budget = {"steps": QUICK_STEPS if options.quick else LOTTERY_STEPS}
    jobs = [(lottery, (LotteryProblem(), q), {"seed": s, **budget}) for q in RISKY_SHARES[first] for s in seeds]
    groups.append(("lottery: sampled risky share against q*", jobs))
    results = []
    for name, jobs in groups:
        errors = run_all(jobs, options)
        worst = max(errors, key=abs)
        results.append(
            Check(
                f"a limit and nothing else, {name}",
                abs(worst),
                f"<= {ALLOWED:g}, every limit and seed",
                abs(worst) <= ALLOWED,
                f"{budget_told(jobs)}; errors in %: " + " ".join(f"{100 * error:+.1f}" for error in errors),
            )
        )
    return results


def budget_told(jobs: Sequence[Any]) -> str:
    """The steps of every run."""
    return f"{jobs[0][2]['steps']:,} steps a run"
