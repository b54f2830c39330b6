"""The shape and the tails of a law that is known by its values: VaR, CVaR, moments, the long-horizon return.

Returns are returns: a loss is negative, and so are VaR and CVaR of a law that loses. One empirical quantile function
for all of them, the inverse of the empirical distribution function, so that CVaR is the mean of VaR over [0, alpha].
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from tailwise.core.errors import ConfigError
from tailwise.core.numerics import tail_horizon
from tailwise.evaluate.performance import NOTHING

Floats = npt.NDArray[np.float64]


def value_at_risk(values: Floats, alpha: float) -> float:
    """Smallest of values [n] at or below which at least a share alpha of them lies."""
    _check_alpha(alpha)
    # The rounding keeps 0.05 x 100 = 5.000000000000001 from becoming the sixth value.
    rank = int(np.ceil(round(alpha * len(values), 9)))
    return float(np.partition(values, max(rank, 1) - 1)[max(rank, 1) - 1])


def empirical_cvar(values: Floats, alpha: float) -> float:
    """Mean of the worst alpha of values [n], the border value counted with the part of it that belongs there."""
    return float(worst_share(values, alpha)[1])


def worst_share(values: Floats, alpha: float) -> tuple[Floats, Floats]:
    """Border value and mean of the worst alpha of values [..., n], each [...]."""
    _check_alpha(alpha)
    count = values.shape[-1]
    mass = alpha * count
    whole = max(int(np.floor(mass + 1e-9)), 1)
    ordered = np.sort(np.partition(values, min(whole, count - 1), axis=-1)[..., : whole + 1], axis=-1)
    rest = max(mass - whole, 0.0)
    border = ordered[..., whole] if rest > 1e-9 and whole < count else ordered[..., whole - 1]
    return border, np.asarray((ordered[..., :whole].sum(axis=-1) + rest * border) / (whole + rest))


def tail_ratio(values: Floats, alpha: float) -> float | None:
    """Size of the upper alpha-quantile over that of the lower one; None unless the lower one is a loss."""
    lower = value_at_risk(values, alpha)
    return value_at_risk(-values, alpha) / lower if lower < -NOTHING else None


def skewness(values: Floats) -> float | None:
    """Third central moment / variance**1.5, both with 1/n; None without spread."""
    return _standard_moment(values, 3)


def excess_kurtosis(values: Floats) -> float | None:
    """Fourth central moment / variance**2 - 3, both with 1/n: 0 for a normal law; None without spread."""
    moment = _standard_moment(values, 4)
    return None if moment is None else moment - 3.0


def _standard_moment(values: Floats, order: int) -> float | None:
    deviation = float(values.std())
    return float((((values - values.mean()) / deviation) ** order).mean()) if deviation > NOTHING else None


def discounted_forward_returns(returns: Floats, gamma: float) -> Floats:
    """sum_k gamma**k r[t + k] over the horizon h, from every bar t that has all of it ahead: float64 [n - h + 1]."""
    horizon = tail_horizon(gamma)
    if len(returns) < horizon:
        return np.zeros(0)
    # The sum to the end of the data, minus what lies beyond the horizon.
    whole = np.asarray(lfilter([1.0], [1.0, -gamma], returns[::-1]))[::-1]
    beyond = np.concatenate([whole[horizon:], np.zeros(1)]) * gamma**horizon
    return whole[: len(beyond)] - beyond


def known_forward_returns(returns: Floats, gamma: float, *, over: bool) -> Floats:
    """`discounted_forward_returns` from every step whose future is known: [n] if it is over, else [n - h + 1].

    After the end of a game or ruin nothing follows, which is known; after a cut, what follows is not.
    """
    if over:
        returns = np.concatenate([returns, np.zeros(tail_horizon(gamma) - 1)])
    return discounted_forward_returns(returns, gamma)


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha <= 1:
        raise ConfigError(f"alpha is {alpha}; a tail probability lies in (0, 1].")
