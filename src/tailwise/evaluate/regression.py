"""What an account earned beyond its exposure: its returns regressed on those of the market that it could have held.

Returns are simple (wealth over wealth before, minus 1), because exposure multiplies them: an account that always holds
k times its equity has beta k and alpha 0, which log-returns, concave in the exposure, would not say. Alpha is what is
left of the mean return when the part that beta explains is taken away; it is the number that "it only held more, or
less, of a rising market" cannot explain.

Both get the studentised stationary bootstrap of bootstrap.py, whose influence functions stand here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import DataError
from tailwise.evaluate.bootstrap import LEVEL, REPETITIONS, Interval, Statistic, studentised_intervals
from tailwise.evaluate.statistics import NOTHING, window_returns
from tailwise.evaluate.words import bounds, plain, signed_percent, small_percent
from tailwise.market.path import AccountPath

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Regression:
    """r = alpha + beta m + rest, over the bars of one window; m: returns of the rule called `against`.

    alpha     simple return per year that the exposure to `against` does not explain, a fraction
    beta      mean exposure to `against`: what the account gains when `against` gains 1
    """

    against: str
    alpha: Interval
    beta: Interval

    @property
    def verdict(self) -> str:
        """'above zero', 'below zero' or 'no evidence': whether the interval of alpha holds 0."""
        return self.alpha.verdict

    @property
    def sentence(self) -> str:
        """Alpha and beta with their intervals."""
        level = f"{100 * self.alpha.level:g}% interval"
        alpha = f"{level} {bounds(self.alpha, signed_percent)}" if self.alpha.low is not None else "no interval"
        beta = f"{level} {bounds(self.beta, plain)}" if self.beta.low is not None else "no interval"
        return (
            f"Against {self.against}: beta {plain(self.beta.estimate)} ({beta}), alpha "
            f"{signed_percent(self.alpha.estimate)} a year ({alpha})."
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def alpha_statistic(periods_per_year: float) -> Statistic:
    """Intercept of the first of two series [..., 2, n] regressed on the second, per year."""

    def value(x: Floats) -> Floats:
        own, market, slope, _ = _parts(x)
        return np.asarray(periods_per_year * (own.mean(axis=-1) - slope * market.mean(axis=-1)))

    def influence(x: Floats) -> Floats:
        own, market, slope, variance = _parts(x)
        mean = market.mean(axis=-1, keepdims=True)
        rest = own - own.mean(axis=-1, keepdims=True) - slope[..., None] * (market - mean)
        # A bar with a large market move turns the line, and alpha is read off where the market stood still.
        leverage = 1 - mean * (market - mean) / variance[..., None]
        return np.asarray(periods_per_year * rest * leverage)

    return Statistic("alpha", value, influence)


def beta_statistic() -> Statistic:
    """Slope of the first of two series [..., 2, n] regressed on the second."""

    def influence(x: Floats) -> Floats:
        own, market, slope, variance = _parts(x)
        moved = market - market.mean(axis=-1, keepdims=True)
        rest = own - own.mean(axis=-1, keepdims=True) - slope[..., None] * moved
        return np.asarray(moved * rest / variance[..., None])

    return Statistic("beta", lambda x: _parts(x)[2], influence)


def _parts(x: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Own and market returns [..., n], slope [...] and variance of the market [...], never quite 0."""
    own, market = x[..., 0, :], x[..., 1, :]
    moved = market - market.mean(axis=-1, keepdims=True)
    variance = np.maximum((moved**2).mean(axis=-1), NOTHING**2)
    return own, market, np.asarray((moved * own).mean(axis=-1) / variance), variance


def regress_returns(
    own: Floats,
    market: Floats,
    periods_per_year: float,
    *,
    against: str,
    level: float = LEVEL,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> Regression | None:
    """Regress simple returns [n] on those of the market [n]; None where the market never moved."""
    if market.std() <= NOTHING:
        return None
    alpha, beta = studentised_intervals(
        np.stack([own, market]),
        [alpha_statistic(periods_per_year), beta_statistic()],
        level=level,
        repetitions=repetitions,
        seed=seed,
    )
    return Regression(against, alpha, beta)


def regress(
    path: AccountPath,
    market: AccountPath,
    *,
    against: str,
    level: float = LEVEL,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> Regression | None:
    """Regress the bars of a path on those of a rule over the same window; None where the rule never moved."""
    if path.planned != market.planned or path.time[0] != market.time[0]:
        raise DataError(
            f"{path.symbol} and {against}: paths of {path.planned} and {market.planned} bars from "
            f"{str(path.time[0])[:16]} and {str(market.time[0])[:16]} on are not over the same bars; regress paths of "
            "one window."
        )
    return regress_returns(
        np.expm1(window_returns(path)),
        np.expm1(window_returns(market)),
        path.periods_per_year,
        against=against,
        level=level,
        repetitions=repetitions,
        seed=seed,
    )


def regressions(
    paths: Mapping[str, AccountPath], own: str, rules: Sequence[str], *, repetitions: int, seed: int = 0
) -> dict[str, Regression]:
    """Regress the path called `own` on each of `rules` that is there and moved."""
    found = {
        name: regress(paths[own], paths[name], against=name, repetitions=repetitions, seed=seed)
        for name in rules
        if name in paths
    }
    return {name: one for name, one in found.items() if one is not None}


def beyond_exposure(found: Regression, reserved: Sequence[str]) -> str:
    """Whether an account earned anything beyond its exposure, as the beginning of a sentence.

    reserved: what keeps the result from being praised, as ends of a sentence.
    """
    numbers = f"alpha {signed_percent(found.alpha.estimate)} a year, "
    numbers += f"{bounds(found.alpha, signed_percent)}; " if found.alpha.low is not None else "no interval; "
    numbers += f"beta {plain(found.beta.estimate)} to {found.against}"
    why = " and ".join(reserved)
    if found.verdict == "no evidence":
        return f"No evidence that it earned anything beyond its exposure ({numbers})" + (f"; {why}" if why else "")
    side = "above" if found.verdict == "above zero" else "below"
    if why:
        least = small_percent(found.alpha.estimate)
        return f"Its alpha is {side} 0 beyond noise ({least} a year, beta {plain(found.beta.estimate)}), but {why}"
    word = "earned" if side == "above" else "lost"
    return f"It {word} money beyond its exposure, beyond noise ({numbers})"
