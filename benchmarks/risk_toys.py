"""Training on the problems of `tailwise.run.toy_risk` and measuring what the trained policy then really does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.risk_truth import CliffProblem, ExposureProblem, LotteryProblem

Floats = npt.NDArray[np.float64]
ENVIRONMENTS, STEPS = 16, 128  # per update: 2,048 decisions
LOG_STD = -1.9  # of exposures before squashing: about .07 in the middle of [0, 1], less towards its ends
JUDGES = 2000  # accounts that play the trained policy, each for as long as the discount lets a reward count


@dataclass(frozen=True)
class Outcome:
    """A trained policy on fresh draws. action: mean of what it does; cvar: pooled, reward; mean: reward a decision."""

    action: float
    cvar: float
    mean: float
    shares: Floats  # of discrete actions in all states together, empty for exposures


def settings(
    *, seed: int, updates: int, gamma: float, alpha: float, limit: float | None, box: bool = False
) -> dict[str, Any]:
    """A small network and large steps; everything about risk is at its defaults."""
    risk = (
        {"mode": "report", "alpha": alpha} if limit is None else {"mode": "constraint", "alpha": alpha, "limit": limit}
    )
    return {
        "seed": seed,
        "model": {
            "encoder": {"hidden": [16]},
            "actor": {"hidden": [16]} | ({"box": "squashed", "log_std": LOG_STD} if box else {}),
            "critic": {"kind": "quantile", "hidden": [16]},
        },
        "learner": {
            "gamma": gamma,
            "lambda": 0.8,
            "learning_rate": 2e-3,
            "minibatches": 2,
            "entropy": {"kind": "constant", "weight": 0.0},
        },
        "risk": risk,
        "run": {
            "environments": ENVIRONMENTS,
            "rollout_steps": STEPS,
            "total_steps": updates * ENVIRONMENTS * STEPS,
            "tensorboard": False,
        },
    }


def train(env: Any, data: dict[str, Any]) -> Any:
    """A trained agent."""
    from tailwise import PPO

    agent = PPO(env, data)
    agent.learn()
    return agent


def play(agent: Any, env: Any, *, steps: int, seed: int) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Sampled actions [steps, N], rewards [steps, N] and ends of episodes [steps, N] on fresh draws."""
    observation, _ = env.reset(seed=seed)
    actions, rewards, ends = [], [], []
    for _ in range(steps):
        action, _ = agent.predict(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        actions.append(np.asarray(action, dtype=np.float64).reshape(-1))
        rewards.append(reward)
        ends.append(terminated | truncated)
    return np.stack(actions), np.stack(rewards), np.stack(ends)


def forward_returns(rewards: Floats, ends: npt.NDArray[np.bool_], gamma: float, *, whole: int) -> Floats:
    """Discounted returns from every step that has `whole` further steps in the record or whose episode ends in it."""
    carry = np.zeros(rewards.shape[1])
    known = np.zeros(rewards.shape[1], dtype=bool)
    found = []
    for step in range(len(rewards) - 1, -1, -1):
        carry = rewards[step] + gamma * np.where(ends[step], 0.0, carry)
        known = known | ends[step] | (len(rewards) - step >= whole)
        found.append(carry[known])
    return np.concatenate(found)


def cvar(sample: Floats, alpha: float) -> float:
    """Mean of the worst share alpha of a large sample, plain and without our own code."""
    ordered = np.sort(sample)
    return float(ordered[: max(1, round(alpha * len(ordered)))].mean())


def exposure(problem: ExposureProblem, limit: float | None, *, seed: int, updates: int) -> Outcome:
    """One step (gamma 0 of the problem) or continuing."""
    gamma = problem.gamma or 0.99  # nothing follows a single step, whatever the discount
    data = settings(seed=seed, updates=updates, gamma=gamma, alpha=problem.alpha, limit=limit, box=True)
    agent = train(problem.make(ENVIRONMENTS), data)
    if problem.gamma == 0.0:
        actions, rewards, ends = play(agent, problem.make(JUDGES), steps=50, seed=10_000 + seed)
        returns = rewards.ravel()
    else:
        whole = math.ceil(math.log(1e-3) / math.log(problem.gamma))
        judge = problem.make(JUDGES, time_limit=10**6)  # no end inside the record
        actions, rewards, ends = play(agent, judge, steps=whole + 60, seed=10_000 + seed)
        returns = forward_returns(rewards, ends, problem.gamma, whole=whole)
    return Outcome(float(actions.mean()), cvar(returns, problem.alpha), float(rewards.mean()), np.zeros(0))


def lottery(problem: LotteryProblem, limit: float | None, *, seed: int, updates: int) -> Outcome:
    """Action 1 is the risky arm."""
    data = settings(seed=seed, updates=updates, gamma=0.99, alpha=problem.alpha, limit=limit)
    agent = train(problem.make(ENVIRONMENTS), data)
    actions, rewards, _ = play(agent, problem.make(JUDGES), steps=50, seed=10_000 + seed)
    share = float(actions.mean())
    return Outcome(share, cvar(rewards.ravel(), problem.alpha), float(rewards.mean()), np.array([1 - share, share]))


def cliff(problem: CliffProblem, limit: float | None, *, seed: int, updates: int) -> tuple[Outcome, Floats]:
    """The outcome by the exact value of the learnt policy, and its table of probabilities [states, 4]."""
    import torch

    from benchmarks.risk_truth import CliffModel

    data = settings(seed=seed, updates=updates, gamma=problem.gamma, alpha=problem.alpha, limit=limit)
    agent = train(problem.make(ENVIRONMENTS), data)
    states = np.arange(problem.states)
    flat = torch.from_numpy(agent.model.observation.flatten(states, len(states)))
    with torch.no_grad():
        start = torch.ones(len(states), dtype=torch.bool)
        latent = agent.model.latent(flat[None], agent.model.initial_state(len(states)), start[None])
        table = agent.model.policy(latent.features[0], None).softmax(-1).double().numpy()
    value = CliffModel(problem).evaluate(table / table.sum(axis=1, keepdims=True))
    return Outcome(float(np.argmax(value.roads)), value.cvar, value.mean, np.array(value.roads)), table
