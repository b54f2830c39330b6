"""Windows of the last n values: how the built-in features keep them in their state, declare them and sum over them.

A window is written twice into the state, n places apart, so that the last n values always lie side by side in the order
of time. Sums are taken afresh at every bar: no running sum can drift, and the value depends on the bars of the window
alone, bit for bit, however long the stream has run. An update costs about one nanosecond per bar of window.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from tailwise.core.compiled import kernel
from tailwise.features.contract import CLOSE, feature

# Layout of the state: [parameters..., zeros up to HEAD, window(s)]; BARS counts the bars seen, LAST is the last close.
BARS, LAST, SPARE, HEAD = 2, 3, 4, 8  # places 0 and 1 hold the parameters, 4 to 7 are free for each feature

# A spread below this share of the size of the values (1e-9, squared) is rounding, not a spread.
NO_SPREAD = 1e-18


# ---------------------------------------------------------------------- declarations
def one_window(window: int) -> int:
    """State size of a feature with one window."""
    return HEAD + 2 * window


def two_windows(window: int) -> int:
    """State size of a feature with two windows."""
    return HEAD + 4 * window


# `feature` for what needs `window` returns, `window` bars, or no bar but the newest.
feature_of_returns = partial(feature, parameters=("window",), warm_up=lambda window: window, state_size=one_window)
feature_of_bars = partial(feature, parameters=("window",), warm_up=lambda window: window - 1, state_size=one_window)
feature_of_one_bar = partial(feature, warm_up=0, state_size=1)


# ---------------------------------------------------------------------- windows
@kernel
def push(state: Any, at: int, n: int, k: int, value: float) -> slice:
    """Write the k-th value of a window of n at `at`; return where the last n are, empty while there are fewer.

    k is -1 at the first bar of a window of returns: there is none yet, and nothing is written.
    """
    j = at + k % n
    if k >= 0:
        state[j] = value
        state[j + n] = value
    return slice(j + 1, j + 1 + (n if k + 1 >= n else 0))


@kernel
def push_value(state: Any, value: float) -> slice:
    """Take in one value per bar; return where the last n are, empty while there are fewer."""
    k = int(state[BARS])
    state[BARS] = k + 1
    return push(state, HEAD, int(state[0]), k, value)


@kernel
def push_return(state: Any, bar: Any) -> slice:
    """Take in the log-return of the bar; return where the last n are, empty while there are fewer."""
    k = int(state[BARS])
    return push(state, HEAD, int(state[0]), k - 1, log_return(state, bar))


@kernel
def log_return(state: Any, bar: Any) -> float:
    """ln(close / previous close), 0 at the first bar; remembers the close and counts the bar."""
    close = bar[CLOSE]
    result = math.log(close / state[LAST]) if state[BARS] > 0.0 else 0.0
    state[LAST] = close
    state[BARS] += 1.0
    return result


# ---------------------------------------------------------------------- over a window, float64 [n]
@kernel
def total(window: Any, centre: float = 0.0) -> float:
    """Sum of (value - centre), in four lanes: fast, and the same on every machine."""
    n = window.size
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for quad in range(n >> 2):
        i = quad << 2
        a += window[i] - centre
        b += window[i + 1] - centre
        c += window[i + 2] - centre
        d += window[i + 3] - centre
    for i in range(n - (n & 3), n):
        a += window[i] - centre
    return (a + b) + (c + d)


@kernel
def spread(window: Any, centre: float) -> float:
    """Sum of (value - centre)**2, in four lanes."""
    n = window.size
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for quad in range(n >> 2):
        i = quad << 2
        a += (window[i] - centre) * (window[i] - centre)
        b += (window[i + 1] - centre) * (window[i + 1] - centre)
        c += (window[i + 2] - centre) * (window[i + 2] - centre)
        d += (window[i + 3] - centre) * (window[i + 3] - centre)
    for i in range(n - (n & 3), n):
        a += (window[i] - centre) * (window[i] - centre)
    return (a + b) + (c + d)


@kernel
def moments(window: Any) -> tuple[float, float]:
    """Mean and variance (population); the variance is exactly 0 where it is rounding."""
    mean = total(window) / window.size
    variance = spread(window, mean) / window.size
    return mean, 0.0 if variance <= NO_SPREAD * mean * mean else variance


@kernel
def largest(window: Any) -> float:
    """The largest value."""
    n = window.size
    a, b = window[0], window[n - 1]
    for pair in range(n >> 1):
        a = max(a, window[pair << 1])
        b = max(b, window[(pair << 1) + 1])
    return max(a, b)


@kernel
def smallest(window: Any) -> float:
    """The smallest value."""
    n = window.size
    a, b = window[0], window[n - 1]
    for pair in range(n >> 1):
        a = min(a, window[pair << 1])
        b = min(b, window[(pair << 1) + 1])
    return min(a, b)
