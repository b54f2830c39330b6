"""Built-in features of log-returns: how far, how steadily, and with which shape of distribution.

Flat prices give returns of exactly 0, and every ratio is declared for that case: see each meaning.
"""

from __future__ import annotations

import math
from typing import Any

from tailwise.core.compiled import kernel
from tailwise.features.contract import (
    BARS,
    CLOSE,
    HEAD,
    NO_SPREAD,
    SPARE,
    feature,
    log_return,
    one_window,
    push_return,
    spread,
    total,
    whole_window,
)


@feature(
    "return",
    parameters=("window",),
    warm_up=whole_window,
    state_size=lambda window: HEAD + window,
    unit="log-return",
    meaning="ln(close / close of `window` bars ago)",
)
@kernel
def simple_return(state: Any, bar: Any) -> float:
    n, k = int(state[0]), int(state[BARS])
    state[BARS] = k + 1
    place = HEAD + k % n
    before = state[place]
    state[place] = bar[CLOSE]
    return math.log(bar[CLOSE] / before) if k >= n else math.nan


@feature(
    "momentum",
    parameters=("window",),
    smallest=2,
    warm_up=whole_window,
    state_size=one_window,
    unit="standard deviations",
    meaning="return over the window / (root mean square of its one-bar returns x sqrt(window)); 0 if flat",
)
@kernel
def momentum(state: Any, bar: Any) -> float:
    n = int(state[0])
    start = push_return(state, bar, n)
    if start < 0:
        return math.nan
    energy = spread(state, start, n, 0.0)
    return total(state, start, n) / math.sqrt(energy) if energy > 0.0 else 0.0


@feature(
    "efficiency",
    parameters=("window",),
    smallest=2,
    warm_up=whole_window,
    state_size=one_window,
    unit="share, 0 to 1",
    meaning="Kaufman's ratio |return over the window| / sum of |one-bar returns|; 0 if flat",
)
@kernel
def efficiency(state: Any, bar: Any) -> float:
    n = int(state[0])
    start = push_return(state, bar, n)
    if start < 0:
        return math.nan
    path = 0.0
    for i in range(start, start + n):
        path += abs(state[i])
    return min(abs(total(state, start, n)) / path, 1.0) if path > 0.0 else 0.0


@feature(
    "up_share",
    parameters=("window",),
    warm_up=whole_window,
    state_size=one_window,
    unit="share, -1 to 1",
    meaning="(bars that rose - bars that fell) / window; 0 if flat",
)
@kernel
def up_share(state: Any, bar: Any) -> float:
    n = int(state[0])
    start = push_return(state, bar, n)
    if start < 0:
        return math.nan
    balance = 0.0
    for i in range(start, start + n):
        if state[i] > 0.0:
            balance += 1.0
        elif state[i] < 0.0:
            balance -= 1.0
    return balance / n


@feature(
    "downside_share",
    parameters=("window",),
    warm_up=whole_window,
    state_size=one_window,
    unit="share, 0 to 1",
    meaning="sum of squared falls / sum of squared returns; 0.5 if flat",
)
@kernel
def downside_share(state: Any, bar: Any) -> float:
    n = int(state[0])
    start = push_return(state, bar, n)
    if start < 0:
        return math.nan
    down, both = 0.0, 0.0
    for i in range(start, start + n):
        square = state[i] * state[i]
        both += square
        if state[i] < 0.0:
            down += square
    return down / both if both > 0.0 else 0.5


@feature(
    "autocorrelation",
    parameters=("window",),
    smallest=3,
    warm_up=whole_window,
    state_size=one_window,
    unit="correlation, -1 to 1",
    meaning="correlation of each one-bar return with the one before, in the window; 0 if all are equal",
)
@kernel
def autocorrelation(state: Any, bar: Any) -> float:
    n = int(state[0])
    start = push_return(state, bar, n)
    if start < 0:
        return math.nan
    mean = total(state, start, n) / n
    around = spread(state, start, n, mean)
    if around <= NO_SPREAD * n * mean * mean:
        return 0.0
    window, products = state[start : start + n], 0.0
    for i in range(1, n):
        products += (window[i] - mean) * (window[i - 1] - mean)
    return products / around


@feature(
    "skew",
    parameters=("window",),
    smallest=3,
    warm_up=whole_window,
    state_size=one_window,
    unit="1",
    meaning="skewness of the one-bar returns in the window (population moments); 0 if all are equal",
)
@kernel
def skew(state: Any, bar: Any) -> float:
    n = int(state[0])
    start = push_return(state, bar, n)
    if start < 0:
        return math.nan
    mean = total(state, start, n) / n
    second = spread(state, start, n, mean) / n
    if second <= NO_SPREAD * mean * mean:
        return 0.0
    third = 0.0
    for i in range(start, start + n):
        x = state[i] - mean
        third += x * x * x
    return third / (n * second * math.sqrt(second))


