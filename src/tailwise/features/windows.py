"""Compiled helpers of the built-in features: windows of the last n values, and sums over them.

A window is written twice into the state, n places apart, so that the last n values always lie side by side in the
order of time. Sums are taken afresh at every bar: no running sum can drift, and the value depends on the bars of the
window alone, bit for bit, however long the stream has run. An update costs about one nanosecond per bar of window.

Layout of the state: [parameters..., zeros up to HEAD, window(s)]; BARS counts the bars seen, LAST is the last close.
"""

from __future__ import annotations

import math
from typing import Any

from tailwise.core.compiled import kernel
from tailwise.features.contract import CLOSE

BARS, LAST, SPARE, HEAD = 2, 3, 4, 8  # places 0 and 1 hold the parameters, 4 to 7 are free for each feature

# A spread below this share of the size of the values (1e-9, squared) is rounding, not a spread.
NO_SPREAD = 1e-18


def one_window(window: int) -> int:
    """State size of a feature with one window."""
    return HEAD + 2 * window


def two_windows(window: int) -> int:
    """State size of a feature with two windows."""
    return HEAD + 4 * window


def whole_window(window: int) -> int:
    """Warm-up of a feature that needs `window` returns."""
    return window


def one_less(window: int) -> int:
    """Warm-up of a feature that needs `window` bars."""
    return window - 1


@kernel
def push(state: Any, at: int, n: int, k: int, value: float) -> int:
    """Write the k-th value of a window of n that lies at `at`; returns where the last n values begin."""
    j = at + k % n
    state[j] = value
    state[j + n] = value
    return j + 1


@kernel
def push_value(state: Any, value: float) -> int:
    """Take in one value per bar; returns where the last n begin, -1 while there are fewer."""
    n, k = int(state[0]), int(state[BARS])
    state[BARS] = k + 1
    start = push(state, HEAD, n, k, value)
    return start if k + 1 >= n else -1


@kernel
def log_return(state: Any, bar: Any) -> float:
    """ln(close / previous close), 0 at the first bar; remembers the close and counts the bar."""
    close = bar[CLOSE]
    result = math.log(close / state[LAST]) if state[BARS] > 0.0 else 0.0
    state[LAST] = close
    state[BARS] += 1.0
    return result


@kernel
def push_return(state: Any, bar: Any, n: int) -> int:
    """Take in the log-return of the bar; returns where the last n begin, -1 while there are fewer."""
    k = int(state[BARS])
    value = log_return(state, bar)
    if k == 0:
        return -1
    start = push(state, HEAD, n, k - 1, value)
    return start if k >= n else -1


@kernel
def total(values: Any, start: int, n: int, centre: float = 0.0) -> float:
    """Sum of (value - centre) over values[start : start + n], in four lanes: fast, and the same on every machine."""
    window = values[start : start + n]
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
def spread(values: Any, start: int, n: int, centre: float) -> float:
    """Sum of (value - centre)**2 over values[start : start + n], in four lanes."""
    window = values[start : start + n]
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
def largest(values: Any, start: int, n: int) -> float:
    """The largest of values[start : start + n]."""
    window = values[start : start + n]
    a, b = window[0], window[n - 1]
    for pair in range(n >> 1):
        a = max(a, window[pair << 1])
        b = max(b, window[(pair << 1) + 1])
    return max(a, b)


@kernel
def smallest(values: Any, start: int, n: int) -> float:
    """The smallest of values[start : start + n]."""
    window = values[start : start + n]
    a, b = window[0], window[n - 1]
    for pair in range(n >> 1):
        a = min(a, window[pair << 1])
        b = min(b, window[(pair << 1) + 1])
    return min(a, b)
