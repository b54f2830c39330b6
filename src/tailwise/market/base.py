"""Rules that anybody could follow: what actions multiply with `env.base`, and what policies are compared to.

A rule gives a target exposure for the close of every bar, from that bar and those before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from tailwise.bars.bars import Bars
from tailwise.core.errors import DataError
from tailwise.market.env_config import Base, BuyAndHoldBase, FunctionBase, MomentumBase, VolatilityTargetBase

Floats = npt.NDArray[np.float64]
VOLATILITY_MEMORY = 0.94  # weight of yesterday's variance, as RiskMetrics had it for daily bars
WARM_UP = 20  # returns before the variance is trusted
_DAILY = 400  # bars per year up to which bars are of a day or longer
_CUTS = 8  # places at which a function of one's own is called again without the bars that follow


def flat(bars: Bars) -> Floats:
    """Never trade: targets [T] of 0."""
    return np.zeros(len(bars))


def buy_and_hold(bars: Bars) -> Floats:
    """Always hold the equity's worth: targets [T] of 1."""
    return np.ones(len(bars))


def volatility_target(bars: Bars, *, target: float = 0.10, largest: float = 1.0) -> Floats:
    """Exposure target / forecast, at most `largest`: targets [T].

    target: volatility per year, a fraction. The forecast at the close of bar t is the exponentially weighted volatility
    of the log-returns up to t, with the same memory in days for bars of any length up to a day; before it is trusted
    the rule stays flat.
    """
    forecast = np.sqrt(recent_variance(bars) * bars.frequency.periods_per_year)
    targets = np.minimum(target / forecast, largest)
    targets[: WARM_UP - 1] = 0.0
    return np.concatenate([[0.0], targets])


def recent_variance(bars: Bars) -> Floats:
    """Exponentially weighted variance of the log-returns up to each bar but the first, per bar [T - 1], at least
    1e-16."""
    returns = np.diff(np.log(bars.close))
    keep = VOLATILITY_MEMORY ** (1 / _bars_per_day(bars))
    start = np.array([keep * returns[0] ** 2])
    variance, _ = lfilter([1 - keep], [1.0, -keep], returns**2, zi=start)
    return np.maximum(variance, 1e-16)


def momentum(bars: Bars, *, look_back: int | None = None) -> Floats:
    """Long after a rise over the last `look_back` bars, short after a fall: targets [T] of 1, -1 or 0.

    Time-series momentum of Moskowitz, Ooi & Pedersen (2012). look_back: by default a year of daily or longer bars, a
    month of shorter ones; flat until so many bars have been seen.
    """
    span = _year_or_month(bars) if look_back is None else look_back
    if span < 1:
        raise DataError(f"{bars.symbol}: a momentum over {span} bars; look back at least one.")
    targets = np.zeros(len(bars))
    targets[span:] = np.sign(bars.close[span:] - bars.close[:-span])
    return targets


def risk_units_momentum(bars: Bars, base: MomentumBase) -> Floats:
    """Mean sign of the moves over several look-backs, times the exposure of a volatility target: targets [T]."""
    longest = _year_or_month(bars)
    spans = base.look_back or (max(longest // 12, 1), max(longest // 4, 1), longest)
    signs = np.mean([momentum(bars, look_back=span) for span in spans], axis=0)
    signs[: max(spans)] = 0.0  # all of them, or none
    return signs * volatility_target(bars, target=base.target, largest=math.inf)


def base_exposures(base: Base, bars: Bars) -> Floats:
    """Exposures float64 [T] of the rule `env.base` at the close of every bar, scaled and cut; 0 while it warms up."""
    match base:
        case BuyAndHoldBase():
            exposures = buy_and_hold(bars)
        case VolatilityTargetBase():
            exposures = volatility_target(bars, target=base.target, largest=math.inf)
        case MomentumBase():
            exposures = risk_units_momentum(bars, base)
        case FunctionBase():
            exposures = _own(base, bars)
    return np.clip(exposures * base.factor, -base.largest, base.largest)


def _own(base: FunctionBase, bars: Bars) -> Floats:
    """What a function of the user's says, checked: a number within bounds for each bar, without a look ahead."""
    function = base.load()
    exposures = _called(base, function, bars)
    for end in np.unique(np.linspace(2, len(bars), _CUTS + 1).astype(int))[:-1]:
        shorter = _called(base, function, bars.slice(0, int(end)))
        if not np.array_equal(shorter, exposures[:end]):
            row = int(np.argmax(shorter != exposures[:end]))
            raise DataError(
                f"env.base.function {base.function} looks ahead on {bars.symbol}: at bar {row} it says "
                f"{exposures[row]:g} knowing all bars and {shorter[row]:g} knowing only the first {end}; use bars up "
                "to each bar alone."
            )
    return exposures


def _called(base: FunctionBase, function: Callable[[Bars], npt.ArrayLike], bars: Bars) -> Floats:
    try:
        exposures = np.array(function(bars), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"env.base.function {base.function} on {bars.symbol}: {error}") from error
    if exposures.shape != (len(bars),):
        raise DataError(
            f"env.base.function {base.function} returned shape {exposures.shape} for {len(bars)} bars of "
            f"{bars.symbol}; one exposure for each bar is needed."
        )
    bad = ~(np.abs(exposures) <= base.largest)
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(
            f"env.base.function {base.function} says {exposures[row]} at bar {row} of {bars.symbol}; exposures are "
            f"finite and at most env.base.largest {base.largest:g} in size."
        )
    return exposures


def _bars_per_day(bars: Bars) -> float:
    """Bars of a trading day; 1 for bars of a day or longer."""
    periods = bars.frequency.periods_per_year
    if periods <= _DAILY:
        return 1.0
    return periods / (365 if bars.frequency.calendar == "24/7" else 252)


def _year_or_month(bars: Bars) -> int:
    """Bars of a year of daily or longer bars, of a month of shorter ones."""
    periods = bars.frequency.periods_per_year
    return max(round(periods if periods <= _DAILY else periods / 12), 1)
