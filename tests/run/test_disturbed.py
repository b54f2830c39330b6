"""Which entries of an observation an adversary may move, and what wrong prices do to features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tailwise.core.errors import ConfigError
from tailwise.learner.adversary import EXCESS
from tailwise.model.observation import ObservationSpec
from tailwise.run.agent import PPO
from tailwise.run.config import parse_config
from tailwise.run.disturbed import entries_of
from tailwise.run.worlds import MarketWorld, make_world
from tests.support import SMALL_MODEL, merged

MARKET: dict[str, Any] = {
    "data": {"kind": "synthetic", "market": "jump_diffusion", "seeds": [0, 1], "parameters": {"length": 600}},
    "features": {"include": ["return_1", "volatility_20", "hour_sin"]},
    "env": {"kind": "market", "episode_length": 60},
    "run": {"environments": 4, "rollout_steps": 16, "total_steps": 128},
    "model": merged(SMALL_MODEL, {"actor": {"gain": 1.0}}),
    "learner": {"epochs": 2, "minibatches": 2},
    "risk": {"mode": "report", "alpha": 0.25},
}
PORTFOLIO = {"env": {"action": {"kind": "weights", "low": -1, "high": 1}}}


def world_of(**changes: Any) -> MarketWorld:
    return make_world(parse_config(merged(MARKET, changes), source="test")).market()


def test_flags_and_one_hots_are_left_alone() -> None:
    space = spaces.Dict(
        {"speed": spaces.Box(-1, 1, (2,), np.float32), "gear": spaces.Discrete(3), "lamps": spaces.MultiBinary(1)}
    )
    entries = entries_of(ObservationSpec.from_space(space))
    assert entries.names == ("gear.0", "gear.1", "gear.2", "lamps.0", "speed.0", "speed.1")
    assert entries.open == (False, False, False, False, True, True)


@pytest.mark.parametrize("changes", [{}, PORTFOLIO], ids=["one asset", "portfolio"])
def test_the_account_of_a_market_is_left_alone(changes: dict[str, Any]) -> None:
    world = world_of(**changes)
    driver = world.training()
    entries = world.entries(driver)
    driver.close()
    moved = [name for name, is_open in zip(entries.names, entries.open, strict=True) if is_open]
    assert {name.rpartition(".")[2] for name in moved} == {"return_1", "volatility_20", "hour_sin"}
    assert len(moved) == (6 if changes else 3) and len(entries.names) == driver.spaces.observation.size


def test_what_wrong_prices_do_to_features() -> None:
    """A return over one bar has two prices in it, each off by 10 bps: the 95% quantile of |move| is 20 bps. The hour of
    the day and the account have none. Rejects moves in scaled units, prices of all bars off together (a return would
    not move), and one bar's error that is forgotten."""
    world = world_of(features={"standardise": False})
    moves = dict(zip(world.dataset.spec.names, world.moves_of_prices(10.0), strict=False))
    assert moves["return_1"] == pytest.approx(20e-4, rel=0.02)
    assert moves["hour_sin"] == 0.0 and moves["volatility_20"] > 0.0
    assert world.moves_of_prices(10.0)[3:] == [0.0] * 4
    twice = dict(zip(world.dataset.spec.names, world.moves_of_prices(20.0), strict=False))
    assert twice["return_1"] == pytest.approx(2 * moves["return_1"], rel=0.02)
    both = world_of(**merged(PORTFOLIO, {"features": {"standardise": False}})).moves_of_prices(10.0)
    assert both[:3] == both[3:6] and not any(both[6:])


@pytest.mark.parametrize("action", ["positions", "exposure", "weights"])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_market_trains_against_prices_that_are_off(core: str, action: str) -> None:
    """H7 on the market, with its masks and portfolio weights."""
    kinds = {"positions": {"kind": "positions", "positions": [-1, 0, 1]}, "exposure": {"kind": "exposure"}}
    section = kinds.get(action, PORTFOLIO["env"]["action"])
    learner = {"adversary": {"kind": "sa_ppo", "weight": 1.0, "ramp": 0.0, "budget": {"kind": "bps", "size": 10.0}}}
    changes = {"env": {"action": section}, "learner": learner, "model": {"core": {"kind": core}}}
    agent = PPO(config=parse_config(merged(MARKET, changes), source="test"))
    agent.learn()
    assert len(agent.history) == 2
    for row in agent.history:
        assert row["update/committed"] == 1.0 and row["policy/adversary_kl"] > 0.0
        assert row["adversary/epsilon"] > 0.0 and row["adversary/excess"] <= EXCESS


def test_basis_points_need_prices() -> None:
    with pytest.raises(ConfigError, match="CartPole-v1 is not a market; use kind std"):
        PPO("CartPole-v1", {"learner": {"adversary": {"kind": "sa_ppo", "budget": {"kind": "bps"}}}})
