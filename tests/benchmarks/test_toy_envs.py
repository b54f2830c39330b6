"""Toy environments: their contracts and the optima that their docstrings claim."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from scipy.stats import norm

from benchmarks.toy_envs import (
    DICT_REACH,
    LOTTERY,
    MASKED_BANDIT,
    MULTI_BANDIT,
    RECALL_MASKED,
    REWARD_PROCESS,
    DictReach,
    MaskedBandit,
    RewardProcessParams,
    return_cvar_monte_carlo,
)
from tailwise.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
IDS = (DICT_REACH, LOTTERY, MASKED_BANDIT, MULTI_BANDIT, RECALL_MASKED, REWARD_PROCESS)


@pytest.mark.parametrize("identifier", IDS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_registered_and_valid_for_gymnasium(identifier: str) -> None:
    check_env(gym.make(identifier).unwrapped, skip_render_check=True)


def test_the_product_registers_no_toys_and_an_id_brings_them_along() -> None:
    """In a process of its own, in which nobody has imported this module before."""
    code = (
        "import gymnasium, sys, tailwise, tailwise.run.make_env; toys = lambda: 'benchmarks.toy_envs' in sys.modules; "
        f"before = toys(); gymnasium.make({LOTTERY!r}); print(before, toys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout.split() == ["False", "True"], done.stderr


def episodes(identifier: str, choose: Any, count: int) -> list[float]:
    env = gym.make(identifier, disable_env_checker=True)
    returns = []
    for episode in range(count):
        obs, info = env.reset(seed=episode)
        total, done, memory = 0.0, False, None
        while not done:
            action, memory = choose(obs, info, memory)
            obs, reward, terminated, truncated, info = env.step(action)
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


def test_masked_bandit_optimum_and_penalty() -> None:
    def best(context: int, info: dict[str, Any], memory: Any) -> tuple[int, Any]:
        ranking = [(context + rank) % 5 for rank in range(5)]
        return next(action for action in ranking if info["action_mask"][action]), None

    returns = episodes(MASKED_BANDIT, best, 600)
    assert MaskedBandit.optimal_return == pytest.approx(7.9032, abs=1e-4)
    assert np.mean(returns) == pytest.approx(MaskedBandit.optimal_return, abs=4 * np.std(returns) / math.sqrt(600))
    env = MaskedBandit()
    _, info = env.reset(seed=0)
    forbidden = int(np.argmin(info["action_mask"]))
    assert info["action_mask"][forbidden] == 0
    _, reward, _, _, info = env.step(forbidden)
    assert reward == -1.0 and info["invalid_action"] is True


def test_recall_needs_memory() -> None:
    def remember(obs: Any, info: dict[str, Any], cue: Any) -> tuple[int, Any]:
        cue = int(np.argmax(obs[:3])) if cue is None else cue
        assert info["action_mask"].sum() == (2 if obs[3] else 1)
        return (cue + 1 if obs[3] else 0), cue

    def forget(obs: Any, info: dict[str, Any], memory: Any) -> tuple[int, Any]:
        return int(np.argmax(info["action_mask"])), None

    assert episodes(RECALL_MASKED, remember, 50) == [1.0] * 50
    assert np.mean(episodes(RECALL_MASKED, forget, 800)) == pytest.approx(0.5, abs=0.08)


def test_multi_bandit_optimum() -> None:
    def best(context: int, info: dict[str, Any], memory: Any) -> tuple[Any, Any]:
        return np.array([context % 3, 3 - context]), None

    assert episodes(MULTI_BANDIT, best, 20) == [8.0] * 20


def test_dict_reach_optimum_is_reached_by_full_speed_and_not_exceeded_by_chance() -> None:
    env = DictReach()
    generator = np.random.default_rng(0)
    for episode in range(10):
        obs, _ = env.reset(seed=episode)
        best = DictReach.optimal_return(obs["position"], obs["goal"])
        total, random_total, done = 0.0, 0.0, False
        while not done:
            gap = DictReach.goals[obs["goal"]] - obs["position"]
            obs, reward, _, done, _ = env.step(np.clip(gap / 0.2, -1, 1).astype(np.float32))
            total += reward
        assert total == pytest.approx(best, abs=1e-4)
        env.reset(seed=episode)
        for _ in range(20):
            random_total += env.step(generator.uniform(-1, 1, 2).astype(np.float32))[1]
        assert random_total < best - 1


def test_lottery_law() -> None:
    played = episodes(LOTTERY, lambda obs, info, memory: (1, None), 4000)
    assert set(played) == {1.0, -5.0}
    assert np.mean(np.array(played) == -5.0) == pytest.approx(0.1, abs=0.02)
    assert set(episodes(LOTTERY, lambda obs, info, memory: (0, None), 10)) == {0.3}


def test_return_cvar_of_one_state_equals_the_closed_form() -> None:
    """Discounted sum of normals: N(m / (1 - g), s^2 / (1 - g^2)). Rejects: CVaR of one reward times 1 / (1 - g)."""
    mean, sd, gamma, alpha = 0.1, 0.5, 0.95, 0.05
    params = RewardProcessParams.build([mean], [sd])
    tail = norm.pdf(norm.ppf(alpha)) / alpha
    truth = mean / (1 - gamma) - sd / math.sqrt(1 - gamma**2) * tail
    estimate = return_cvar_monte_carlo(params, gamma, alpha, seed=0, n=40_000)
    assert estimate.shape == (1,) and estimate[0] == pytest.approx(truth, rel=0.03)
    wrong = (mean - sd * tail) / (1 - gamma)
    assert abs(wrong / truth - 1) > 1


def test_return_cvar_with_termination_and_several_states_by_hand() -> None:
    """State 0 pays 1 and moves to 1; state 1 pays N(0, 2) and terminates: CVaR(1) = -2 c, CVaR(0) = 1 + g CVaR(1)."""
    params = RewardProcessParams.build([1.0, 0.0], [0.0, 2.0], [[0.0, 1.0], [1.0, 0.0]], [0.0, 1.0])
    tail = norm.pdf(norm.ppf(0.05)) / 0.05
    estimate = return_cvar_monte_carlo(params, 0.9, 0.05, seed=1, n=100_000)
    np.testing.assert_allclose(estimate, [1 - 0.9 * 2 * tail, -2 * tail], rtol=0.02)


def test_reward_process_environment_follows_its_parameters() -> None:
    env = gym.make(
        REWARD_PROCESS,
        means=[1.0, -2.0],
        sds=[0.0, 0.0],
        transition=[[0.0, 1.0], [1.0, 0.0]],
        terminal=[0.0, 0.25],
        disable_env_checker=True,
    )
    ends, visits = 0, 0
    for seed in range(300):
        state, _ = env.reset(seed=seed)
        done = False
        while not done:
            following, reward, terminated, truncated, _ = env.step(0)
            assert reward == [1.0, -2.0][state]
            visits, ends = visits + (state == 1), ends + terminated
            assert following == (2 if terminated else 1 - state) and not truncated
            state, done = following, terminated
    assert ends / visits == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"means": [0.0, 1.0], "sds": [1.0]}, "one entry per state"),
        ({"transition": [[0.5]]}, "transition row 0"),
        ({"sds": [-1.0]}, "sds"),
        ({"terminal": [1.5]}, "terminal"),
    ],
)
def test_impossible_reward_processes_are_sentences(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RewardProcessParams.build(**kwargs)
