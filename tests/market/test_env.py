"""MarketEnv: the Gymnasium contract, random starts by address, exact save and restore, several symbols, masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tailwise.core.errors import CheckpointError, ConfigError, DataError, EnvironmentContractError
from tailwise.core.streams import Streams
from tailwise.market.costs import NO_COSTS, CostConfig
from tailwise.market.env import ExposureAction, MarketEnv, MarketEnvConfig
from tailwise.market.records import LEDGER
from tailwise.market.simulator import BLOCK
from tailwise.market.tables import SymbolTable
from tailwise.run.envs import EnvDriver
from tests.market.worlds import flat_bars, random_walk, table_of


def two_symbols() -> list[SymbolTable]:
    """Unequal histories; the feature of a row is its number within the symbol, plus 1000 for the second symbol."""
    tables = []
    for symbol, (bars, start) in enumerate(((60, 3), (25, 1))):
        walk = random_walk(bars, seed=symbol)
        features = (1000 * symbol + np.arange(bars, dtype=np.float32))[:, None]
        columns = (walk.open, walk.high, walk.low, walk.close, walk.volume)
        tables.append(table_of(*columns, features=features, first_valid=start, symbol=f"S{symbol}"))
    return tables


def market(num_envs: int = 6, **changes: Any) -> MarketEnv:
    costs = changes.pop("costs", CostConfig())
    seed, first = changes.pop("seed", 0), changes.pop("first_environment", 0)
    config = MarketEnvConfig(**{"episode_length": 5, "stop_loss": 0.03, "report": True, **changes})
    return MarketEnv(two_symbols(), config, costs, num_envs=num_envs, seed=seed, first_environment=first)


def roll(env: MarketEnv, steps: int, seed: int = 0) -> list[Any]:
    """Everything that the environment returned under actions that depend on step and environment id only."""
    result = []
    for number in range(steps):
        actions = np.random.default_rng([seed, number]).integers(0, 3, 64)[: env.num_envs]
        obs, reward, terminated, truncated, infos = env.step(actions)
        final = infos.get("final_obs")
        done = terminated | truncated
        result.append((obs, reward, terminated, truncated, None if final is None else final[done], infos["parts"]))
    return result


def assert_same(left: list[Any], right: list[Any], columns: int | None = None) -> None:
    for a, b in zip(left, right, strict=True):
        for x, y in zip(a[:4], b[:4], strict=True):
            assert np.array_equal(x[:columns], y[:columns])
        for name in LEDGER.names or ():
            assert np.array_equal(a[5][name][:columns], b[5][name][:columns])
        if columns is None and a[4] is not None:
            assert np.array_equal(a[4], b[4])


def test_spaces_metadata_and_names() -> None:
    env = market(costs=CostConfig(latency=2))
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    obs, infos = env.reset(seed=7)
    assert env.observation_space.contains(obs)
    assert env.observation_names == (
        "feature_0",
        "exposure",
        "unrealised_return",
        "bars_held",
        "drawdown",
        "pending_target_0",
        "pending_target_1",
    )
    assert infos == {}
    box = market(action=ExposureAction(low=-1.0, high=2.0))
    assert box.single_action_space.shape == (1,)
    box.reset()
    with pytest.raises(EnvironmentContractError, match="account 1 is NaN"):
        box.step(np.array([[0.0], [np.nan], [0.0], [0.0], [0.0], [0.0]]))


def test_observation_is_what_a_live_agent_knows() -> None:
    """Flat at the start; then exposure, gain since entry, bars held and drawdown by hand."""
    env = MarketEnv([flat_bars([100.0, 100.0, 80.0, 90.0, 90.0])], MarketEnvConfig(start="first"), NO_COSTS, num_envs=2)
    first, _ = env.reset()
    assert first[:, 1:].tolist() == [[0, 0, 0, 0], [0, 0, 0, 0]]
    env.step(np.array([2, 0]))
    env.step(np.array([2, 0]))
    obs, *_ = env.step(np.array([2, 0]))
    # Row 0: long 1000 from 100, price 90. Row 1: short: 1000 at 100; at 80 equity 120k, topped up to 1500 units,
    # average entry (100 x 1000 + 80 x 500) / 1500 = 93.33; at 90: equity 105k, topped down to 1166.7 units.
    assert obs[0, 1:].tolist() == pytest.approx([1.0, -0.1, 3 / 23, 0.1], abs=1e-6)
    assert obs[1, 1:].tolist() == pytest.approx([-1.0, 1 - 90 / (280 / 3), 3 / 23, 1 - 105 / 120], abs=1e-6)


def test_final_obs_is_the_last_and_obs_the_first_of_the_next_episode() -> None:
    """Rejects an autoreset that hands out the new episode's observation as the last one."""
    env = market(4)
    first, _ = env.reset(seed=3)
    started = first[:, 0].copy()
    for _ in range(4):
        _, _, terminated, truncated, infos = env.step(np.full(4, 2))
        assert not (terminated | truncated).any() and "final_obs" not in infos
    obs, _, terminated, truncated, infos = env.step(np.full(4, 2))
    assert truncated.all() and not terminated.any()
    assert infos["final_obs"][:, 0].tolist() == (started + 5).tolist()
    assert (np.abs(infos["final_obs"][:, 1]) > 0.5).any() and (obs[:, 1:] == 0).all()
    assert infos["_final_obs"].all()
    assert infos["final_info"]["equity"].tolist() == infos["parts"]["equity"].tolist()


