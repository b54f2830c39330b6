"""Measures of one policy on one split beside its base rule, and the interval of their difference over all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from tailwise.bars.bars import Bars
from tailwise.evaluate.backtest import play_rule
from tailwise.evaluate.statistics import empirical_cvar, forward_returns, window_returns
from tailwise.market.costs import CostConfig
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.path import AccountPath

Floats = npt.NDArray[np.float64]
Days = npt.NDArray[np.datetime64]

BLOCK = 63  # days of a block of the bootstrap, a quarter of a year
DRAWS = 4000
LEVEL = 0.95
_LARGEST_OF_MARGIN = 0.97  # of the exposure from which the margin rule liquidates


@dataclass(frozen=True)
class Tail:
    """How a tail is measured: of discounted log-returns over the horizon of gamma (the limit's own unit), or per bar.

    None where the window is shorter than the horizon.
    """

    alpha: float
    gamma: float

    def of_returns(self, path: AccountPath) -> float | None:
        forward = forward_returns(path, self.gamma)
        return empirical_cvar(forward, self.alpha) if len(forward) else None

    def of_bars(self, path: AccountPath) -> float:
        return empirical_cvar(window_returns(path), self.alpha)


@dataclass(frozen=True)
class BasePlayer:
    """Plays a base rule, times a factor, over one window. first: bar of the first decision; last: last bar."""

    targets: Floats  # [T] of the rule at factor 1
    bars: Bars
    costs: CostConfig
    settings: MarketEnvConfig
    first: int
    last: int

    @property
    def largest(self) -> float:
        """The largest factor at which the margin rule does not liquidate at once."""
        held = float(np.abs(self.targets[self.first : self.last]).max(initial=0.0))
        margin = self.settings.maintenance_margin
        limit = _LARGEST_OF_MARGIN / margin if margin > 0 else 100.0
        return limit / held if held > 0 else 1.0

    def play(self, factor: float) -> AccountPath:
        """The path of the account with all targets times `factor`."""
        known = {"base": None} if "base" in type(self.settings).model_fields else {}
        settings = self.settings.model_copy(update=known)
        targets = factor * self.targets
        return play_rule(targets, self.bars, self.costs, config=settings, first=self.first, last=self.last)


def factor_for(wanted: float, tail: Callable[[float], float], *, largest: float) -> tuple[float, bool]:
    """The factor at which `tail(factor)` is `wanted`, a loss, and whether it was reached at factors up to `largest`.

    Brackets the first crossing from below, so that leverage that ruins the account is not what is found.
    """
    if wanted >= 0:
        return 0.0, wanted == 0
    low, high = 0.0, largest / 64
    while tail(high) > wanted:
        if high >= largest:
            return largest, False
        low, high = high, min(2 * high, largest)
    tried: dict[float, float] = {}

    def distance(factor: float) -> float:
        tried[factor] = (0.0 if factor == 0 else tail(factor)) - wanted
        return tried[factor]

    brentq(distance, low, high, xtol=1e-12, rtol=1e-12, maxiter=60)
    # Orders below env.tolerance are not sent, so a tail has small steps: the nearest value that was met.
    return min(tried, key=lambda factor: abs(tried[factor])), True


MatchedBy = Literal["return", "bar", "flat", "not reached"]


def matched_base(base: BasePlayer, policy: AccountPath, tail: Tail) -> tuple[AccountPath, float, MatchedBy]:
    """The base rule scaled to the tail that the policy realised on the same bars; its factor, and by which tail.

    By the tail of returns where both lose in it; else by that of bars; a policy that stays flat is compared with
    nothing held at all.
    """
    unscaled = base.play(1.0)
    wanted, own = tail.of_returns(policy), tail.of_returns(unscaled)
    by: MatchedBy = "return"
    if wanted is not None and own is not None and wanted < 0 and own < 0:
        factor, reached = factor_for(wanted, lambda k: tail.of_returns(base.play(k)) or 0.0, largest=base.largest)
    else:
        by = "bar"
        factor, reached = factor_for(tail.of_bars(policy), lambda k: tail.of_bars(base.play(k)), largest=base.largest)
    if factor == 0.0:
        by = "flat"
    return base.play(factor), factor, by if reached else "not reached"


@dataclass(frozen=True, eq=False)
class Cell:
    """One instrument on one split. Tails are log-returns over the horizon, negative for losses.

    limit            what the tail is measured against; None: the base has no loss on the train bars
    tail, base_tail  realised on the test bars by the policy, and by the base scaled to the limit on the train bars
    base_factor      that scale; base_reached: whether it reached the limit below the margin
    sharpes          train and test, of the policy; base_sharpes: of the base at factor 1
    gaps             train minus test Sharpe of each member (seed) by itself
    turnover         notional traded per year as a multiple of equity; base_turnover: of the matched base
    matched_factor   of the base with the policy's own tail on the test bars; matched_by: which tail
    days             UTC days of the test window, [D]; sums of log-returns on each: difference to the matched base
                     [D], matched base [D]; years [D]: length of the bars of each day
    """

    instrument: str
    split: int
    test_bars: int
    horizon: int
    limit: float | None
    tail: float | None
    base_tail: float | None
    base_factor: float
    base_reached: bool
    sharpes: tuple[float, float]
    base_sharpes: tuple[float, float]
    gaps: tuple[float, ...]
    turnover: float
    base_turnover: float
    matched_factor: float
    matched_by: MatchedBy
    days: Days
    difference: Floats
    base: Floats
    years: Floats

    @property
    def use(self) -> float | None:
        """Realised tail of the policy as a share of the limit; 0 where it is no loss."""
        return _use(self.tail, self.limit)

    @property
    def base_use(self) -> float | None:
        """The same of the base that was scaled to the limit on the train bars."""
        return _use(self.base_tail, self.limit)


def _use(tail: float | None, limit: float | None) -> float | None:
    return None if tail is None or limit is None else max(tail / limit, 0.0)


def daily(time: Days, *series: Floats) -> tuple[Days, list[Floats]]:
    """UTC days of bars [n], each once, and the sum of each series on them."""
    days, at = np.unique(time.astype("datetime64[D]"), return_inverse=True)
    return days, [np.bincount(at, weights=values, minlength=len(days)) for values in series]


@dataclass(frozen=True)
class Interval:
    """Log-returns per year and instrument: difference to the base with its interval, and the base's own return."""

    difference: float
    low: float
    high: float
    base: float

    @property
    def share(self) -> float | None:
        """The lower bound as a share of the size of the base's return."""
        return self.low / abs(self.base) if self.base != 0 else None


def pooled_interval(cells: Sequence[Cell], *, seed: int = 0) -> Interval:
    """Interval of the mean difference per instrument and year, by a bootstrap over time blocks and instruments.

    Blocks of BLOCK consecutive days (circular) are drawn for all instruments together, because they lose on the same
    days; instruments are drawn with replacement. The mean is the sum of all drawn differences over the sum of years.
    """
    names = sorted({cell.instrument for cell in cells})
    clock = np.unique(np.concatenate([cell.days for cell in cells]))
    table = np.zeros((3, len(clock), len(names)))
    for cell in cells:
        rows, column = np.searchsorted(clock, cell.days), names.index(cell.instrument)
        table[:, rows, column] += np.stack([cell.difference, cell.base, cell.years])
    rng = np.random.default_rng(seed)
    block = min(BLOCK, len(clock))
    starts = rng.integers(0, len(clock), size=(DRAWS, -(-len(clock) // block)))
    chosen = rng.integers(0, len(names), size=(DRAWS, len(names)))
    values = np.empty(DRAWS)
    for draw in range(DRAWS):
        days = (starts[draw][:, None] + np.arange(block)).ravel()[: len(clock)] % len(clock)
        per_day = np.bincount(days, minlength=len(clock)).astype(np.float64)
        per_name = np.bincount(chosen[draw], minlength=len(names)).astype(np.float64)
        years = per_day @ table[2] @ per_name
        values[draw] = per_day @ table[0] @ per_name / years if years > 0 else np.nan
    low, high = np.nanquantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    difference, base, years = table.sum(axis=(1, 2))
    return Interval(float(difference / years), float(low), float(high), float(base / years))
