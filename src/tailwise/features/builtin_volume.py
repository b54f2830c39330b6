"""Built-in features of volume, relative to its own past, and of the calendar. Without volume they are all 0."""

from __future__ import annotations

import math
from typing import Any

from tailwise.core.compiled import kernel
from tailwise.features.contract import TIME, VOLUME, feature
from tailwise.features.windows import (
    BARS,
    HEAD,
    NO_SPREAD,
    log_return,
    one_less,
    one_window,
    push,
    push_value,
    spread,
    total,
    two_windows,
)

_SMALLEST_RATIO = 1e-3  # a volume below a thousandth of the average counts as a thousandth: ln(0) is no number
_DAY = 86400.0  # seconds


@feature(
    "volume_ratio",
    parameters=("window",),
    smallest=2,
    warm_up=one_less,
    state_size=one_window,
    unit="ln of a ratio",
    meaning="ln(volume / its average), at least ln(1/1000); 0 if there is no volume in the window",
)
@kernel
def volume_ratio(state: Any, bar: Any) -> float:
    n = int(state[0])
    start = push_value(state, bar[VOLUME])
    if start < 0:
        return math.nan
    average = total(state, start, n) / n
    return math.log(max(bar[VOLUME] / average, _SMALLEST_RATIO)) if average > 0.0 else 0.0


@feature(
    "volume_zscore",
    parameters=("window",),
    smallest=2,
    warm_up=one_less,
    state_size=one_window,
    unit="standard deviations",
    meaning="(volume - its average) / its standard deviation (population); 0 if all volumes are equal",
)
@kernel
def volume_zscore(state: Any, bar: Any) -> float:
    n = int(state[0])
    start = push_value(state, bar[VOLUME])
    if start < 0:
        return math.nan
    mean = total(state, start, n) / n
    variance = spread(state, start, n, mean) / n
    return (bar[VOLUME] - mean) / math.sqrt(variance) if variance > NO_SPREAD * mean * mean else 0.0


@feature(
    "volume_return",
    parameters=("window",),
    warm_up=lambda window: window,
    state_size=two_windows,
    unit="log-return per bar",
    meaning="mean of the one-bar returns weighted by volume; 0 if there is no volume in the window",
)
@kernel
def volume_return(state: Any, bar: Any) -> float:
    n, k = int(state[0]), int(state[BARS])
    move = log_return(state, bar)
    if k == 0:
        return math.nan
    moves = push(state, HEAD, n, k - 1, move)
    volumes = push(state, HEAD + 2 * n, n, k - 1, bar[VOLUME])
    if k < n:
        return math.nan
    traded = total(state, volumes, n)
    if not traded > 0.0:
        return 0.0
    weighted = 0.0
    for i in range(n):
        weighted += state[moves + i] * (state[volumes + i] / traded)
    return weighted


@feature(
    "signed_volume",
    parameters=("window",),
    warm_up=lambda window: window,
    state_size=two_windows,
    unit="share, -1 to 1",
    meaning="(volume of bars that rose - volume of bars that fell) / volume; 0 if there is none in the window",
)
@kernel
def signed_volume(state: Any, bar: Any) -> float:
    n, k = int(state[0]), int(state[BARS])
    move = log_return(state, bar)
    if k == 0:
        return math.nan
    sign = 1.0 if move > 0.0 else -1.0 if move < 0.0 else 0.0
    signed = push(state, HEAD, n, k - 1, sign * bar[VOLUME])
    volumes = push(state, HEAD + 2 * n, n, k - 1, bar[VOLUME])
    if k < n:
        return math.nan
    traded = total(state, volumes, n)
    return min(max(total(state, signed, n) / traded, -1.0), 1.0) if traded > 0.0 else 0.0


@kernel
def angle_of_day(bar: Any) -> float:
    return 2.0 * math.pi * (bar[TIME] % _DAY) / _DAY


@kernel
def angle_of_week(bar: Any) -> float:
    """Monday is 0: 1970-01-01 was a Thursday."""
    return 2.0 * math.pi * ((math.floor(bar[TIME] / _DAY) + 3.0) % 7.0) / 7.0


@feature(
    "hour_sin", warm_up=0, state_size=1, unit="-1 to 1", meaning="sine of the time of day (UTC) at which the bar opens"
)
@kernel
def hour_sin(state: Any, bar: Any) -> float:
    return math.sin(angle_of_day(bar))


@feature(
    "hour_cos",
    warm_up=0,
    state_size=1,
    unit="-1 to 1",
    meaning="cosine of the time of day (UTC) at which the bar opens",
)
@kernel
def hour_cos(state: Any, bar: Any) -> float:
    return math.cos(angle_of_day(bar))


@feature(
    "weekday_sin", warm_up=0, state_size=1, unit="-1 to 1", meaning="sine of the day of the week (UTC), Monday 0 of 7"
)
@kernel
def weekday_sin(state: Any, bar: Any) -> float:
    return math.sin(angle_of_week(bar))


@feature(
    "weekday_cos", warm_up=0, state_size=1, unit="-1 to 1", meaning="cosine of the day of the week (UTC), Monday 0 of 7"
)
@kernel
def weekday_cos(state: Any, bar: Any) -> float:
    return math.cos(angle_of_week(bar))


FEATURES = (
    volume_ratio,
    volume_zscore,
    volume_return,
    signed_volume,
    hour_sin,
    hour_cos,
    weekday_sin,
    weekday_cos,
)
