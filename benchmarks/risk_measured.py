"""Parts of the risk benchmark that train no policy for its own sake: calibration, ownership of gradients, cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.jobs import run_all
from benchmarks.report import Check, Options
from benchmarks.risk_truth import ExposureProblem

ALPHA = 0.05
NOTHING = 1e-3  # weight of what is to be left out beside a weight of 1
ROUNDS = 7  # of the cost, interleaved
FIXED = {"geometry": "fixed"}  # rollouts of 64 x 128, which coverage and cost are counted in


def process(*, states: int, gamma: float, seed: int, updates: int) -> tuple[float, float]:
    """(largest relative error of the predicted CVaR over states, coverage at 5%) after training.

    The coverage is that of the run's own calibration windows: predictions that were stored before the returns came.
    """
    import torch

    from benchmarks.toy_envs import RewardProcessParams, return_cvar_monte_carlo
    from benchmarks.toy_vector import RewardProcessVector
    from tailwise import PPO
    from tailwise.learner.risk import cvar_from_quantiles

    params = RewardProcessParams.build(means=[0.0], sds=[1.0])
    if states == 4:
        stay, leave = 0.7, 0.1
        transition = [[stay if i == j else leave for j in range(4)] for i in range(3)] + [[0.25] * 4]
        params = RewardProcessParams.build(
            means=[0.1, 0.0, -0.1, 0.2], sds=[0.1, 0.5, 1.0, 1.5], transition=transition, terminal=[0.0, 0.0, 0.0, 0.05]
        )
    agent = PPO(RewardProcessVector(params, 64), {"seed": seed, "learner": {"gamma": gamma}, "run": FIXED})
    agent.learn(64 * 128 * updates)
    model = agent.model
    obs = torch.eye(params.states + 1)[: params.states]
    with torch.no_grad():
        start = torch.zeros(1, len(obs), dtype=torch.bool)
        law = model.values(model.latent(obs[None], model.initial_state(len(obs)), start).features[0]).law
    quantiles = model.return_scale.to_raw(law).sort(-1).values.mean(-2).double()
    truth = return_cvar_monte_carlo(params, gamma, ALPHA, seed=1, n=100_000)
    error = float(np.abs(cvar_from_quantiles(quantiles, ALPHA).numpy() / truth - 1).max())
    newest = [row["calibration/coverage_05"] for row in agent.history[-max(1, updates // 4) :]]
    return error, float(np.mean(newest))


def calibration(options: Options, seeds: Sequence[int]) -> list[Check]:
    """Markov reward processes, default settings."""
    cases = [(1, 0.95, 100), (4, 0.95, 300), (1, 0.99, 300), (4, 0.99, 300)]
    if options.quick:
        cases = [(1, 0.95, 4)]
    jobs = [(case, seed) for case in cases for seed in seeds]
    found = run_all(
        [(process, (), {"states": n, "gamma": g, "seed": s, "updates": updates}) for (n, g, updates), s in jobs],
        options,
    )
    checks = []
    for case in cases:
        mine = [result for result, (own, _) in zip(found, jobs, strict=True) if own == case]
        errors, covers = [error for error, _ in mine], [cover for _, cover in mine]
        name = f"calibration, {case[0]} state{'s' if case[0] > 1 else ''}, gamma {case[1]:g}"
        checks += [
            Check(
                f"{name}: predicted CVaR, largest error over states",
                max(errors),
                "<= 0.05, every seed",
                max(errors) <= 0.05,
                ", ".join(f"{error:.3f}" for error in errors),
            ),
            Check(
                f"{name}: coverage of the predicted 5% quantile",
                max(covers, key=lambda share: abs(share - 0.05)),
                "0.03 to 0.07, every seed",
                all(0.03 <= share <= 0.07 for share in covers),
                ", ".join(f"{share:.3f}" for share in covers) + "; mean over the last quarter of the updates",
            ),
        ]
    return checks


def pushed(problem: ExposureProblem, *, seed: int, updates: int) -> tuple[float, int, float]:
    """(change of the exposure, tensors of the critics that changed, share of risk) by risk alone, in one update.

    Critics are trained for some updates first: untrained ones predict no law. Two copies of the policy, with fresh
    optimisers, then make one step on the same rollout, one with (nearly) the mean alone and one with (nearly) the
    measure alone, so that nothing but the advantages differs.
    """
    import numpy as np
    import torch

    from tailwise import PPO

    def agent(weight: float, steps: int) -> Any:
        learner = {"gamma": problem.gamma, "epochs": 1, "minibatches": 1, "max_grad_norm": None, "target_kl": None}
        return PPO(
            problem.make(64),
            {
                "seed": seed,
                "learner": {**learner, "entropy": {"weight": 0.0}},
                "risk": {"mode": "penalty", "alpha": problem.alpha, "weight": weight},
                "run": {"environments": 64, "rollout_steps": steps, "tensorboard": False},
            },
        )

    def exposure(of: Any) -> float:
        return float(of.predict(np.ones((1, 1), dtype=np.float32), deterministic=True)[0][0, 0])

    first = agent(NOTHING, 256)
    first.learn(64 * 256 * updates)
    state, share = [], 0.0
    before, after = exposure(first), 0.0
    for weight in (NOTHING, 1.0 / NOTHING):
        copy = agent(weight, 2048)
        copy.model.load_state_dict(first.model.state_dict())
        copy.learn(64 * 2048)
        after, share = exposure(copy), copy.history[-1]["risk/advantage_share"]
        state.append({key: value.clone() for key, value in copy.model.state_dict().items()})
    names = [key for key in state[0] if key.startswith("critics.")]
    return after - before, sum(not torch.equal(state[0][key], state[1][key]) for key in names), share


def ownership(options: Options, seeds: Sequence[int]) -> list[Check]:
    """Risk moves the actor to where CVaR is higher, and no critic at all."""
    from benchmarks.risk_signs import PROBLEMS

    updates = 2 if options.quick else 60
    cases = {"rises": PROBLEMS[2].problem, "falls": PROBLEMS[3].problem}
    jobs = [(pushed, (problem,), {"seed": s, "updates": updates}) for problem in cases.values() for s in seeds]
    results = run_all(jobs, options)
    checks = []
    for sign, (name, part) in zip(
        (1, -1), (("rises", results[: len(seeds)]), ("falls", results[len(seeds) :])), strict=True
    ):
        least = min(sign * push for push, _, _ in part)
        checks.append(
            Check(
                f"ownership: risk alone, where CVaR {name} with w moves w {'up' if sign > 0 else 'down'} by",
                least,
                "> 1e-4, every seed",
                least > 1e-4,
                ", ".join(f"{push:+.1e}" for push, _, _ in part) + f"; share of risk {part[0][2]:.2f}",
            )
        )
    moved = [changed for _, changed, _ in results]
    checks.append(
        Check(
            "ownership: tensors of the critics that risk alone changes",
            float(max(moved)),
            "0, every seed and problem",
            max(moved) == 0,
            f"{moved}",
        )
    )
    return checks


def cost(options: Options) -> list[Check]:
    """CPU time of training with the constraint over that with risk off, in turn, median of ratios.

    On a market, where the environment costs next to nothing and an update is nearly everything.
    """
    from benchmarks.risk_market import settings
    from tailwise import PPO

    modes: dict[str, dict[str, Any]] = {
        "off": {"mode": "off"},
        "on": {"mode": "constraint", "limit": -0.01, "warmup": {"updates": 0, "longest": 0}},
    }
    agents = {}
    for name, risk in modes.items():
        data = settings(seed=0, limit=None, quick=True) | {"risk": risk, "model": {}}  # the default networks
        data["run"] = {**data["run"], "rollout_steps": 128}
        # As many epochs as users get: with the one of that benchmark the rest of an update costs next to nothing.
        data["learner"] = {key: value for key, value in data["learner"].items() if key != "epochs"}
        agents[name] = PPO(config=data)
    rows = 64 * 128
    for agent in agents.values():
        agent.learn(rows)  # compile and warm up
    ratios = []
    for _ in range(1 if options.quick else ROUNDS):
        seconds = {}
        for name, agent in agents.items():
            clock = time.process_time()
            agent.learn(4 * rows)
            seconds[name] = time.process_time() - clock
        ratios.append(seconds["on"] / seconds["off"] - 1)
    used = float(agents["on"].history[-1]["risk/multiplier"])
    value = float(np.median(ratios))
    return [
        Check(
            "cost: CPU time of training added by the constraint",
            value,
            "<= 0.25",
            value <= 0.25,
            f"median of {len(ratios)}: {', '.join(f'{r:+.2f}' for r in ratios)}; 64 x 128 steps, multiplier {used:.2f}",
        )
    ]
