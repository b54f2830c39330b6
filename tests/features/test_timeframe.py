"""Features on longer bars: the bars are those of `resample`, seen when complete, in tables and streams alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwise.bars.bars import Bars, completion_index, resample
from tailwise.bars.frequency import HOUR
from tailwise.core.errors import ConfigError, DataError
from tailwise.features.spec import FeatureSpec
from tailwise.features.table import Timeframe, as_matrix
from tests.features.example_bars import (
    KINDS,
    PLAIN,
    Floats,
    assert_stream_equals_table,
    config,
    is_causal,
    random_bars,
    raw,
    streamed,
)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    gaps=st.booleans(),
    calendar=st.sampled_from(["24/7", "exchange"]),
    rule=st.sampled_from(["4h", "1D", "1W", "2h", "3D"]),
    first=st.integers(0, 30),
)
def test_longer_bars_and_their_completion_are_those_of_resample(
    seed: int, gaps: bool, calendar: str, rule: str, first: int
) -> None:
    """The step that serves streams against bars/resample.py, which looks at the whole history at once."""
    bars = random_bars(600, seed=seed, gaps=gaps, calendar=calendar).slice(first, None)
    expected = resample(bars, rule)
    longer, opens, complete = Timeframe.of(rule, HOUR, bars.frequency.calendar).build(*as_matrix(bars))
    np.testing.assert_array_equal(opens, expected.time.astype(np.int64))
    np.testing.assert_array_equal(longer[:, :5], as_matrix(expected)[0][:, :5])
    np.testing.assert_allclose(longer[:, 5], expected.volume, rtol=1e-12)  # summed in another order
    np.testing.assert_array_equal(complete - 1, completion_index(bars, expected))


def _by_resample(name: str, rule: str, bars: Bars, *, by_open_time: bool = False) -> Floats:
    """The column, computed on `resample`d bars and joined by their completion (or, wrongly, by their open time)."""
    longer = resample(bars, rule)
    at = completion_index(bars, longer)
    if by_open_time:
        at = np.searchsorted(longer.time, bars.time, side="right") - 1
    return np.concatenate((raw(name, longer), [np.nan]))[at]


def test_a_column_is_the_feature_of_resampled_bars_joined_by_completion() -> None:
    """Rejects the join by open time, which shows at the first hour of a day that day's close."""
    bars = random_bars(24 * 30, seed=6)
    spec = FeatureSpec.fit(config(timeframes={"1D": ("return_2",)}, standardise=False), [bars])
    table = spec.table(bars)
    assert table.names == ("1D:return_2",)
    assert table.first_valid == 24 * 3 - 1  # three days are complete at the close of the hour that ends the third
    rows = slice(table.first_valid, None)
    np.testing.assert_array_equal(table.values[rows, 0], _by_resample("return_2", "1D", bars)[rows].astype(np.float32))
    early = _by_resample("return_2", "1D", bars, by_open_time=True)[rows].astype(np.float32)
    assert not np.array_equal(table.values[rows, 0], early)
    assert is_causal(lambda b: _column(spec, b), bars, [200, 301])
    assert not is_causal(lambda b: _by_resample("return_2", "1D", b, by_open_time=True), bars, [301])


def _column(spec: FeatureSpec, bars: Bars) -> Floats:
    return spec.table(bars).values[:, 0].astype(np.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("calendar", ["24/7", "exchange"])
def test_streaming_equals_batch_on_every_timeframe(kind: str, calendar: str) -> None:
    bars = random_bars(24 * 25, seed=12, kind=kind, gaps=True, calendar=calendar).slice(5, None)
    wanted = config("return_3", timeframes={"4h": PLAIN, "1D": ("zscore_5", "volume_zscore_5", "rsi_3")})
    spec = FeatureSpec.fit(wanted, [bars.slice(0, 300)])
    table = assert_stream_equals_table(spec, bars)
    assert len(table.names) == 1 + len(PLAIN) + 3
    assert table.first_valid <= spec.warm_up


def test_weekly_features_on_daily_bars_of_an_exchange() -> None:
    """A week ends with Friday's bar by its data, but by the clock on Monday 00:00, which Monday's bar shows."""
    days = random_bars(7 * 30, seed=4, step="1D", calendar="exchange", keep=np.arange(210) % 7 < 5)
    spec = FeatureSpec.fit(config(timeframes={"1W": ("return_1",)}, standardise=False), [days])
    table = assert_stream_equals_table(spec, days)
    assert table.first_valid == 10  # weeks one and two are complete when Monday's bar of the third week is
    assert table.values[10, 0] == np.float32(np.log(days.close[9] / days.close[4]))
    assert (table.values[10:15, 0] == table.values[10, 0]).all()


def test_saved_in_the_middle_of_a_longer_bar() -> None:
    bars = random_bars(400, seed=9)
    spec = FeatureSpec.fit(config("return_1", timeframes={"1D": ("return_2", "volatility_3")}), [bars])
    straight = streamed(spec, bars)
    for stop in (3, 200, 239, 240):
        first = spec.stream("TEST")
        streamed(spec, bars, range(stop), first)
        second = spec.stream("TEST")
        second.set_state(first.get_state())
        for got, expected in zip(streamed(spec, bars, range(stop, 400), second), straight[stop:], strict=True):
            assert (got is None) == (expected is None)
            assert got is None or np.array_equal(got, expected)


def test_bad_timeframes_get_a_sentence() -> None:
    bars = random_bars(100, seed=1)
    with pytest.raises(DataError, match=r"'90min' is not a multiple of the bars' step of 1 hour"):
        FeatureSpec.fit(config(timeframes={"90min": ("return_1",)}), [bars])
    with pytest.raises(DataError, match=r"'1h' is not a multiple of the bars' step of 1 hour; choose a longer one"):
        FeatureSpec.fit(config(timeframes={"1h": ("return_1",)}), [bars])
    with pytest.raises(ValueError, match="resampling rule is 'week'"):
        config(timeframes={"week": ("return_1",)})
    with pytest.raises(ValueError, match="partly of the same length"):
        config(timeframes={"1W": ("return_1",), "7D": ("return_1",)})
    with pytest.raises(ValueError, match="feature 'retrun_1' is unknown; did you mean 'return_1'"):
        config(timeframes={"1D": ("retrun_1",)})
    with pytest.raises(DataError, match="the 100 bars end within the warm-up of feature '1D:return_9'"):
        FeatureSpec.fit(config(timeframes={"1D": ("return_9",)}), [bars])


def test_a_bar_that_straddles_two_longer_ones_is_refused() -> None:
    """It would carry the future into the first of them."""
    bars = random_bars(60, seed=1, step="2h")
    odd = Bars(**{**vars(bars), "time": bars.time + np.timedelta64(1, "h")})
    spec = FeatureSpec.fit(config(timeframes={"1D": ("return_1",)}), [bars])
    with pytest.raises(DataError, match=r"opens at 2020-01-06T23:00:00.* UTC lasts beyond the end of its '1D' bar"):
        spec.table(odd)
    with pytest.raises(DataError, match="lasts beyond the end of its '1D' bar"):
        streamed(spec, odd)


def test_timeframes_need_names() -> None:
    with pytest.raises((ConfigError, ValueError), match="no feature is named"):
        config(timeframes={"1D": ()})
