"""Return and risk per year of one series of log-returns. What is undefined is None, never infinite.

Every function takes the number of bars per year from its caller, who has it from the data (`market.frequency`): a
constant in here would be right for one bar length and wrong for all others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import ConfigError

Floats = npt.NDArray[np.float64]
NOTHING = 1e-12  # a deviation per bar, or a drawdown, below this is no risk at all, only rounding
_NEARLY_A_YEAR = 0.99  # 250 of 252 trading days are a year of data


def years_of(bars: int, periods_per_year: float) -> float:
    """Length of `bars` bars in years."""
    if not (np.isfinite(periods_per_year) and periods_per_year > 0):
        raise ConfigError(f"periods per year is {periods_per_year}; it must be positive.")
    return bars / periods_per_year


def annual_return(growth: float, years: float) -> float | None:
    """Geometric return per year (CAGR), a fraction; growth: last wealth over first. None below a year: a guess."""
    return float(growth ** (1 / years) - 1) if years >= _NEARLY_A_YEAR else None


def annual_volatility(returns: Floats, periods_per_year: float) -> float | None:
    """Standard deviation (n - 1) of log-returns [n] x sqrt(bars per year)."""
    deviation = _deviation(returns)
    return None if deviation is None else float(deviation * np.sqrt(periods_per_year))


def sharpe_ratio(returns: Floats, periods_per_year: float) -> float | None:
    """Mean / standard deviation (n - 1) of log-returns [n] x sqrt(bars per year), no risk-free rate."""
    deviation = _deviation(returns)
    if deviation is None or deviation <= NOTHING:
        return None
    return float(returns.mean() / deviation * np.sqrt(periods_per_year))


def sortino_ratio(returns: Floats, periods_per_year: float) -> float | None:
    """Mean / downside deviation of log-returns [n] x sqrt(bars per year) (Sortino & van der Meer 1991).

    The downside deviation is the root of the mean of min(r, 0)**2 over ALL bars, not over the losing ones alone.
    """
    downside = float(np.sqrt(np.mean(np.minimum(returns, 0.0) ** 2)))
    return float(returns.mean() / downside * np.sqrt(periods_per_year)) if downside > NOTHING else None


def calmar_ratio(per_year: float | None, max_drawdown: float) -> float | None:
    """Return per year / worst drawdown, both fractions, over the whole window."""
    return None if per_year is None or max_drawdown <= NOTHING else per_year / max_drawdown


def omega_ratio(returns: Floats) -> float | None:
    """Sum of gains / sum of losses of log-returns [n] (Keating & Shadwick 2002, threshold 0); None without losses."""
    lost = -float(np.minimum(returns, 0.0).sum())
    return float(np.maximum(returns, 0.0).sum()) / lost if lost > NOTHING else None


def _deviation(returns: Floats) -> float | None:
    return float(returns.std(ddof=1)) if len(returns) > 1 else None
