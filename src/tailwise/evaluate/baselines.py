"""Rules that anybody could have followed, for a policy to be compared with through the same simulator.

Targets [T] for one asset; weights for several in one account (`backtest_portfolio`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from tailwise.bars.bars import Bars
from tailwise.core.errors import ConfigError, DataError
from tailwise.core.streams import Streams
from tailwise.market.costs import CostConfig
from tailwise.market.path import AccountPath
from tailwise.market.tables import MarketTable, SymbolTable

Floats = npt.NDArray[np.float64]
VOLATILITY_MEMORY = 0.94  # weight of yesterday's variance, as RiskMetrics had it for daily bars
WARM_UP = 20  # returns before the variance is trusted
_DAILY = 400  # bars per year up to which bars are of a day or longer


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


def momentum(bars: Bars, *, look_back: int | None = None) -> Floats:
    """Long after a rise over the last `look_back` bars, short after a fall: targets [T] of 1, -1 or 0.

    Time-series momentum of Moskowitz, Ooi & Pedersen (2012). look_back: by default a year of daily or longer bars, a
    month of shorter ones; flat until so many bars have been seen.
    """
    periods = bars.frequency.periods_per_year
    span = round(periods if periods <= _DAILY else periods / 12) if look_back is None else look_back
    if span < 1:
        raise DataError(f"{bars.symbol}: a momentum over {span} bars; look back at least one.")
    targets = np.zeros(len(bars))
    targets[span:] = np.sign(bars.close[span:] - bars.close[:-span])
    return targets


def random_matched(bars: Bars, path: AccountPath, *, seed: int) -> Floats:
    """Targets [T] that know nothing of the bars but hold and trade as much as `path` does.

    At each bar, with one probability, a new target is drawn from those that the path asked for; the probability is the
    path's turnover per bar over the mean distance of two such draws. What a policy earns beyond this rule is timing.
    """
    if path.target.shape[1] != 1:
        raise DataError(f"{path.symbol}: a rule for one asset was asked to imitate {path.target.shape[1]} assets.")
    wanted = path.target[:, 0]
    draws = Streams(seed).uniforms("evaluate/random", update=0, environments=1, steps=len(bars), draws=2)[:, 0]
    drawn = wanted[(draws[:, 1] * len(wanted)).astype(np.int64)]
    distance = _mean_distance(wanted)
    if distance <= 0:
        return np.full(len(bars), wanted[0])
    changes = draws[:, 0] < path.traded.mean() / distance
    changes[0] = True
    latest = np.maximum.accumulate(np.where(changes, np.arange(len(bars)), 0))
    return np.asarray(drawn[latest])


def _mean_distance(values: Floats) -> float:
    """Mean |x - y| of two independent draws from values [n] (Gini's mean difference)."""
    ordered, count = np.sort(values), len(values)
    return float(2 * (ordered * (2 * np.arange(count) - count + 1)).sum() / count**2)


def equal_weights(tables: Sequence[SymbolTable]) -> Floats:
    """The same share of equity in every asset: weights [A]."""
    return np.full(len(tables), 1.0 / len(tables))


def min_cvar_weights(
    tables: Sequence[SymbolTable],
    *,
    alpha: float = 0.05,
    window: int | None = None,
    every: int | None = None,
    costs: CostConfig | None = None,
) -> Floats:
    """Long-only weights [n, A] of the smallest CVaR of the past, one row for each of the n decisions of the window.

    Every `every` clock times (default: a twelfth of a year) skfolio minimises the mean of the worst share alpha of the
    simple returns over the last `window` times (default: a year); in between the weights stay. A decision uses closes
    up to its own time only. An asset that has not been there for the whole window, or is not there now, gets nothing;
    before any asset has been, the account stays flat. Needs the extra `portfolio`.
    """
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha is {alpha}; a tail probability lies in (0, 1).")
    table = MarketTable.on_one_clock(tables, costs or CostConfig())
    span = max(round(table.clock_per_year), 2) if window is None else window
    pause = max(round(table.clock_per_year / 12), 1) if every is None else every
    if span < 2 or pause < 1 or span * alpha < 1:
        raise ConfigError(
            f"a window of {span} returns, renewed every {pause}, has no tail of {alpha:g}; give a longer window."
        )
    close, available = table.bars["close"], table.bars["available"] == 1
    begun = np.cumsum(table.bars["present"] == 1, axis=0) > 0
    first, last = int(table.first_rows[0]), int(table.last_rows[0])
    weights = np.zeros((last - first, len(tables)))
    for row in range(first, last):
        at = row - first
        if at % pause == 0:
            weights[at] = _weights(close, begun, available[row], row, span, alpha)
        else:
            weights[at] = np.where(available[row], weights[at - 1], 0.0)
    return weights


def _weights(
    close: Floats, begun: npt.NDArray[np.bool_], now: npt.NDArray[np.bool_], row: int, span: int, alpha: float
) -> Floats:
    """Weights [A] at one row of the clock from the `span` returns up to it."""
    weights = np.zeros(close.shape[1])
    if row < span:
        return weights
    usable = np.flatnonzero(begun[row - span] & now)
    if not len(usable):
        return weights
    past = close[row - span : row + 1, usable]
    returns = past[1:] / past[:-1] - 1
    moving = returns.std(axis=0) > 0  # a price that stood still all the time is no asset
    usable, returns = usable[moving], returns[:, moving]
    if len(usable) == 1:
        weights[usable] = 1.0
    elif len(usable) > 1:
        weights[usable] = _smallest_cvar(returns, alpha)
    return weights


def _smallest_cvar(returns: Floats, alpha: float) -> Floats:
    try:
        from skfolio import RiskMeasure
        from skfolio.exceptions import OptimizationError
        from skfolio.optimization import MeanRisk, ObjectiveFunction
    except ImportError as error:
        raise ConfigError("the smallest CVaR needs skfolio; pip install 'tailwise[portfolio]'.") from error
    model = MeanRisk(
        objective_function=ObjectiveFunction.MINIMIZE_RISK, risk_measure=RiskMeasure.CVAR, cvar_beta=1 - alpha
    )
    try:
        model.fit(returns)
    except OptimizationError as error:
        raise DataError(f"skfolio found no weights of smallest CVaR for {returns.shape[1]} assets: {error}") from error
    return np.asarray(model.weights_, dtype=np.float64)
