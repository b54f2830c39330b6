"""Bars per year, step and calendar are read from the times; golden numbers are those people annualise by."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tailwise.bars.frequency import Frequency, describe_step, infer_frequency, with_calendar
from tailwise.core.errors import DataError


def infer(index: pd.DatetimeIndex, **options: float) -> Frequency:
    return infer_frequency(index.tz_localize(None).to_numpy().astype("datetime64[ns]"), **options)


def around_the_clock(step: str, days: int = 30) -> pd.DatetimeIndex:
    return pd.date_range("2020-01-01", periods=int(pd.Timedelta(days=days) / pd.Timedelta(step)), freq=step, tz="UTC")


def sessions(step: str, first: str, last: str, zone: str = "America/New_York", days: int = 60) -> pd.DatetimeIndex:
    """Bars that open from `first` to `last` local time on working days, across a daylight saving change, in UTC."""
    parts = [
        pd.date_range(f"{day.date()} {first}", f"{day.date()} {last}", freq=step, tz=zone)
        for day in pd.bdate_range("2020-02-03", periods=days)
    ]
    return pd.DatetimeIndex(np.concatenate([part.tz_convert("UTC").tz_localize(None).to_numpy() for part in parts]))


@pytest.mark.parametrize(
    ("index", "bar", "per_year", "calendar"),
    [
        (around_the_clock("1min", 14), "1min", 365 * 24 * 60, "24/7"),
        (around_the_clock("5min", 14), "5min", 365 * 24 * 12, "24/7"),
        (around_the_clock("1h"), "1h", 8760, "24/7"),
        (around_the_clock("4h"), "4h", 2190, "24/7"),
        (around_the_clock("1D", 100), "1D", 365, "24/7"),
        (around_the_clock("7D", 700), "7D", 52, "exchange"),
        (around_the_clock("3D", 300), "3D", 365 / 3, "24/7"),
        (pd.date_range("2020-01-01", periods=40, freq="28D"), "28D", 365.25 / 28, "exchange"),  # four weeks, no month
        (pd.bdate_range("2020-01-01", periods=500), "1D", 252, "exchange"),
        (pd.bdate_range("2020-01-01", periods=500, tz="America/New_York").tz_convert("UTC"), "1D", 252, "exchange"),
        (sessions("1min", "09:30", "15:59"), "1min", 390 * 252, "exchange"),
        (sessions("5min", "09:30", "15:55"), "5min", 78 * 252, "exchange"),
        (sessions("1h", "09:30", "15:30"), "1h", 7 * 252, "exchange"),
        (sessions("4h", "09:30", "13:30"), "4h", 2 * 252, "exchange"),
        (sessions("1h", "00:00", "23:00", "UTC"), "1h", 24 * 252, "exchange"),  # currencies, without the Sunday evening
        (pd.date_range("2015-01-01", periods=60, freq="MS"), "31D", 12, "exchange"),
    ],
)
def test_golden(index: pd.DatetimeIndex, bar: str, per_year: float, calendar: str) -> None:
    """Rejects 252 for everything, 365 days of exchange minutes, and counting bars per calendar day."""
    found = infer(index)
    assert found.bar == pd.Timedelta(bar).to_timedelta64()
    assert found.periods_per_year == pytest.approx(per_year, rel=1e-12)
    assert found.calendar == calendar
    assert f"{per_year:g} periods per year" in found.sentence and calendar in found.sentence


def test_sunday_evenings_of_currencies_are_no_trading_days() -> None:
    """Rejects the mean over all days with bars: two Sunday hours would make 20.3 bars a day out of 24."""
    index = around_the_clock("1h", 70)
    day, hour = index.dayofweek, index.hour
    open_hours = ~((day == 5) | ((day == 6) & (hour < 22)) | ((day == 4) & (hour >= 22)))
    found = infer(index[open_hours])
    assert found.calendar == "exchange" and found.periods_per_year == 24 * 252


def test_gaps_and_half_days_do_not_change_the_year() -> None:
    """Rejects bars per year from the span of the data: an outage would make the year shorter."""
    crypto = around_the_clock("1h", 60)
    found = infer(crypto[(np.arange(len(crypto)) < 500) | (np.arange(len(crypto)) > 800)])
    assert (found.periods_per_year, found.calendar) == (8760, "24/7")
    assert found.sentence.endswith("1 gap of 12.58 days, after 2020-01-21T19:00 UTC.")
    minutes = sessions("1min", "09:30", "15:59")
    half_day = (minutes.date == minutes[0].date()) & (minutes.hour >= 18)
    assert infer(minutes[~half_day]).periods_per_year == 390 * 252


def test_a_weekend_is_no_gap() -> None:
    """Rejects the longest step in bars: it calls every weekend a step of three bars, and hides a real gap behind it."""
    days = pd.bdate_range("2020-01-06", periods=60)
    assert infer(days).sentence.endswith("to 2020-03-27 without gaps (nights, weekends and holidays aside).")
    hours = sessions("1h", "09:30", "15:59")
    assert "without gaps (nights, weekends and holidays aside)." in infer(hours).sentence
    assert "bars," not in infer(hours).sentence.partition(" from ")[2]
    away = days[(np.arange(60) < 20) | (np.arange(60) >= 30)]
    assert infer(away).sentence.endswith("; 1 gap of 17 days, after 2020-01-31T00:00 UTC.")
    twice = away[(np.arange(50) < 35) | (np.arange(50) >= 42)]
    assert "; 2 gaps, the longest of 17 days, after 2020-01-31T00:00 UTC." in infer(twice).sentence
    assert infer(pd.date_range("2020-01-06", periods=30, freq="h")).sentence.endswith(" without gaps.")


def test_short_series_say_what_they_assume() -> None:
    five_days = infer(pd.date_range("2020-01-06", periods=5, freq="D"))
    assert (five_days.periods_per_year, five_days.calendar) == (252, "exchange") and "assumed" in five_days.sentence
    hours = infer(pd.date_range("2020-01-06", periods=30, freq="h"))
    assert (hours.periods_per_year, hours.calendar) == (8760, "24/7") and "assumed" in hours.sentence
    saturday = infer(pd.date_range("2020-01-04", periods=3, freq="D"))
    assert (saturday.periods_per_year, saturday.calendar) == (365, "24/7")
    two_sessions = infer(sessions("1min", "09:30", "15:59", days=2))
    assert (two_sessions.periods_per_year, two_sessions.calendar) == (390 * 252, "exchange")


def test_irregular_bars_are_an_error_unless_the_year_is_stated() -> None:
    """Rejects annualising trades or dollar bars by whatever step happened to be most frequent."""
    seconds = np.cumsum(np.random.default_rng(0).integers(1, 5000, 400))
    index = pd.to_datetime(seconds, unit="s", origin="2020-01-06")
    with pytest.raises(DataError, match=r"bars are irregular: .*--periods-per-year"):
        infer(index)
    stated = infer(index, periods_per_year=12_000)
    assert (
        stated.periods_per_year == 12_000 and "irregular" in stated.sentence and "stated by the user" in stated.sentence
    )
    with pytest.raises(DataError, match="must be positive"):
        infer(index, periods_per_year=0)
    with pytest.raises(DataError, match="at least 2 are needed"):
        infer(index[:1])


def test_overlapping_bars_are_irregular_even_if_most_steps_are_equal() -> None:
    """Rejects looking at the share of the usual step alone: here nine steps of ten are an hour."""
    stamps = around_the_clock("1h", 60)
    between = stamps[::10] + pd.Timedelta("20min")
    with pytest.raises(DataError, match="of the steps are shorter than the usual 1 hour"):
        infer(stamps.union(between))


def test_one_short_step_in_a_thousand_is_a_glitch() -> None:
    stamps = around_the_clock("1h", 60).to_numpy().copy()
    stamps[700] += np.timedelta64(7, "m")
    assert infer(pd.DatetimeIndex(stamps)).periods_per_year == 8760


def test_known_calendar_and_descriptions() -> None:
    week = with_calendar(np.array(["2020-01-06"], "datetime64[ns]"), np.timedelta64(7, "D"), "24/7", "given")
    assert week.periods_per_year == 52 and week.calendar == "24/7"
    hour = 3600 * 10**9
    assert [describe_step(s) for s in (hour, 4 * hour, 24 * hour, 168 * hour, 744 * hour, hour // 60, 10**8)] == [
        "1 hour",
        "4 hours",
        "1 day",
        "1 week",
        "1 month",
        "1 minute",
        "0.1 seconds",
    ]
