"""Rules for several assets in one account that anybody could have followed: weights for `backtest_portfolio`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import ConfigError, DataError
from tailwise.market.costs import CostConfig
from tailwise.market.tables import MarketTable, SymbolTable

Floats = npt.NDArray[np.float64]


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
    found = np.zeros(close.shape[1])
    if row < span:
        return found
    usable = np.flatnonzero(begun[row - span] & now)
    if not len(usable):
        return found
    past = close[row - span : row + 1, usable]
    returns = past[1:] / past[:-1] - 1
    moving = returns.std(axis=0) > 0  # a price that stood still all the time is no asset
    usable, returns = usable[moving], returns[:, moving]
    if len(usable) == 1:
        found[usable] = 1.0
    elif len(usable) > 1:
        found[usable] = _smallest_cvar(returns, alpha)
    return found


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
