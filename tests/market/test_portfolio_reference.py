"""Portfolio engine and decimal reference agree on everything; ten wrong simulators do not."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tailwise.market.costs import CostConfig
from tailwise.market.portfolio_config import WeightsAction
from tailwise.market.tables import SymbolTable
from tests.market.portfolio_reference import WRONG, Asset, PortfolioReference
from tests.market.portfolio_worlds import World, asset_of, first_disagreement, weights_config
from tests.market.reference import Settings, exact
from tests.market.worlds import TOO_CLOSE, flat_bars, reference_bars, table_of

Move = tuple[float, float, float, float]


def table_from(
    moves: list[Move], volumes: list[float], price: float, dividend_every: int, first_valid: int
) -> SymbolTable:
    """Bars from (gap, body, upper wick, lower wick) in logarithms."""
    gap, body, up, down = np.array(moves).T
    log_close = np.log(price) + np.cumsum(gap + body)
    open_, close = np.exp(log_close - body), np.exp(log_close)
    high, low = np.maximum(open_, close) * np.exp(up), np.minimum(open_, close) * np.exp(-down)
    rows = np.arange(len(moves))
    return table_of(
        open_,
        high,
        low,
        close,
        volumes,
        dividends=np.where(rows % dividend_every == 1, 0.4, 0.0),
        funding=np.where(rows % 3 == 0, 3e-4, -1e-4),
        periods_per_year=365.0,
        first_valid=first_valid,
    )


@st.composite
def worlds(draw: Any) -> World:
    """One to three assets with gaps in their calendars, late beginnings, early ends, warm-up and every cost."""
    number = lambda low, high: st.floats(low, high, allow_nan=False, allow_subnormal=False)  # noqa: E731
    count = draw(st.integers(1, 3))
    clock = draw(st.integers(4, 9))
    size = draw(st.sampled_from([0.01, 0.05, 0.3]))
    assets = []
    for a in range(count):
        hours = draw(st.one_of(st.just(range(clock)), st.sets(st.integers(0, clock - 1), min_size=3)))
        bars = len(hours)
        moves = draw(
            st.lists(
                st.tuples(number(-size, size), number(-size, size), number(0, size), number(0, size)),
                min_size=bars,
                max_size=bars,
            )
        )
        volumes = draw(st.lists(st.sampled_from([0.0, 300.0, 1e4, 1e7]), min_size=bars, max_size=bars))
        price = draw(st.sampled_from([2.0, 50.0, 300.0]))
        first_valid = draw(st.integers(0, min(1, bars - 2)))
        table = table_from(moves, [*volumes[:-1], 1e6], price, draw(st.integers(2, 5)), first_valid)
        assets.append(asset_of(table, f"S{a}", sorted(hours)))
    times = len({time for asset in assets for time in asset.time.tolist()})
    starts = [
        int(np.searchsorted(np.unique(np.concatenate([a.time for a in assets])), a.time[a.first_valid])) for a in assets
    ]
    # Thousandths, because a weight of 1e-129 exceeds even fifty digits.
    weight = st.one_of(st.sampled_from([-1.0, 0.0, 1.0, 2.5]), st.integers(-3000, 3000).map(lambda n: n / 1000))
    steps = times - 1 - min(starts)
    weights = draw(st.lists(st.lists(weight, min_size=count, max_size=count), min_size=steps, max_size=steps))
    level = st.one_of(st.none(), number(0.01, 0.25))
    bounds = draw(st.sampled_from([(-3.0, 3.0), (-1.0, 2.0)]))
    config = weights_config(
        WeightsAction(low=bounds[0], high=bounds[1], gross=draw(st.sampled_from([1.0, 3.0]))),
        fill=draw(st.sampled_from(["next_open", "close"])),
        tolerance=draw(st.sampled_from([0.0, 0.05, 0.5])),
        stop_loss=draw(level),
        take_profit=draw(level),
        maintenance_margin=draw(st.sampled_from([0.0, 0.125, 0.3])),
        initial_cash=draw(st.sampled_from([1e3, 1e5])),
    )
    bps = number(0, 50)
    costs = CostConfig(
        taker_fee_bps=draw(bps),
        maker_fee_bps=draw(bps),
        half_spread_bps=draw(bps),
        slippage_bps=draw(bps),
        impact_bps=draw(bps),
        borrow_rate=draw(number(0, 1)),
        loan_rate=draw(number(0, 1)),
        cash_rate=draw(number(0, 1)),
        funding_bps=draw(number(-20, 20)),
        liquidation_bps=draw(number(0, 500)),
        latency=draw(st.sampled_from([0, 0, 1, 2])),
        lot_size=draw(st.sampled_from([0.0, 0.0, 0.01, 1.0])),
        minimum_notional=draw(st.sampled_from([0.0, 0.0, 50.0, 5000.0])),
    )
    return World(tuple(assets), config, costs, weights)


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
            assets.append(asset_of(table_from(moves, volumes, 40.0 + 30 * a, 4, 0), f"S{a}", list(hours)))
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
