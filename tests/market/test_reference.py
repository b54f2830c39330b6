"""Engine and reference simulator agree on everything; ten wrong simulators do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tailwise.market.costs import CostConfig
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.tables import SymbolTable
from tests.market.reference import Reference, Settings, exact
from tests.market.strategies import bars_from, drawn_costs, drawn_rules, exposures, moves_of, volumes_of
from tests.market.worlds import (
    TOO_CLOSE,
    exposure_config,
    first_disagreement,
    flat_bars,
    reference_bars,
    reference_settings,
)
from tests.market.wrong_simulators import WRONG

World = tuple[SymbolTable, MarketEnvConfig, CostConfig, list[float]]


@st.composite
def worlds(draw: Any) -> World:
    bars = draw(st.integers(3, 14))
    moves = draw(moves_of(bars, draw(st.sampled_from([0.01, 0.05, 0.3]))))
    volumes = draw(volumes_of(bars))
    wanted = draw(st.lists(exposures(), min_size=bars - 1, max_size=bars - 1))
    config = exposure_config(**drawn_rules(draw))
    costs = drawn_costs(draw, latencies=[0, 0, 1, 3])
    table = bars_from(moves, [*volumes[:-1], 1e6], draw(st.integers(2, 5)))
    return table, config, costs, wanted


@given(worlds())
@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_engine_equals_the_decimal_reference(world: World) -> None:
    """Equity, position, order, every component, reward, event and end, to 1e-9 relative, at every step."""
    difference, narrowest = first_disagreement(*world)
    assume(narrowest > TOO_CLOSE)  # in a tie the last bit decides, and both are right
    assert difference is None, difference


def scripted_worlds() -> list[World]:
    """Sixty random markets with everything switched on; seeds are 0, 1, 2 ... and were never selected."""
    result = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        bars = 16
        moves = [tuple(row) for row in rng.normal(0, 0.03, (bars, 4)) * [1, 1, 1, 1]]
        moves = [(gap, body, abs(up), abs(down)) for gap, body, up, down in moves]
        table = bars_from(moves, rng.uniform(1e3, 1e5, bars).tolist(), 4)
        config = exposure_config(stop_loss=0.03, take_profit=0.03, maintenance_margin=0.3)
        costs = CostConfig(latency=seed % 2, cash_rate=0.02, funding_bps=0.5)
        result.append((table, config, costs, rng.choice([-2.9, -1.0, 0.0, 1.0, 2.9], bars - 1).tolist()))
    return result


def test_scripted_worlds_exercise_every_event_and_agree() -> None:
    """The fixed markets on which the wrong simulators are rejected: the right one agrees on all of them."""
    outcomes = [first_disagreement(*world) for world in scripted_worlds()]
    assert [difference for difference, _ in outcomes] == [None] * len(outcomes)
    assert min(narrowest for _, narrowest in outcomes) > TOO_CLOSE  # nothing was left out of the comparison
    seen = set()
    for table, config, costs, targets in scripted_worlds():
        account = Reference(reference_bars(table), reference_settings(table, config, costs))
        for target in targets:
            result = account.step(exact(target))
            seen.add(result.event)
            if result.terminated:
                break
    assert seen == {"none", "stop_loss", "take_profit", "liquidation"}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_wrong_simulators_are_told_apart(kind: type[Reference]) -> None:
    """Rejects: fill at the observed close, stop at its level through a gap, costs twice or never, no mark to market,
    friendly order inside the bar, units taken for lots, no margin call, free borrow, no latency."""
    differences = [first_disagreement(*world, kind=kind)[0] for world in scripted_worlds()]
    assert any(difference is not None for difference in differences)


def test_reference_by_hand() -> None:
    """The judge is judged once by arithmetic on paper: 100 -> 110 -> 99, all in at 1% fee, no other cost.

    Order at 110 with equity 1000: u 110 = 1000 - 0.01 u 110, u = 1000 / 111.1 = 9.0009; fee 9.9010 (= 1% of 990.099).
    Mark at 99: equity = 9.0009 x 99 = 891.0891.
    """
    bars = reference_bars(flat_bars([100.0, 110.0, 99.0]))
    account = Reference(bars, Settings(taker=exact(0.01), initial_cash=exact(1000.0)))
    first, second = account.step(exact(1.0)), account.step(exact(1.0))
    assert float(first.units) == pytest.approx(9.00090009, abs=1e-8)
    assert float(first.parts.fee) == pytest.approx(9.90099010, abs=1e-8)
    assert float(first.equity) == pytest.approx(990.0990099, abs=1e-6)
    assert float(second.equity) == pytest.approx(891.0891089, abs=1e-6)
    assert float(second.reward) == pytest.approx(np.log(0.9), abs=1e-12)
