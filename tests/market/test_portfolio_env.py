"""MarketEnv: the Gymnasium contract, exact save and restore, hostile actions, names of the observation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tailwise.core.errors import CheckpointError, ConfigError, EnvironmentContractError
from tailwise.core.streams import Streams
from tailwise.market.costs import NO_COSTS, CostConfig
from tailwise.market.env import MarketEnv
from tailwise.market.env_config import WeightsAction
from tailwise.market.simulator import BLOCK
from tailwise.run.envs import EnvDriver
from tests.market.portfolio_worlds import asset_of, weights_config
from tests.market.test_portfolio_laws import three_assets
from tests.market.worlds import flat_bars, random_walk


def portfolio(num_envs: int = 5, *, seed: int = 0, first: int = 0, latency: int = 2, **changes: Any) -> MarketEnv:
    action = WeightsAction(low=(-1.0, -0.5, 0.0), high=1.0, gross=1.5)
    config = weights_config(action, **{"start": "random", "episode_length": 5, "stop_loss": 0.03, **changes})
    return MarketEnv(
        three_assets(), config, CostConfig(latency=latency), num_envs=num_envs, seed=seed, first_environment=first
    )


def roll(env: MarketEnv, steps: int, seed: int = 0) -> list[Any]:
    """Everything that the environment returned, under actions that depend on step and environment only."""
    result = []
    for number in range(steps):
        actions = np.random.default_rng([seed, number]).uniform(-1, 1, (64, 3)).astype(np.float32)[: env.num_envs]
        result.append(env.step(actions))
    return result


def assert_same(left: list[Any], right: list[Any], rows: int | None = None) -> None:
    for a, b in zip(left, right, strict=True):
        for x, y in zip(a[:4], b[:4], strict=True):
            assert np.array_equal(x[:rows], y[:rows])
        for name, values in a[4]["parts"].items():
            assert np.array_equal(values[:rows], b[4]["parts"][name][:rows])
        assert np.array_equal(a[4]["action_mask"][:rows], b[4]["action_mask"][:rows])
        ended = (a[2] | a[3])[:rows]
        if ended.any():
            assert np.array_equal(a[4]["final_obs"][:rows][ended], b[4]["final_obs"][:rows][ended])


def test_spaces_metadata_and_names() -> None:
    env = portfolio(latency=1)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert env.single_action_space.shape == (3,) and env.action_space.shape == (5, 3)
    assert env.single_action_space.low.tolist() == [-1.0, -0.5, 0.0]  # type: ignore[attr-defined]
    obs, infos = env.reset(seed=7)
    assert env.observation_space.contains(obs)
    assert infos["action_mask"].shape == (5, 3, 2) and infos["action_mask"].dtype == np.float32
    names = env.observation_names
    assert len(names) == obs.shape[1] == 3 * 2 + 3 * 5 + 3 + 3
    assert names[:2] == ("S0.feature_0", "S0.feature_1")
    assert names[6:11] == ("S0.exposure", "S0.unrealised_return", "S0.bars_held", "S0.available", "S0.fresh")
    assert names[21:] == (
        "gross",
        "cash_share",
        "drawdown",
        "S0.pending_weight_0",
        "S1.pending_weight_0",
        "S2.pending_weight_0",
    )


def test_observation_by_hand() -> None:
    """Equity 100, long 60 of A and short 30 of B at 10; A rises to 12 and B to 11: 72 - 33 + 70 = 109.

    The exposures are then 0.66 and -0.30, near enough to the weights for no further order."""
    a, b = flat_bars([10.0, 10.0, 12.0, 12.0]), flat_bars([10.0, 10.0, 11.0, 11.0])
    config = weights_config(initial_cash=100.0, tolerance=0.2)
    env = MarketEnv([asset_of(a, "A"), asset_of(b, "B")], config, NO_COSTS, num_envs=1)
    first, _ = env.reset()
    assert first[0, 2:].tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1, 0]
    env.step(np.array([[0.6, -0.3]]))
    obs, reward, *_ = env.step(np.array([[0.6, -0.3]]))
    assert reward[0] == pytest.approx(np.log(1.09))
    held = 2 / 22
    assert obs[0, 2:].tolist() == pytest.approx(
        [72 / 109, 0.2, held, 1, 1, -33 / 109, -0.1, held, 1, 1, 105 / 109, 70 / 109, 0], abs=1e-6
    )


def test_final_obs_is_the_last_and_obs_the_first_of_the_next_episode() -> None:
    """Rejects an autoreset that hands out the new episode's observation as the last one."""
    env = portfolio(4, latency=0, stop_loss=None)
    env.reset(seed=3)
    names = env.observation_names
    entries = [names.index(f"S{a}.exposure") for a in range(3)] + [names.index("drawdown")]
    weights = np.tile([0.5, 0.5, 0.5], (4, 1))
    for _ in range(4):
        _, _, terminated, truncated, infos = env.step(weights)
        assert not (terminated | truncated).any() and "final_obs" not in infos
    obs, _, terminated, truncated, infos = env.step(weights)
    assert truncated.all() and not terminated.any() and infos["_final_obs"].all()
    assert (np.abs(infos["final_obs"][:, entries[:3]]).sum(axis=1) > 0.3).all()
    assert (obs[:, entries] == 0).all()
    assert infos["final_info"]["equity"].tolist() == infos["parts"]["equity"].tolist()


def test_end_of_data_truncates() -> None:
    env = portfolio(1, episode_length=None, start="first")
    env.reset()
    path = roll(env, 79)
    assert [bool(step[3][0]) for step in path] == [False] * 78 + [True]


