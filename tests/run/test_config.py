"""What the kinds of environments say of themselves, in configurations and as worlds."""

from __future__ import annotations

import pytest

from tailwise.core.errors import ConfigError, DataError
from tailwise.run.config import parse_config
from tailwise.run.worlds import GymWorld, MarketWorld, make_world

GYM = parse_config({"env": {"id": "CartPole-v1"}}, source="test")
MARKET = parse_config(
    {
        "data": {"kind": "synthetic", "market": "ar1", "seeds": [3], "parameters": {"length": 900}},
        "features": {"include": ["return_1"]},
        "env": {"kind": "market", "episode_length": 64},
    },
    source="test",
)


def test_words_for_steps_and_rewards() -> None:
    """A tail of a market is told in percent; elsewhere nobody knows what a reward is worth."""
    gym, market = GYM.env.words, MARKET.env.words
    assert (gym.step, gym.reward, market.step, market.reward) == ("step", "reward", "bar", "log-return")
    assert (gym.amount(-0.0123), market.amount(-0.0123)) == ("-0.0123 reward", "-1.23%")
    assert (gym.difference(0.0123), market.difference(0.0123)) == ("0.012 reward", "1.2 percentage points")


def test_who_builds_the_environment() -> None:
    passed = parse_config({}, source="test")
    assert (GYM.env.gym_id, GYM.env.from_python) == ("CartPole-v1", False)
    assert (passed.env.gym_id, passed.env.from_python) == (None, True)
    assert (MARKET.env.gym_id, MARKET.env.from_python) == (None, False)
    assert GYM.env.market is None and MARKET.env.market is MARKET.env


def test_chance_decides_on_a_market_and_windows_are_played_whole() -> None:
    assert (GYM.env.noisy, GYM.env.judged_whole) == (False, False)
    assert (MARKET.env.noisy, MARKET.env.judged_whole) == (True, True)


def test_a_gymnasium_world_has_no_bars() -> None:
    world = make_world(GYM)
    assert isinstance(world, GymWorld)
    assert world.describe() == [] and world.label() == ""
    assert world.data_hash() is None and world.frequency() is None and world.leak_verdict() is None
    world.check_same_bars({"data": {"train": "of another run"}}, run="run")
    world.check_tail(10**9)
    with pytest.raises(ConfigError, match=r"CartPole-v1 is not a market \(env\.kind is gym\); use evaluate"):
        world.market()


def test_a_market_world_knows_its_bars() -> None:
    world = make_world(MARKET)
    assert isinstance(world, MarketWorld) and world.market() is world
    assert world.data_hash() == world.dataset.data_hash() and world.label() == world.dataset.label
    assert world.frequency() == world.dataset.bars[0].frequency
    assert world.describe() == world.dataset.describe()
    table = world.dataset.tables("test")[0]
    longest = len(table.close) - 1 - table.first_valid
    world.check_tail(longest)
    with pytest.raises(DataError, match=f"the test window has {longest} bars, .* looks {longest + 1} bars ahead"):
        world.check_tail(longest + 1)
