"""The accounts of several symbols as one: their equal-risk portfolio, on which there is one verdict.

Equal risk: at every close the money is shared anew, in proportion to 1 / the deviation of what each account returned
until then in the window, so that nothing ahead is used. Moving money between the accounts costs nothing here; what each
account pays for its own orders is in its returns. Where a symbol has no bar its account stands still; after its last
bar it holds cash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import DataError
from tailwise.evaluate.judgement import POLICY, Judgement
from tailwise.evaluate.statistics import NOTHING, path_statistics
from tailwise.evaluate.words import EQUAL_WEIGHT
from tailwise.market.path import AccountPath

Floats = npt.NDArray[np.float64]
Weigh = Callable[[Floats], Floats]
WARM_UP = 20  # bars before deviations are looked at; until then all accounts have the same share
_LEAST = 0.1  # share of the median deviation below which a deviation is not believed: the account hardly moved yet
_UNITS = ("units", "order_units", "exit_units")
_KEPT = ("equity_before", "equity", "row", "symbol", "guard", "margin_call")  # made anew, or of no meaning together
_START = 100.0  # money at the beginning; any number gives the same returns


def equal_risk_weights(returns: Floats) -> Floats:
    """Weights [n, k] over k accounts, by their simple returns [n, k] before each bar; every row adds up to 1."""
    bars, count = returns.shape
    before = np.arange(bars)[:, None]
    total = np.cumsum(returns, axis=0) - returns  # of the bars before t
    squares = np.cumsum(returns**2, axis=0) - returns**2
    variance = squares / np.maximum(before, 1) - (total / np.maximum(before, 1)) ** 2
    deviation = np.sqrt(np.maximum(variance, 0.0))
    inverse = 1 / np.maximum(deviation, np.maximum(_LEAST * _typical(deviation), 1e-12))
    inverse[: min(WARM_UP, bars)] = 1.0
    return np.asarray(inverse / inverse.sum(axis=1, keepdims=True)).reshape(bars, count)


def _typical(deviation: Floats) -> Floats:
    """Median [n, 1] of the deviations [n, k] above 0 in each row; 0 where none is."""
    moving = deviation > NOTHING
    ordered = np.sort(np.where(moving, deviation, np.inf), axis=1)
    middle = np.maximum(moving.sum(axis=1) - 1, 0) // 2
    typical = np.take_along_axis(ordered, middle[:, None], axis=1)
    return np.asarray(np.where(np.isfinite(typical), typical, 0.0))


def equal_weights(returns: Floats) -> Floats:
    """The same weight [n, k] for each account at every close."""
    return np.full(returns.shape, 1 / returns.shape[1])


def one_portfolio(paths: Sequence[AccountPath], name: str, *, weigh: Weigh = equal_risk_weights) -> AccountPath:
    """The accounts as one over the union of their bars. weigh: simple returns [n, k] -> weights [n, k].

    Its ledger is theirs, each bar scaled by the share of the money that the account has in it, so that costs, turnover
    and exposures are those of the whole.
    """
    if not paths:
        raise DataError("a portfolio of no accounts was asked for.")
    clock = np.unique(np.concatenate([path.time for path in paths]))
    rows = [np.searchsorted(clock, path.time) for path in paths]
    returns = np.zeros((len(clock), len(paths)))
    for a, (path, at) in enumerate(zip(paths, rows, strict=True)):
        returns[at, a] = np.maximum(path.wealth[1:], 0.0) / np.maximum(path.wealth[:-1], 1e-12) - 1
    weights = weigh(returns)
    gained = (weights * returns).sum(axis=1)
    equity = _START * np.concatenate([[1.0], np.cumprod(1 + gained)])
    columns: dict[str, Any] = {}
    for column, values in paths[0].ledger.items():
        per_asset = values.ndim == 2
        columns[column] = np.zeros((len(clock), len(paths)) if per_asset else len(clock), dtype=values.dtype)
    target, close = np.zeros((len(clock), len(paths))), np.ones((len(clock), len(paths)))
    for a, (path, at) in enumerate(zip(paths, rows, strict=True)):
        share = weights[at, a] * equity[at] / np.maximum(path.ledger["equity_before"], 1e-12)
        for column, values in path.ledger.items():
            if column in _KEPT:
                continue
            if values.ndim == 2:
                columns[column][at, a] = values[:, 0] * (share if column in _UNITS else 1)
            else:
                columns[column][at] += values * share
        target[at, a] = path.target[:, 0] * weights[at, a]
        close[:, a] = path.close[np.clip(np.searchsorted(path.time, clock, side="right") - 1, 0, None), 0]
        _carry(columns["units"][:, a], at, path)
    columns["equity_before"], columns["equity"] = equity[:-1], equity[1:]
    columns["row"] = np.arange(len(clock))
    label = "; ".join(dict.fromkeys(path.label for path in paths))
    symbols = tuple(path.symbol for path in paths)
    scale = len(clock) / max(path.planned / path.periods_per_year for path in paths)
    alike = len({path.periods_per_year for path in paths}) == 1 and len(clock) == max(len(path) for path in paths)
    return AccountPath(
        name,
        label,
        symbols,
        paths[0].periods_per_year if alike else scale,
        clock,
        columns,
        target,
        close,
        len(clock),
    )


def _carry(units: Floats, at: npt.NDArray[np.int64], path: AccountPath) -> None:
    """Hold what was held where the symbol has no bar, until its last one."""
    if not len(at):
        return
    latest = np.searchsorted(at, np.arange(len(units)), side="right") - 1
    missing = np.setdiff1d(np.arange(at[0], at[-1] + 1), at)
    units[missing] = units[at[latest[missing]]]


def judge_portfolio(accounts: Sequence[Judgement], *, gamma: float) -> Judgement:
    """The equal-risk portfolio of several accounts beside those of the rules, and buy and hold at equal weights.

    A limit speaks of single accounts, so the portfolio has none. gamma: discount per bar of the long tail.
    """
    name = f"equal-risk portfolio of {len(accounts)} symbols"
    common = [key for key in accounts[0].paths if all(key in one.paths for one in accounts)]
    paths = {key: one_portfolio([one.paths[key] for one in accounts], name) for key in common}
    held = accounts[0].reference
    paths[EQUAL_WEIGHT] = one_portfolio([one.paths[held] for one in accounts], name, weigh=equal_weights)
    alpha = accounts[0].statistics[POLICY].alpha
    statistics = {}
    for key, path in paths.items():
        own = held if key == EQUAL_WEIGHT else key
        # Round trips belong to the accounts; what one of them gained is not told, because money moves between them.
        trips = sum(one.statistics[own].round_trips for one in accounts)
        numbers = path_statistics(path, alpha=alpha, gamma=gamma)
        statistics[key] = replace(numbers, round_trips=trips, hit_rate=None, profit_factor=None)
    return Judgement(
        name, paths[POLICY].label, paths, statistics, {}, accounts[0].purpose, loan_rate=accounts[0].loan_rate
    )
