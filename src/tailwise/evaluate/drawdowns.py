"""How far, how long and how often an account stood below its highest equity."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tailwise.evaluate.tails import empirical_cvar

Floats = npt.NDArray[np.float64]


def drawdowns(wealth: Floats) -> Floats:
    """1 - wealth / highest wealth so far, float64 [..., n + 1]: 0 at a peak, 1 when all is lost; time is last."""
    return np.asarray(1 - wealth / np.maximum.accumulate(wealth, axis=-1))


def max_drawdown(wealth: Floats) -> float:
    """The largest drawdown of wealth [n + 1], a positive fraction."""
    return float(drawdowns(wealth).max())


def longest_drawdown(wealth: Floats) -> int:
    """Bars from a peak until wealth [n + 1] stands as high again, or until the end where it never does; the longest."""
    at_peak = np.flatnonzero(wealth >= np.maximum.accumulate(wealth))
    last = len(wealth) - 1
    between = np.diff(at_peak)
    recovered = int(between[between > 1].max(initial=0))  # from one peak to the very next bar is no drawdown
    return max(recovered, last - int(at_peak[-1]))


def conditional_drawdown(wealth: Floats, alpha: float) -> float:
    """CDaR: mean of the worst share alpha of the drawdowns at the closes (Chekhlov, Uryasev & Zabarankin 2005)."""
    return -empirical_cvar(-drawdowns(wealth)[1:], alpha)
