"""What every built-in promises: streaming equals batch, causal, scale-free, finite, warm-up as declared, no drift."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwise.bars.bars import Bars
from tailwise.core.errors import ConfigError
from tailwise.features import (
    CLOSE,
    batch_feature,
    feature,
)
from tailwise.features.registry import BUILTIN
from tailwise.features.table import as_matrix, run, run_batch
from tests.features import user_features
from tests.features.example_bars import (
    FADING,
    KINDS,
    PLAIN,
    Floats,
    bars_from,
    by_hand,
    changed_after,
    column,
    is_causal,
    random_bars,
    raw,
    scaled,
)

WINDOWED = tuple(name for name in PLAIN if column(name).parameters and column(name).feature.name not in FADING)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("kind", KINDS)
def test_streaming_equals_batch_bit_for_bit(name: str, kind: str) -> None:
    bars = random_bars(90, seed=11, kind=kind, gaps=True)
    one = column(name)
    np.testing.assert_array_equal(by_hand(one.feature, one.parameters, bars), raw(name, bars))


def test_a_recomputation_by_numpy_is_not_bit_equal() -> None:
    """The check above is sharp: the same mathematics in another order of summation fails it."""
    bars = random_bars(200, seed=2)
    moves = np.diff(np.log(bars.close))
    again = np.array([math.sqrt(np.mean(moves[t - 20 : t] ** 2)) for t in range(20, 200)])
    values = raw("volatility_20", bars)[20:]
    np.testing.assert_allclose(again, values, rtol=1e-12)
    assert not np.array_equal(again, values)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**31), kind=st.sampled_from(KINDS), cut=st.integers(10, 79))
def test_no_feature_sees_the_future(seed: int, kind: str, cut: int) -> None:
    bars = random_bars(80, seed=seed, kind=kind)
    for name in PLAIN:
        assert is_causal(lambda b, name=name: raw(name, b), bars, [cut]), name


def test_the_causality_check_catches_a_centred_window() -> None:
    def centred(bars: Bars) -> Floats:
        matrix, stamps = as_matrix(bars)
        return run_batch(user_features.centred, (), matrix, stamps)

    assert not is_causal(centred, random_bars(80, seed=1), [40])


def _is_scale_free(values: Any, bars: Bars) -> bool:
    base = values(bars)
    return all(
        np.allclose(values(scaled(bars, price, volume)), base, rtol=1e-9, atol=1e-9, equal_nan=True)
        for price, volume in ((1000.0, 1.0), (1e-3, 1.0), (1.0, 1000.0), (1.0, 1e-3), (1000.0, 1000.0))
    )


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("kind", ["walk", "quiet"])
def test_the_unit_of_price_and_volume_does_not_matter(name: str, kind: str) -> None:
    """Ledger L4. In steps of powers of two not even the last bit changes."""
    bars = random_bars(150, seed=5, kind=kind)
    assert _is_scale_free(lambda b: raw(name, b), bars)
    np.testing.assert_array_equal(raw(name, scaled(bars, 1024.0, 1 / 256)), raw(name, bars))


def test_the_scale_check_catches_a_price() -> None:
    def price(bars: Bars) -> Floats:
        return run(user_features.price, user_features.price.new_state(()), as_matrix(bars)[0])

    assert not _is_scale_free(price, random_bars(50, seed=5))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), kind=st.sampled_from(KINDS), sigma=st.sampled_from([1e-12, 1e-6, 0.01, 0.5]))
def test_finite_on_hostile_bars(seed: int, kind: str, sigma: float) -> None:
    """Constant prices, jumps between 1e-6 and 1e6, no volume, moves near the last digit of a float."""
    bars = random_bars(70, seed=seed, kind=kind, sigma=sigma)
    for name in PLAIN:
        values = raw(name, bars)[column(name).warm_up :]
        assert np.isfinite(values).all(), (name, values)
        if "-1 to 1" in column(name).feature.unit:
            assert np.abs(values).max() <= 1 + 1e-12, name


@pytest.mark.parametrize("name", PLAIN)
def test_the_warm_up_is_exactly_the_declared_one(name: str) -> None:
    """Rejects a window that is one too short or too long: `update` says NaN exactly during the warm-up."""
    values, warm_up = raw(name, random_bars(40, seed=8)), column(name).warm_up
    assert np.isnan(values[:warm_up]).all()
    assert np.isfinite(values[warm_up:]).all()


@pytest.mark.parametrize("name", WINDOWED)
def test_the_window_ends_where_it_says(name: str) -> None:
    """The first valid value depends on the first bar, the next one no longer does, not by a bit."""
    bars, warm_up = random_bars(40, seed=8), column(name).warm_up
    before = raw(name, bars)
    touched = False
    for factor in (1 / 3, 3.0):
        prices = {}
        for key in ("open", "high", "low", "close", "volume"):
            prices[key] = getattr(bars, key).copy()
            prices[key][0] *= factor
        after = raw(name, bars_from(*(prices[key] for key in ("open", "high", "low", "close", "volume"))))
        touched |= after[warm_up] != before[warm_up]
        np.testing.assert_array_equal(after[warm_up + 1 :], before[warm_up + 1 :])
    assert touched


@pytest.fixture(scope="module")
def long_bars() -> Bars:
    """A million bars: wild at first, then very quiet, which is where running sums break."""
    rng = np.random.default_rng(1)
    moves = 1e-5 * rng.standard_normal(1_000_000)
    moves[:1000] = 2.0 * rng.standard_normal(1000)
    close = 100 * np.exp(np.cumsum(moves))
    open_ = np.concatenate((close[:1], close[:-1]))
    high, low = np.maximum(open_, close) * (1 + 1e-6), np.minimum(open_, close) * (1 - 1e-6)
    volume = np.exp(rng.standard_normal(len(close)) + np.where(np.arange(len(close)) < 1000, 20, 0))
    return bars_from(open_, high, low, close, volume, step="1min")


def _agrees_with_a_fresh_start(name: str, values: Floats, bars: Bars) -> bool:
    """The last value against one that was computed from the last bars only."""
    fading = column(name).feature.name in FADING
    rows = 400 if fading else column(name).warm_up + 1
    return bool(np.isclose(raw(name, bars.slice(len(bars) - rows, None))[-1], values[-1], rtol=1e-9, atol=1e-12))


def test_nothing_drifts_over_a_million_bars(long_bars: Bars) -> None:
    for name in PLAIN:
        values = raw(name, long_bars)
        assert _agrees_with_a_fresh_start(name, values, long_bars), name
        if column(name).feature.name not in FADING:
            rows = column(name).warm_up + 1
            assert raw(name, long_bars.slice(len(long_bars) - rows, None))[-1] == values[-1], name


def test_the_drift_check_catches_a_running_sum(long_bars: Bars) -> None:
    moves = np.diff(np.log(long_bars.close))
    running = np.concatenate(([0.0], np.cumsum(moves**2)))
    values = np.sqrt(np.maximum(running[7:] - running[:-7], 0) / 7)
    assert not _agrees_with_a_fresh_start("volatility_7", values, long_bars)


def test_the_state_is_all_that_a_feature_remembers() -> None:
    bars = random_bars(100, seed=4)
    matrix = as_matrix(bars)[0]
    for name in PLAIN:
        one = column(name)
        whole = raw(name, bars)
        state = one.feature.new_state(one.parameters)
        run(one.feature, state, matrix[:37])
        assert state.dtype == np.float64
        np.testing.assert_array_equal(run(one.feature, state.copy(), matrix[37:]), whole[37:], err_msg=name)


def test_every_declaration_says_what_and_in_which_unit() -> None:
    for one in BUILTIN.values():
        assert one.meaning and one.unit
    meanings = [one.meaning for one in BUILTIN.values()]
    assert len(set(meanings)) == len(meanings)


@pytest.mark.parametrize("name", ["Return", "fast return", "return_5", "5up", ""])
def test_a_name_that_cannot_be_a_feature_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not allowed: use small letters"):
        feature(name, meaning="m", unit="1", warm_up=0, state_size=1)(lambda state, bar: bar[CLOSE])


def test_a_declaration_without_meaning_or_with_odd_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="feature 'mine': its meaning is empty"):
        feature("mine", meaning=" ", unit="1", warm_up=0, state_size=1)(lambda state, bar: 0.0)
    with pytest.raises(ConfigError, match="feature 'mine': its unit is empty"):
        batch_feature("mine", meaning="m", unit="", warm_up=0)(lambda frame: frame.close)
    with pytest.raises(ConfigError, match="write a tuple"):
        feature("mine", meaning="m", unit="1", warm_up=0, state_size=1, parameters="window")(lambda s, b: 0.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="one number for each"):
        feature("mine", meaning="m", unit="1", warm_up=0, state_size=1, parameters=("a", "b"), smallest=(1,))(
            lambda s, b: 0.0
        )


def test_changed_after_changes_only_what_follows() -> None:
    """The tool of the causality checks does what they rely on."""
    bars = random_bars(50, seed=1)
    other = changed_after(bars, 20)
    assert np.array_equal(bars.close[:20], other.close[:20])
    assert (bars.close[20:] != other.close[20:]).all()
