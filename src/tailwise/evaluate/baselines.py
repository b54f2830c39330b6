"""What a policy has to be compared with: rules that anybody could have followed, through the same simulator."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from tailwise.bars.bars import Bars
from tailwise.core.errors import DataError
from tailwise.core.streams import Streams
from tailwise.market.path import AccountPath

Floats = npt.NDArray[np.float64]
VOLATILITY_MEMORY = 0.94  # weight of yesterday's variance, as RiskMetrics had it for daily bars
WARM_UP = 20  # returns before the variance is trusted
_DAILY = 400  # bars per year up to which bars are of a day or longer


def flat(bars: Bars) -> Floats:
    """Never trade: targets [T] of 0."""
    return np.zeros(len(bars))


def buy_and_hold(bars: Bars) -> Floats:
    """Always hold the equity's worth: targets [T] of 1."""
    return np.ones(len(bars))


def volatility_target(bars: Bars, *, target: float = 0.10, largest: float = 1.0) -> Floats:
    """Exposure target / forecast, at most `largest`: targets [T].

    target: volatility per year, a fraction. The forecast at the close of bar t is the exponentially weighted volatility
    of the log-returns up to t; before it is trusted the rule stays flat.
    """
    returns = np.diff(np.log(bars.close))
    start = np.array([VOLATILITY_MEMORY * returns[0] ** 2])
    variance, _ = lfilter([1 - VOLATILITY_MEMORY], [1.0, -VOLATILITY_MEMORY], returns**2, zi=start)
    forecast = np.sqrt(np.maximum(variance, 1e-16) * bars.frequency.periods_per_year)
    targets = np.minimum(target / forecast, largest)
    targets[: WARM_UP - 1] = 0.0
    return np.concatenate([[0.0], targets])


def momentum(bars: Bars, *, look_back: int | None = None) -> Floats:
    """Long after a rise over the last `look_back` bars, short after a fall: targets [T] of 1, -1 or 0.

    Time-series momentum of Moskowitz, Ooi & Pedersen (2012). look_back: by default a year of daily or longer bars, a
    month of shorter ones; flat until so many bars have been seen.
    """
    periods = bars.frequency.periods_per_year
    span = round(periods if periods <= _DAILY else periods / 12) if look_back is None else look_back
    if span < 1:
        raise DataError(f"{bars.symbol}: a momentum over {span} bars; look back at least one.")
    targets = np.zeros(len(bars))
    targets[span:] = np.sign(bars.close[span:] - bars.close[:-span])
    return targets


def random_matched(bars: Bars, path: AccountPath, *, seed: int) -> Floats:
    """Targets [T] that know nothing of the bars but hold and trade as much as `path` does.

    At each bar, with one probability, a new target is drawn from those that the path asked for; the probability is the
    path's turnover per bar over the mean distance of two such draws. What a policy earns beyond this rule is timing.
    """
    if path.target.shape[1] != 1:
        raise DataError(f"{path.symbol}: a rule for one asset was asked to imitate {path.target.shape[1]} assets.")
    wanted = path.target[:, 0]
    draws = Streams(seed).uniforms("evaluate/random", update=0, environments=1, steps=len(bars), draws=2)[:, 0]
    drawn = wanted[(draws[:, 1] * len(wanted)).astype(np.int64)]
    distance = _mean_distance(wanted)
    if distance <= 0:
        return np.full(len(bars), wanted[0])
    changes = draws[:, 0] < path.traded.mean() / distance
    changes[0] = True
    latest = np.maximum.accumulate(np.where(changes, np.arange(len(bars)), 0))
    return np.asarray(drawn[latest])


def _mean_distance(values: Floats) -> float:
    """Mean |x - y| of two independent draws from values [n] (Gini's mean difference)."""
    ordered, count = np.sort(values), len(values)
    return float(2 * (ordered * (2 * np.arange(count) - count + 1)).sum() / count**2)