def test_seeds_repeat_and_do_not_depend_on_the_number_of_environments() -> None:
    env, larger = portfolio(4), portfolio(9)
    first, _ = env.reset(seed=7)
    path = roll(env, 40)
    assert np.array_equal(first, env.reset(seed=7)[0])
    assert_same(path, roll(env, 40))
    assert np.array_equal(first, larger.reset(seed=7)[0][:4])
    assert_same(path, roll(larger, 40), rows=4)
    assert not np.array_equal(first, env.reset(seed=8)[0])
    ranked = portfolio(2, first=2)
    assert np.array_equal(ranked.reset(seed=7)[0], first[2:4])
    obs, _ = portfolio(3).reset(seed=[4, 9, 4])
    assert np.array_equal(obs[0], obs[2])
    with pytest.raises(ConfigError, match="2 seeds for 4 environments"):
        env.reset(seed=[1, 2])


def test_saved_and_restored_environment_continues_bit_for_bit() -> None:
    """Across a block of prepared starts, with latency and stops. Rejects a state without waiting weights."""
    env = portfolio(episode_length=2)
    env.reset(seed=11)
    roll(env, 2 * BLOCK - 3)
    state = env.get_state()
    assert all(isinstance(value, np.ndarray) and value.dtype.kind in "if" for value in state.values())
    path = roll(env, 90, seed=1)
    fresh = portfolio(episode_length=2, seed=99)
    fresh.set_state(state)
    assert_same(path, roll(fresh, 90, seed=1))


@pytest.mark.parametrize("name", ["pending", "episode", "entry", "peak", "held", "mark", "units", "cash"])
def test_forgetting_a_part_of_the_state_is_noticed(name: str) -> None:
    """The comparison above can fail: a state with one part zeroed gives another path."""
    env = portfolio(seed=1, episode_length=20)
    env.reset()
    roll(env, 33)
    state = env.get_state()
    path = roll(env, 60, seed=1)
    state[name] = np.zeros_like(state[name])
    fresh = portfolio(episode_length=20)
    fresh.set_state(state)
    with pytest.raises(AssertionError):
        assert_same(path, roll(fresh, 60, seed=1))


def test_a_state_of_another_market_is_refused() -> None:
    env = portfolio(4)
    env.reset()
    state = env.get_state()
    with pytest.raises(CheckpointError, match="as many environments"):
        portfolio(5).set_state(state)
    with pytest.raises(CheckpointError, match="'units': found nothing"):
        portfolio(4).set_state({name: values for name, values in state.items() if name != "units"})
    with pytest.raises(CheckpointError, match="latency"):
        portfolio(4, latency=1).set_state(state)
    with pytest.raises(CheckpointError, match="same symbols"):
        MarketEnv(three_assets(40), env.simulator.config, CostConfig(latency=2), num_envs=4).set_state(state)


def test_equal_histories_need_no_mask_and_the_training_driver_resumes_exactly() -> None:
    assets = [asset_of(random_walk(60, seed), f"S{seed}") for seed in range(2)]

    def driver() -> EnvDriver:
        config = weights_config(WeightsAction(), start="random", episode_length=7, report=False)
        return EnvDriver(MarketEnv(assets, config, num_envs=3), Streams(1), name="environment/train")

    first, second = driver(), driver()
    assert first.exact_resume
    obs, mask = first.reset()
    assert obs.shape == (3, 2 * 2 + 2 * 5 + 3) and mask is None
    actions = np.random.default_rng(0).uniform(-1, 1, (30, 3, 2)).astype(np.float32)
    for action in actions[:10]:
        first.step(action)
    state = first.get_state()
    expected = [first.step(action) for action in actions[10:]]
    assert second.set_state(state).exact
    for before, action in zip(expected, actions[10:], strict=True):
        now = second.step(action)
        assert np.array_equal(now.obs, before.obs) and np.array_equal(now.reward, before.reward)


def test_hostile_actions_get_a_sentence() -> None:
    env = portfolio(2)
    good = np.zeros((2, 3))
    with pytest.raises(EnvironmentContractError, match="before reset"):
        env.step(good)
    env.reset()
    for value, told in ((np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")):
        bad = good.copy()
        bad[1, 2] = value
        with pytest.raises(EnvironmentContractError, match=f"account 1 for S2 is {told}; weights must be finite"):
            env.step(bad)
    for shape in ((2,), (3, 2), (2, 3, 1), (6,)):
        with pytest.raises(EnvironmentContractError, match=r"expected numbers of shape \(2, 3\)"):
            env.step(np.zeros(shape))
    with pytest.raises(EnvironmentContractError, match="expected numbers"):
        env.step(np.array([["a", "b", "c"]] * 2))
    obs, reward, *_ = env.step(np.full((2, 3), 1e300))  # absurd but finite: clipped
    assert np.isfinite(obs).all() and np.isfinite(reward).all()


def test_impossible_settings_get_a_sentence() -> None:
    assets = three_assets()
    with pytest.raises(ConfigError, match="low has 2 entries and the account has 3 assets"):
        MarketEnv(assets, weights_config(WeightsAction(low=(-1.0, 0.0))))
    with pytest.raises(ConfigError, match="exposure of 5"):
        MarketEnv(assets, weights_config(WeightsAction(gross=5.0)))
    for low, high in (
        (0.5, 1.0),
        (-1.0, -0.5),
        (0.0, 0.0),
        (float("nan"), 1.0),
        ((-1.0, 0.0), (1.0, 1.0, 1.0)),
        ((), 1.0),
    ):
        with pytest.raises(ValueError, match=r"low"):
            WeightsAction(low=low, high=high)
