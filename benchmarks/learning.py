"""Does it learn? Small control tasks at fixed budgets, three seeds, 50 deterministic episodes each.

    python -m benchmarks.learning [--json] [--quick] [--only cartpole] [--only defaults] [--only fresh] [--only peers]

Tailwise runs its shipped presets; `defaults` and `fresh` are in benchmarks/learning_defaults.py. When stable-baselines3
(and sb3-contrib for memory) are installed they train on the same tasks and budgets, with the hyperparameters published
in rl-baselines3-zoo, for comparison; they have no goal here.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.jobs import run_timed
from benchmarks.learning_defaults import defaults_checks, reliability_checks
from benchmarks.report import Check, Options, main

SEEDS = (0, 1, 2)
EPISODES = 50


@dataclass(frozen=True)
class Task:
    """A task, its budget in environment steps, and what counts as solved."""

    name: str
    preset: str
    steps: int
    goal: float
    at_least: bool = True
    overrides: dict[str, Any] = field(default_factory=dict)
    needs: str | None = None


TASKS = (
    Task("CartPole-v1", "cartpole", 100_000, 490.0),
    Task("CartPole without velocities, LSTM", "cartpole-memory", 50_000, 450.0),
    Task(
        "CartPole without velocities, MLP",
        "cartpole-memory",
        50_000,
        150.0,
        at_least=False,
        overrides={"model": {"core": {"kind": "none"}}},
    ),
    Task("Pendulum-v1", "pendulum", 100_000, -200.0),
    Task("Acrobot-v1", "acrobot", 200_000, -90.0),
    Task("InvertedPendulum-v5", "inverted-pendulum", 100_000, 950.0, needs="mujoco"),
)


def run(options: Options) -> list[Check]:
    """One check per task."""
    checks: list[Check] = []
    for task in TASKS:
        if options.only and not any(word in f"{task.name} {task.preset}" for word in options.only):
            continue
        if task.needs is not None and importlib.util.find_spec(task.needs) is None:
            checks.append(
                Check(
                    task.name, None, _goal_text(task), False, f"{task.needs} is not installed: pip install '.[bench]'"
                )
            )
            continue
        checks.append(_ours(task, options))
    if not options.only or "defaults" in options.only:
        checks += defaults_checks(options)
    if not options.only or "fresh" in options.only:
        checks += reliability_checks(options)
    if not options.quick and (not options.only or "peers" in options.only):
        checks += _peers(options)
    return checks


def _goal_text(task: Task) -> str:
    return f"{'>=' if task.at_least else '<'} {task.goal:g} at {task.steps:,} steps"


def _ours(task: Task, options: Options) -> Check:
    """Train the preset on every seed and judge the mean over seeds of the mean evaluation return."""
    seeds = SEEDS[:1] if options.quick else SEEDS
    steps = 4_096 if options.quick else task.steps
    episodes = 5 if options.quick else EPISODES
    options.say(f"{task.name}: {len(seeds)} seeds of {steps:,} steps ...")
    outcomes = run_timed([(train, (task, seed, steps), {"episodes": episodes}) for seed in seeds], options)
    scores, seconds = [outcome.result for outcome in outcomes], [outcome.seconds for outcome in outcomes]
    mean = statistics.fmean(scores)
    reached = mean >= task.goal if task.at_least else mean < task.goal
    detail = (
        f"seeds {', '.join(f'{score:.1f}' for score in scores)}; {statistics.fmean(seconds):.0f} CPU-seconds a seed"
        + ("; smoke run: the goal is not judged" if options.quick else "")
    )
    return Check(task.name, mean, _goal_text(task), bool(np.isfinite(mean)) if options.quick else reached, detail)


def train(task: Task, seed: int, steps: int, *, episodes: int) -> float:
    """Mean return of the policy after so many steps of training."""
    from tailwise import PPO
    from tailwise.run.presets import load_source

    config = merged(load_source(task.preset).data, task.overrides)
    config["seed"] = seed
    config.setdefault("run", {})["total_steps"] = steps
    agent = PPO(config["env"]["id"], config)
    agent.learn()
    return agent.evaluate(episodes=episodes).mean


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy of `base` with `changes` laid over it; a section whose kind changes is replaced as a whole."""
    result = dict(base)
    for key, value in changes.items():
        below = result.get(key)
        if (
            isinstance(value, dict)
            and isinstance(below, dict)
            and value.get("kind", below.get("kind")) == below.get("kind")
        ):
            result[key] = merged(below, value)
        else:
            result[key] = value
    return result


