"""Whether a challenger may replace the deployed policy, asked again at every bar without wasting the error rate.

An e-process is a bet against the hypothesis that the challenger is no better: it starts at 1, its expectation never
grows while the hypothesis holds, so it reaches 1/alpha with probability alpha at most, however often one looks (Ville
1939; Waudby-Smith & Ramdas 2024, "Estimating means of bounded random variables by betting").

The stake of a bar is known before the bar. Gains are clipped at the bound, which only makes the test harder to pass;
losses are not: a challenger that earns a little on most bars and loses much on few must pay for it in full. So the
bound has to hold for losses. A loss of more than bound / stake would leave a negative wealth; the process is then dead,
and the caller raises the bound. All symbols are one bet, on their mean difference: bets on symbols that fall together
are not independent, and their product is no e-process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import ConfigError, DataError

Floats = npt.NDArray[np.float64]

LARGEST_STAKE = 0.5  # of the wealth that is lost when a bar loses the bound
_BELIEVED_BARS = 20  # bars of a typical size that the first stakes are computed with, so that they are small
_BELIEVED_SIZE = 0.1  # that size, as a share of the bound
PURSES = 2  # half of alpha is for challengers on schedule, half for those after an alarm of drift
WAYS = 2  # of being promoted: better, or not worse with a smaller tail; each has half of a challenger's alpha


def alpha_of(challenger: int, alpha: float) -> float:
    """Share of alpha that challenger number 1, 2, ... may use: alpha 6 / (pi k)^2; all of them together use alpha."""
    if challenger < 1:
        raise ConfigError(f"challengers are counted from 1; this one has number {challenger}.")
    return alpha * 6.0 / (math.pi * challenger) ** 2


@dataclass(frozen=True)
class EProcess:
    """Evidence that a mean is above 0.

    bound    of a loss (and of a gain that counts), > 0
    log      natural logarithm of the evidence; -inf: dead
    count, total, squares    of the values so far, with gains clipped
    """

    bound: float
    log: float = 0.0
    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    @property
    def stake(self) -> float:
        """lambda in [0, 1/2] of the next bar, from the past alone: the mean over the mean square, in bounds."""
        believed = _BELIEVED_BARS * (_BELIEVED_SIZE * self.bound) ** 2
        kelly = self.bound * self.total / (self.squares + believed)
        return min(max(kelly, 0.0), LARGEST_STAKE)

    @property
    def value(self) -> float:
        """The evidence e; it speaks at level alpha when it reaches 1/alpha."""
        return math.exp(min(self.log, 700.0))

    @property
    def dead(self) -> bool:
        """Whether a loss was larger than the bet allows for."""
        return self.log == -math.inf

    def after(self, value: float) -> EProcess:
        """The process with one more bar, whose value is `value`."""
        if not math.isfinite(value):
            raise DataError(f"the difference of a bar is {value}; evidence needs finite numbers.")
        counted = min(value, self.bound)  # gains alone are clipped
        factor = 1.0 + self.stake * counted / self.bound
        log = self.log + math.log(factor) if factor > 0 and not self.dead else -math.inf
        return EProcess(self.bound, log, self.count + 1, self.total + counted, self.squares + counted * counted)


@dataclass(frozen=True)
class Contest:
    """The evidence for one challenger against the deployed policy.

    number   of the challenger, 1, 2, ...: it pays for those before it
    alpha    probability with which any challenger of the session is promoted falsely
    margin   log-return per bar by which a challenger with a smaller tail may be worse
    level    log-return of a bar below which the tail is compared; frozen when the challenger was
    better   evidence that the mean difference is above 0
    as_good  evidence that it is above -margin
    safer    evidence that the mean shortfall below `level` is smaller
    """

    number: int
    alpha: float
    margin: float
    level: float
    better: EProcess
    as_good: EProcess
    safer: EProcess

    @classmethod
    def begin(cls, number: int, *, alpha: float, margin: float, level: float, bound: float) -> Contest:
        """bound: largest log-return that one of the two can lose against the other in one bar."""
        if not bound > 0 or not 0 < alpha < 1 or margin < 0:
            raise ConfigError(
                f"a contest has bound {bound}, alpha {alpha}, margin {margin}; give 0 < alpha < 1, others >= 0."
            )
        return cls(number, alpha, margin, level, EProcess(bound), EProcess(bound), EProcess(bound))

    def after(self, challenger: Floats | Sequence[float], deployed: Floats | Sequence[float]) -> Contest:
        """One more bar: log-returns of both on the same symbols [S]."""
        new, old = np.asarray(challenger, dtype=np.float64), np.asarray(deployed, dtype=np.float64)
        difference = float(np.mean(new - old))
        shortfalls = np.maximum(self.level - old, 0.0) - np.maximum(self.level - new, 0.0)
        return replace(
            self,
            better=self.better.after(difference),
            as_good=self.as_good.after(difference + self.margin),
            safer=self.safer.after(float(np.mean(shortfalls))),
        )

    @property
    def needed(self) -> float:
        """Evidence that promotes."""
        return WAYS / alpha_of(self.number, self.alpha)

    @property
    def promoted_by(self) -> str | None:
        """Why the challenger may replace the deployed policy now; None while it may not."""
        if self.better.value >= self.needed:
            return "better"
        if min(self.as_good.value, self.safer.value) >= self.needed:
            return "as good with a smaller tail"
        return None

    @property
    def leans_to_it(self) -> bool:
        """Whether the evidence has grown so far, one way or the other."""
        return self.better.value > 1.0 or min(self.as_good.value, self.safer.value) > 1.0

    @property
    def hopeless(self) -> bool:
        """Whether a loss beyond the bound ended both ways."""
        return self.better.dead and (self.as_good.dead or self.safer.dead)

    def to_json(self) -> dict[str, Any]:
        """Plain values, with which `from_json` continues bit for bit."""
        parts = asdict(self)
        for name in ("better", "as_good", "safer"):
            parts[name]["log"] = None if parts[name]["log"] == -math.inf else parts[name]["log"]
        return parts

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Contest:
        """The inverse of `to_json`."""
        processes = {
            name: EProcess(**{**data[name], "log": -math.inf if data[name]["log"] is None else data[name]["log"]})
            for name in ("better", "as_good", "safer")
        }
        return cls(**{**data, **processes})
