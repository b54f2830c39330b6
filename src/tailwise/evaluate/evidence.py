"""What a path, and the difference between two paths, is evidence of: intervals, verdicts, odds, luck of the choice.

Odds are Monte Carlo: blocks of the account's own log-returns are put together anew (stationary bootstrap), so that calm
and stormy spells keep their length. They are those of a future that is like the past, no more.

Probabilistic and deflated Sharpe ratio: Bailey & López de Prado 2012, 2014. Ratios are per bar, not per year; bars are
taken as independent, and for returns that depend on one another the intervals of bootstrap.py are the ones to trust.

Probability of backtest overfitting: combinatorially symmetric cross-validation (Bailey, Borwein, López de Prado & Zhu
2017). The bars are cut into blocks; half of the blocks choose the trial with the highest Sharpe ratio, the other half
judge it; all ways to choose the half are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, rankdata

from tailwise.core.errors import ConfigError, DataError, ShapeError
from tailwise.evaluate import bootstrap
from tailwise.evaluate.bootstrap import (
    LEVEL,
    REPETITIONS,
    Interval,
    block_length,
    resampled_rows,
    studentised_intervals,
)
from tailwise.evaluate.statistics import (
    NOTHING,
    drawdowns,
    excess_kurtosis,
    sharpe_ratio,
    skewness,
    window_returns,
    years_of,
)
from tailwise.market.path import AccountPath
from tailwise.market.records import BANKRUPT

Floats = npt.NDArray[np.float64]
FUTURES = 5000
DRAWDOWNS = (0.1, 0.2, 0.3, 0.5)
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_LARGEST_PART = 4_000_000
BLOCKS = 16  # 12,870 ways to choose a half
_MOST_BLOCKS = 20


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


@dataclass(frozen=True)
class DeflatedSharpe:
    """The Sharpe ratio of the chosen one among many, and what chance alone would have shown."""

    probabilistic: float  # probability that the true ratio is above 0, as if it were the only trial
    deflated: float  # probability that it is above what the best of `trials` trials without edge shows
    expected_best: float  # Sharpe ratio per year that the best of the trials is expected to show without edge
    trials: int


def probabilistic_sharpe(ratio: float, bars: int, *, skew: float, kurtosis: float, benchmark: float = 0.0) -> float:
    """Probability that the true ratio exceeds `benchmark`; ratio and benchmark per bar, kurtosis 3 for a normal law."""
    if bars < 2:
        raise ConfigError(f"a Sharpe ratio of {bars} bar(s) has no law; at least 2 are needed.")
    spread = 1 - skew * ratio + (kurtosis - 1) / 4 * ratio**2
    # Moments of a real sample keep it positive (kurtosis >= 1 + skew^2); numbers made up by hand may not.
    if spread <= 0:
        raise ConfigError(f"skew {skew} and kurtosis {kurtosis} belong to no law; kurtosis is at least 1 + skew^2.")
    return float(norm.cdf((ratio - benchmark) * np.sqrt(bars - 1) / np.sqrt(spread)))


def expected_best_sharpe(trials: int, variance: float) -> float:
    """Expected largest of `trials` independent ratios with mean 0 and this variance; 0 for a single trial."""
    if trials < 1 or variance < 0:
        raise ConfigError(f"{trials} trials with variance {variance}; at least one trial and no negative variance.")
    if trials == 1:
        return 0.0
    upper, outer = norm.ppf(1 - 1 / trials), norm.ppf(1 - 1 / (trials * np.e))
    return float(np.sqrt(variance) * ((1 - np.euler_gamma) * upper + np.euler_gamma * outer))


def deflated_sharpe(
    returns: Floats, periods_per_year: float, *, trials: int, trial_sharpes: Sequence[float] = ()
) -> DeflatedSharpe | None:
    """Judge the log-returns [n] of the chosen one of `trials` trials; None for returns without spread.

    trial_sharpes: annualised ratios of the trials, as far as they are known; the expected best is made with their
    variance, or with that of chance, 1 / n per bar, where that is larger or fewer than two are known: trials that were
    much alike must not make a search look small.
    """
    ratio, skew, excess = sharpe_ratio(returns, 1.0), skewness(returns), excess_kurtosis(returns)
    if ratio is None or skew is None or excess is None:
        return None
    bars = len(returns)
    sharpes = np.asarray(trial_sharpes, dtype=np.float64)
    variance = float(sharpes.var(ddof=1)) / periods_per_year if len(sharpes) > 1 else 0.0
    best = expected_best_sharpe(max(trials, len(sharpes)), max(variance, 1 / bars))
    moments = {"skew": skew, "kurtosis": excess + 3}
    return DeflatedSharpe(
        probabilistic=probabilistic_sharpe(ratio, bars, **moments),
        deflated=probabilistic_sharpe(ratio, bars, **moments, benchmark=best),
        expected_best=best * float(np.sqrt(periods_per_year)),
        trials=max(trials, len(sharpes)),
    )


@dataclass(frozen=True, eq=False)
class Overfitting:
    """What became, out of sample, of the trial that was best in sample. Arrays [ways to choose a half]."""

    probability: float  # share of the ways in which it was at or below the median of all trials
    loss_probability: float  # share of the ways in which it lost money
    logits: Floats  # log-odds of its relative rank; below 0: in the worse half
    chosen: npt.NDArray[np.int64]  # which trial was best in sample
    in_sample: Floats  # its Sharpe ratio per bar where it was chosen
    out_of_sample: Floats  # and where it was judged


def overfitting(returns: Floats, *, blocks: int = BLOCKS) -> Overfitting:
    """Judge the choice among N trials by their log-returns [T, N] over the same bars."""
    values = np.asarray(returns, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] < 2 or not np.isfinite(values).all():
        raise ShapeError(
            f"returns of trials have shape {values.shape}; finite numbers, a row per bar and a column per trial, and "
            "at least two trials are needed."
        )
    if blocks % 2 or not 2 <= blocks <= _MOST_BLOCKS:
        raise ConfigError(f"{blocks} blocks; an even number from 2 to {_MOST_BLOCKS} is needed.")
    if len(values) < 2 * blocks:
        raise ConfigError(f"{len(values)} bars are too few for {blocks} blocks; at least {2 * blocks} are needed.")
    parts = np.array_split(values, blocks)
    # Sums per block are all that a Sharpe ratio over any set of blocks needs.
    count = np.array([len(part) for part in parts], dtype=np.float64)
    total = np.array([part.sum(axis=0) for part in parts])
    squares = np.array([(part**2).sum(axis=0) for part in parts])
    ways = list(combinations(range(blocks), blocks // 2))
    half = np.zeros((len(ways), blocks))
    half[np.arange(len(ways))[:, None], ways] = 1.0
    inside = _sharpe(half @ count, half @ total, half @ squares)
    other = 1 - half
    outside = _sharpe(other @ count, other @ total, other @ squares)
    chosen = inside.argmax(axis=1)
    each = np.arange(len(ways))
    rank = rankdata(outside, axis=1)[each, chosen] / (values.shape[1] + 1)
    logits = np.log(rank / (1 - rank))
    judged = outside[each, chosen]
    return Overfitting(
        probability=float((logits <= 0).mean()),
        loss_probability=float((judged < 0).mean()),
        logits=logits,
        chosen=chosen.astype(np.int64),
        in_sample=inside[each, chosen],
        out_of_sample=judged,
    )


def _sharpe(count: Floats, total: Floats, squares: Floats) -> Floats:
    """Sharpe ratios per bar [W, N] from sums [W, N] over count [W] bars; 0 for a trial that never moved."""
    mean = total / count[:, None]
    variance = np.maximum(squares / count[:, None] - mean**2, 0.0) * (count / (count - 1))[:, None]
    return np.divide(mean, np.sqrt(variance), out=np.zeros(mean.shape), where=variance > NOTHING**2)
