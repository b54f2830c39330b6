"""What a walk-forward comes to: the records of its files, its verdict in sentences, the rows of its table.

`OUT/walk_forward.json` is `WalkForward.to_json()`. Times are UTC, ISO 8601, and those at which bars open; folders are
relative to OUT; a seed of null stands for all seeds of a fold deciding together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from tailwise.core.errors import DataError
from tailwise.core.parsing import Stored
from tailwise.evaluate.bootstrap import Interval, SeedSummary
from tailwise.evaluate.evidence import AccountOdds, DeflatedSharpe
from tailwise.evaluate.few import overfitting_sentence, seeds_sentences
from tailwise.evaluate.judgement import ALWAYS_IN, POLICY, LimitVerdict, always_in
from tailwise.evaluate.regression import Regression, beyond_exposure
from tailwise.evaluate.statistics import PathStatistics
from tailwise.evaluate.words import NEVER_ACTED, chance, earned, limit_word, listed, percent, plain, reservations
from tailwise.market.leaks.features import LeakVerdict
from tailwise.run.run_files import LARGE, Count, read_stored

FORMAT: Final = 2
SUMMARY, PLAN, RESULT = "walk_forward.json", "walk_forward.plan.json", "fold_result.json"

Seed = Annotated[int, Field(ge=0, lt=2**63)]


def _has_policy_and_rule(statistics: dict[str, PathStatistics]) -> dict[str, PathStatistics]:
    if POLICY not in statistics or not any(name in statistics for name in ALWAYS_IN):
        raise ValueError(f"the statistics of {POLICY} and of {' or '.join(ALWAYS_IN)} are needed")
    return statistics


Statistics = Annotated[dict[str, PathStatistics], AfterValidator(_has_policy_and_rule)]


class Span(Stored):
    """A window of bars."""

    first_bar: str = Field(description="open time of its first bar")
    last_bar: str = Field(description="open time of its last bar")
    bars: Count = Field(description="number of bars")


class Windows(Stored):
    """The windows of a fold."""

    train: Span
    select: Span | None = Field(description="None where nothing is selected")
    test: Span


class FoldWindows(Windows):
    """The windows of a fold by the common clock of all symbols."""

    fold: Count = Field(description="number of the fold, from 1")


class FoldLimit(Stored):
    """Whether the limit was kept out of sample."""

    limit: float = Field(description="lowest allowed value, a log-return")
    realised: float | None = Field(description="None: the window is shorter than the horizon")
    kept: bool | None = Field(description="None when it cannot be told")
    sentence: str = Field(description="the same in words")

    @classmethod
    def of(cls, verdict: LimitVerdict | None) -> FoldLimit | None:
        if verdict is None:
            return None
        return cls(
            limit=verdict.limit,
            realised=verdict.realised,
            kept=verdict.kept,
            sentence=verdict.sentence("out of sample"),
        )


class FoldRow(Stored):
    """One fold, seed and account, tested."""

    fold: Annotated[int, Field(ge=1, le=10_000)] = Field(description="number of the fold, from 1")
    seed: Seed | None = Field(description="None: all seeds of the fold decide together")
    account: str = Field(description="its symbol; the symbols of a portfolio")
    folder: str | None = Field(default=None, description="of the run; None for the ensemble")
    checkpoint: str | None = Field(
        default=None, description="that was tested: best by the select window, or the newest; None for the ensemble"
    )
    updates: Count = Field(
        description="of training behind the checkpoint (of the ensemble: of its least trained member)"
    )
    limit_acted: bool | None = Field(
        description="whether the limit acted in that training (of the ensemble: in all of them); None without a limit"
    )
    steps: int | None = Field(default=None, description="environment steps of the training; None for the ensemble")
    ended: str | None = Field(default=None, description="why the training ended, a sentence; None for the ensemble")
    refused: bool | None = Field(description="whether it ended by refused updates; None for the ensemble")
    evaluation: str = Field(default="", description="folder with the paths and summary.json of the test")
    windows: Windows = Field(description="bars of this account")
    statistics: Statistics = Field(description="of the policy and of each simple rule, by name, after costs")
    cvar_return: float | None = Field(
        default=None, description="realised, of the policy; None: the test window is shorter than the horizon"
    )
    limit: FoldLimit | None = Field(description="None without a limit")


class FoldResult(Stored):
    """fold_result.json: the rows of one fold and seed, which is finished then."""

    format: Literal[2]
    rows: Annotated[tuple[FoldRow, ...], Field(min_length=1)]
    how: str | None = Field(default=None, description="of an ensemble: vote or average")
    members: dict[str, str] | None = Field(default=None, description="of an ensemble: checkpoint by seed")


class FoldPlan(Stored):
    """walk_forward.plan.json: what a folder is for."""

    data_hash: str
    config: dict[str, Any]
    plan: dict[str, Any]


class PathVerdict(Stored):
    """What a stitched path is evidence of."""

    mean_return: Interval = Field(description="log-return per year")
    sharpe: Interval = Field(description="per year")
    volatility: Interval = Field(description="per square root of a year")
    cvar_bar: Interval = Field(description="of log-returns per bar")
    deflated: DeflatedSharpe | None = Field(description="None for an account that never moved")
    verdict: str = Field(description="above zero, below zero or no evidence")


class RuleComparison(Stored):
    """A stitched path minus a simple rule on the same bars."""

    mean_return: Interval = Field(description="difference of log-returns per year")
    sharpe: Interval = Field(description="difference of Sharpe ratios per year")
    verdict: str = Field(description="better, worse or no evidence")


class StitchedPath(Stored):
    """The test windows of all folds one after the other: one account and seed."""

    account: str
    seed: Seed | None
    first_bar: str
    last_bar: str
    bars: Count
    ruined: bool
    statistics: Statistics
    limit: FoldLimit | None
    evidence: PathVerdict
    against: dict[str, RuleComparison] = Field(description="by rule; empty for paths that are not the headline")
    beyond: Regression | None = Field(default=None, description="on the rule that is always in; of the headline alone")
    odds: AccountOdds | None = Field(description="over a year like these bars; None for paths but the headline")
    evaluation: str = Field(description="folder with equity.parquet, decisions.parquet and trades.parquet")


class Headline(Stored):
    """Which stitched path speaks: the ensemble, or the only seed."""

    account: str
    seed: Seed | None


class EnsembleOf(Stored):
    """How the seeds of a fold decide together."""

    how: str = Field(description="vote or average")
    seeds: tuple[Seed, ...]


class AcrossSeeds(Stored):
    """Interquartile means over all seeds, folds and accounts; None where a score is undefined."""

    sharpe: SeedSummary | None
    mean_return: SeedSummary | None


class Overfitting(Stored):
    """Probability of backtest overfitting, over the seeds and what was tried before on these bars with these folds."""

    probability: float
    loss_probability: float
    trials: Count
    bars: Count


class TrialCount(Stored):
    """Configurations and seeds that were trained on these bars so far."""

    counted: Count
    known_sharpes: Count
    file: str


class WalkForward(Stored):
    """The result of a walk-forward over all folds and seeds."""

    format: Literal[2]
    name: str = Field(description="of the configuration")
    label: str = Field(description='"real", or what synthetic bars are')
    symbols: tuple[str, ...] = Field(description="accounts: one for each symbol, one for all of them in a portfolio")
    kind: str = Field(description="anchored: training grows from the first bar; rolling: it keeps its length")
    folds: Count = Field(description="number of folds")
    seeds: tuple[Seed, ...]
    purge: Count = Field(description="bars left out between train, select and test")
    embargo: Count = Field(description="further bars left out")
    look_back: Count = Field(description="bars that features look back; purge covers them")
    label_horizon: Count = Field(description="bars ahead by which a decision is judged; purge covers them")
    clock_bars: Count = Field(description="bars of the common clock of all symbols")
    periods_per_year: float = Field(description="bars per year")
    alpha: Annotated[float, Field(gt=0, lt=1)] = Field(description="tail probability")
    gamma: float = Field(description="discount per bar")
    horizon: Count = Field(description="bars over which a discounted return is realised")
    data_hash: str = Field(description="of all bars")
    config_hash: str = Field(description="of the configuration without seed and split")
    cut: str = Field(description="hash of the plan of folds")
    config: dict[str, Any] = Field(description="the whole configuration; its data.split is not used")
    facts: tuple[str, ...] = Field(description="sentences: what was trained on what")
    leak_check: LeakVerdict | None = Field(default=None, description="of own features; None in older results")
    windows: tuple[FoldWindows, ...]
    rows: Annotated[tuple[FoldRow, ...], Field(min_length=1)] = Field(description="per fold, seed and account")
    ensemble: EnsembleOf | None = Field(description="None with one seed")
    stitched: Annotated[tuple[StitchedPath, ...], Field(min_length=1)] = Field(description="per account and seed")
    across_seeds: AcrossSeeds
    overfitting: Overfitting | None
    overfitting_reason: str | None = Field(description="why there is none, a sentence")
    trials: TrialCount
    headline: Headline
    doubts: tuple[str, ...] = Field(description="sentences about leaks and bars per year, mostly none")
    verdict: tuple[str, ...] = Field(description="sentences: the doubts, what was tested, whether it earns, the rest")
    folder: Path | None = Field(default=None, exclude=True, description="where its files lie; not in them")

    @model_validator(mode="after")
    def _speaks(self) -> WalkForward:
        if not self.headlines:
            raise ValueError("the headline names no stitched path")
        return self

    @property
    def headlines(self) -> list[StitchedPath]:
        """The stitched paths that speak, one per account, the first account first."""
        own = [one for one in self.stitched if one.seed == self.headline.seed]
        named = [one for one in own if one.account == self.headline.account]
        return [*named, *(one for one in own if one.account != self.headline.account)] if named else []

    @property
    def refused(self) -> bool:
        """Whether a training ended because too many updates in a row were refused."""
        return any(row.refused for row in self.rows)

    def limit_acted(self, stitched: StitchedPath) -> bool | None:
        """Whether the limit acted in any training behind a stitched path; None without a limit."""
        acted = [row.limit_acted for row in self.rows if row.seed == stitched.seed]
        return None if None in acted else any(acted)

    def least_updates(self, stitched: StitchedPath) -> int:
        """Updates of the least trained policy behind a stitched path."""
        return min(row.updates for row in self.rows if row.seed == stitched.seed)

    def to_json(self) -> dict[str, Any]:
        """What walk_forward.json holds."""
        return self.model_dump(mode="json")


def read_walk_forward(folder: str | Path) -> WalkForward:
    """Read the result that a walk-forward left in its folder."""
    place = Path(folder)
    file = place / SUMMARY
    try:
        result = read_stored(file, WalkForward, root=place, limit=LARGE)
        if len(result.verdict) < len(result.doubts) + 2:
            raise DataError(f"{file}: the verdict needs two sentences after the doubts.")
    except (OSError, DataError) as error:
        raise DataError(
            f"{error}\n{file} cannot be read. Run the walk-forward again with --out {place}: nothing is trained again."
        ) from error
    return result.model_copy(update={"folder": place})


def verdict(result: WalkForward) -> list[str]:
    """What was tested, whether it earns, against whom, after how many trials, how seeds differ, is the limit kept."""
    sentences = [_what(result)]
    for one in result.headlines:
        sentences += [_earns(result, one), _against(one), _deflated(one), _odds(one)]
    sentences += seeds_sentences(result.across_seeds.sharpe)
    if result.overfitting is not None:
        sentences.append(overfitting_sentence(result.overfitting.probability, result.overfitting.trials))
    for one in result.headlines:
        if one.limit is not None:
            end = f" ({NEVER_ACTED})" if result.limit_acted(one) is False else ""
            sentence = f"{_of(result, one)}{one.limit.sentence}{end}."
            sentences.append(sentence if _of(result, one) else sentence[0].upper() + sentence[1:])
    return sentences


def who(seeds: Sequence[int], ensemble: EnsembleOf | None) -> str:
    """Who decides in the headline."""
    if ensemble is None:
        return f"seed {seeds[0]}"
    verb = "voting" if ensemble.how == "vote" else "averaged"
    return f"{len(seeds)} seeds {verb}"


def headings(result: WalkForward) -> tuple[str, ...]:
    """Titles of the columns of `table_rows`, with their units."""
    rule = always_in(result.rows[0].statistics)
    return ("fold, seed", "test", *account_headings(result.alpha, result.horizon, rule))


def account_headings(alpha: float, horizon: int, rule: str) -> tuple[str, ...]:
    """Titles of the columns of `account_cells`, with their units."""
    tail = f"CVaR {100 * alpha:g}%, {horizon:,} bars"
    return ("Sharpe", "total return", "worst drawdown", tail, "limit", f"{rule}: Sharpe / return")


def account_cells(statistics: dict[str, PathStatistics], limit: FoldLimit | None, acted: bool | None) -> list[str]:
    """Numbers of the policy, then of the rule that is always invested; acted: whether the limit acted in training."""
    own, rule = statistics[POLICY], statistics[always_in(statistics)]
    return [
        plain(own.sharpe),
        percent(own.total_return),
        percent(-own.max_drawdown),
        percent(own.cvar_return),
        "-" if limit is None else limit_word(limit.kept, acted),
        f"{plain(rule.sharpe)} / {percent(rule.total_return)}",
    ]


def table_rows(result: WalkForward) -> list[list[str]]:
    """One row per fold and seed of each account, then the stitched paths."""
    folds = [
        _line(result, f"fold {row.fold}", row, row.windows.test.first_bar, row.windows.test.last_bar, row.limit_acted)
        for row in result.rows
    ]
    return folds + [
        _line(result, "all folds", one, one.first_bar, one.last_bar, result.limit_acted(one)) for one in result.stitched
    ]


def _line(
    result: WalkForward, folds: str, row: FoldRow | StitchedPath, first: str, last: str, acted: bool | None
) -> list[str]:
    speaker = "ensemble" if row.seed is None else f"seed {row.seed}"
    return [
        f"{folds}, {speaker}" + (f", {row.account}" if len(result.symbols) > 1 else ""),
        f"{first[:10]} to {last[:10]}",
        *account_cells(row.statistics, row.limit, acted),
    ]


def _of(result: WalkForward, one: StitchedPath) -> str:
    return f"{one.account}: " if len(result.symbols) > 1 else ""


def _what(result: WalkForward) -> str:
    one = result.headlines[0]
    seeds = f"{len(result.seeds)} seeds" if len(result.seeds) > 1 else "one seed"
    return (
        f"Tested on {one.bars:,} bars ({result.label}) from {one.first_bar[:10]} to {one.last_bar[:10]}, "
        f"in {result.folds} {result.kind} folds with {seeds}; no policy saw the bars that it is tested on, and "
        f"{result.purge + result.embargo} bars between train and test were left out. All numbers after costs."
    )


def _earns(result: WalkForward, one: StitchedPath) -> str:
    mean, sharpe = one.evidence.mean_return, one.evidence.sharpe
    why = reserved(result, one)
    beyond = one.beyond
    sentence = earned(one.evidence.verdict, mean.estimate, why) if beyond is None else beyond_exposure(beyond, why)
    ratio = "undefined" if one.statistics[POLICY].sharpe is None else plain(sharpe.estimate)
    return (
        f"{_of(result, one)}{who(result.seeds, result.ensemble)}: {sentence[0].lower()}{sentence[1:]}. "
        f"Log-return {percent(mean.estimate)} per year, {_interval(mean, percent)}; "
        f"Sharpe ratio {ratio}, {_interval(sharpe, plain)}."
    )


def reserved(result: WalkForward, one: StitchedPath) -> list[str]:
    """What keeps a stitched path from being praised; its least trained policy counts."""
    return reservations(one.statistics[POLICY].mean_exposure, result.least_updates(one))


def _interval(interval: Interval, show: Callable[[float | None], str]) -> str:
    if interval.low is None:
        return "no interval"
    return f"{100 * interval.level:g}% interval {show(interval.low)} to {show(interval.high)}"


def _against(one: StitchedPath) -> str:
    by: dict[str, list[str]] = {"better": [], "worse": [], "no evidence": []}
    for name, comparison in one.against.items():
        by[comparison.verdict].append(name)
    parts = [f"{word} than {listed(by[word])}" for word in ("better", "worse") if by[word]]
    if by["no evidence"]:
        parts.append(f"no evidence of a difference from {listed(by['no evidence'])}")
    return f"Against simple rules on the same bars: {'; '.join(parts)}."


def _deflated(one: StitchedPath) -> str:
    deflated = one.evidence.deflated
    if deflated is None:
        return "The account never moved, so there is no Sharpe ratio to deflate."
    count = deflated.trials
    return (
        f"{count} trial{'s' if count > 1 else ''} on these bars {'are' if count > 1 else 'is'} counted: without any "
        f"edge the best of them is expected to show a Sharpe ratio of {plain(deflated.expected_best)}; the "
        f"probability that the true one is above that is {percent(deflated.deflated, 0)} (above 0: "
        f"{percent(deflated.probabilistic, 0)})."
    )


def _odds(one: StitchedPath) -> str:
    odds = one.odds
    assert odds is not None  # of a path that speaks
    drawn = odds.repetitions
    parts = [f"{chance(p, drawn)} for a drawdown of {100 * size:g}%" for size, p in odds.drawdowns[:3]]
    return (
        f"Odds over {odds.bars:,} bars that are put together from blocks of these: {', '.join(parts)}, "
        f"{chance(odds.loss, drawn)} for a loss at the end, {chance(odds.ruin, drawn)} for ruin."
    )
