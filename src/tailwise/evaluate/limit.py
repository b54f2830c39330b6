"""Was the limit kept? The measure of realised returns on bars of a window, beside the limit that the run was given."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from tailwise.core.numerics import tail_horizon
from tailwise.evaluate.statistics import forward_returns
from tailwise.evaluate.tails import Floats, empirical_cvar
from tailwise.evaluate.words import small_percent
from tailwise.learner.risk import utility_at
from tailwise.learner.risk_config import CvarMeasure, Measure, RiskConstraint, WangMeasure
from tailwise.market.path import AccountPath
from tailwise.run.config import Config
from tailwise.run.risk_words import share


@dataclass(frozen=True)
class LimitVerdict:
    """Realised against allowed, both log-returns. Neighbouring returns overlap: `horizons` tells how many do not."""

    measure: str  # kind: cvar, wang or mean
    statistic: str  # what of the returns is compared, in words
    limit: float
    alpha: float
    gamma: float
    horizon: int  # bars
    realised: float | None  # None: the window is shorter than the horizon
    returns: int  # discounted forward returns that were realised
    horizons: int  # that fit into the window without overlap

    @property
    def kept(self) -> bool | None:
        """None when it cannot be told."""
        return None if self.realised is None else self.realised >= self.limit

    def sentence(self, where: str = "out of sample") -> str:
        """Kept or missed, with the numbers."""
        realised, limit = self._shown
        allowed = f"the limit is {limit}"
        if self.realised is None:
            return (
                f"limit not judged {where}: the window is shorter than the {self.horizon} bars over which a discounted "
                f"return is realised; {allowed}"
            )
        fit = "1 horizon fits" if self.horizons == 1 else f"{self.horizons} horizons fit"
        return (
            f"limit {'kept' if self.kept else 'missed'} {where}{self.by}: {self.statistic} "
            f"{realised}, {allowed}; {fit} into the window without overlap"
        )

    @property
    def _shown(self) -> tuple[str, str]:
        """Realised and allowed, with as many digits as tell them apart."""
        realised = self.limit if self.realised is None else self.realised
        shown, digits = (small_percent(realised), small_percent(self.limit)), 3
        while shown[0] == shown[1] and realised != self.limit:
            digits += 1
            shown = f"{100 * realised:.{digits}g}%", f"{100 * self.limit:.{digits}g}%"
        return shown

    @property
    def short(self) -> str | None:
        """The same in a few words, for a second path; None when it cannot be told."""
        if self.realised is None:
            return None
        return f"{'kept' if self.kept else 'missed'}{self.by} ({small_percent(self.realised)})"

    @property
    def by(self) -> str:
        """The size of a miss, in words; empty without one."""
        if self.realised is None or self.kept:
            return ""
        points = 100 * (self.limit - self.realised)
        return f" by {points:.1f} percentage points" if points >= 0.1 else f" by {points:.1g} percentage points"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "kept": self.kept}


def judge_limit(path: AccountPath, config: Config) -> LimitVerdict | None:
    """The verdict on one path; None unless risk acts as a constraint.

    It is judged on the measure that the run was given, whichever that is.
    """
    constraint = config.risk
    if not isinstance(constraint, RiskConstraint):
        return None
    gamma = config.learner.gamma
    forward = forward_returns(path, gamma)
    horizon = tail_horizon(gamma)
    measure = constraint.measure
    return LimitVerdict(
        measure=measure.kind,
        statistic=_statistic(measure, constraint.alpha, horizon),
        limit=constraint.limit,
        alpha=constraint.alpha,
        gamma=gamma,
        horizon=horizon,
        realised=_measured(measure, forward, constraint.alpha) if len(forward) else None,
        returns=len(forward),
        horizons=path.planned // horizon,
    )


def rule_sentence(name: str, verdict: LimitVerdict) -> str | None:
    """Whether a rule that knows no limit kept it too: then the window did not put it to the test."""
    if verdict.realised is None:
        return None
    value = small_percent(verdict.realised)
    if verdict.kept:
        return f"{name} kept it too ({value}): these bars were too calm to put the limit to the test"
    return f"{name} missed it{verdict.by} ({value}): these bars put the limit to the test"


def _measured(measure: Measure, values: Floats, alpha: float) -> float:
    if isinstance(measure, CvarMeasure):
        return empirical_cvar(values, alpha)
    return utility_at(measure, torch.from_numpy(values), alpha).value


def _statistic(measure: Measure, alpha: float, horizon: int) -> str:
    returns = f"discounted {horizon}-bar log-returns"
    if isinstance(measure, CvarMeasure):
        return f"the worst {share(alpha)} of {returns} averaged"
    if isinstance(measure, WangMeasure):
        return f"Wang's distorted mean (eta {measure.eta:g}) of {returns} was"
    return f"{returns} averaged"
