"""How far a Sharpe ratio can be believed: probabilistic and deflated (Bailey & López de Prado 2012, 2014).

Ratios in here are per bar, not per year. Bars are taken as independent; for returns that depend on one another the
intervals of bootstrap.py are the ones to trust.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from tailwise.core.errors import ConfigError
from tailwise.evaluate.performance import sharpe_ratio
from tailwise.evaluate.tails import excess_kurtosis, skewness

Floats = npt.NDArray[np.float64]


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
    known = np.asarray(trial_sharpes, dtype=np.float64)
    seen = float(known.var(ddof=1)) / periods_per_year if len(known) > 1 else 0.0
    best = expected_best_sharpe(max(trials, len(known)), max(seen, 1 / bars))
    moments = {"skew": skew, "kurtosis": excess + 3}
    return DeflatedSharpe(
        probabilistic=probabilistic_sharpe(ratio, bars, **moments),
        deflated=probabilistic_sharpe(ratio, bars, **moments, benchmark=best),
        expected_best=best * float(np.sqrt(periods_per_year)),
        trials=max(trials, len(known)),
    )
