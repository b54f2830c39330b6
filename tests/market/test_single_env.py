"""tailwise/Market-v0: Gymnasium's own check, equality with the vector environment, training with another library."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from tailwise.core.errors import ConfigError, EnvironmentContractError
from tailwise.market.costs import NO_COSTS, CostConfig
from tailwise.market.env import (
    ENV_ID,
    ExposureAction,
    MarketEnv,
    MarketEnvConfig,
    PositionsAction,
    SingleMarketEnv,
    WeightsAction,
    register_market,
)
from tailwise.market.env_config import GuardsConfig
from tests.market.portfolio_worlds import asset_of
from tests.market.worlds import flat_bars, random_walk

ACTIONS = [PositionsAction(), ExposureAction(low=-1.0, high=2.0)]


@pytest.mark.parametrize("action", ACTIONS, ids=["positions", "exposure"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_passes_the_check_of_gymnasium(action: PositionsAction | ExposureAction) -> None:
    register_market()
    before = gym.registry[ENV_ID]
    register_market()
    assert gym.registry[ENV_ID] is before
    config = MarketEnvConfig(action=action, episode_length=50)
    env = gym.make(ENV_ID, symbols=[random_walk(80, seed=1)], config=config, costs=CostConfig(lot_size=1.0))
    check_env(env.unwrapped, skip_render_check=True)


def test_without_bars_there_is_no_market() -> None:
    """Nothing is silently replaced by a synthetic market."""
    register_market()
    with pytest.raises(ConfigError, match="needs bars"):
        gym.make(ENV_ID)


def test_equals_one_account_of_the_vector_environment() -> None:
    register_market()
    tables = [random_walk(40, seed=1), random_walk(30, seed=2)]
    config = MarketEnvConfig(episode_length=12, stop_loss=0.02)
    single = gym.make(ENV_ID, symbols=tables, config=config, disable_env_checker=True)
    vector = MarketEnv(tables, config, num_envs=1)
    obs, _ = single.reset(seed=3)
    assert np.array_equal(obs, vector.reset(seed=3)[0][0])
    rng = np.random.default_rng(0)
    for _ in range(40):
        action = int(rng.integers(3))
        obs, reward, terminated, truncated, info = single.step(action)
        obs_v, reward_v, terminated_v, truncated_v, infos = vector.step(np.array([action]))
        assert (reward, terminated, truncated) == (reward_v[0], terminated_v[0], truncated_v[0])
        assert info["equity"] > 0
        if terminated or truncated:
            assert np.array_equal(obs, infos["final_obs"][0])
            obs, _ = single.reset()
        assert np.array_equal(obs, obs_v[0])


def test_step_after_the_end_is_refused_and_state_is_restored() -> None:
    register_market()
    env = gym.make(
        ENV_ID,
        symbols=[random_walk(40, seed=1)],
        config=MarketEnvConfig(episode_length=3),
        disable_env_checker=True,
    ).unwrapped
    env.reset(seed=1)
    env.step(2)
    state = env.get_state()  # type: ignore[attr-defined]
    path = [env.step(0)[:2] for _ in range(2)]
    with pytest.raises(EnvironmentContractError, match="call reset"):
        env.step(0)
    env.set_state(state)  # type: ignore[attr-defined]
    for obs, reward in path:
        again = env.step(0)
        assert np.array_equal(again[0], obs) and again[1] == reward


def test_a_ruined_account_still_has_a_mask() -> None:
    """Rejects a mask that divides by an equity of nothing."""
    register_market()
    env = gym.make(
        ENV_ID,
        symbols=[flat_bars([100.0, 100.0, 60.0, 60.0])],
        config=MarketEnvConfig(start="first", action=PositionsAction(positions=(0.0, 2.5))),
        costs=NO_COSTS.model_copy(update={"lot_size": 1.0}),
        disable_env_checker=True,
    )
    env.reset()
    env.step(1)
    _, reward, terminated, _, info = env.step(1)
    assert terminated and info["equity"] == 0.0 and reward == pytest.approx(np.log(0.01))
    assert info["action_mask"].tolist() == [1, 1]


def test_trains_with_stable_baselines3() -> None:
    """Another library drives it: 256 steps of its PPO change the weights and leave them finite."""
    sb3 = pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    import torch

    torch.set_num_threads(1)
    register_market()
    env = gym.make(
        ENV_ID, symbols=[random_walk(200, seed=4)], config=MarketEnvConfig(episode_length=32), disable_env_checker=True
    )
    model = sb3.PPO("MlpPolicy", env, n_steps=64, batch_size=32, n_epochs=2, seed=0, device="cpu")
    before = [parameter.detach().clone() for parameter in model.policy.parameters()]
    model.learn(256)
    after = list(model.policy.parameters())
    assert model.num_timesteps == 256
    assert all(bool(torch.isfinite(parameter).all()) for parameter in after)
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
    obs, _ = env.reset(seed=1)
    action, _ = model.predict(obs, deterministic=True)
    assert env.action_space.contains(int(action))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_account_with_several_assets_is_an_ordinary_environment_too() -> None:
    """It passes Gymnasium's check and takes the path of the vector environment, with a number or [A] of each entry."""
    assets = [asset_of(random_walk(60, seed), f"S{seed}") for seed in range(2)]
    config = MarketEnvConfig(action=WeightsAction(), guards=GuardsConfig(max_exposure=0.8))
    single = SingleMarketEnv(assets, config)
    check_env(single, skip_render_check=True)
    vector = MarketEnv(assets, config.model_copy(update={"report": True}), num_envs=1)
    obs, info = single.reset(seed=3)
    expected, infos = vector.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(10):
        assert np.array_equal(obs, expected[0]) and np.array_equal(info["action_mask"], infos["action_mask"][0])
        weights = rng.uniform(-1, 1, 2).astype(np.float32)
        obs, reward, _, _, info = single.step(weights)
        expected, rewards, _, _, infos = vector.step(weights[None])
        assert reward == rewards[0] and info["equity"] == infos["parts"]["equity"][0]
        assert np.array_equal(info["units"], infos["parts"]["units"][0])
