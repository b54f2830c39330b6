"""What each kind of action says of itself; what it does in a market is in test_env.py and test_portfolio_env.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tailwise.core.errors import EnvironmentContractError
from tailwise.market.action_kinds import action_kind, venue_bounds_of_accounts
from tailwise.market.costs import NO_COSTS, CostConfig
from tailwise.market.env_config import (
    Action,
    ExposureAction,
    MarketEnvConfig,
    PositionsAction,
    VolatilityTargetBase,
    WeightsAction,
)
from tailwise.market.simulator import Simulator
from tests.market.portfolio_worlds import asset_of
from tests.market.worlds import flat_bars, random_walk

POSITIONS = PositionsAction(positions=(-1.0, 0.0, 0.5))
EXPOSURE = ExposureAction(low=-1.0, high=2.0)
WEIGHTS = WeightsAction(low=(-0.5, 0.0), high=1.0)
PRICES = [100.0, 101.0, 102.0]


def test_spaces() -> None:
    positions, exposure, weights = (action_kind(action) for action in (POSITIONS, EXPOSURE, WEIGHTS))
    assert positions.space(1).n == 3  # type: ignore[attr-defined]
    box, boxes = exposure.space(1), weights.space(2)
    assert box.low.tolist() == [-1.0] and box.high.tolist() == [2.0]  # type: ignore[attr-defined]
    assert boxes.low.tolist() == [-0.5, 0.0] and boxes.high.tolist() == [1.0, 1.0]  # type: ignore[attr-defined]


def test_positions_alone_are_choices() -> None:
    found = {action.kind: action_kind(action) for action in (POSITIONS, EXPOSURE, WEIGHTS)}
    assert found["positions"].choices.tolist() == [-1.0, 0.0, 0.5]
    assert found["exposure"].choices.size == found["weights"].choices.size == 0


@pytest.mark.parametrize(
    ("action", "costs", "narrows"),
    [
        (POSITIONS, {}, False),
        (POSITIONS, {"lot_size": 1.0, "latency": 1}, True),
        (EXPOSURE, {}, False),
        (EXPOSURE, {"minimum_notional": 10.0}, True),
        (EXPOSURE, {"minimum_notional": 10.0, "latency": 1}, False),  # the order meets another account
        (ExposureAction(low=-1.0, high=3.0), {"impact_bps": 10.0}, True),  # the margin is near
        (WEIGHTS, {"lot_size": 1.0}, False),
    ],
)
def test_when_the_venue_can_forbid_an_action(action: Action, costs: dict[str, float], narrows: bool) -> None:
    settings = CostConfig.model_validate({**NO_COSTS.model_dump(), **costs})
    assert action_kind(action).venue_narrows(MarketEnvConfig(action=action), settings) is narrows


def test_the_kind_of_actions_says_how_many_assets_an_account_holds() -> None:
    tables = [asset_of(flat_bars(PRICES), symbol) for symbol in ("A", "B")]
    for action, assets, shape in ((EXPOSURE, 1, (3,)), (WeightsAction(), 2, (3, 2))):
        simulator = Simulator(tables, MarketEnvConfig(action=action), NO_COSTS, accounts=3)
        assert simulator.assets == assets
        assert simulator.targets(np.zeros((3, assets))).shape == shape


def test_targets_of_exposures_are_clipped_and_those_of_choices_looked_up() -> None:
    exposures = Simulator([flat_bars(PRICES)], MarketEnvConfig(action=EXPOSURE), NO_COSTS, accounts=3)
    assert exposures.targets(np.array([[-5.0], [0.25], [5.0]])).tolist() == [-1.0, 0.25, 2.0]
    choices = Simulator([flat_bars(PRICES)], MarketEnvConfig(action=POSITIONS), NO_COSTS, accounts=3)
    assert choices.targets(np.array([2, 0, 1])).tolist() == [0.5, -1.0, 0.0]


@pytest.mark.parametrize("narrowed", [True, False])
@pytest.mark.parametrize("based", [True, False])
def test_exposures_are_those_of_the_formula_bit_for_bit(narrowed: bool, based: bool) -> None:
    """Cut to the range, times the base, cut by the venue. Rejects the venue before the base, and bounds that are the
    wrong way round where the base is short."""
    rng = np.random.default_rng(2)
    table = random_walk(60, seed=5)
    base = VolatilityTargetBase(kind="volatility_target") if based else None
    if based:
        table = replace(table, base=rng.uniform(-1.2, 1.4, 60))
    costs = CostConfig(minimum_notional=150_000.0, impact_bps=2000.0) if narrowed else NO_COSTS
    simulator = Simulator([table], MarketEnvConfig(action=EXPOSURE, base=base, start="random"), costs, accounts=40)
    simulator.seed(3)
    simulator.reset()
    cut = 0
    for _ in range(10):
        named = rng.uniform(-2.0, 3.0, (40, 1)).astype(np.float32)
        units = table.base[simulator.state.records["row"]] if table.base is not None else np.ones(40)
        wanted = np.clip(named[:, 0].astype(np.float64), -1.0, 2.0) * units
        if narrowed:
            bounds = np.sort(np.array([[-1.0, 2.0]]) * units[:, None], axis=1)
            records, table_of_all = simulator.state.records, simulator.table
            venue_bounds_of_accounts(records, table_of_all.bars, simulator.rules, bounds)
            cut += int((np.clip(wanted, bounds[:, 0], bounds[:, 1]) != wanted).sum())
            wanted = np.clip(wanted, bounds[:, 0], bounds[:, 1])
        found = simulator.targets(named)
        assert found.tobytes() == wanted.tobytes()
        simulator.step(found, autoreset=True)
    assert (cut > 0) == narrowed
    named[7] = np.nan
    with pytest.raises(EnvironmentContractError, match="Action of account 7 is NaN"):
        simulator.targets(named)
