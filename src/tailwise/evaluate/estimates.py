"""The statistics that get intervals: each value with its influence function, on series [..., 1 or 2, n] of log-returns.

The influence of bar t on a statistic is what it would change if bars like t were a little more frequent. For a smooth
function of moments it is the derivative; for CVaR see Trindade et al. 2007.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tailwise.evaluate.bootstrap import Statistic
from tailwise.evaluate.performance import NOTHING
from tailwise.evaluate.tails import worst_share

Floats = npt.NDArray[np.float64]


def mean_return(periods_per_year: float) -> Statistic:
    """Mean log-return per year."""
    return Statistic(
        "mean return",
        lambda x: periods_per_year * x[..., 0, :].mean(axis=-1),
        lambda x: periods_per_year * _centred(x[..., 0, :]),
    )


def volatility(periods_per_year: float) -> Statistic:
    """Standard deviation of log-returns, per square root of a year."""
    root = np.sqrt(periods_per_year)

    def influence(x: Floats) -> Floats:
        centred, deviation = _centred(x[..., 0, :]), _deviation(x[..., 0, :])
        return np.asarray(root * (centred**2 - deviation**2) / (2 * np.maximum(deviation, NOTHING)))

    return Statistic("volatility", lambda x: root * x[..., 0, :].std(axis=-1, ddof=1), influence)


def sharpe(periods_per_year: float) -> Statistic:
    """The annualised Sharpe ratio of log-returns."""
    root = np.sqrt(periods_per_year)
    return Statistic("Sharpe", lambda x: root * _sharpe(x[..., 0, :]), lambda x: root * _sharpe_influence(x[..., 0, :]))


def cvar(alpha: float) -> Statistic:
    """Mean of the worst share alpha of log-returns per bar."""

    def value(x: Floats) -> Floats:
        return worst_share(x[..., 0, :], alpha)[1]

    def influence(x: Floats) -> Floats:
        border, mean = worst_share(x[..., 0, :], alpha)
        shape = (*border.shape, 1)
        below = np.minimum(x[..., 0, :] - border.reshape(shape), 0.0)
        return _centred(np.asarray(border.reshape(shape) + below / alpha - mean.reshape(shape)))

    return Statistic("CVaR", value, influence)


def mean_difference(periods_per_year: float) -> Statistic:
    """Mean log-return per year of the first path minus that of the second."""
    return Statistic(
        "difference of mean returns",
        lambda x: periods_per_year * (x[..., 0, :] - x[..., 1, :]).mean(axis=-1),
        lambda x: periods_per_year * _centred(x[..., 0, :] - x[..., 1, :]),
    )


def sharpe_difference(periods_per_year: float) -> Statistic:
    """Sharpe ratio of the first path minus that of the second (Ledoit & Wolf 2008)."""
    root = np.sqrt(periods_per_year)
    return Statistic(
        "difference of Sharpe",
        lambda x: root * (_sharpe(x[..., 0, :]) - _sharpe(x[..., 1, :])),
        lambda x: root * (_sharpe_influence(x[..., 0, :]) - _sharpe_influence(x[..., 1, :])),
    )


def _centred(x: Floats) -> Floats:
    return np.asarray(x - x.mean(axis=-1, keepdims=True))


def _deviation(x: Floats) -> Floats:
    return np.asarray(x.std(axis=-1, ddof=1, keepdims=True))


def _sharpe(x: Floats) -> Floats:
    return np.asarray(x.mean(axis=-1) / np.maximum(_deviation(x)[..., 0], NOTHING))


def _sharpe_influence(x: Floats) -> Floats:
    deviation = np.maximum(_deviation(x), NOTHING)
    scaled = _centred(x) / deviation
    ratio = x.mean(axis=-1, keepdims=True) / deviation
    # A resample in which nothing happened has no influence and no ratio; its zero error marks it.
    return np.where(deviation > NOTHING, scaled - 0.5 * ratio * (scaled**2 - 1), 0.0)
