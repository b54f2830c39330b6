"""What may be chosen next: per-step [low, high] of `exposure`, the mask of `positions`, and the clip to both."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from tailwise.market.costs import NO_COSTS, CostConfig
from tailwise.market.env import ENV_ID, ExposureAction, MarketEnv, MarketEnvConfig, PositionsAction, register_market
from tailwise.market.env_config import GuardsConfig
from tailwise.market.records import LIQUIDATION
from tests.market.test_guards import timed
from tests.market.worlds import flat_bars, random_walk, table_of

BOX = ExposureAction(low=-1.0, high=2.0)
FIVE = PositionsAction(positions=(-1.0, -0.5, 0.0, 0.5, 1.0))


def one(table: Any, costs: CostConfig = NO_COSTS, **changes: Any) -> MarketEnv:
    config = MarketEnvConfig(**{"start": "first", "tolerance": 0.0, "report": True, **changes})
    return MarketEnv([table], config, costs, num_envs=1)


def bounds(infos: dict[str, Any]) -> list[float]:
    mask = infos["action_mask"]
    assert mask.dtype == np.float32 and mask.shape == (1, 2)
    return [float(mask[0, 0]), float(mask[0, 1])]


def test_there_are_bounds_only_where_something_can_narrow_them() -> None:
    table = random_walk(20, seed=1)
    assert "action_mask" not in one(table, CostConfig(), action=BOX).reset()[1]
    assert "action_mask" in one(table, CostConfig(lot_size=1.0), action=BOX).reset()[1]
    assert "action_mask" in one(table, action=BOX, guards=GuardsConfig(max_exposure=1.0)).reset()[1]
    levered = ExposureAction(low=-3.0, high=3.0)
    assert "action_mask" in one(table, CostConfig(), action=levered).reset()[1]
    assert "action_mask" not in one(table, CostConfig(impact_bps=0.0), action=levered).reset()[1]
    assert "action_mask" not in one(table, CostConfig(latency=1, lot_size=1.0), action=BOX).reset()[1]


def test_bounds_of_guards_follow_the_account() -> None:
    """Flat at 100: +-0.4 around 0; then around 0.4, cut at 0.6; halted at 80: only down."""
    table = flat_bars([100.0, 100.0, 100.0, 80.0, 80.0])
    guards = GuardsConfig(max_exposure=0.6, order_fraction=0.4, drawdown=0.1)
    env = one(table, action=BOX, guards=guards)
    assert bounds(env.reset()[1]) == pytest.approx([-0.4, 0.4])
    assert bounds(env.step(np.array([[2.0]]))[4]) == pytest.approx([0.0, 0.6])
    infos = env.step(np.array([[2.0]]))[4]
    assert infos["parts"]["units"][0] == pytest.approx(600.0)
    assert bounds(infos) == pytest.approx([0.2, 0.6])
    obs, _, _, _, infos = env.step(np.array([[2.0]]))
    exposure = 600 * 80 / 88_000
    assert obs[0, -1] == 1.0
    assert bounds(infos) == pytest.approx([exposure - 0.4, exposure])


def test_an_action_inside_the_bounds_passes_unchanged() -> None:
    """The bounds say what the guards would let through: no guard acts on an action between them, on quiet bars."""
    table = timed(random_walk(300, seed=3, gap=0.0, inside=0.004), 6 * np.arange(300))
    guards = GuardsConfig(max_exposure=1.1, order_fraction=0.5, daily_turnover=1.3, daily_loss=0.02, drawdown=0.1)
    config = MarketEnvConfig(action=BOX, guards=guards, report=True, episode_length=50)
    env = MarketEnv([table], config, NO_COSTS, num_envs=64)
    _, infos = env.reset(seed=1)
    rng = np.random.default_rng(0)
    changed = outside = 0
    for _ in range(120):
        low, high = infos["action_mask"].T.astype(np.float64)
        assert (low <= high).all()
        shrink = 1e-3 * (high - low)  # gaps are zero, so only rounding lies between close and open
        level = rng.random(64)
        inner = (low + shrink + level * (high - low - 2 * shrink)).astype(np.float32)
        *_, infos = env.step(inner[:, None])
        changed += int((infos["parts"]["guard"] != 0).sum())
        low, high = infos["action_mask"].T
        *_, infos = env.step(np.where(rng.random(64) < 0.5, high + 0.3, low - 0.3)[:, None])
        outside += int((infos["parts"]["guard"] != 0).sum())
    assert outside > 0.5 * 120 * 64, "the same check fails outside the bounds"
    assert changed < 0.01 * 120 * 64


def test_margin_narrows_what_could_not_be_held_after_impact() -> None:
    """Volume of 1000 units: an order of 3 x equity pays 500 bps x sqrt(3) impact on 3 x, a quarter of the equity, and
    is liquidated at once without the bounds."""
    prices = np.full(4, 100.0)
    table = table_of(prices, prices, prices, prices, np.full(4, 1000.0))
    costs = NO_COSTS.model_copy(update={"impact_bps": 500.0})
    env = one(table, costs, action=ExposureAction(low=-3.0, high=3.0), maintenance_margin=0.3)
    low, high = bounds(env.reset()[1])
    # Exposure x is held while 1 - 0.05 x sqrt(x) > 0.3 x.
    assert 1 - 0.05 * high**1.5 == pytest.approx(0.3 * high, abs=1e-6)
    assert low == pytest.approx(-high) and 2.0 < high < 2.9
    *_, infos = env.step(np.array([[3.0]]))
    assert infos["parts"]["order_units"][0] == pytest.approx(1000 * high, rel=1e-6)
    env.reset()
    step = env.simulator.step(np.array([3.0]), autoreset=True)  # past the bounds
    assert step.ledger is not None and step.ledger["event"][0] == LIQUIDATION


def test_less_than_a_lot_is_nothing() -> None:
    costs = NO_COSTS.model_copy(update={"lot_size": 1.0})
    env = one(flat_bars([90.0, 120.0, 120.0]), costs, action=ExposureAction(), initial_cash=100.0)
    assert bounds(env.reset()[1]) == [-1.0, 1.0]
    assert bounds(env.step(np.array([[0.0]]))[4]) == [0.0, 0.0]


def test_mask_of_positions_under_guards() -> None:
    """Only what passes unchanged, and always the target that means "hold"."""
    table = flat_bars([100.0, 100.0, 100.0, 80.0, 80.0])
    env = one(table, action=FIVE, guards=GuardsConfig(order_fraction=0.5, drawdown=0.1))
    assert env.reset()[1]["action_mask"].tolist() == [[0, 1, 1, 1, 0]]
    assert env.step(np.array([3]))[4]["action_mask"].tolist() == [[0, 0, 1, 1, 1]]
    assert env.step(np.array([4]))[4]["action_mask"].tolist() == [[0, 0, 0, 1, 1]]
    # 1000 units, 80: halted, exposure 1; hold, or sell at most half of the equity.
    assert env.step(np.array([4]))[4]["action_mask"].tolist() == [[0, 0, 0, 1, 1]]
    flatten = one(table, action=FIVE, guards=GuardsConfig(drawdown=0.1, on_halt="flatten"))
    flatten.reset()
    for _ in range(2):
        flatten.step(np.array([4]))
    assert flatten.step(np.array([4]))[4]["action_mask"].tolist() == [[0, 0, 1, 0, 0]]
    never_flat = one(
        table, action=PositionsAction(positions=(0.5, 1.0)), guards=GuardsConfig(drawdown=0.1, on_halt="flatten")
    )
    never_flat.reset()
    for _ in range(3):
        infos = never_flat.step(np.array([1]))[4]
    assert infos["action_mask"].tolist() == [[1, 0]], "nothing is allowed: the target nearest to zero stays"


def test_a_bar_that_is_not_believed_leaves_only_holding() -> None:
    table = table_of([100, 100, 160, 160], [101, 101, 161, 161], [99, 99, 159, 159], [100, 100, 160, 160])
    guards = GuardsConfig(absurd_gap=0.2)
    env = one(table, action=FIVE, guards=guards)
    env.reset()
    env.step(np.array([3]))
    assert env.step(np.array([3]))[4]["action_mask"].tolist() == [[0, 0, 0, 1, 0]]
    box = one(table, action=BOX, guards=guards)
    box.reset()
    box.step(np.array([[0.5]]))
    obs, _, _, _, infos = box.step(np.array([[0.5]]))
    assert obs[0, -1] == 1.0, "halted: the agent knows that this bar is ignored"
    assert bounds(infos) == pytest.approx([500 * 160 / 130_000] * 2)


@pytest.mark.parametrize("action", [FIVE, BOX], ids=["positions", "exposure"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_passes_the_check_of_gymnasium_with_guards(action: PositionsAction | ExposureAction) -> None:
    register_market()
    guards = GuardsConfig(max_exposure=0.7, order_fraction=0.3, drawdown=0.05, absurd_volatility=5.0)
    config = MarketEnvConfig(action=action, episode_length=50, guards=guards)
    env = gym.make(ENV_ID, symbols=[random_walk(80, seed=1)], config=config, costs=CostConfig(lot_size=1.0))
    check_env(env.unwrapped, skip_render_check=True)
    _, info = env.reset(seed=1)
    assert info["action_mask"].shape == ((5,) if action is FIVE else (2,))
    assert "guard" in env.step(env.action_space.sample())[4]
