"""Small numerical functions: moments, a check for NaN and infinity, the horizon of a discount, even spreading."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from tailwise.core.errors import ConfigError

GOLDEN_RATIO = (5**0.5 - 1) / 2
_LANES = 64  # partial sums of a flat sample


@dataclass(frozen=True)
class Moments:
    """Moments of the columns of `count` rows, each float64 [D].

    The variance is that of the population. No entry is below `low` or above `high`: bounds from sums of squares, about
    ten standard deviations out, and not the extremes themselves.
    """

    count: int
    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def column_moments(rows: NDArray[np.floating[Any]]) -> Moments:
    """Compute the moments of rows [n, D] in one pass; 0 for no rows, not finite where a column is not."""
    from tailwise.core.loops.arrays import add_moments  # imports numba: on first use

    count, size = rows.shape
    mean, squares = np.zeros(size), np.zeros(size)
    low, high = np.full(size, np.inf), np.full(size, -np.inf)
    add_moments(np.ascontiguousarray(rows), mean, squares, low, high, np.empty((2, size)))
    return Moments(count, mean, squares / max(count, 1), low, high)


def sample_moments(values: NDArray[np.floating[Any]]) -> tuple[float, float]:
    """Compute mean and population variance of values [n], n > 0."""
    whole = len(values) // _LANES * _LANES
    parts = [values[:whole].reshape(-1, _LANES)] if whole else []
    parts += [values[whole:].reshape(1, -1)] if whole < len(values) else []
    moments = [column_moments(part) for part in parts]
    counts = np.concatenate([np.full(len(one.mean), float(one.count)) for one in moments])
    means = np.concatenate([one.mean for one in moments])
    mean = float(counts @ means) / len(values)
    with np.errstate(invalid="ignore"):  # values that are not finite give NaN
        around = np.concatenate([one.variance for one in moments]) + (means - mean) ** 2
    return mean, float(counts @ around) / len(values)


def tail_horizon(gamma: float) -> int:
    """Horizon of a discounted return in steps: 3 / (1 - gamma), where the weight has fallen to 5%."""
    if not 0 <= gamma < 1:
        raise ConfigError(f"gamma is {gamma}; a discount per bar lies in [0, 1).")
    return math.ceil(round(3 / (1 - gamma), 6))  # 3 / (1 - 0.9) is 30, not 30.000000000000004


def discounted_forward_returns(returns: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    """sum_k gamma**k r[t + k] over the horizon h, from every bar t that has all of it ahead: float64 [n - h + 1]."""
    horizon = tail_horizon(gamma)
    if len(returns) < horizon:
        return np.zeros(0)
    from scipy.signal import lfilter  # not at every start of the command line

    # The sum to the end of the data, minus what lies beyond the horizon.
    whole = np.asarray(lfilter([1.0], [1.0, -gamma], returns[::-1]))[::-1]
    beyond = np.concatenate([whole[horizon:], np.zeros(1)]) * gamma**horizon
    return whole[: len(beyond)] - beyond


def known_forward_returns(returns: NDArray[np.float64], gamma: float, *, over: bool) -> NDArray[np.float64]:
    """`discounted_forward_returns` from every step whose future is known: [n] if it is over, else [n - h + 1].

    After the end of a game or ruin nothing follows, which is known; after a cut, what follows is not.
    """
    if over:
        returns = np.concatenate([returns, np.zeros(tail_horizon(gamma) - 1)])
    return discounted_forward_returns(returns, gamma)


def surely_finite(*arrays: npt.NDArray[Any]) -> bool:
    """Whether the sum of squares of each array is finite: then no entry is NaN or infinite.

    False also where squares of finite numbers overflow: then the entries must be checked one by one. A dot product,
    because that is the fastest way to read an array.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        for array in arrays:  # no generator: playback asks for every decision
            flat = array.reshape(-1)
            if not math.isfinite(np.dot(flat, flat)):
                return False
    return True


def golden_fractions(numbers: Any) -> Any:
    """frac(n x golden ratio) of whole numbers n, array or tensor: any run of them fills [0, 1) evenly."""
    return numbers * GOLDEN_RATIO % 1.0
