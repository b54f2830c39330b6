"""dE = price pnl - fees - spread - slippage - impact - borrow - funding - liquidation + interest + dividends."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tailwise.market.costs import COMPONENTS, NO_COSTS, CostConfig
from tailwise.market.records import LEDGER, identity_error, total_cost
from tailwise.market.simulator import Simulator
from tests.market.worlds import exposure_config, flat_bars, random_walk, simulator_of, table_of


@pytest.fixture(scope="module", params=["next_open", "close"])
def ledger(request: pytest.FixtureRequest) -> npt.NDArray[Any]:
    """LEDGER records of 128 accounts x 150 steps with every cost, stops, leverage, lots and latency on."""
    walk = random_walk(400, seed=2, gap=0.03, inside=0.03)
    rows = np.arange(400)
    table = table_of(
        walk.open,
        walk.high,
        walk.low,
        walk.close,
        walk.volume / 1000,
        features=walk.features,
        dividends=np.where(rows % 7 == 0, 0.5, 0.0),
        funding=np.where(rows % 2 == 0, 2e-4, -1e-4),
    )
    config = exposure_config(fill=request.param, stop_loss=0.06, take_profit=0.05, report=True, episode_length=40)
    costs = CostConfig(latency=1, cash_rate=0.03, lot_size=0.5, minimum_notional=100.0, funding_bps=0.2)
    simulator = Simulator([table], config, costs, accounts=128)
    simulator.seed(1)
    simulator.reset()
    rng = np.random.default_rng(0)
    steps = []
    for _ in range(150):
        step = simulator.step(rng.uniform(-3, 3, 128), autoreset=True)
        assert step.ledger is not None
        steps.append(step.ledger)
    return np.concatenate(steps)


def test_identity_holds_at_every_step(ledger: npt.NDArray[Any]) -> None:
    assert identity_error(ledger).max() < 1e-9
    assert all(np.abs(ledger[name]).max() > 0 for name in COMPONENTS), "every component occurred"
    assert set(np.unique(ledger["event"])) == {0, 1, 2, 3}


@pytest.mark.parametrize("name", list(COMPONENTS))
def test_a_forgotten_or_doubled_component_breaks_the_identity(ledger: npt.NDArray[Any], name: str) -> None:
    for factor in (0.0, 2.0):
        wrong = ledger.copy()
        wrong[name] *= factor
        assert identity_error(wrong).max() > 1e-7


def test_total_cost_by_hand() -> None:
    record = np.zeros(1, dtype=LEDGER)
    for value, name in enumerate(COMPONENTS):
        record[name] = float(value)  # price_pnl 0, fee 1, ... liquidation 7, interest 8, dividends 9
    assert total_cost(record).tolist() == [1 + 2 + 3 + 4 + 5 + 6 + 7]


def test_entry_price_is_the_average_of_what_was_bought() -> None:
    """Buy 1000 at 100, 500 more at 130: (1000 x 100 + 500 x 130) / 1500 = 110; selling keeps it; turning renews it."""
    prices = [100.0, 100.0, 130.0, 130.0, 130.0, 120.0]
    simulator = simulator_of(flat_bars(prices), exposure_config(), NO_COSTS)
    entries = []
    for target in (1.0, 1.5, 0.5, -1.0, 0.0):
        simulator.step(np.array([target]), autoreset=False)
        entries.append(float(simulator.state.records["entry"][0]))
    assert entries == pytest.approx([100.0, 110.0, 110.0, 130.0, 0.0])