# ------------------------------------------------------------------------------------------------ peers


def _peers(options: Options) -> list[Check]:
    if importlib.util.find_spec("stable_baselines3") is None or importlib.util.find_spec("sb3_contrib") is None:
        return [Check("peers", None, "-", True, "stable-baselines3 and sb3-contrib are not installed: not compared")]
    runs: tuple[tuple[str, Callable[[int], float]], ...] = (
        ("stable-baselines3 PPO on CartPole-v1", lambda seed: _sb3_cartpole(seed, 100_000)),
        ("sb3-contrib RecurrentPPO on CartPole without velocities", lambda seed: _sb3_memory(seed, 50_000)),
        ("stable-baselines3 PPO on Pendulum-v1", lambda seed: _sb3_pendulum(seed, 100_000)),
    )
    checks = []
    for name, train in runs:
        options.say(f"{name}: seed 0")
        clock = time.process_time()
        score = train(0)
        seconds = time.process_time() - clock
        checks.append(Check(name, score, "for comparison", True, f"one seed, {seconds:.0f} CPU-seconds"))
    return checks


def _sb3_score(model: Any, env_id: str, hide: tuple[int, ...] = ()) -> float:
    """Mean return of EPISODES deterministic episodes in fresh environments."""
    env = _hidden(env_id, hide)
    returns = []
    for episode in range(EPISODES):
        obs, _ = env.reset(seed=10_000 + episode)
        state, start, total, over = None, np.ones(1, dtype=bool), 0.0, False
        while not over:
            action, state = model.predict(obs, state=state, episode_start=start, deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(action)
            start, total, over = np.zeros(1, dtype=bool), total + float(reward), terminated or truncated
        returns.append(total)
    return statistics.fmean(returns)


def _hidden(env_id: str, hide: tuple[int, ...]) -> Any:
    import gymnasium as gym

    from tailwise.run.make_env import HideEntries

    env = gym.make(env_id)
    return HideEntries(env, hide) if hide else env


def _sb3_cartpole(seed: int, steps: int) -> float:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=seed),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gae_lambda=0.8,
        gamma=0.98,
        learning_rate=lambda left: 1e-3 * left,
        clip_range=lambda left: 0.2 * left,
        seed=seed,
        device="cpu",
    )
    return _sb3_score(model.learn(steps), "CartPole-v1")


def _sb3_pendulum(seed: int, steps: int) -> float:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy",
        make_vec_env("Pendulum-v1", n_envs=4, seed=seed),
        n_steps=1024,
        gae_lambda=0.95,
        gamma=0.9,
        n_epochs=10,
        learning_rate=1e-3,
        use_sde=True,
        sde_sample_freq=4,
        seed=seed,
        device="cpu",
    )
    return _sb3_score(model.learn(steps), "Pendulum-v1")


def _sb3_memory(seed: int, steps: int) -> float:
    import torch
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    torch.set_num_threads(1)
    venv = VecNormalize(DummyVecEnv([lambda: _hidden("CartPole-v1", (1, 3))] * 8), norm_obs=False)
    venv.seed(seed)
    model = RecurrentPPO(
        "MlpLstmPolicy",
        venv,
        n_steps=32,
        batch_size=256,
        n_epochs=10,
        gae_lambda=0.8,
        gamma=0.98,
        learning_rate=lambda left: 1e-3 * left,
        ent_coef=0.0,
        policy_kwargs={"enable_critic_lstm": False, "lstm_hidden_size": 64, "ortho_init": False},
        seed=seed,
        device="cpu",
    )
    return _sb3_score(model.learn(steps), "CartPole-v1", (1, 3))


if __name__ == "__main__":
    main("Learning", run)
