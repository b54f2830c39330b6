"""Numbers of one account's path. What is undefined is None, never infinite; every unit is in the name or the text.

Each number has one implementation: performance.py (series of returns) or trips.py (what single positions earned).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailwise.core.numerics import tail_horizon
from tailwise.evaluate import performance
from tailwise.evaluate.trips import hit_rate, profit_factor, round_trips
from tailwise.market.path import AccountPath
from tailwise.market.records import total_cost

Floats = npt.NDArray[np.float64]
_DAYS_PER_YEAR = 365.25
_DOUBT = 1.25  # bars per year that are off by more than this factor are wrong; holidays and gaps stay well below
_SHORTEST_SPAN = np.timedelta64(30, "D")  # below, weekends alone can explain such a factor


@dataclass(frozen=True)
class PathStatistics:
    """Statistics of one path. Both tails are always there: of single bars and of returns over `horizon` bars."""

    bars: int  # of the window
    periods_per_year: float  # bars per year: what every number per year was made with
    years: float
    total_return: float  # fraction of the initial equity
    annual_return: float | None  # fraction per year, geometric (CAGR); None below a year, where it would be a guess
    annual_volatility: float | None  # standard deviation of log-returns, per square root of a year
    sharpe: float | None  # mean over standard deviation of log-returns, annualised; None without risk
    sortino: float | None  # mean over downside deviation of log-returns, annualised; None without losses
    calmar: float | None  # annual_return over max_drawdown
    omega: float | None  # sum of gains over sum of losses of log-returns per bar
    max_drawdown: float  # fraction of the highest equity before
    longest_drawdown: int  # bars from a peak until equity stands as high again, or until the end
    cdar: float  # mean of the worst alpha of the drawdowns at the closes, a positive fraction
    var_bar: float  # alpha-quantile of log-returns per bar
    cvar_bar: float  # mean of the worst alpha of log-returns per bar
    cvar_return: float | None  # mean of the worst alpha of discounted log-returns over `horizon` bars
    horizon: int  # bars, 3 / (1 - gamma)
    alpha: float
    skewness: float | None  # of log-returns per bar
    excess_kurtosis: float | None  # of log-returns per bar; 0 for a normal law
    tail_ratio: float | None  # size of the upper alpha-quantile of log-returns over that of the lower one
    turnover: float  # notional traded per year as a multiple of equity
    costs: float  # all costs per year as a fraction of equity
    cost_share: float | None  # costs over what was earned before them; None where nothing was earned
    mean_exposure: float  # gross: mean of all absolute positions at the closes, a multiple of equity
    long_exposure: float  # of that the long positions
    short_exposure: float  # of that the short positions, as a positive number; gross is long + short
    net_exposure: float  # long - short: below 0 the account is short on average
    time_in_market: float  # share of the bars with a position at the close
    trades: int  # bars with an order or an exit
    round_trips: int  # positions opened; one that is still open counts
    hit_rate: float | None  # share of the round trips that made money after costs
    profit_factor: float | None  # what winning round trips made over what losing ones lost
    ruined: bool  # equity fell to 1% of its start, which ended the account
    shortfall: float  # account currency below the bankruptcy floor at the end


def path_statistics(path: AccountPath, *, alpha: float, gamma: float) -> PathStatistics:
    """Compute the statistics of a path over its whole window.

    alpha: tail probability; gamma: discount per bar of the long tail.

    A ruined account earns, holds and pays nothing for the rest of the window. Its ruin counts in the long tail of every
    bar from which it was within the horizon.
    """
    returns, scale = window_returns(path), path.periods_per_year
    wealth = np.concatenate([path.wealth, np.full(path.planned - len(path), path.wealth[-1])])
    years = performance.years_of(path.planned, scale)
    per_year = performance.annual_return(float(wealth[-1]), years)
    deepest = performance.max_drawdown(wealth)
    trips = round_trips(path)
    held = np.abs(path.exposures).sum(axis=1)
    long, short = (float(np.maximum(side, 0.0).sum() / path.planned) for side in (path.exposures, -path.exposures))
    return PathStatistics(
        bars=path.planned,
        periods_per_year=scale,
        years=years,
        total_return=float(wealth[-1] - 1),
        annual_return=per_year,
        annual_volatility=performance.annual_volatility(returns, scale),
        sharpe=performance.sharpe_ratio(returns, scale),
        sortino=performance.sortino_ratio(returns, scale),
        calmar=performance.calmar_ratio(per_year, deepest),
        omega=performance.omega_ratio(returns),
        max_drawdown=deepest,
        longest_drawdown=performance.longest_drawdown(wealth),
        cdar=performance.conditional_drawdown(wealth, alpha),
        var_bar=performance.value_at_risk(returns, alpha),
        cvar_bar=performance.empirical_cvar(returns, alpha),
        cvar_return=_long_tail(path, alpha=alpha, gamma=gamma),
        horizon=tail_horizon(gamma),
        alpha=alpha,
        skewness=performance.skewness(returns),
        excess_kurtosis=performance.excess_kurtosis(returns),
        tail_ratio=performance.tail_ratio(returns, alpha),
        turnover=float(path.traded.sum() / years),
        costs=float(path.costs.sum() / years),
        cost_share=cost_share(path),
        mean_exposure=float(held.sum() / path.planned),
        long_exposure=long,
        short_exposure=short,
        net_exposure=long - short,
        time_in_market=float((held > 0).sum() / path.planned),
        trades=int((path.traded > 0).sum()),
        round_trips=len(trips),
        hit_rate=hit_rate(trips),
        profit_factor=profit_factor(trips),
        ruined=path.ruined,
        shortfall=float(path.ledger["shortfall"][-1]),
    )


def window_returns(path: AccountPath) -> Floats:
    """Log-returns of every bar of the window, float64 [planned]: 0 after a ruin."""
    return np.concatenate([path.log_returns, np.zeros(path.planned - len(path))])


def forward_returns(path: AccountPath, gamma: float) -> Floats:
    """Discounted log-returns over the horizon from every bar that has it ahead [n], float64.

    What follows ruin is known, nothing, so every bar of a ruined account counts; what follows the data is not.
    """
    return performance.known_forward_returns(path.log_returns, gamma, over=path.ruined)


def cost_share(path: AccountPath) -> float | None:
    """All costs / (change of equity + all costs): how much of what was earned before costs they took."""
    paid = float(total_cost(path.ledger).sum())
    earned = float(path.equity[-1] - path.equity[0]) + paid
    return paid / earned if earned > performance.NOTHING * path.equity[0] else None


def annualisation_doubt(path: AccountPath) -> str | None:
    """A sentence when the bars per year of a path contradict its own times, which makes every annual number wrong.

    Says nothing about windows below a month, where weekends and holidays alone can explain such a difference.
    """
    span = path.time[-1] - path.time[0]
    if span < _SHORTEST_SPAN:
        return None
    counted = (len(path) - 1) / (span / np.timedelta64(1, "D")) * _DAYS_PER_YEAR
    ratio = path.periods_per_year / counted
    if 1 / _DOUBT <= ratio <= _DOUBT:
        return None
    return (
        f"{path.symbol}: annual numbers assume {path.periods_per_year:,.5g} bars per year, but its {len(path):,} bars "
        f"from {str(path.time[0])[:10]} to {str(path.time[-1])[:10]} are {counted:,.5g} per year: Sharpe ratios are "
        f"off by a factor of {np.sqrt(ratio):.3g}. Set data.periods_per_year, or look for missing bars."
    )


def _long_tail(path: AccountPath, *, alpha: float, gamma: float) -> float | None:
    forward = forward_returns(path, gamma)
    return performance.empirical_cvar(forward, alpha) if len(forward) else None
