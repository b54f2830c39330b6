"""Parts of the risk benchmark that train no policy for its own sake: calibration, ownership of gradients, cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.report import Check, Options

ALPHA = 0.05
SEEDS = (0, 1, 2)
ROUNDS = 7  # of the cost, interleaved
FIXED = {"geometry": "fixed"}  # rollouts of 64 x 128, which coverage and cost are counted in


def process(*, states: int, gamma: float, seed: int, updates: int) -> tuple[float, float]:
    """(largest relative error of the predicted CVaR over states, coverage at 5%) after training.

    The coverage is that of the run's own calibration windows: predictions that were stored before the returns came.
    """
    import torch

    from tailwise import PPO
    from tailwise.learner.tail import cvar_from_quantiles
    from tailwise.run.toy_envs import RewardProcessParams, return_cvar_monte_carlo
    from tailwise.run.toy_vector import RewardProcessVector

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


def calibration(options: Options, run_all: Callable[..., list[Any]], seeds: Sequence[int]) -> list[Check]:
    """Markov reward processes, default settings."""
    cases = [(1, 0.95, 100), (4, 0.95, 300), (1, 0.99, 300), (4, 0.99, 300)]
    if options.quick:
        cases = [(1, 0.95, 4)]
    jobs = [(case, seed) for case in cases for seed in seeds]
    found = run_all(
        [(process, (), {"states": n, "gamma": g, "seed": s, "updates": updates}) for (n, g, updates), s in jobs]
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


def ownership(options: Options) -> list[Check]:
    """What risk alone does in one update, on problems in which it acts and in a known direction.

    The same rollout and the same weights are updated with a multiplier of 0 and of 5, in one epoch of one minibatch
    without clipping, so that nothing but the advantages differs. Exposure has to move to where CVaR is higher (up in
    the first problem, down in the second), by a share of what the update moves it without risk; the critics' own
    tensors must not move at all. Critics are trained for some updates before: an untrained one predicts no law.
    """
    import numpy as np
    import torch

    from benchmarks.risk_signs import PROBLEMS
    from tailwise import PPO
    from tailwise.learner.backend import Knobs
    from tailwise.learner.step_size import StepSize

    updates = 2 if options.quick else 30
    pushes: dict[str, list[float]] = {"rising": [], "falling": []}
    shares, critics = [], []
    for seed in SEEDS:
        for name, case in (("rising", PROBLEMS[0]), ("falling", PROBLEMS[3])):
            problem = case.problem
            agent = PPO(
                problem.make(64),
                {
                    "seed": seed,
                    "learner": {
                        "gamma": problem.gamma,
                        "epochs": 1,
                        "minibatches": 1,
                        "max_grad_norm": None,
                        "target_kl": None,
                    },
                    "risk": {"mode": "penalty", "alpha": problem.alpha, "weight": 1e-6},
                    "run": {"environments": 64, "rollout_steps": 512, "tensorboard": False},
                },
            )
            agent.learn(64 * 512 * updates)
            trainer = agent.trainer
            rollout, _ = trainer.collector.collect(trainer.update)
            before = trainer.backend.snapshot()
            state, exposures = [], []
            for multiplier in (0.0, 5.0):
                trainer.backend.restore(before)
                report = trainer.backend.update(
                    rollout, Knobs(StepSize(3e-4, 1.0, 1.0, 1.0), 0.0, multiplier=multiplier)
                )
                assert report.committed, report.reason
                state.append({key: value.clone() for key, value in agent.model.state_dict().items()})
                exposures.append(float(agent.predict(np.ones((1, 1), dtype=np.float32), deterministic=True)[0][0, 0]))
                shares.append(report.metrics["risk/advantage_share"])
            pushes[name].append(exposures[1] - exposures[0])
            names = [key for key in state[0] if key.startswith("critics.")]
            critics.append(sum(not torch.equal(state[0][key], state[1][key]) for key in names))
    rising, falling = min(pushes["rising"]), max(pushes["falling"])
    return [
        Check(
            "ownership: what risk alone adds to the exposure in one update where CVaR rises with it",
            rising,
            "> 1e-5, every seed",
            rising > 1e-5,
            ", ".join(f"{push:+.1e}" for push in pushes["rising"]),
        ),
        Check(
            "ownership: the same where CVaR falls with exposure",
            falling,
            "< -1e-5, every seed",
            falling < -1e-5,
            ", ".join(f"{push:+.1e}" for push in pushes["falling"]),
        ),
        Check(
            "ownership: tensors of the critics that risk alone changes",
            float(max(critics)),
            "0, every seed and problem",
            max(critics) == 0,
            f"{critics}; share of risk in the advantages {min(shares[1::2]):.2f} to {max(shares[1::2]):.2f}",
        ),
    ]


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
