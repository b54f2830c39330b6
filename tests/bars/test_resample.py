"""Longer bars exist only once complete, and the join by completion time shows nothing of the future."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tailwise.bars import builtin, synthetic
from tailwise.bars.bars import Bars, completion_index, load_bars, resample
from tailwise.bars.frequency import parse_rule
from tailwise.core.errors import DataError


def walk(length: int, bar: str = "1h", seed: int = 0) -> Bars:
    return synthetic.random_walk(seed=seed, length=length, bar=bar)


def test_values_by_hand() -> None:
    """Rejects a close taken from the first bar, a mean volume, and a label at the end of the interval."""
    fine = walk(24 * 3)
    days = resample(fine, "1D")
    assert len(days) == 3
    for day in range(3):
        rows = slice(24 * day, 24 * day + 24)
        assert days.time[day] == fine.time[24 * day]
        assert days.open[day] == fine.open[24 * day] and days.close[day] == fine.close[24 * day + 23]
        assert days.high[day] == fine.high[rows].max() and days.low[day] == fine.low[rows].min()
        assert days.volume[day] == pytest.approx(fine.volume[rows].sum(), rel=1e-15)
    assert days.frequency.periods_per_year == 365 and days.frequency.bar == np.timedelta64(1, "D")
    assert days.label == fine.label and any("resampled" in note for note in days.notes)


@pytest.mark.parametrize("rule", ["2h", "4h", "1D"])
def test_same_as_pandas_on_complete_bars(rule: str) -> None:
    fine = walk(24 * 10)
    how = {"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"}
    expected = fine.to_frame().resample(rule).agg(how)
    coarse = resample(fine, rule)
    np.testing.assert_array_equal(coarse.time, expected.index.tz_localize(None).to_numpy())
    for name in how:
        np.testing.assert_allclose(getattr(coarse, name), expected[name].to_numpy(), rtol=1e-14)


def test_an_incomplete_last_bar_is_left_out_and_a_complete_one_is_not() -> None:
    """Rejects publishing the running bar (its close would be that of 22:00), and dropping the last one always."""
    fine = walk(24 * 3)
    assert len(resample(fine, "1D")) == 3
    shorter = resample(fine.slice(0, 24 * 3 - 1), "1D")
    assert len(shorter) == 2 and any("incomplete last bar" in note for note in shorter.notes)


def test_no_complete_bar_changes_when_more_data_arrive() -> None:
    """The law behind it: what is published stays."""
    fine = walk(24 * 4)
    whole = resample(fine, "6h")
    for end in range(6, len(fine)):
        part = resample(fine.slice(0, end), "6h")
        assert part.data_hash() == whole.slice(0, len(part)).data_hash()


def test_a_first_bar_that_began_before_the_data_is_left_out() -> None:
    """Rejects a first day whose open is that of 10:00."""
    fine = walk(24 * 3)
    days = resample(fine.slice(10, None), "1D")
    assert days.time[0] == fine.time[24] and len(days) == 2
    assert any("first bar" in note for note in days.notes)


def test_join_by_completion_time_by_hand() -> None:
    """At 23:00 the bar of 23:00-24:00 closes and the day is complete; one hour earlier the day before is the newest."""
    fine = walk(24 * 3)
    joined = completion_index(fine, resample(fine, "1D"))
    assert joined.dtype == np.int64
    np.testing.assert_array_equal(joined, [-1] * 23 + [0] * 24 + [1] * 24 + [2])


def known_at_close(fine: Bars, coarse: Bars, index: np.ndarray) -> np.ndarray:
    return np.where(index >= 0, coarse.close[np.maximum(index, 0)], np.nan)


def test_join_by_open_time_would_leak() -> None:
    """Change the future after bar t: a joined value at t may not move. The join by open time moves, and is rejected."""
    fine = walk(24 * 5)
    cut = 24 * 2 + 10
    later = np.where(np.arange(len(fine)) > cut, 3.0, 1.0)
    other = replace(fine, **{name: getattr(fine, name) * later for name in ("open", "high", "low", "close")})

    def by_completion(bars: Bars) -> np.ndarray:
        coarse = resample(bars, "1D")
        return known_at_close(bars, coarse, completion_index(bars, coarse))

    def by_open_time(bars: Bars) -> np.ndarray:
        coarse = resample(bars, "1D")
        return known_at_close(bars, coarse, np.searchsorted(coarse.time, bars.time, side="right") - 1)

    np.testing.assert_array_equal(by_completion(fine)[: cut + 1], by_completion(other)[: cut + 1])
    leaked = by_open_time(fine)[: cut + 1] != by_open_time(other)[: cut + 1]
    assert leaked[48:].all() and not leaked[:48].any()


def test_an_exchange_day_is_complete_by_the_clock_not_at_the_last_trade() -> None:
    """Rejects completion at the last bar of the session, which only hindsight knows to be the last."""
    sessions = [pd.date_range(f"2020-01-{day:02d} 14:30", periods=390, freq="min") for day in (6, 7, 8, 9, 10, 13, 14)]
    index = pd.DatetimeIndex(np.concatenate([part.to_numpy() for part in sessions]))
    fine = load_bars(pd.DataFrame({"open": 1.0, "high": 2.0, "low": 0.5, "close": 1.5, "volume": 1.0}, index=index))
    days = resample(fine, "1D")
    assert len(days) == 6 and days.frequency.calendar == "exchange" and days.frequency.periods_per_year == 252
    joined = completion_index(fine, days)
    assert joined[389] == -1 and joined[390] == 0 and joined[-1] == 5


def test_weeks_begin_on_monday() -> None:
    """Rejects weeks from the epoch, which begin on Thursday."""
    weeks = resample(builtin.sp500(), "1W")
    assert ((weeks.time.astype("datetime64[D]").astype(int) + 3) % 7 == 0).all()
    assert weeks.frequency.periods_per_year == 52
    assert weeks.time[-1] == np.datetime64("2018-12-24")  # the week of New Year's Eve is not over


def test_bars_at_half_past_give_bars_at_half_past() -> None:
    fine = walk(48)
    shifted = replace(fine, time=fine.time + np.timedelta64(30, "m"))
    assert resample(shifted, "4h").time[0] == np.datetime64("2000-01-01T00:30")
    with pytest.raises(DataError, match="lasts beyond the end of its '1D' bar"):
        resample(shifted, "1D")


def test_dividends_are_summed() -> None:
    fine = walk(48)
    paid = replace(fine, dividends=np.arange(48.0))
    days = resample(paid, "1D").dividends
    assert days is not None
    np.testing.assert_array_equal(days, [276.0, 852.0])


def test_bad_rules_get_a_sentence() -> None:
    fine = walk(48)
    for rule in ("1M", "hour", "0h", "-1h", "", "999D"):
        with pytest.raises(DataError, match="write a number of s, min, h, D or W"):
            resample(fine, rule)
    with pytest.raises(DataError, match="'90min' is not a multiple of their step of 1 hour"):
        resample(fine, "90min")
    with pytest.raises(DataError, match="'30min' is not a multiple"):
        resample(fine, "30min")
    with pytest.raises(DataError, match="do not complete one bar"):
        resample(fine, "1W")
    assert parse_rule("15min") == 15 * 60 * 10**9 and parse_rule("1W") == parse_rule("7D") == parse_rule("168h")
