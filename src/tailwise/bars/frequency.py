"""Infer the length of a bar, the trading calendar and the bars per year from open times.

Annualised figures depend on `periods_per_year`, so it is never a constant in code: it is inferred here and printed, as
a sentence, with every run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tailwise.core.errors import DataError

Calendar: TypeAlias = Literal["exchange", "24/7"]

SECOND = 10**9
HOUR = 3600 * SECOND
DAY = 24 * HOUR
WEEK = 7 * DAY
_UNITS = {"s": SECOND, "min": 60 * SECOND, "h": HOUR, "d": DAY, "w": WEEK}
TRADING_DAYS = 252
LONG_WEEKEND = 5 * DAY  # from Thursday to Tuesday at Easter: an exchange closes that long and nothing is missing
FEWEST_PER_YEAR, MOST_PER_YEAR = 0.01, 1e12
FIRST_YEAR, LAST_YEAR = 1678, 2261  # what nanoseconds since 1970 reach
# A step below the usual one means two bars overlap; one in a hundred is a glitch, more is another kind of data.
_SHORT_STEPS_ALLOWED = 0.01
# Two bars per session (4 h bars on an exchange) still make every second step the usual one.
_USUAL_STEPS_NEEDED = 0.3


@dataclass(frozen=True)
class Frequency:
    """Length, calendar and number per year of a series of bars."""

    bar: np.timedelta64  # ns, the usual step from one open to the next; of a month, its longest
    periods_per_year: float  # bars per year
    calendar: Calendar
    sentence: str

    @property
    def bar_ns(self) -> int:
        """Length of a bar in ns."""
        return int(self.bar.astype("timedelta64[ns]").astype(np.int64))


def infer_frequency(
    time: NDArray[np.datetime64], *, name: str = "bars", periods_per_year: float | None = None
) -> Frequency:
    """Infer the frequency of strictly increasing open times, datetime64[ns] [T], T >= 2.

    Irregular times are an error, because no annual figure would mean anything, unless `periods_per_year` is given.
    """
    stamps = time.astype("datetime64[ns]").astype(np.int64)
    if len(stamps) < 2:
        raise DataError(f"{name}: {len(stamps)} bar(s) do not show how far bars are apart; at least 2 are needed.")
    if periods_per_year is not None:
        if not (np.isfinite(periods_per_year) and periods_per_year > 0):
            raise DataError(f"periods per year is {periods_per_year}; it must be positive.")
        if not FEWEST_PER_YEAR <= periods_per_year <= MOST_PER_YEAR:
            limits = f"from {FEWEST_PER_YEAR:g} (a bar in a century) to {MOST_PER_YEAR:g}"
            raise DataError(f"periods per year is {periods_per_year:g}; it must lie {limits}.")
    steps = np.diff(stamps)
    bar = _usual_step(steps)
    irregular = _irregularity(steps, bar)
    if irregular and periods_per_year is None:
        raise DataError(
            f"{name}: the bars are irregular: {irregular}. Resample the data to a fixed step, or state the number of "
            "bars per year yourself with --periods-per-year."
        )
    calendar, why = _calendar(stamps, steps, bar)
    inferred, how = bars_per_year(stamps, bar, calendar)
    periods = inferred if periods_per_year is None else float(periods_per_year)
    return Frequency(
        bar=np.timedelta64(bar, "ns"),
        periods_per_year=periods,
        calendar=calendar,
        sentence=(
            f"Bars of {describe_step(bar)}, {calendar} calendar ({why}): {periods:g} periods per year "
            f"({how if periods_per_year is None else 'as stated by the user'}). "
            + _describe_gaps(stamps, steps, bar, calendar)
            + (f" The bars are irregular: {irregular}." if irregular else "")
        ),
    )


def with_calendar(time: NDArray[np.datetime64], bar: np.timedelta64, calendar: Calendar, why: str) -> Frequency:
    """The frequency of bars whose step and calendar are known, as after resampling."""
    stamps = time.astype("datetime64[ns]").astype(np.int64)
    step = int(bar.astype("timedelta64[ns]").astype(np.int64))
    periods, how = bars_per_year(stamps, step, calendar)
    sentence = f"Bars of {describe_step(step)}, {calendar} calendar ({why}): {periods:g} periods per year ({how})."
    return Frequency(np.timedelta64(step, "ns"), periods, calendar, sentence)


def bars_per_year(stamps: NDArray[np.int64], bar: int, calendar: Calendar) -> tuple[float, str]:
    """Bars per year of open times in ns [T], and how they were counted."""
    if bar == 31 * DAY:
        return 12.0, "12 months"
    if bar == WEEK:
        return 52.0, "52 weeks"
    if calendar == "24/7":
        return 365 * DAY / bar, "365 days of 24 hours"
    if bar == DAY:
        return float(TRADING_DAYS), f"{TRADING_DAYS} trading days"
    if bar > DAY:
        years = (stamps[-1] - stamps[0]) / (365.25 * DAY) if len(stamps) > 1 else 0.0
        return (
            ((len(stamps) - 1) / years, "as counted in the data") if years else (365.25 * DAY / bar, "by the calendar")
        )
    # The median day, so that half days, the Sunday evening of currencies and cut first and last days do not count.
    per_day = float(np.median(np.unique(stamps // DAY, return_counts=True)[1]))
    return per_day * TRADING_DAYS, f"{per_day:g} bars on the median trading day x {TRADING_DAYS} days"


def parse_rule(rule: str) -> int:
    """Nanoseconds of '15min', '4h', '1D' or '1W'."""
    match = re.fullmatch(r"\s*(\d{0,9})\s*(s|min|h|d|w)\s*", rule.lower())
    size = int(match.group(1) or 1) * _UNITS[match.group(2)] if match else 0
    if not 0 < size <= 366 * DAY:
        raise DataError(
            f"resampling rule is {rule!r}; write a number of s, min, h, D or W, such as 15min, 4h, 1D or 1W."
        )
    return size


def describe_step(bar: int) -> str:
    """'1 day', '4 hours', '1 minute' for a step in ns."""
    if bar == 31 * DAY:
        return "1 month"
    for size, unit in ((WEEK, "week"), (DAY, "day"), (HOUR, "hour"), (60 * SECOND, "minute"), (SECOND, "second")):
        if bar % size == 0:
            return f"{bar // size} {unit}" + ("s" if bar > size else "")
    return f"{bar / SECOND:g} seconds"


def _usual_step(steps: NDArray[np.int64]) -> int:
    """The most frequent step (the shortest of equals). Days of 23 and 25 hours (daylight saving) are days."""
    shortest, longest = int(steps.min()), int(steps.max())
    if shortest >= 28 * DAY - HOUR and longest <= 31 * DAY + HOUR and longest - shortest > 2 * HOUR:
        return 31 * DAY  # months: the longest, so that a month is never taken for complete before it is
    values, counts = np.unique(steps, return_counts=True)
    usual = int(values[np.argmax(counts)])
    return round(usual / DAY) * DAY if usual >= 23 * HOUR and abs(usual - round(usual / DAY) * DAY) <= HOUR else usual


def _irregularity(steps: NDArray[np.int64], bar: int) -> str:
    """Why the steps are irregular; empty if they are not."""
    if bar == 31 * DAY:
        return ""
    slack = HOUR if bar >= DAY else 0
    short = float(np.mean(steps < bar - slack))
    usual = float(np.mean(np.abs(steps - bar) <= slack))
    if short > _SHORT_STEPS_ALLOWED:
        return f"{short:.0%} of the steps are shorter than the usual {describe_step(bar)}"
    if usual < _USUAL_STEPS_NEEDED:
        return f"only {usual:.0%} of the steps are the most frequent one, {describe_step(bar)}"
    return ""


def _calendar(stamps: NDArray[np.int64], steps: NDArray[np.int64], bar: int) -> tuple[Calendar, str]:
    """Open around the clock or not, by the Saturdays: no exchange and no currency market trades on them."""
    if bar >= WEEK:
        return "exchange", "bars this long do not show weekends; taken as an exchange"
    weekday = (stamps // DAY + 3) % 7  # Monday is 0: 1970-01-01 was a Thursday
    saturdays, others = int(np.sum(weekday == 5)), int(np.sum(weekday < 5))
    if stamps[-1] - stamps[0] + bar >= WEEK:
        # Five working days to one Saturday: 24/7 data have a fifth as many bars on Saturdays as on working days.
        if saturdays >= 0.5 * others / 5:
            return "24/7", "Saturdays trade"
        return "exchange", "Saturdays are closed"
    if saturdays:
        return "24/7", "a Saturday trades"
    if bar >= DAY:
        return "exchange", "less than a week seen; assumed"
    if (steps > 1.5 * bar).any():
        return "exchange", "there are closed hours"
    return "24/7", "less than a week seen, without closed hours; assumed"


def find_gaps(stamps: NDArray[np.int64], bar: int, calendar: Calendar) -> NDArray[np.int64]:
    """Index of each bar after which bars are missing, int64 [G]; stamps are open times in ns [T], `bar` the step in ns.

    24/7: any step longer than the bar. Exchange: a step of more than five days; or, within a UTC day, one longer than
    the bar, unless its length recurs on half of the days (and at least three times) as a daily pause does. Nights,
    weekends and holidays of an exchange are no gaps. Weeks and months: a step of more than one and a half bars.
    """
    steps = np.diff(stamps)
    if bar >= WEEK:
        return np.flatnonzero(steps > 1.5 * bar)
    slack = HOUR if bar >= DAY else 0  # days of 25 hours
    if calendar == "24/7":
        return np.flatnonzero(steps > bar + slack)
    day = stamps // DAY
    inside = (day[1:] == day[:-1]) & (steps > bar)
    lengths, counts = np.unique(steps[inside], return_counts=True)
    pauses = lengths[counts >= max(3, 0.5 * len(np.unique(day)))]
    return np.flatnonzero((inside & ~np.isin(steps, pauses)) | (steps > max(LONG_WEEKEND, bar) + slack))


def describe_gap(length: int) -> str:
    """'7 days', '4 h' for a length in ns."""
    days = length / DAY
    return f"{days:.4g} days" if days >= 2 else f"{length / HOUR:.4g} h"


def _describe_gaps(stamps: NDArray[np.int64], steps: NDArray[np.int64], bar: int, calendar: Calendar) -> str:
    first, last = (np.datetime_as_string(stamps[i].astype("datetime64[ns]"), unit="D") for i in (0, -1))
    text = f"{len(stamps)} bars from {first} to {last}"
    gaps = find_gaps(stamps, bar, calendar)
    if not len(gaps):
        closed = (
            " (nights, weekends and holidays aside)" if calendar == "exchange" and (steps > 1.5 * bar).any() else ""
        )
        return f"{text} without gaps{closed}."
    at = int(gaps[np.argmax(steps[gaps])])
    after = np.datetime_as_string(stamps[at].astype("datetime64[ns]"), unit="m")
    count = "1 gap" if len(gaps) == 1 else f"{len(gaps)} gaps, the longest"
    return f"{text}; {count} of {describe_gap(int(steps[at]))}, after {after} UTC."
