"""Whether what the deployed policy earns per bar has fallen, with an alarm rate that was measured before it is stated.

Each value is divided by an exponentially weighted volatility, so that a storm is no drift, and compared with the mean
of a reference in the same units. The statistic is a one-sided CUSUM (Page 1954): it grows while values fall short of
the reference. Its threshold is calibrated on stationary-bootstrap resamples (Politis & Romano 1994) of the reference,
in which the mean is estimated again from a resampled reference: the threshold then pays for the error of that mean,
which a resample around the very mean of the reference does not. docs/online.md has the rates that were measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import ConfigError, DataError
from tailwise.core.streams import Streams

Floats = npt.NDArray[np.float64]

HORIZON = 1000  # bars that the stated rate speaks of; the statistic begins anew after them
FEWEST = 250  # bars of a reference; benchmarks.live_learning measures the rate of the shortest one as well
DRAWS = 400  # resamples
BLOCK = 5.0  # mean length of the resampled blocks, bars; longer ones give thresholds that are too low
ALLOWANCE = 0.1  # standard deviations by which a mean may fall short unnoticed
_MEMORY = 0.94  # of the volatility (RiskMetrics)
_LARGEST = 4.0  # standardised values are clipped here, so that one bar is no drift
_FLOOR = 0.1  # smallest volatility, as a share of the reference's


def standardised(values: Floats, scale: Floats | float) -> Floats:
    """Values [..., n] in units of the volatility before each of them, clipped; scale [...]: volatility of the first."""
    variance = np.square(np.asarray(scale, dtype=np.float64))
    floor = _FLOOR * np.sqrt(variance)
    units = np.empty(values.shape)
    for t in range(values.shape[-1]):
        units[..., t] = _in_units(values[..., t], variance, floor)
        variance = _smoothed(variance, values[..., t])
    return units


def _in_units(value: Any, variance: Any, floor: Any) -> Any:
    return np.clip(value / np.maximum(np.sqrt(variance), floor), -_LARGEST, _LARGEST)


def _smoothed(variance: Any, value: Any) -> Any:
    return _MEMORY * variance + (1.0 - _MEMORY) * value**2


def largest_cusum(units: Floats, count: int) -> Floats:
    """Largest statistic [...] of standardised values [..., count + m], of which the first `count` are the reference."""
    own = units[..., :count]
    mean, scale = own.mean(axis=-1), own.std(axis=-1)
    level, largest = np.zeros_like(mean), np.zeros_like(mean)
    for t in range(count, units.shape[-1]):
        level = np.maximum(level + (mean - units[..., t]) / scale - ALLOWANCE, 0.0)
        largest = np.maximum(largest, level)
    return largest


def threshold(reference: Floats, rate: float, *, seed: int, draws: int = DRAWS, horizon: int = HORIZON) -> float:
    """Level that the statistic of a stationary stream reaches within `horizon` bars with probability `rate`.

    reference [n]: bars without drift, whose standardised values hardly depend on one another. One standard error of
    the resampling is added, on the side of no alarm.
    """
    count = len(reference)
    if count < FEWEST:
        raise DataError(f"a reference for drift has {count} bars; at least {FEWEST} are needed.")
    if not 0 < rate < 1:
        raise ConfigError(f"the rate of false alarms is {rate}; it must lie between 0 and 1 per {horizon} bars.")
    if not np.ptp(reference) > 0:
        raise DataError("the reference for drift does not vary: the deployed policy earned the same on every bar.")
    worlds = np.asarray(reference, dtype=np.float64)[stationary_places(count, count + horizon, draws, seed=seed)]
    largest = np.sort(largest_cusum(standardised(worlds, worlds[:, :count].std(axis=1)), count))
    place = math.ceil((1.0 - rate) * draws + math.sqrt(rate * (1.0 - rate) * draws))
    return float(largest[min(place, draws - 1)])


def stationary_places(count: int, length: int, draws: int, *, seed: int) -> npt.NDArray[np.int64]:
    """Rows [draws, length] of a stationary bootstrap of `count` bars, which wraps around."""
    uniform = Streams(seed).uniforms("online/drift", update=0, environments=draws, steps=length, draws=2)
    jumps = uniform[..., 0].T < 1.0 / BLOCK  # [draws, length]
    starts = (uniform[..., 1].T * count).astype(np.int64)
    jumps[:, 0] = True
    since = np.arange(length) - np.maximum.accumulate(np.where(jumps, np.arange(length), 0), axis=1)
    begun = np.take_along_axis(starts, np.arange(length) - since, axis=1)
    return (begun + since) % count


@dataclass
class DriftMonitor:
    """The statistic of a stream, bar by bar.

    mean, scale   of the standardised reference; floor: smallest volatility; threshold: of an alarm
    rate          false alarms per `HORIZON` bars that the threshold was calibrated for
    variance      of the stream, exponentially weighted; level: the statistic; bars: since it began anew
    since         bars since the statistic left 0; at an alarm the mean is estimated to have changed with the first
    """

    mean: float
    scale: float
    floor: float
    threshold: float
    rate: float
    variance: float
    level: float = 0.0
    bars: int = 0
    since: int = 0

    @classmethod
    def of(cls, reference: Floats, *, rate: float, seed: int, draws: int = DRAWS) -> DriftMonitor:
        """Calibrate on a reference [n], which the stream follows."""
        limit = threshold(reference, rate, seed=seed, draws=draws)
        spread = float(np.std(reference))
        units, variance = standardised(reference, spread), spread**2
        for value in reference.tolist():
            variance = _smoothed(variance, value)
        return cls(float(units.mean()), float(units.std()), _FLOOR * spread, limit, rate, variance)

    def look(self, value: float) -> bool:
        """One more bar; whether it is an alarm. After an alarm the monitor is done, but for `since`."""
        if not math.isfinite(value):
            raise DataError(f"the value of a bar is {value}; drift is measured on finite numbers.")
        unit = float(_in_units(value, self.variance, self.floor))
        self.level = max(self.level + (self.mean - unit) / self.scale - ALLOWANCE, 0.0)
        self.variance = float(_smoothed(self.variance, value))
        self.bars += 1
        self.since = self.since + 1 if self.level > 0 else 0
        alarm = self.level > 0 and self.level >= self.threshold
        if alarm or self.bars == HORIZON:
            self.level, self.bars = 0.0, 0
            self.since = self.since if alarm else 0
        return alarm
