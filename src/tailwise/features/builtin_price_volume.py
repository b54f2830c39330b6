"""Built-in features of the price level, of volume and of the calendar, none of which depends on a unit.

The price is relative to its average, to its extremes or inside its bar; volume is relative to its own past, and without
volume its features are all 0.
"""

from __future__ import annotations

import math
from typing import Any

from tailwise.core.compiled import kernel
from tailwise.features.contract import CLOSE, HIGH, LOW, OPEN, TIME, VOLUME, feature
from tailwise.features.windows import (
    BARS,
    HEAD,
    LAST,
    feature_of_bars,
    feature_of_one_bar,
    feature_of_returns,
    largest,
    log_return,
    moments,
    push,
    push_value,
    smallest,
    spread,
    total,
    two_windows,
)


@kernel
def deviation(closes: Any) -> tuple[float, float]:
    """Mean and standard deviation of closes [n], both as (value / newest close), the mean less 1.

    Differences from the newest close are exactly 0 while the price stands still: no rounding poses as a spread.
    """
    newest = closes[-1]
    mean = total(closes, newest) / closes.size
    width = math.sqrt(spread(closes, newest + mean) / closes.size)
    return mean / newest, width / newest


@feature_of_bars(
    "zscore",
    smallest=2,
    unit="standard deviations",
    meaning="(close - its average) / its standard deviation (population); 0 if flat",
)
@kernel
def zscore(state: Any, bar: Any) -> float:
    closes = state[push_value(state, bar[CLOSE])]
    if closes.size == 0:
        return math.nan
    mean, width = deviation(closes)
    return -mean / width if width > 0.0 else 0.0


@feature_of_bars(
    "bollinger",
    smallest=2,
    unit="share, -1 to 1",
    meaning="place of the close between the Bollinger bands (2 standard deviations): 0 in the middle, -1 and 1 on a "
    "band or beyond it; 0 if flat",
)
@kernel
def bollinger(state: Any, bar: Any) -> float:
    closes = state[push_value(state, bar[CLOSE])]
    if closes.size == 0:
        return math.nan
    mean, width = deviation(closes)
    return min(max(-mean / (2.0 * width), -1.0), 1.0) if width > 0.0 else 0.0


@feature_of_bars(
    "bollinger_width",
    smallest=2,
    unit="share of the average price",
    meaning="distance of the Bollinger bands (4 standard deviations) / average close; 0 if flat",
)
@kernel
def bollinger_width(state: Any, bar: Any) -> float:
    closes = state[push_value(state, bar[CLOSE])]
    if closes.size == 0:
        return math.nan
    mean, width = deviation(closes)
    return 4.0 * width / (1.0 + mean)


@feature_of_bars(
    "high_distance",
    unit="log-return, at most 0",
    meaning="ln(close / highest high of the window)",
)
@kernel
def high_distance(state: Any, bar: Any) -> float:
    highs = state[push_value(state, bar[HIGH])]
    return math.log(bar[CLOSE] / largest(highs)) if highs.size > 0 else math.nan


@feature_of_bars(
    "low_distance",
    unit="log-return, at least 0",
    meaning="ln(close / lowest low of the window)",
)
@kernel
def low_distance(state: Any, bar: Any) -> float:
    lows = state[push_value(state, bar[LOW])]
    return math.log(bar[CLOSE] / smallest(lows)) if lows.size > 0 else math.nan


@feature_of_bars(
    "drawdown",
    smallest=2,
    unit="log-return, at most 0",
    meaning="ln(close / highest close of the window)",
)
@kernel
def drawdown(state: Any, bar: Any) -> float:
    closes = state[push_value(state, bar[CLOSE])]
    return math.log(bar[CLOSE] / largest(closes)) if closes.size > 0 else math.nan


@feature_of_bars(
    "range_position",
    state_size=two_windows,
    unit="share, -1 to 1",
    meaning="place of the close between lowest low (-1) and highest high (1) of the window; 0 if flat",
)
@kernel
def range_position(state: Any, bar: Any) -> float:
    n, k = int(state[0]), int(state[BARS])
    state[BARS] = k + 1
    highs = state[push(state, HEAD, n, k, bar[HIGH])]
    lows = state[push(state, HEAD + 2 * n, n, k, bar[LOW])]
    if lows.size == 0:
        return math.nan
    return place_between(bar[CLOSE], smallest(lows), largest(highs))


@kernel
def place_between(price: float, low: float, high: float) -> float:
    """-1 at low, 1 at high, 0 where both are the same price."""
    if not high > low:
        return 0.0
    return min(max(((price - low) - (high - price)) / (high - low), -1.0), 1.0)


@feature(
    "gap",
    warm_up=1,
    state_size=HEAD,
    unit="log-return",
    meaning="ln(open / previous close): the overnight gap",
)
@kernel
def gap(state: Any, bar: Any) -> float:
    before = state[LAST]
    state[LAST] = bar[CLOSE]
    return math.log(bar[OPEN] / before) if before > 0.0 else math.nan


@feature_of_one_bar("intraday", unit="log-return", meaning="ln(close / open) of the bar")
@kernel
def intraday(state: Any, bar: Any) -> float:
    return math.log(bar[CLOSE] / bar[OPEN])


@feature_of_one_bar(
    "close_location",
    unit="share, -1 to 1",
    meaning="place of the close between low (-1) and high (1) of its bar; 0 if they are equal",
)
@kernel
def close_location(state: Any, bar: Any) -> float:
    return place_between(bar[CLOSE], bar[LOW], bar[HIGH])


