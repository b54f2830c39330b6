"""What a path, and the difference between two paths, is evidence of: estimates with intervals, verdicts in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tailwise.core.errors import DataError
from tailwise.evaluate import estimates
from tailwise.evaluate.bootstrap import LEVEL, REPETITIONS, Interval, studentised_intervals
from tailwise.evaluate.sharpe import DeflatedSharpe, deflated_sharpe
from tailwise.evaluate.statistics import window_returns
from tailwise.market.path import AccountPath


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
        found = self.mean_return.verdict
        return found if found == self.sharpe.verdict else "no evidence"

    def to_json(self) -> dict[str, Any]:
        """Every interval, and the verdict."""
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
        """Both intervals, and the verdict."""
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
        estimates.mean_return(scale),
        estimates.sharpe(scale),
        estimates.volatility(scale),
        estimates.cvar(alpha),
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
    statistics = [estimates.mean_difference(scale), estimates.sharpe_difference(scale)]
    mean, ratio = studentised_intervals(series, statistics, level=level, repetitions=repetitions, seed=seed)
    return Comparison(mean, ratio)