def test_end_of_data_truncates() -> None:
    env = MarketEnv(two_symbols(), MarketEnvConfig(start="first", symbol="fixed"), num_envs=2)
    env.reset()
    ends = []
    for _ in range(60):
        _, _, _, truncated, infos = env.step(np.array([1, 1]))
        ends.extend((int(row), int(infos["final_obs"][row, 0])) for row in np.flatnonzero(truncated))
    assert ends == [(1, 1024), (1, 1024), (0, 59)]


def test_reset_with_a_seed_repeats_the_episodes() -> None:
    env = market()
    first, _ = env.reset(seed=7)
    path = roll(env, 40)
    again, _ = env.reset(seed=7)
    assert np.array_equal(first, again)
    assert_same(path, roll(env, 40))
    other, _ = env.reset(seed=8)
    assert not np.array_equal(first, other)
    following, _ = env.reset()
    assert not np.array_equal(other, following)


def test_draws_do_not_depend_on_the_number_of_environments() -> None:
    """Rejects one generator shared by all environments: with it, the ninth environment moves the others' starts."""
    small, large = market(4), market(9)
    assert np.array_equal(small.reset(seed=5)[0], large.reset(seed=5)[0][:4])
    assert_same(roll(small, 40), roll(large, 40), columns=4)
    ranked = market(2, first_environment=2)
    assert np.array_equal(ranked.reset(seed=5)[0], large.reset(seed=5)[0][2:4])


def test_a_list_of_seeds_gives_each_environment_its_own_stream() -> None:
    env = market(3)
    obs, _ = env.reset(seed=[4, 9, 4])
    assert np.array_equal(obs[0], obs[2])
    single = market(1)
    assert np.array_equal(single.reset(seed=9)[0][0], obs[1])
    fresh, _ = market(3).reset(seed=5)
    assert np.array_equal(env.reset(seed=5)[0], fresh), "one seed for all puts the addresses back"
    with pytest.raises(ConfigError, match="2 seeds for 3 environments"):
        env.reset(seed=[1, 2])


def test_random_starts_cover_all_symbols_in_proportion() -> None:
    """Symbol 0 can start at bars 3..54, symbol 1 at 1..19 (an episode of 5 must fit): 52 and 19 starts."""
    env = market(4000)
    obs, _ = env.reset(seed=0)
    second = obs[:, 0] >= 1000
    assert second.mean() == pytest.approx(19 / 71, abs=4 * np.sqrt(19 * 52 / 71**2 / 4000))
    assert set(obs[~second, 0].astype(int)) == set(range(3, 55))
    assert set(obs[second, 0].astype(int)) == set(range(1001, 1020))
    fixed = market(6, symbol="fixed").reset(seed=0)[0]
    assert (fixed[:, 0] >= 1000).tolist() == [False, True] * 3


def test_every_episode_has_its_own_start() -> None:
    """Rejects an autoreset that begins the same episode again and again, also beyond one block of prepared starts."""
    env = market(1, episode_length=1)
    obs, _ = env.reset(seed=0)
    starts = [int(obs[0, 0])]
    starts += [int(env.step(np.array([1]))[0][0, 0]) for _ in range(3 * BLOCK)]
    assert len(set(starts)) > 40
    assert starts[:BLOCK] != starts[BLOCK : 2 * BLOCK]
    env.reset(seed=0)
    assert starts[1:6] == [int(env.reset()[0][0, 0]) for _ in range(5)], "reset and autoreset walk the same episodes"


def test_saved_and_restored_environment_continues_bit_for_bit() -> None:
    """Across a block of prepared starts, with latency and stops. Rejects a state without waiting orders or episodes."""
    costs = CostConfig(latency=2)
    env = market(costs=costs, episode_length=2)
    env.reset(seed=11)
    roll(env, 2 * BLOCK - 3)
    state = env.get_state()
    assert all(isinstance(value, np.ndarray) and value.dtype.kind in "if" for value in state.values())
    path = roll(env, 90, seed=1)
    fresh = market(costs=costs, episode_length=2, seed=99)
    fresh.set_state(state)
    assert_same(path, roll(fresh, 90, seed=1))