@feature(
    "kurtosis",
    parameters=("window",),
    smallest=4,
    warm_up=whole_window,
    state_size=one_window,
    unit="1",
    meaning="excess kurtosis of the one-bar returns in the window (population moments); 0 if all are equal",
)
@kernel
def kurtosis(state: Any, bar: Any) -> float:
    n = int(state[0])
    start = push_return(state, bar, n)
    if start < 0:
        return math.nan
    mean = total(state, start, n) / n
    second = spread(state, start, n, mean) / n
    if second <= NO_SPREAD * mean * mean:
        return 0.0
    fourth = 0.0
    for i in range(start, start + n):
        x = state[i] - mean
        fourth += (x * x) * (x * x)
    return fourth / (n * second * second) - 3.0


@feature(
    "trend",
    parameters=("window",),
    smallest=2,
    warm_up=whole_window,
    state_size=one_window,
    unit="correlation, -1 to 1",
    meaning="correlation of ln(close) with time over the last window + 1 closes; 0 if flat",
)
@kernel
def trend(state: Any, bar: Any) -> float:
    n = int(state[0])
    start = push_return(state, bar, n)
    if start < 0:
        return math.nan
    level, levels, largest_level = 0.0, 0.0, 0.0  # ln(close) relative to the first close of the window
    for i in range(start, start + n):
        level += state[i]
        levels += level
        largest_level = max(largest_level, abs(level))
    mean, middle = levels / (n + 1), n / 2.0
    level, around, products, times = 0.0, mean * mean, middle * mean, middle * middle
    for i in range(start, start + n):
        level += state[i]
        time = i - start + 1 - middle
        around += (level - mean) * (level - mean)
        products += time * (level - mean)
        times += time * time
    if around <= NO_SPREAD * largest_level * largest_level:
        return 0.0
    return products / math.sqrt(around * times)


@feature(
    "rsi",
    parameters=("window",),
    smallest=2,
    warm_up=whole_window,
    state_size=HEAD,
    unit="share, -1 to 1",
    meaning="Wilder's relative strength (RSI / 50 - 1) of log-returns, smoothed by 1 / window; 0 if flat",
)
@kernel
def rsi(state: Any, bar: Any) -> float:
    n, k = state[0], state[BARS]
    move = log_return(state, bar)
    if k == 0.0:
        return math.nan
    # The smoothing's weights need no normalisation here: they cancel in the ratio.
    keep = 1.0 - 1.0 / n
    state[SPARE] = keep * state[SPARE] + max(move, 0.0)
    state[SPARE + 1] = keep * state[SPARE + 1] + max(-move, 0.0)
    if k < n:
        return math.nan
    both = state[SPARE] + state[SPARE + 1]
    return (state[SPARE] - state[SPARE + 1]) / both if both > 0.0 else 0.0


@feature(
    "macd",
    parameters=("fast", "slow"),
    smallest=(1, 2),
    warm_up=lambda fast, slow: slow,
    state_size=HEAD,
    unit="standard deviations of a bar",
    meaning="exponential averages of ln(close) with spans fast and slow, their difference / ewma_volatility_slow; "
    "0 if flat",
)
@kernel
def macd(state: Any, bar: Any) -> float:
    fast, slow, k = 2.0 / (state[0] + 1.0), 2.0 / (state[1] + 1.0), state[BARS]
    move = log_return(state, bar)
    # Kept are the distances of ln(close) from its averages: unlike ln(close), they do not know the unit of the price.
    state[SPARE] = (1.0 - fast) * (state[SPARE] + move)
    state[SPARE + 1] = (1.0 - slow) * (state[SPARE + 1] + move)
    if k == 0.0:
        return math.nan
    state[SPARE + 2] = (1.0 - slow) * state[SPARE + 2] + move * move
    state[SPARE + 3] = (1.0 - slow) * state[SPARE + 3] + 1.0
    if k < state[1]:
        return math.nan
    variance = state[SPARE + 2] / state[SPARE + 3]
    return (state[SPARE + 1] - state[SPARE]) / math.sqrt(variance) if variance > 0.0 else 0.0


FEATURES = (
    simple_return,
    momentum,
    efficiency,
    up_share,
    downside_share,
    autocorrelation,
    skew,
    kurtosis,
    trend,
    rsi,
    macd,
)