@feature_of_one_bar(
    "body",
    unit="share, -1 to 1",
    meaning="(close - open) / (high - low); 0 if high and low are equal",
)
@kernel
def body(state: Any, bar: Any) -> float:
    return share_of_bar(bar[CLOSE] - bar[OPEN], bar)


@feature_of_one_bar(
    "upper_wick",
    unit="share, 0 to 1",
    meaning="(high - higher of open and close) / (high - low); 0 if high and low are equal",
)
@kernel
def upper_wick(state: Any, bar: Any) -> float:
    return share_of_bar(max(bar[HIGH] - max(bar[OPEN], bar[CLOSE]), 0.0), bar)


@feature_of_one_bar(
    "lower_wick",
    unit="share, 0 to 1",
    meaning="(lower of open and close - low) / (high - low); 0 if high and low are equal",
)
@kernel
def lower_wick(state: Any, bar: Any) -> float:
    return share_of_bar(max(min(bar[OPEN], bar[CLOSE]) - bar[LOW], 0.0), bar)


@kernel
def share_of_bar(length: float, bar: Any) -> float:
    span = bar[HIGH] - bar[LOW]
    return min(max(length / span, -1.0), 1.0) if span > 0.0 else 0.0


# ---------------------------------------------------------------------- volume
_SMALLEST_RATIO = 1e-3  # a volume below a thousandth of the average counts as a thousandth: ln(0) is no number
_DAY = 86400.0  # seconds


@feature_of_bars(
    "volume_ratio",
    smallest=2,
    unit="ln of a ratio",
    meaning="ln(volume / its average), at least ln(1/1000); 0 if there is no volume in the window",
)
@kernel
def volume_ratio(state: Any, bar: Any) -> float:
    volumes = state[push_value(state, bar[VOLUME])]
    if volumes.size == 0:
        return math.nan
    average = total(volumes) / volumes.size
    return math.log(max(bar[VOLUME] / average, _SMALLEST_RATIO)) if average > 0.0 else 0.0


@feature_of_bars(
    "volume_zscore",
    smallest=2,
    unit="standard deviations",
    meaning="(volume - its average) / its standard deviation (population); 0 if all volumes are equal",
)
@kernel
def volume_zscore(state: Any, bar: Any) -> float:
    volumes = state[push_value(state, bar[VOLUME])]
    if volumes.size == 0:
        return math.nan
    mean, variance = moments(volumes)
    return (bar[VOLUME] - mean) / math.sqrt(variance) if variance > 0.0 else 0.0


@feature_of_returns(
    "volume_return",
    state_size=two_windows,
    unit="log-return per bar",
    meaning="mean of the one-bar returns weighted by volume; 0 if there is no volume in the window",
)
@kernel
def volume_return(state: Any, bar: Any) -> float:
    n, k = int(state[0]), int(state[BARS])
    returns = state[push(state, HEAD, n, k - 1, log_return(state, bar))]
    volumes = state[push(state, HEAD + 2 * n, n, k - 1, bar[VOLUME])]
    if volumes.size == 0:
        return math.nan
    traded = total(volumes)
    if not traded > 0.0:
        return 0.0
    weighted = 0.0
    for i in range(n):
        weighted += returns[i] * (volumes[i] / traded)
    return weighted


@feature_of_returns(
    "signed_volume",
    state_size=two_windows,
    unit="share, -1 to 1",
    meaning="(volume of bars that rose - volume of bars that fell) / volume; 0 if there is none in the window",
)
@kernel
def signed_volume(state: Any, bar: Any) -> float:
    n, k = int(state[0]), int(state[BARS])
    move = log_return(state, bar)
    sign = 1.0 if move > 0.0 else -1.0 if move < 0.0 else 0.0
    signed = state[push(state, HEAD, n, k - 1, sign * bar[VOLUME])]
    volumes = state[push(state, HEAD + 2 * n, n, k - 1, bar[VOLUME])]
    if volumes.size == 0:
        return math.nan
    traded = total(volumes)
    return min(max(total(signed) / traded, -1.0), 1.0) if traded > 0.0 else 0.0


@kernel
def angle_of_day(bar: Any) -> float:
    return 2.0 * math.pi * (bar[TIME] % _DAY) / _DAY


@kernel
def angle_of_week(bar: Any) -> float:
    """Monday is 0: 1970-01-01 was a Thursday."""
    return 2.0 * math.pi * ((math.floor(bar[TIME] / _DAY) + 3.0) % 7.0) / 7.0


@feature_of_one_bar("hour_sin", unit="-1 to 1", meaning="sine of the time of day (UTC) at which the bar opens")
@kernel
def hour_sin(state: Any, bar: Any) -> float:
    return math.sin(angle_of_day(bar))


@feature_of_one_bar(
    "hour_cos",
    unit="-1 to 1",
    meaning="cosine of the time of day (UTC) at which the bar opens",
)
@kernel
def hour_cos(state: Any, bar: Any) -> float:
    return math.cos(angle_of_day(bar))


@feature_of_one_bar("weekday_sin", unit="-1 to 1", meaning="sine of the day of the week (UTC), Monday 0 of 7")
@kernel
def weekday_sin(state: Any, bar: Any) -> float:
    return math.sin(angle_of_week(bar))


@feature_of_one_bar("weekday_cos", unit="-1 to 1", meaning="cosine of the day of the week (UTC), Monday 0 of 7")
@kernel
def weekday_cos(state: Any, bar: Any) -> float:
    return math.cos(angle_of_week(bar))
