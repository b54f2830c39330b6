"""Numbers of one series of returns or of wealth, and all of them for one account's path.

What is undefined is None, never infinite; every unit is in the name or the text. The number of bars per year comes from
the data (`bars.frequency`): a constant in here would be right for one bar length and wrong for all others.

Returns are returns: a loss is negative, and so are VaR and CVaR of a law that loses. One empirical quantile function
for all of them, the inverse of the empirical distribution function, so that CVaR is the mean of VaR over [0, alpha].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import ConfigError
from tailwise.core.numerics import known_forward_returns, tail_horizon
from tailwise.market.path import AccountPath, hit_rate, profit_factor, round_trips
from tailwise.market.records import total_cost

Floats = npt.NDArray[np.float64]
NOTHING = 1e-12  # a deviation per bar, or a drawdown, below this is no risk at all, only rounding
_NEARLY_A_YEAR = 0.99  # 250 of 252 trading days are a year of data
_DAYS_PER_YEAR = 365.25
_DOUBT = 1.25  # bars per year that are off by more than this factor are wrong; holidays and gaps stay well below
_SHORTEST_SPAN = np.timedelta64(30, "D")  # below, weekends alone can explain such a factor


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


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha <= 1:
        raise ConfigError(f"alpha is {alpha}; a tail probability lies in (0, 1].")


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
    years = years_of(path.planned, scale)
    per_year = annual_return(float(wealth[-1]), years)
    deepest = max_drawdown(wealth)
    trips = round_trips(path)
    held = np.abs(path.exposures).sum(axis=1)
    long, short = (float(np.maximum(side, 0.0).sum() / path.planned) for side in (path.exposures, -path.exposures))
    return PathStatistics(
        bars=path.planned,
        periods_per_year=scale,
        years=years,
        total_return=float(wealth[-1] - 1),
        annual_return=per_year,
        annual_volatility=annual_volatility(returns, scale),
        sharpe=sharpe_ratio(returns, scale),
        sortino=sortino_ratio(returns, scale),
        calmar=calmar_ratio(per_year, deepest),
        omega=omega_ratio(returns),
        max_drawdown=deepest,
        longest_drawdown=longest_drawdown(wealth),
        cdar=conditional_drawdown(wealth, alpha),
        var_bar=value_at_risk(returns, alpha),
        cvar_bar=empirical_cvar(returns, alpha),
        cvar_return=_long_tail(path, alpha=alpha, gamma=gamma),
        horizon=tail_horizon(gamma),
        alpha=alpha,
        skewness=skewness(returns),
        excess_kurtosis=excess_kurtosis(returns),
        tail_ratio=tail_ratio(returns, alpha),
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
    return known_forward_returns(path.log_returns, gamma, over=path.ruined)


def cost_share(path: AccountPath) -> float | None:
    """All costs / (change of equity + all costs): how much of what was earned before costs they took."""
    paid = float(total_cost(path.ledger).sum())
    earned = float(path.equity[-1] - path.equity[0]) + paid
    return paid / earned if earned > NOTHING * path.equity[0] else None


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
    return empirical_cvar(forward, alpha) if len(forward) else None
