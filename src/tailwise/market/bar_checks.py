"""Is this bar to be believed? Stale and absurd bars, by one function that reads one bar after the other.

A whole table is checked by the same function in a loop, so a bar is judged in training exactly as it is live: by the
bars before it and by itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.core.compiled import kernel, record_dtype
from tailwise.market.guards_config import GuardsConfig

# Bits of a bar's flag: the first two are known at its open, the third at its close.
STALE_OPEN, ABSURD_OPEN, ABSURD_CLOSE = 1, 2, 4
KNOWN_AT_OPEN = STALE_OPEN | ABSURD_OPEN

# What the check remembers of the bars before.
BAR_MEMORY = record_dtype(
    [
        ("seen", np.int64),  # bars
        ("time", np.int64),  # open time of the last bar, ns
        ("flat_run", np.int64),  # bars in a row with high = low, up to the last one
        ("close", np.float64),
        ("variance", np.float64),  # of log-returns around zero
    ]
)

BAR_LIMITS = record_dtype(
    [
        ("stale_after", np.float64),  # ns from open to open
        ("gap", np.float64),
        ("move", np.float64),
        ("deviations", np.float64),
        ("volatility_bars", np.int64),
        ("flat_run", np.int64),
    ]
)


def make_bar_limits(config: GuardsConfig, bar_ns: int) -> npt.NDArray[Any]:
    """One record [1]; what is off becomes a level that no bar can reach."""
    limits = np.zeros(1, dtype=BAR_LIMITS)
    limits["stale_after"] = np.inf if config.stale_bars is None else config.stale_bars * bar_ns
    limits["gap"] = np.inf if config.absurd_gap is None else config.absurd_gap
    limits["move"] = np.inf if config.absurd_move is None else config.absurd_move
    limits["deviations"] = np.inf if config.absurd_volatility is None else config.absurd_volatility
    limits["volatility_bars"] = config.volatility_bars
    limits["flat_run"] = np.iinfo(np.int64).max if config.absurd_flat_bars is None else config.absurd_flat_bars
    return limits


@kernel
def check_open(memory: Any, time: int, open_: float, limits: Any) -> int:
    """Flags that the open of a bar shows already; changes nothing."""
    if memory.seen == 0:
        return 0
    flags = 0
    if time - memory.time > limits.stale_after:
        flags |= STALE_OPEN
    if abs(open_ / memory.close - 1.0) > limits.gap:
        flags |= ABSURD_OPEN
    return flags


@kernel
def check_bar(memory: Any, time: int, open_: float, high: float, low: float, close: float, limits: Any) -> int:
    """All flags of a complete bar; remembers it.

    The volatility is that of the bars before: the mean square of their log-returns, exponentially forgotten. A return
    enters it cut to the limit, so that a bad price hardly widens the limit while a market that has really become wilder
    is believed again after some bars. A market that never moved has no volatility to compare with.
    """
    flags = check_open(memory, time, open_, limits)
    flat_run = memory.flat_run + 1 if high == low else 0
    if flat_run >= limits.flat_run:
        flags |= ABSURD_CLOSE
    if memory.seen > 0:
        if abs(close / memory.close - 1.0) > limits.move:
            flags |= ABSURD_CLOSE
        size = abs(math.log(close / memory.close))
        returns = memory.seen - 1  # that the variance is made of
        if returns >= limits.volatility_bars and memory.variance > 0.0:
            largest = limits.deviations * math.sqrt(memory.variance)
            if size > largest:
                flags |= ABSURD_CLOSE
                size = largest
        weight = max(2.0 / (limits.volatility_bars + 1.0), 1.0 / (returns + 1.0))
        memory.variance += weight * (size * size - memory.variance)
    memory.seen += 1
    memory.time = time
    memory.flat_run = flat_run
    memory.close = close
    return flags


@kernel
def check_bars(memory: Any, time: Any, bars: Any, limits: Any, flags: Any) -> None:
    """flags int8 [T] of bars [T] BAR that open at time int64 [T], ns; memory and limits are arrays [1]."""
    for t in range(bars.shape[0]):
        bar = bars[t]
        flags[t] = check_bar(memory[0], time[t], bar.open, bar.high, bar.low, bar.close, limits[0])
