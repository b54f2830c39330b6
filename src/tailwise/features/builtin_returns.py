"""Built-in features of log-returns: how far, how steadily, and with which shape of distribution.

Flat prices give returns of exactly 0, and every ratio is declared for that case: see each meaning.
"""

from __future__ import annotations

import math
from typing import Any

from tailwise.core.compiled import kernel
from tailwise.features.contract import CLOSE, feature
from tailwise.features.windows import (
    BARS,
    HEAD,
    NO_SPREAD,
    SPARE,
    feature_of_returns,
    log_return,
    moments,
    push_return,
    spread,
    total,
)


@feature_of_returns(
    "return",
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


@feature_of_returns(
    "momentum",
    smallest=2,
    unit="standard deviations",
    meaning="return over the window / (root mean square of its one-bar returns x sqrt(window)); 0 if flat",
)
@kernel
def momentum(state: Any, bar: Any) -> float:
    returns = state[push_return(state, bar)]
    if returns.size == 0:
        return math.nan
    energy = spread(returns, 0.0)
    return total(returns) / math.sqrt(energy) if energy > 0.0 else 0.0


@feature_of_returns(
    "efficiency",
    smallest=2,
    unit="share, 0 to 1",
    meaning="Kaufman's ratio |return over the window| / sum of |one-bar returns|; 0 if flat",
)
@kernel
def efficiency(state: Any, bar: Any) -> float:
    returns = state[push_return(state, bar)]
    if returns.size == 0:
        return math.nan
    path = 0.0
    for move in returns:
        path += abs(move)
    return min(abs(total(returns)) / path, 1.0) if path > 0.0 else 0.0


@feature_of_returns(
    "up_share",
    unit="share, -1 to 1",
    meaning="(bars that rose - bars that fell) / window; 0 if flat",
)
@kernel
def up_share(state: Any, bar: Any) -> float:
    returns = state[push_return(state, bar)]
    if returns.size == 0:
        return math.nan
    balance = 0.0
    for move in returns:
        if move > 0.0:
            balance += 1.0
        elif move < 0.0:
            balance -= 1.0
    return balance / returns.size


@feature_of_returns(
    "downside_share",
    unit="share, 0 to 1",
    meaning="sum of squared falls / sum of squared returns; 0.5 if flat",
)
@kernel
def downside_share(state: Any, bar: Any) -> float:
    returns = state[push_return(state, bar)]
    if returns.size == 0:
        return math.nan
    down, both = 0.0, 0.0
    for move in returns:
        both += move * move
        if move < 0.0:
            down += move * move
    return down / both if both > 0.0 else 0.5


@feature_of_returns(
    "autocorrelation",
    smallest=3,
    unit="correlation, -1 to 1",
    meaning="correlation of each one-bar return with the one before, in the window; 0 if all are equal",
)
@kernel
def autocorrelation(state: Any, bar: Any) -> float:
    returns = state[push_return(state, bar)]
    if returns.size == 0:
        return math.nan
    n = returns.size
    mean = total(returns) / n
    around = spread(returns, mean)
    if around <= NO_SPREAD * n * mean * mean:
        return 0.0
    products = 0.0
    for i in range(1, n):
        products += (returns[i] - mean) * (returns[i - 1] - mean)
    return products / around


@feature_of_returns(
    "skew",
    smallest=3,
    unit="1",
    meaning="skewness of the one-bar returns in the window (population moments); 0 if all are equal",
)
@kernel
def skew(state: Any, bar: Any) -> float:
    returns = state[push_return(state, bar)]
    if returns.size == 0:
        return math.nan
    mean, variance = moments(returns)
    if variance == 0.0:
        return 0.0
    third = 0.0
    for move in returns:
        x = move - mean
        third += x * x * x
    return third / (returns.size * variance * math.sqrt(variance))


@feature_of_returns(
    "kurtosis",
    smallest=4,
    unit="1",
    meaning="excess kurtosis of the one-bar returns in the window (population moments); 0 if all are equal",
)
@kernel
def kurtosis(state: Any, bar: Any) -> float:
    returns = state[push_return(state, bar)]
    if returns.size == 0:
        return math.nan
    mean, variance = moments(returns)
    if variance == 0.0:
        return 0.0
    fourth = 0.0
    for move in returns:
        x = move - mean
        fourth += (x * x) * (x * x)
    return fourth / (returns.size * variance * variance) - 3.0


@feature_of_returns(
    "trend",
    smallest=2,
    unit="correlation, -1 to 1",
    meaning="correlation of ln(close) with time over the last window + 1 closes; 0 if flat",
)
@kernel
def trend(state: Any, bar: Any) -> float:
    returns = state[push_return(state, bar)]
    if returns.size == 0:
        return math.nan
    n = returns.size
    level, levels, largest_level = 0.0, 0.0, 0.0  # ln(close) relative to the first close of the window
    for move in returns:
        level += move
        levels += level
        largest_level = max(largest_level, abs(level))
    mean, middle = levels / (n + 1), n / 2.0
    level, around, products, times = 0.0, mean * mean, middle * mean, middle * middle
    for i in range(n):
        level += returns[i]
        time = i + 1 - middle
        around += (level - mean) * (level - mean)
        products += time * (level - mean)
        times += time * time
    if around <= NO_SPREAD * largest_level * largest_level:
        return 0.0
    return products / math.sqrt(around * times)


@feature_of_returns(
    "rsi",
    smallest=2,
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
