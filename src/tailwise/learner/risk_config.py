"""The section `risk`: which tail is measured, and whether it acts on the policy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tailwise.core.config import Section
from tailwise.core.errors import ConfigError


class CvarMeasure(Section):
    """Mean of the worst share `risk.alpha` of discounted returns."""

    kind: Literal["cvar"] = "cvar"


class WangMeasure(Section):
    """Wang's distorted mean: the mean after every probability was shifted towards the bad side."""

    kind: Literal["wang"] = "wang"
    eta: float = Field(0.75, gt=0, le=5, description="shift of the normal scores; for a normal law mean - eta x std")


class MeanMeasure(Section):
    """The plain mean of discounted returns."""

    kind: Literal["mean"] = "mean"


Measure = Annotated[CvarMeasure | WangMeasure | MeanMeasure, Field(discriminator="kind")]
ALPHA = Field(0.05, gt=0, le=1, description="tail probability; at least 1/quantiles")
MEASURE = Field(default=CvarMeasure(), description="what is measured on the pooled law of the discounted return")


class Pid(Section):
    """Gains of the multiplier (Stooke et al. 2020) on the violation.

    Its unit is |limit| or half the return's spread, whichever is larger when the constraint begins.
    """

    kp: float = Field(20.0, ge=0, le=1000, description="gain on the smoothed violation")
    ki: float = Field(0.4, ge=0, le=1000, description="gain on the sum of violations; what stays when it is kept")
    integral_clip: float = Field(
        0.1,
        gt=0,
        description="largest violation that the sum counts: far from the limit the policy needs time, not weight",
    )
    kd: float = Field(0.0, ge=0, le=1000, description="gain on a rising measure of the last 10 updates")
    smoothing: float = Field(0.7, ge=0, lt=1, description="share of the old value in the moving averages of P and D")

    @model_validator(mode="after")
    def _acts(self) -> Pid:
        if self.kp == 0 and self.ki == 0:
            raise ValueError("kp and ki are both 0: the multiplier would stay at 0 and constrain nothing; set one")
        return self


class Warmup(Section):
    """When the constraint begins: once predicted and realised tails agree, or after `longest` updates with an alert."""

    updates: int = Field(5, ge=0, description="committed updates before it may begin")
    tolerance: float = Field(
        0.35, gt=0, description="largest |predicted - realised CVaR| in standard deviations of the realised return"
    )
    longest: int = Field(10, ge=0, description="committed updates after which it begins in any case")

    @model_validator(mode="after")
    def _in_order(self) -> Warmup:
        if self.longest < self.updates:
            raise ValueError(f"longest {self.longest} is below updates {self.updates}; make it at least as large")
        return self


class RiskOff(Section):
    """No tail is measured."""

    mode: Literal["off"] = "off"


class RiskReport(Section):
    """The CVaR of the discounted return is measured and reported; it does not act on the policy."""

    mode: Literal["report"] = "report"
    alpha: float = ALPHA


class RiskPenalty(Section):
    """The measure enters the objective with a fixed weight: (mean + weight x measure) / (1 + weight)."""

    mode: Literal["penalty"]
    alpha: float = ALPHA
    measure: Measure = MEASURE
    weight: float = Field(gt=0, le=1000, description="weight of the measure beside the mean")


class RelativeLimit(Section):
    """A share of the tail that a rule had on the train bars, measured when training begins; on markets."""

    of: Literal["buy_and_hold", "base"] = Field(description="whose tail: buy and hold's, or that of env.base")
    share: float = Field(0.5, gt=0, le=1, description="share of that tail which is allowed")


class RiskConstraint(Section):
    """The measure has to stay above a limit; a multiplier finds the weight that this takes."""

    mode: Literal["constraint"]
    alpha: float = ALPHA
    measure: Measure = MEASURE
    limit: Annotated[float, Field(allow_inf_nan=False)] | RelativeLimit = Field(
        description="lowest allowed value of the measure, in reward units (log-return on a market) over the discounted "
        "horizon; losses are negative; or {of: buy_and_hold, share: 0.5} of the tail on the train bars",
    )
    pid: Pid = Field(default=Pid(), description="how the multiplier follows the violation")
    max_multiplier: float = Field(
        10.0, gt=0, le=1000, description="cap of the multiplier; sitting there is an alert: the limit cannot be met"
    )
    warmup: Warmup = Field(default=Warmup(), description="when the constraint begins")

    @property
    def level(self) -> float:
        """The limit as a number; a relative one has none before the train bars were seen."""
        if isinstance(self.limit, RelativeLimit):
            raise ConfigError(
                f"risk.limit is {self.limit.share:g} of the tail of {self.limit.of}, which only the bars of a market "
                "tell; give it as a number here."
            )
        return self.limit


RiskConfig = Annotated[RiskOff | RiskReport | RiskPenalty | RiskConstraint, Field(discriminator="mode")]
