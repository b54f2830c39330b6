"""Rules held as much as gives them the tail of the policy: what they earn at the same risk.

A rule is scaled by one number: each of its bars gains and loses, costs included, `factor` times as much, as in an
account that is that much smaller or larger and rebalanced at every close. Long positions beyond the equity are paid for
with a loan at the rate of the account. The tail is that of the limit, CVaR of discounted log-returns over the horizon,
or of single bars where one of the two loses nothing over the horizon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from tailwise.core.numerics import known_forward_returns
from tailwise.evaluate.bootstrap import LEVEL, mean_difference, sharpe_difference, studentised_intervals
from tailwise.evaluate.evidence import Comparison
from tailwise.evaluate.statistics import NOTHING, empirical_cvar, forward_returns, window_returns
from tailwise.evaluate.words import RANDOM
from tailwise.market.path import AccountPath

Floats = npt.NDArray[np.float64]
Tail = Literal["horizon", "bar"]
MOST = 100.0  # times that a rule is held at most
_SMALLEST = 1e-4  # what is left of 1 in a bar at the very least: a rule held so often that a bar ruins it
UNSCALED = ("flat", RANDOM)  # nothing to scale, and what already holds as much as the policy


@dataclass(frozen=True)
class SameTail:
    """A rule at the tail of the policy.

    factor      times that it is held
    tail        by which tail: of returns over the `horizon`, or of single bars
    per_year    its log-return per year, so held
    comparison  the policy minus the rule, so held, bar by bar
    """

    factor: float
    tail: Tail
    per_year: float
    comparison: Comparison

    @property
    def verdict(self) -> str:
        """'better', 'worse' or 'no evidence': of the policy, by the mean log-return."""
        return self.comparison.verdict

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "comparison": self.comparison.to_json()}


@dataclass(frozen=True, eq=False)
class Scalable:
    """A rule that can be held any number of times.

    returns    its log-returns [n]
    exposure   its net exposure [n], a multiple of equity
    loan       what borrowed money costs per bar, a fraction
    """

    returns: Floats
    exposure: Floats
    loan: float = 0.0

    @classmethod
    def of(cls, path: AccountPath, loan_rate: float) -> Scalable:
        """loan_rate: per year."""
        ended = np.zeros(path.planned - len(path))
        exposure = np.concatenate([path.exposure, ended])
        return cls(window_returns(path), exposure, loan_rate / path.periods_per_year)

    def held(self, factor: float) -> Floats:
        """Log-returns [n] of what is held `factor` times."""
        borrowed = np.maximum(factor * self.exposure - 1, 0.0) - factor * np.maximum(self.exposure - 1, 0.0)
        return np.log(np.maximum(1 + factor * np.expm1(self.returns) - self.loan * borrowed, _SMALLEST))


def factor_for(rule: Scalable, wanted: float, *, alpha: float, gamma: float | None) -> float | None:
    """How often a rule is held at a CVaR of `wanted`, a loss; None where no factor up to MOST is.

    gamma: discount per bar of the returns over the horizon; None: of single bars.
    """

    def distance(factor: float) -> float:
        return _tail(rule.held(factor), alpha, gamma) - wanted

    # Held often enough, a tail that is a loss passes any number, and it may be none at first: a premium outweighs it.
    high = 1.0
    while distance(high) > 0:
        high *= 2
        if high > MOST:
            return None
    return float(brentq(distance, 0.0, high, xtol=1e-9))


def same_tail(
    paths: Mapping[str, AccountPath],
    own: str,
    *,
    alpha: float,
    gamma: float,
    repetitions: int,
    loan_rate: float = 0.0,
    seed: int = 0,
) -> dict[str, SameTail]:
    """Hold every rule among `paths` as much as gives it the tail of the path called `own`, and compare.

    loan_rate: what borrowed money costs per year.
    """
    policy = paths[own]
    returns, scale = window_returns(policy), policy.periods_per_year
    found = {}
    for name, path in paths.items():
        if name in UNSCALED or name == own or name.startswith(f"{own}, "):
            continue
        other = Scalable.of(path, loan_rate)
        match = _match(policy, returns, other, alpha, gamma)
        if match is None:
            continue
        factor, tail = match
        held = other.held(factor)
        mean, ratio = studentised_intervals(
            np.stack([returns, held]),
            [mean_difference(scale), sharpe_difference(scale)],
            level=LEVEL,
            repetitions=repetitions,
            seed=seed,
        )
        found[name] = SameTail(factor, tail, float(scale * held.mean()), Comparison(mean, ratio))
    return found


def _match(policy: AccountPath, own: Floats, other: Scalable, alpha: float, gamma: float) -> tuple[float, Tail] | None:
    """The factor and by which tail; None where the policy loses nothing in either, or the rule cannot lose as much."""
    forward = forward_returns(policy, gamma)
    if len(forward) and (wanted := empirical_cvar(forward, alpha)) < -NOTHING:
        factor = factor_for(other, wanted, alpha=alpha, gamma=gamma)
        if factor is not None:
            return factor, "horizon"
    wanted = empirical_cvar(own, alpha)
    if wanted >= -NOTHING:
        return None
    factor = factor_for(other, wanted, alpha=alpha, gamma=None)
    return None if factor is None else (factor, "bar")


def _tail(returns: Floats, alpha: float, gamma: float | None) -> float:
    if gamma is None:
        return empirical_cvar(returns, alpha)
    forward = known_forward_returns(returns, gamma, over=False)
    return empirical_cvar(forward, alpha)
