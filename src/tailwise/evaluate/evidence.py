"""What a path, and the difference between two paths, is evidence of: intervals, verdicts, odds of other futures.

Odds are Monte Carlo: blocks of the account's own log-returns are put together anew (stationary bootstrap), so that calm
and stormy spells keep their length. They are those of a future that is like the past, no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import ConfigError, DataError
from tailwise.evaluate import bootstrap
from tailwise.evaluate.bootstrap import (
    LEVEL,
    REPETITIONS,
    Interval,
    block_length,
    resampled_rows,
    studentised_intervals,
)
from tailwise.evaluate.overfitting import DeflatedSharpe, deflated_sharpe
from tailwise.evaluate.performance import drawdowns, years_of
from tailwise.evaluate.statistics import window_returns
from tailwise.market.path import AccountPath
from tailwise.market.records import BANKRUPT

Floats = npt.NDArray[np.float64]
FUTURES = 5000
DRAWDOWNS = (0.1, 0.2, 0.3, 0.5)
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_LARGEST_PART = 4_000_000


@dataclass(frozen=True)
class PathEvidence:
    """One path after costs."""

    mean_return: Interval  # log-return per year
    sharpe: Interval  # per year
    volatility: Interval  # per square root of a year
    cvar_bar: Interval  # mean of the worst alpha of log-returns per bar
    deflated: DeflatedSharpe | None  # None for an account whose equity never moved

    @property
    def verdict(self) -> str:
        """'above zero' or 'below zero' where the intervals of mean and Sharpe ratio agree on it, else 'no evidence'.

        Both ask whether the mean is 0; the one of the Sharpe ratio knows more about skewness. A short history of steady
        gains and rare crashes fools the mean alone.
        """
        verdict = self.mean_return.verdict
        return verdict if verdict == self.sharpe.verdict else "no evidence"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


@dataclass(frozen=True)
class Comparison:
    """The first path minus the second, bar by bar over the same bars."""

    mean_return: Interval  # log-return per year
    sharpe: Interval  # per year

    @property
    def verdict(self) -> str:
        """'better', 'worse' or 'no evidence', by the mean log-return."""
        return {"above zero": "better", "below zero": "worse"}.get(self.mean_return.verdict, "no evidence")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def path_evidence(
    path: AccountPath,
    *,
    alpha: float,
    trials: int,
    trial_sharpes: Sequence[float] = (),
    level: float = LEVEL,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> PathEvidence:
    """Intervals of one path over its whole window (nothing happens after a ruin).

    trials: how many policies were tried on these data before this one was chosen, itself included.
    """
    returns, scale = window_returns(path), path.periods_per_year

    statistics = [
        bootstrap.mean_return(scale),
        bootstrap.sharpe(scale),
        bootstrap.volatility(scale),
        bootstrap.cvar(alpha),
    ]
    mean, ratio, spread, tail = studentised_intervals(
        returns[None], statistics, level=level, repetitions=repetitions, seed=seed
    )
    deflated = deflated_sharpe(returns, scale, trials=trials, trial_sharpes=trial_sharpes)
    return PathEvidence(mean, ratio, spread, tail, deflated)


def compare_paths(
    first: AccountPath,
    second: AccountPath,
    *,
    level: float = LEVEL,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> Comparison:
    """Compare two paths over the same bars: what they share (the market) cancels, because both get the same resamples.

    A path that ended in ruin earns nothing afterwards; both must have been planned over the same window.
    """
    shorter = min(len(first), len(second))
    if first.planned != second.planned or not np.array_equal(first.time[:shorter], second.time[:shorter]):
        raise DataError(
            f"{first.symbol} and {second.symbol}: paths of {first.planned} and {second.planned} bars from "
            f"{str(first.time[0])[:16]} and {str(second.time[0])[:16]} on are not over the same bars; compare paths of "
            "one window."
        )
    series, scale = np.stack([window_returns(first), window_returns(second)]), first.periods_per_year
    statistics = [bootstrap.mean_difference(scale), bootstrap.sharpe_difference(scale)]
    mean, ratio = studentised_intervals(series, statistics, level=level, repetitions=repetitions, seed=seed)
    return Comparison(mean, ratio)


@dataclass(frozen=True)
class AccountOdds:
    """Odds over `bars` bars, from `repetitions` resampled futures."""

    bars: int
    years: float
    repetitions: int
    block: int  # mean length of the resampled blocks, bars
    ruin_level: float  # fraction of the start
    ruin: float  # probability that wealth ever falls to `ruin_level`; it stays there
    loss: float  # probability of ending below the start
    drawdowns: tuple[tuple[float, float], ...]  # (size, probability of a drawdown of at least that size)
    wealth: tuple[tuple[float, float], ...]  # (level, quantile of final wealth as a multiple of the start)
    error: float  # largest standard error of a probability here, from the number of repetitions alone


def account_odds(
    returns: Floats,
    periods_per_year: float,
    *,
    bars: int | None = None,
    ruin_level: float = BANKRUPT,
    sizes: Sequence[float] = DRAWDOWNS,
    block: int | None = None,
    repetitions: int = FUTURES,
    seed: int = 0,
) -> AccountOdds:
    """Odds of an account with log-returns [n] over the next `bars` bars (default: n)."""
    horizon = len(returns) if bars is None else bars
    if len(returns) < 2 or horizon < 1 or repetitions < 1:
        raise ConfigError(
            f"{len(returns)} returns, {horizon} bars ahead, {repetitions} repetitions: at least 2, 1 and 1 are needed."
        )
    if not 0 < ruin_level < 1 or not all(0 < size < 1 for size in sizes):
        raise ConfigError(f"ruin at {ruin_level} and drawdowns of {list(sizes)} are fractions between 0 and 1.")
    length = block_length(returns) if block is None else block
    if length < 1:
        raise ConfigError(f"blocks of {length} bars; a block has at least one.")
    part = max(_LARGEST_PART // horizon, 1)
    worst, final, ruined = [], [], []
    for number, first in enumerate(range(0, repetitions, part)):
        count = min(part, repetitions - first)
        wealth = np.exp(np.cumsum(returns[_rows(len(returns), horizon, length, count, seed, number)], axis=1))
        wealth = np.concatenate([np.ones((count, 1)), wealth], axis=1)
        over = np.maximum.accumulate(wealth <= ruin_level, axis=1)
        first_over = np.take_along_axis(wealth, over.argmax(axis=1)[:, None], axis=1)
        wealth = np.where(over, first_over, wealth)  # what is ruined stays
        worst.append(drawdowns(wealth).max(axis=1))
        final.append(wealth[:, -1])
        ruined.append(over[:, -1])
    deepest, ends, gone = (np.concatenate(values) for values in (worst, final, ruined))
    odds = [float((deepest >= size).mean()) for size in sizes]
    ruin, loss = float(gone.mean()), float((ends < 1).mean())
    return AccountOdds(
        bars=horizon,
        years=years_of(horizon, periods_per_year),
        repetitions=repetitions,
        block=length,
        ruin_level=ruin_level,
        ruin=ruin,
        loss=loss,
        drawdowns=tuple(zip(map(float, sizes), odds, strict=True)),
        wealth=tuple((level, float(np.quantile(ends, level))) for level in QUANTILES),
        error=float(np.sqrt(max(p * (1 - p) for p in (ruin, loss, *odds)) / repetitions)),
    )


def odds_of_next_year(path: AccountPath, *, repetitions: int = FUTURES, seed: int = 0) -> AccountOdds:
    """Odds over a year, or over as many bars as the window has where those are fewer."""
    bars = min(path.planned, max(round(path.periods_per_year), 1))
    return account_odds(window_returns(path), path.periods_per_year, bars=bars, repetitions=repetitions, seed=seed)


def _rows(bars: int, horizon: int, block: int, count: int, seed: int, number: int) -> npt.NDArray[np.int64]:
    """Rows int64 [count, horizon]; a horizon beyond the data is made of several resamples in a row."""
    pieces = -(-horizon // bars)
    rows = resampled_rows(bars, block, count * pieces, seed=seed, name=f"futures/{number}")
    return rows.reshape(count, pieces * bars)[:, :horizon]
