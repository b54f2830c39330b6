"""What online learning may do: how often it trains, how far it may move, what evidence it needs, when it rolls back."""

from __future__ import annotations

from pydantic import Field

from tailwise.core.config import Section
from tailwise.online.drift import FEWEST


class LearnSettings(Section):
    """Settings of `tailwise paper --learn`; docs/online.md says what each of them does."""

    window: int = Field(1000, ge=50, le=1_000_000, description="newest bars that a challenger is trained on")
    every: int = Field(500, ge=1, le=10_000_000, description="bars between trainings; an alarm of drift comes before")
    lead: int = Field(
        1, ge=1, le=100_000, description="bars that a training may take; its challenger begins after them"
    )
    updates: int = Field(100, ge=1, le=100_000, description="updates of a challenger")
    staleness: int = Field(
        4, ge=0, le=1000, description="updates since the policy that decided, after which its segments are not used"
    )
    kl: float = Field(
        2.0, gt=0, le=100, description="largest mean KL of a challenger from the deployed policy, nats per decision"
    )
    patience: int = Field(
        500,
        ge=1,
        le=10_000_000,
        description="bars after which a challenger is dropped unless the evidence leans to it, and bars that a "
        "promoted one is watched",
    )
    alpha: float = Field(
        0.05, gt=0, lt=1, description="probability of any false promotion in the life of a session, all ways together"
    )
    margin: float = Field(
        1e-5, ge=0, le=1, description="log-return per bar by which a challenger with a smaller tail may be worse"
    )
    tail: float = Field(0.05, gt=0, lt=1, description="share of the worst bars that are compared as the tail")
    bound: float | None = Field(
        None,
        gt=0,
        le=100,
        description="largest log-return that a challenger can lose against the deployed policy in one bar; null: 1.5 "
        "times the largest move of the window times the widest difference of two exposures",
    )
    kl_after_drift: float = Field(
        100.0, gt=0, le=1000, description="the same for challengers after an alarm of drift, nats per decision"
    )
    fresh: float = Field(
        0.5, gt=0, le=1, description="share of `window` since the estimated change that a training after an alarm needs"
    )
    drift_rate: float = Field(0.1, gt=0, lt=1, description="false alarms of drift per 1,000 bars")
    drift_reference: int = Field(
        1000, ge=FEWEST, le=1_000_000, description="bars of a policy that drift is measured from, as soon as there are"
    )
    roll_back: float | None = Field(
        None,
        gt=0,
        le=10,
        description="log-return behind its predecessor at which a promoted policy is rolled back; null: three standard "
        "deviations of their difference over `patience` bars",
    )
    drawdown: float | None = Field(
        None,
        gt=0,
        le=10,
        description="log-return below the highest equity since its promotion at which it is as well; null: three "
        "standard deviations of its own return over `patience` bars",
    )
    trainings_per_day: int = Field(4, ge=1, le=100_000, description="of the bars' days, UTC")
    promotions_per_day: int = Field(1, ge=1, le=100_000, description="of the bars' days, UTC")
    still: float = Field(
        0.5, gt=0, le=1, description="share of bars without any move from which on a window is not trained on"
    )
