"""Shifted bars: budgets are kept, bars stay valid, and what is shifted is what was asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwise.bars.data_config import SyntheticData
from tailwise.bars.synthetic import heston
from tailwise.core.errors import ConfigError
from tailwise.features.config import FeaturesConfig
from tailwise.market.base import WARM_UP, volatility_target
from tailwise.market.dataset import build_dataset
from tailwise.market.env_config import VolatilityTargetBase
from tailwise.market.shifts import (
    ShiftBudget,
    project,
    random_shifts,
    shifted_bars,
    shifted_dataset,
    shifted_rows,
    volatility_before,
)
from tests.market.test_resample import wild_bars

BUDGET = ShiftBudget(0.05, 0.2)
DATA = SyntheticData(market="jump_diffusion", seeds=(3, 4), parameters={"length": 900})
FEATURES = FeaturesConfig(include=("return_1", "volatility_20"))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=60), st.floats(0, 1), st.floats(1, 20))
def test_a_projection_keeps_the_budget(values: list[float], mean: float, ratio: float) -> None:
    """Within both limits, with the signs of what was projected, and idempotent. Rejects cutting at the largest alone
    and scaling everything down (which does not give a fixed point at the edge of both)."""
    budget = ShiftBudget(mean, mean * ratio)
    shifts = project(np.array(values), budget)
    assert np.abs(shifts).mean() <= mean * (1 + 1e-9) and np.abs(shifts).max() <= mean * ratio
    assert (shifts * np.array(values) >= 0).all()
    np.testing.assert_allclose(project(shifts, budget), shifts, atol=1e-9)


def test_a_projection_is_the_nearest_point() -> None:
    """[3, 1, .5] with the mean .5 and at most 1: the first is cut to 1, the rest falls by the level .5, to
    [1, -.5, 0] by hand, which is 1.5 in sum. No other point within is nearer."""
    found = project(np.array([3.0, -1.0, 0.5]), ShiftBudget(0.5, 1.0))
    np.testing.assert_allclose(found, [1.0, -0.5, 0.0], atol=1e-12)
    rng = np.random.default_rng(0)
    wanted, budget = rng.normal(size=8), ShiftBudget(0.3, 0.7)
    nearest = np.square(project(wanted, budget) - wanted).sum()
    others = (project(rng.normal(size=8) * 2, budget) for _ in range(500))
    assert all(np.square(other - wanted).sum() >= nearest - 1e-12 for other in others)


def test_random_shifts_use_up_the_budget() -> None:
    shifts = random_shifts(1001, BUDGET, seed=1, draw=2, symbol=0)
    assert np.abs(shifts).mean() == pytest.approx(BUDGET.mean, rel=1e-12) and BUDGET.excess(shifts) <= 1e-15
    assert 0.4 < (shifts[shifts != 0] > 0).mean() < 0.6
    assert np.array_equal(shifts, random_shifts(1001, BUDGET, seed=1, draw=2, symbol=0))
    for other in ({"seed": 2}, {"draw": 3}, {"symbol": 1}):
        assert not np.array_equal(shifts, random_shifts(1001, BUDGET, **{"seed": 1, "draw": 2, "symbol": 0, **other}))


def test_a_budget_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 <= mean <= largest"):
        ShiftBudget(0.2, 0.1)


def test_no_shift_is_bit_equal() -> None:
    bars = wild_bars()
    same = shifted_bars(bars, 100, np.zeros(200))
    for name in ("time", "open", "high", "low", "close", "volume", "dividends"):
        assert np.array_equal(getattr(same, name), getattr(bars, name)), name
    data = build_dataset(DATA, FEATURES)
    other = shifted_dataset(
        data, "test", [np.zeros(end - first) for first, end in shifted_rows(data, "test")], base=None, scales={}
    )
    for before, after in zip(data.tables("test"), other.tables("test"), strict=True):
        assert np.array_equal(before.features, after.features, equal_nan=True) and np.array_equal(
            before.close, after.close
        )


def test_bars_stay_valid_and_move_by_what_was_asked_for() -> None:
    """Log-returns of the shifted rows move by shift x volatility, those before and after not at all; shapes, volumes
    and validity stay. Rejects a factor that ends with the window (a jump back), and one that moves the close alone."""
    bars = wild_bars()
    shifts = random_shifts(200, BUDGET, seed=0, draw=0, symbol=0)
    moved = shifted_bars(bars, 100, shifts)
    wanted = np.zeros(399)
    wanted[99:299] = shifts * volatility_before(bars)[100:300]
    np.testing.assert_allclose(np.diff(np.log(moved.close)) - np.diff(np.log(bars.close)), wanted, atol=1e-13)
    assert (moved.high >= np.maximum(moved.open, moved.close)).all() and (moved.low > 0).all()
    assert (moved.low <= np.minimum(moved.open, moved.close)).all()
    for name in ("open", "high", "low", "dividends"):
        np.testing.assert_allclose(getattr(moved, name) / moved.close, getattr(bars, name) / bars.close, rtol=1e-12)
    assert np.array_equal(moved.volume, bars.volume) and moved.label.endswith("shifted")
    assert np.array_equal(moved.close[:100], bars.close[:100])


def test_the_unit_of_a_shift_does_not_look_ahead() -> None:
    """Volatility before a bar is that of a volatility target at the close before, and later bars change nothing.
    Rejects the volatility that contains the bar itself."""
    bars = heston(seed=1, length=300)
    known = volatility_before(bars)
    year = bars.frequency.periods_per_year
    exposures = volatility_target(bars, target=0.1, largest=np.inf)
    np.testing.assert_allclose(known[WARM_UP + 1 :] * np.sqrt(year), 0.1 / exposures[WARM_UP:-1], rtol=1e-12)
    assert not known[: WARM_UP + 1].any() and (known[WARM_UP + 1 :] > 0).all()
    jump = np.where(np.arange(300) >= 150, 2.0, 1.0)
    later = replace(bars, **{name: getattr(bars, name) * jump for name in ("open", "high", "low", "close")})
    assert np.array_equal(volatility_before(later)[:151], known[:151])
    assert volatility_before(later)[151] > 2 * known[151]


def test_features_and_base_rules_belong_to_the_shifted_bars() -> None:
    """They are those of bars that were given like this, and rows before a shift do not know of it. Rejects features
    that stay those of the bars as they were."""
    data = build_dataset(DATA, FEATURES)
    base = VolatilityTargetBase(kind="volatility_target")
    data = data.with_base(base)
    rows = shifted_rows(data, "test")
    shifts = [random_shifts(end - first, BUDGET, seed=0, draw=0, symbol=i) for i, (first, end) in enumerate(rows)]
    other = shifted_dataset(data, "test", shifts, base=base, scales={})
    for i, (before, after) in enumerate(zip(data.tables("test"), other.tables("test"), strict=True)):
        bars, first = other.bars[i], rows[i][0]
        assert np.array_equal(after.features, data.spec.table(bars).values[: len(after.features)], equal_nan=True)
        assert after.base is not None and before.base is not None
        assert np.array_equal(after.features[:first], before.features[:first], equal_nan=True)
        assert np.array_equal(after.base[:first], before.base[:first])
        assert np.abs(after.features[first + 5 :] - before.features[first + 5 :]).max() > 0.01
        assert not np.array_equal(after.base, before.base)
