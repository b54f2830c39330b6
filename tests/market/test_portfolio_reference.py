"""Portfolio engine and decimal reference agree on everything; ten wrong simulators do not."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tailwise.market.costs import CostConfig
from tailwise.market.env_config import WeightsAction
from tests.market.portfolio_reference import Asset, PortfolioReference
from tests.market.portfolio_worlds import World, asset_of, first_disagreement, weights_config
from tests.market.reference import Settings, exact
from tests.market.strategies import bars_from, drawn_costs, drawn_rules, exposures, moves_of, volumes_of
from tests.market.worlds import TOO_CLOSE, flat_bars, reference_bars
from tests.market.wrong_portfolios import WRONG


@st.composite
def worlds(draw: Any) -> World:
    """One to three assets with gaps in their calendars, late beginnings, early ends, warm-up and every cost."""
    count = draw(st.integers(1, 3))
    clock = draw(st.integers(4, 9))
    size = draw(st.sampled_from([0.01, 0.05, 0.3]))
    assets = []
    for a in range(count):
        hours = draw(st.one_of(st.just(range(clock)), st.sets(st.integers(0, clock - 1), min_size=3)))
        bars = len(hours)
        moves, volumes = draw(moves_of(bars, size)), draw(volumes_of(bars))
        price = draw(st.sampled_from([2.0, 50.0, 300.0]))
        first_valid = draw(st.integers(0, min(1, bars - 2)))
        every = draw(st.integers(2, 5))
        table = bars_from(moves, [*volumes[:-1], 1e6], every, price=price, first_valid=first_valid)
        assets.append(asset_of(table, f"S{a}", sorted(hours)))
    times = len({time for asset in assets for time in asset.time.tolist()})
    starts = [
        int(np.searchsorted(np.unique(np.concatenate([a.time for a in assets])), a.time[a.first_valid])) for a in assets
    ]
    steps = times - 1 - min(starts)
    weights = draw(st.lists(st.lists(exposures(), min_size=count, max_size=count), min_size=steps, max_size=steps))
    bounds = draw(st.sampled_from([(-3.0, 3.0), (-1.0, 2.0)]))
    action = WeightsAction(low=bounds[0], high=bounds[1], gross=draw(st.sampled_from([1.0, 3.0])))
    config = weights_config(action, **drawn_rules(draw))
    return World(tuple(assets), config, drawn_costs(draw, latencies=[0, 0, 1, 2]), weights)


@given(worlds())
@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_engine_equals_the_decimal_reference(world: World) -> None:
    """Equity, units, orders, every component, reward, events and end, to 1e-9 relative, at every step."""
    difference, narrowest, _ = first_disagreement(world)
    assume(narrowest > TOO_CLOSE)  # in a tie the last bit decides, and both are right
    assert difference is None, difference


def scripted_worlds() -> list[World]:
    """Forty random portfolios with everything switched on; seeds are 0, 1, 2 ... and were never selected."""
    result = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        clock = 14
        # The first asset trades always, the second not at every time, the third begins late and ends early.
        calendars = [range(clock), np.flatnonzero(rng.random(clock) < 0.7), range(3, clock - 3)]
        assets = []
        for a, hours in enumerate(calendars):
            moves = [(g, b, abs(u), abs(d)) for g, b, u, d in rng.normal(0, 0.03, (len(hours), 4)).tolist()]
            volumes = rng.uniform(1e3, 1e5, len(hours)).tolist()
            assets.append(asset_of(bars_from(moves, volumes, 4, price=40.0 + 30 * a), f"S{a}", list(hours)))
        config = weights_config(stop_loss=0.03, take_profit=0.03, maintenance_margin=0.3)
        costs = CostConfig(latency=seed % 2, cash_rate=0.02, funding_bps=0.5)
        weights = rng.choice([-2.9, -1.0, 0.0, 1.0, 2.9], (clock - 1, 3)).tolist()
        result.append(World(tuple(assets), config, costs, weights))
    return result


def test_scripted_worlds_exercise_every_event_and_agree() -> None:
    """The fixed portfolios on which the wrong simulators are rejected: the right one agrees on all of them."""
    outcomes = [first_disagreement(world) for world in scripted_worlds()]
    assert [difference for difference, _, _ in outcomes] == [None] * len(outcomes)
    assert min(narrowest for _, narrowest, _ in outcomes) > TOO_CLOSE  # nothing was left out of the comparison
    assert set.union(*(seen for _, _, seen in outcomes)) == {
        "none",
        "stop_loss",
        "take_profit",
        "liquidation",
        "settlement",
    }


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_wrong_simulators_are_told_apart(kind: type[PortfolioReference]) -> None:
    """Rejects: sizing before costs or for one order, margin at the close only or per asset, stops at their level
    through a gap, interest on short proceeds, fills without a bar, gross limit that forgets what is stuck, positions
    that outlive their asset, no latency."""
    differences = [first_disagreement(world, kind)[0] for world in scripted_worlds()]
    assert any(difference is not None for difference in differences)


def test_reference_by_hand() -> None:
    """The judge is judged once by arithmetic on paper: two assets at 100, half of the equity in each, 1% fee.

    E' = 1000 - 0.01 (0.5 E' + 0.5 E'), so E' = 1000 / 1.01 = 990.0990 and 4.9505 units of each. Then the first doubles
    and the second halves: equity = 4.9505 x 200 + 4.9505 x 50 = 1237.6238.
    """
    rising, falling = (
        Asset(dict(enumerate(reference_bars(flat_bars(prices)))), 0, Decimal(252))
        for prices in ([100.0, 100.0, 200.0], [100.0, 100.0, 50.0])
    )
    # So tolerant that the second decision, 0.5 against exposures of 0.8 and 0.2, sends no order.
    rules = Settings(taker=exact(0.01), initial_cash=exact(1000.0), tolerance=exact(0.4))
    account = PortfolioReference(
        [rising, falling], rules, Decimal(252), [(Decimal(-1), Decimal(1))] * 2, gross=Decimal(1)
    )
    first, second = (account.step([Decimal("0.5"), Decimal("0.5")]) for _ in range(2))
    assert float(first.equity) == pytest.approx(990.0990099, abs=1e-6)
    assert [float(units) for units in first.units] == pytest.approx([4.95049505] * 2, abs=1e-8)
    assert float(second.equity) == pytest.approx(1237.6237624, abs=1e-6)
    assert float(second.reward) == pytest.approx(np.log(1.25), abs=1e-12)
