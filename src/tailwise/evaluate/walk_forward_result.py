"""The shapes of what a walk-forward keeps: plan, rows of a fold, the summary of all. Layout: see walk_forward.py."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from tailwise.core.stored import Stored
from tailwise.evaluate.bootstrap import Interval
from tailwise.evaluate.judgement import ALWAYS_IN, POLICY
from tailwise.evaluate.monte_carlo import AccountOdds
from tailwise.evaluate.statistics import PathStatistics
from tailwise.run.stored import Count

Seed = Annotated[int, Field(ge=0, lt=2**63)]


def _has_policy_and_rule(statistics: dict[str, PathStatistics]) -> dict[str, PathStatistics]:
    if POLICY not in statistics or not any(name in statistics for name in ALWAYS_IN):
        raise ValueError(f"the statistics of {POLICY} and of {' or '.join(ALWAYS_IN)} are needed")
    return statistics


Statistics = Annotated[dict[str, PathStatistics], AfterValidator(_has_policy_and_rule)]


class StoredSpan(Stored):
    """A window: open times of its first and last bar, and how many bars it has."""

    first_bar: str
    last_bar: str
    bars: Count


class StoredWindows(Stored):
    """Windows of a fold."""

    train: StoredSpan
    select: StoredSpan | None
    test: StoredSpan


class FoldLimit(Stored):
    """Verdict on the limit."""

    limit: float
    realised: float | None
    kept: bool | None
    sentence: str


class FoldRow(Stored):
    """One fold, seed and account."""

    fold: Annotated[int, Field(ge=1, le=10_000)]
    seed: Seed | None
    account: str
    evaluation: str = ""
    refused: bool | None
    updates: Count
    limit_acted: bool | None
    windows: StoredWindows
    statistics: Statistics
    limit: FoldLimit | None


class FoldResult(Stored):
    """fold_result.json; how and members: of an ensemble."""

    format: Literal[2]
    rows: Annotated[list[FoldRow], Field(min_length=1)]
    how: str | None = None
    members: dict[str, str] | None = None


class FoldPlan(Stored):
    """walk_forward.plan.json."""

    data_hash: str
    config: dict[str, Any]
    plan: dict[str, Any]


class StoredEvidence(Stored):
    """Of a stitched path."""

    verdict: str


class StoredComparison(Stored):
    """Of a stitched path against a rule."""

    mean_return: Interval
    sharpe: Interval
    verdict: str


class StitchedPath(Stored):
    """The test windows of all folds, one after the other."""

    account: str
    seed: Seed | None
    evaluation: str
    statistics: Statistics
    limit: FoldLimit | None
    evidence: StoredEvidence
    against: dict[str, StoredComparison]
    odds: AccountOdds | None


class Headline(Stored):
    """Which stitched path speaks."""

    account: str
    seed: Seed | None


class AcrossSeeds(Stored):
    """The mean over seeds of one number."""

    iqm: float
    low: float | None
    high: float | None


class OverSeeds(Stored):
    """The mean over seeds of each number that is compared."""

    sharpe: AcrossSeeds | None
    mean_return: AcrossSeeds | None


class StoredOverfitting(Stored):
    """Probability of backtest overfitting."""

    probability: float
    trials: Count


class StoredFolds(Stored):
    """walk_forward.json, as far as it is read again."""

    format: Literal[2]
    name: str
    label: str
    symbols: list[str]
    folds: Count
    seeds: list[Seed] = Field(default_factory=list)
    alpha: Annotated[float, Field(gt=0, lt=1)]
    horizon: Count
    data_hash: str
    cut: str = ""
    config: dict[str, Any]
    facts: list[str]
    rows: Annotated[list[FoldRow], Field(min_length=1)]
    stitched: Annotated[list[StitchedPath], Field(min_length=1)]
    headline: Headline
    across_seeds: OverSeeds
    overfitting: StoredOverfitting | None
    doubts: list[str] = Field(default_factory=list)
    verdict: list[str]

    @model_validator(mode="after")
    def _speaks(self) -> StoredFolds:
        if not any((one.account, one.seed) == (self.headline.account, self.headline.seed) for one in self.stitched):
            raise ValueError("the headline names no stitched path")
        if len(self.verdict) < len(self.doubts) + 2:
            raise ValueError("the verdict needs two sentences after the doubts")
        return self
