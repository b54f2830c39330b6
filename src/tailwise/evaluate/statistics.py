"""Numbers of one account's path. What is undefined is None, never infinite; every unit is in the name or the text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from tailwise.core.errors import ConfigError
from tailwise.market.path import AccountPath

Floats = npt.NDArray[np.float64]
_NOTHING = 1e-12  # a standard deviation per bar below this is no risk at all, only rounding


@dataclass(frozen=True)
class PathStatistics:
    """One path. Both tails are always there, each with its horizon: DESIGN calls them cvar_return and cvar_bar."""

    bars: int  # of the window
    years: float
    total_return: float  # fraction of the initial equity
    annual_return: float | None  # fraction per year, geometric; None below a year, where it would be a guess
    annual_volatility: float | None  # standard deviation of log-returns, per square root of a year
    sharpe: float | None  # mean over standard deviation of log-returns, annualised; None without risk
    max_drawdown: float  # fraction of the highest equity before
    cvar_bar: float  # mean of the worst alpha of log-returns per bar
    cvar_return: float | None  # mean of the worst alpha of discounted log-returns over `horizon` bars
    horizon: int  # bars, 3 / (1 - gamma)
    alpha: float
    turnover: float  # notional traded per year as a multiple of equity
    costs: float  # all costs per year as a fraction of equity
    mean_exposure: float  # mean of all absolute positions at the closes, a multiple of equity
    trades: int  # bars with an order or an exit
    ruined: bool  # equity fell to 1% of its start, which ended the account
    shortfall: float  # account currency below the bankruptcy floor at the end


def path_statistics(path: AccountPath, *, alpha: float, gamma: float) -> PathStatistics:
    """Statistics of one path over its whole window; alpha: tail probability, gamma: discount per bar of the long tail.

    A ruined account earns and pays nothing for the rest of the window. Its ruin counts in the long tail of every bar
    from which it was within the horizon.
    """
    returns = np.concatenate([path.log_returns, np.zeros(path.planned - len(path))])
    years = path.planned / path.periods_per_year
    wealth = path.wealth
    deviation = float(returns.std(ddof=1)) if len(returns) > 1 else None
    risky = deviation is not None and deviation > _NOTHING
    scale = path.periods_per_year
    horizon = tail_horizon(gamma)
    # What follows ruin is known, nothing; what follows the end of the data is not.
    known = np.concatenate([returns, np.zeros(horizon - 1)]) if path.ruined else returns
    forward = discounted_forward_returns(known, gamma)
    if path.ruined:
        forward = forward[: len(path)]
    return PathStatistics(
        bars=path.planned,
        years=years,
        total_return=float(wealth[-1] - 1),
        annual_return=float(wealth[-1] ** (1 / years) - 1) if years >= 0.99 else None,
        annual_volatility=float(deviation * np.sqrt(scale)) if deviation is not None else None,
        sharpe=float(returns.mean() / deviation * np.sqrt(scale)) if risky and deviation is not None else None,
        max_drawdown=float((1 - wealth / np.maximum.accumulate(wealth)).max()),
        cvar_bar=empirical_cvar(returns, alpha),
        cvar_return=empirical_cvar(forward, alpha) if len(forward) else None,
        horizon=horizon,
        alpha=alpha,
        turnover=float(path.traded.sum() / years),
        costs=float(path.costs.sum() / years),
        mean_exposure=float(np.abs(path.exposures).sum(axis=1).mean()),
        trades=int((path.traded > 0).sum()),
        ruined=path.ruined,
        shortfall=float(path.ledger["shortfall"][-1]),
    )


def tail_horizon(gamma: float) -> int:
    """Bars after which a discounted return is over: 3 / (1 - gamma), where the weight has fallen to 5%."""
    if not 0 <= gamma < 1:
        raise ConfigError(f"gamma is {gamma}; a discount per bar lies in [0, 1).")
    return int(np.ceil(round(3 / (1 - gamma), 6)))  # 3 / (1 - 0.9) is 30, not 30.000000000000004


def discounted_forward_returns(returns: Floats, gamma: float) -> Floats:
    """sum_k gamma**k r[t + k] over the horizon h, from every bar t that has all of it ahead: float64 [n - h + 1]."""
    horizon = tail_horizon(gamma)
    if len(returns) < horizon:
        return np.zeros(0)
    # The sum to the end of the data, minus what lies beyond the horizon.
    whole = np.asarray(lfilter([1.0], [1.0, -gamma], returns[::-1]))[::-1]
    beyond = np.concatenate([whole[horizon:], np.zeros(1)]) * gamma**horizon
    return whole[: len(beyond)] - beyond


def empirical_cvar(values: Floats, alpha: float) -> float:
    """Mean of the worst alpha of values [n], the border value counted with the part of it that belongs there."""
    if not 0 < alpha <= 1:
        raise ConfigError(f"alpha is {alpha}; a tail probability lies in (0, 1].")
    ordered = np.sort(values)
    mass = alpha * len(ordered)
    whole = int(np.floor(mass + 1e-9))
    if whole == 0:
        return float(ordered[0])
    rest = max(mass - whole, 0.0)
    border = ordered[whole] if whole < len(ordered) else 0.0
    return float((ordered[:whole].sum() + rest * border) / (whole + rest))
