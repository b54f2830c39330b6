"""The best that anybody could have done with these positions and costs, knowing all prices: an upper bound."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.market.costs import CostConfig


def oracle_targets(
    bars: Bars, positions: Sequence[float], costs: CostConfig, *, first: int = 0
) -> npt.NDArray[np.float64]:
    """Targets [T] that maximise the log-return from bar `first` on, flat at its close, by dynamic programming.

    Holding p through bar t earns ln(1 + p (close / open - 1)), and moving from q to p costs |p - q| times the linear
    rate of an order. The gap between close and open is nil on synthetic bars.
    """
    levels = np.asarray(positions, dtype=np.float64)
    gain = np.log1p(levels[None, :] * (bars.close / bars.open - 1.0)[:, None])  # [T, K]
    moving = np.log1p(-costs.taker_rate * np.abs(levels[:, None] - levels[None, :]))  # from, to
    rows, count = len(bars), len(levels)
    best = np.zeros((rows + 1, count))
    choice = np.zeros((rows, count), dtype=np.int64)
    for t in range(rows - 1, first, -1):
        value = moving + (gain[t] + best[t + 1])[None, :]
        choice[t] = value.argmax(1)
        best[t] = value.max(1)
    targets = np.zeros(rows)
    held = int(np.argmin(np.abs(levels)))
    for t in range(first + 1, rows):
        held = int(choice[t, held])
        targets[t - 1] = levels[held]
    return targets
