"""What a policy has to be compared with: rules that anybody could have followed, through the same simulator."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from tailwise.market.bars import Bars

Floats = npt.NDArray[np.float64]
VOLATILITY_MEMORY = 0.94  # weight of yesterday's variance, as RiskMetrics had it for daily bars
WARM_UP = 20  # returns before the variance is trusted


def flat(bars: Bars) -> Floats:
    """Never trade: targets [T] of 0."""
    return np.zeros(len(bars))


def buy_and_hold(bars: Bars) -> Floats:
    """Always hold the equity's worth: targets [T] of 1."""
    return np.ones(len(bars))


def volatility_target(bars: Bars, *, target: float = 0.10, largest: float = 1.0) -> Floats:
    """Exposure target / forecast, at most `largest`: targets [T].

    target: volatility per year, a fraction. The forecast at the close of bar t is the exponentially weighted volatility
    of the log-returns up to t; before it is trusted the rule stays flat.
    """
    returns = np.diff(np.log(bars.close))
    start = np.array([VOLATILITY_MEMORY * returns[0] ** 2])
    variance, _ = lfilter([1 - VOLATILITY_MEMORY], [1.0, -VOLATILITY_MEMORY], returns**2, zi=start)
    forecast = np.sqrt(np.maximum(variance, 1e-16) * bars.frequency.periods_per_year)
    targets = np.minimum(target / forecast, largest)
    targets[: WARM_UP - 1] = 0.0
    return np.concatenate([[0.0], targets])
