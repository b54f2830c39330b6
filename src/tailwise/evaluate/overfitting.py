"""How much of a good result is luck of the choice: the deflated Sharpe ratio and the probability of overfitting.

Probabilistic and deflated Sharpe ratio: Bailey & López de Prado 2012, 2014. Ratios are per bar, not per year; bars are
taken as independent, and for returns that depend on one another the intervals of bootstrap.py are the ones to trust.

Probability of backtest overfitting: combinatorially symmetric cross-validation (Bailey, Borwein, López de Prado & Zhu
2017). The bars are cut into blocks; half of the blocks choose the trial with the highest Sharpe ratio, the other half
judge it; all ways to choose the half are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, rankdata

from tailwise.core.errors import ConfigError, ShapeError
from tailwise.evaluate.performance import NOTHING, excess_kurtosis, sharpe_ratio, skewness

Floats = npt.NDArray[np.float64]
BLOCKS = 16  # 12,870 ways to choose a half
_MOST_BLOCKS = 20


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
