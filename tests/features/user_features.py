"""Features as a user writes them: the tests load this file through the configuration."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from tailwise.features import CLOSE, OPEN, batch_feature, feature
from tailwise.features.builtin_returns import momentum as momentum  # imported, not declared: no duplicate


@feature(
    "up_run",
    parameters=("cap",),
    warm_up=0,
    state_size=2,
    unit="share, 0 to 1",
    meaning="bars in a row that closed above their open / cap, at most 1",
)
def up_run(state: Any, bar: Any) -> float:
    state[1] = state[1] + 1.0 if bar[CLOSE] > bar[OPEN] else 0.0
    return min(state[1] / state[0], 1.0)


def _start_at_one(window: int) -> Any:
    return np.array([window, 1.0])


@feature("halving", parameters=("window",), warm_up=1, state_size=2, init=_start_at_one, unit="1", meaning="fades away")
@numba.njit
def halving(state: Any, bar: Any) -> float:
    state[1] /= 2.0
    return state[1]


@feature("broken", warm_up=2, state_size=1, unit="1", meaning="not finite from bar 10 on")
def broken(state: Any, bar: Any) -> float:
    state[0] += 1.0
    return np.nan if state[0] > 10.0 else 1.0


@feature("price", warm_up=0, state_size=1, unit="currency", meaning="the price itself: not scale-free")
def price(state: Any, bar: Any) -> float:
    return bar[CLOSE]


@batch_feature(
    "pandas_return", parameters=("window",), warm_up=lambda window: window, unit="log-return", meaning="return"
)
def pandas_return(frame: Any, window: int) -> Any:
    return np.log(frame["close"] / frame["close"].shift(window))


@batch_feature("centred", warm_up=2, unit="log-return", meaning="LEAKS: a centred average")
def centred(frame: Any) -> Any:
    return np.log(frame["close"] / frame["close"].rolling(5, center=True, min_periods=1).mean())


@batch_feature("array", warm_up=0, unit="1", meaning="returns no Series")
def array(frame: Any) -> Any:
    return frame["close"].to_numpy()