@pytest.mark.parametrize("name", ["pending", "episode", "entry", "peak", "held"])
def test_forgetting_a_part_of_the_state_is_noticed(name: str) -> None:
    """The comparison above can fail: a state with one part zeroed gives another path."""
    costs = CostConfig(latency=2)
    env = market(costs=costs, seed=1)
    env.reset()
    roll(env, 13)
    state = env.get_state()
    path = roll(env, 60, seed=1)
    state[name] = np.zeros_like(state[name])
    fresh = market(costs=costs)
    fresh.set_state(state)
    with pytest.raises(AssertionError):
        assert_same(path, roll(fresh, 60, seed=1))


def test_a_state_of_another_market_is_refused() -> None:
    env = market(4)
    env.reset()
    state = env.get_state()
    with pytest.raises(CheckpointError, match="as many environments"):
        market(5).set_state(state)
    with pytest.raises(CheckpointError, match="latency"):
        market(4, costs=CostConfig(latency=1)).set_state(state)
    with pytest.raises(CheckpointError, match="same symbols"):
        MarketEnv(two_symbols()[1:], num_envs=4).set_state(state)


def test_chosen_starts_for_playback() -> None:
    env = market(3)
    obs, _ = env.reset(options={"start": [3, 10, 20], "symbol": [0, 0, 1]})
    assert obs[:, 0].tolist() == [3, 10, 1020]
    with pytest.raises(ConfigError, match=r"bar 24 of S1 cannot be a start; choose from 1 .* to 23"):
        env.reset(options={"start": 24, "symbol": 1})
    with pytest.raises(EnvironmentContractError, match="begin"):
        env.reset(options={"begin": 3})


def test_mask_follows_the_account() -> None:
    """A share that costs more than the account cannot be bought; the mask belongs to the next decision."""
    table = flat_bars([90.0, 90.0, 120.0, 90.0])
    costs = NO_COSTS.model_copy(update={"lot_size": 1.0})
    env = MarketEnv([table], MarketEnvConfig(start="first", initial_cash=100.0), costs, num_envs=1)
    _, infos = env.reset()
    assert infos["action_mask"].tolist() == [[1, 1, 1]]
    env.step(np.array([1]))
    assert env.step(np.array([1]))[4]["action_mask"].tolist() == [[0, 1, 0]]


def test_bad_actions_and_missing_data_get_a_sentence() -> None:
    env = market(3)
    with pytest.raises(EnvironmentContractError, match="before reset"):
        env.step(np.zeros(3, dtype=int))
    env.reset()
    with pytest.raises(EnvironmentContractError, match="account 1 is 3"):
        env.step(np.array([0, 3, 0]))
    with pytest.raises(EnvironmentContractError, match="account 2 is -1"):
        env.step(np.array([0, 0, -1]))
    with pytest.raises(EnvironmentContractError, match=r"shape \(2,\)"):
        env.step(np.array([0, 0]))
    with pytest.raises(DataError, match="no symbols"):
        MarketEnv([], num_envs=1)


def test_the_training_driver_resumes_it_exactly() -> None:
    driver = EnvDriver(market(4, report=False), Streams(1), name="environment/train")
    assert driver.exact_resume
    driver.reset()
    for number in range(7):
        driver.step(np.full(4, number % 3))
    state = driver.get_state()
    expected = [driver.step(np.full(4, number % 3)) for number in range(20)]
    other = EnvDriver(market(4, report=False), Streams(1), name="environment/train")
    assert other.set_state(state).exact
    for number, before in enumerate(expected):
        now = other.step(np.full(4, number % 3))
        assert np.array_equal(now.obs, before.obs) and np.array_equal(now.reward, before.reward)
        assert (now.final_obs is None) == (before.final_obs is None)
        if now.final_obs is not None and before.final_obs is not None:
            assert np.array_equal(now.final_obs, before.final_obs)


def test_spread_first_episodes_keep_accounts_of_all_ages_alive() -> None:
    """Rejects environments in step with one another, which all end at once: every rollout would see one age. Whole
    episodes follow the cut first ones, and a part of the environments behaves as it does among all of them."""
    length = 20
    env = market(num_envs=40, episode_length=length, stop_loss=None)
    env.spread_first_episodes()
    together = market(num_envs=40, episode_length=length, stop_loss=None)
    counts = {}
    for name, one in (("spread", env), ("in step", together)):
        one.reset(seed=3)
        counts[name] = [int((step[2] | step[3]).sum()) for step in roll(one, 3 * length)]
    assert counts["in step"].count(0) == 3 * (length - 1)
    assert max(counts["spread"]) <= 3 and counts["spread"][:length] == counts["spread"][length : 2 * length]
    assert sum(counts["spread"]) == sum(counts["in step"])
    part = market(num_envs=4, episode_length=length, stop_loss=None, first_environment=7)
    part.spread_first_episodes()
    env.reset(seed=3)
    part.reset(seed=3)
    assert np.array_equal(part.simulator.state.records["age"], env.simulator.state.records["age"][7:11])
    env.reset()  # the next episodes are whole
    assert not env.simulator.state.records["age"].any()
