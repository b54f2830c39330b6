"""All folds and seeds of a walk-forward together: stitched paths, evidence, verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tailwise.core.errors import DataError
from tailwise.core.numerics import tail_horizon
from tailwise.evaluate import walk_forward_words as words
from tailwise.evaluate.evidence import Comparison, PathEvidence, compare_paths, path_evidence
from tailwise.evaluate.judgement import DEFAULT_ALPHA, MOST_LIKELY, POLICY, SAMPLED
from tailwise.evaluate.limit import judge_limit
from tailwise.evaluate.monte_carlo import AccountOdds, account_odds
from tailwise.evaluate.overfitting import BLOCKS, overfitting
from tailwise.evaluate.path_files import EQUITY, read_paths, save_paths
from tailwise.evaluate.seeds import SeedSummary, summarise_seeds
from tailwise.evaluate.statistics import PathStatistics, annualisation_doubt, path_statistics, window_returns
from tailwise.evaluate.stitching import stitch
from tailwise.evaluate.walk_forward_plan import Plan, iso
from tailwise.evaluate.walk_forward_result import (
    FORMAT,
    SUMMARY,
    AcrossSeeds,
    EnsembleOf,
    FoldLimit,
    FoldRow,
    FoldWindows,
    Headline,
    Overfitting,
    PathVerdict,
    RuleComparison,
    StitchedPath,
    TrialCount,
    WalkForward,
)
from tailwise.market.path import AccountPath
from tailwise.run.config import Config
from tailwise.run.run_files import LARGE, read_stored
from tailwise.run.trials import TrialBook, config_hash, plan_hash
from tailwise.run.worlds import MarketWorld

STITCHED = "stitched"
_LOWEST = 1e-6  # wealth whose logarithm a ruined account is given
Named = dict[str, AccountPath]  # policy and baselines by name


@dataclass(frozen=True)
class Whole:
    """What the parts of a summary share."""

    out: Path
    name: str
    config: Config
    plan: Plan
    seeds: tuple[int, ...]
    world: MarketWorld  # of any fold: its bars are those of all
    book: TrialBook
    how: str | None  # how the seeds decide together; None with a single one

    @property
    def alpha(self) -> float:
        return self.config.tail_alpha or DEFAULT_ALPHA

    @property
    def speakers(self) -> list[int | None]:
        """Seeds, and None for all of them together."""
        return [*self.seeds, *([None] if self.how is not None else [])]

    @property
    def cut(self) -> str:
        return cut_of(self.plan)


def cut_of(plan: Plan) -> str:
    """What tells this plan of folds from others on the same bars."""
    return plan_hash(plan.identity())


def summarise(whole: Whole, rows: Sequence[FoldRow], facts: Sequence[str]) -> WalkForward:
    """The whole result; writes the stitched paths beside the folds."""
    plan, config, data = whole.plan, whole.config, whole.world.dataset
    paths = {seed: _stitched(whole, rows, seed) for seed in whole.speakers}
    for seed, accounts in paths.items():
        save_paths(whole.out / _folder_of(seed), accounts)
    data_hash = data.data_hash()
    stitched, trials = _judged(whole, paths, data_hash)
    pbo, reason = _overfitting(whole, paths, data_hash)
    leaks = whole.world.leak_verdict()
    doubts = dict.fromkeys(
        doubt for path in _policies(paths[whole.seeds[0]]) if (doubt := annualisation_doubt(path)) is not None
    )
    if leaks.doubtful:
        doubts = {f"leak-check: {leaks.sentence}": None, **doubts}
    result = WalkForward(
        format=FORMAT,
        name=whole.name,
        label=data.label,
        symbols=tuple(paths[whole.seeds[0]]),
        kind=plan.settings.kind,
        folds=len(plan.folds),
        seeds=whole.seeds,
        purge=plan.purge,
        embargo=plan.settings.embargo,
        look_back=plan.look_back,
        label_horizon=plan.label_horizon,
        clock_bars=len(plan.clock),
        periods_per_year=data.bars[0].frequency.periods_per_year,
        alpha=whole.alpha,
        gamma=config.learner.gamma,
        horizon=tail_horizon(config.learner.gamma),
        data_hash=data_hash,
        config_hash=config_hash(config),
        cut=whole.cut,
        config=config.model_dump(mode="json"),
        facts=tuple(facts),
        leak_check=leaks,
        windows=tuple(FoldWindows(fold=fold.number + 1, **dict(plan.windows(fold))) for fold in plan.folds),
        rows=tuple(rows),
        ensemble=None if whole.how is None else EnsembleOf(how=whole.how, seeds=whole.seeds),
        stitched=stitched,
        across_seeds=_across_seeds(whole, rows),
        overfitting=pbo,
        overfitting_reason=reason,
        trials=trials,
        headline=Headline(account=next(iter(paths[whole.seeds[0]])), seed=whole.speakers[-1]),
        doubts=tuple(doubts),
        verdict=(),
        folder=whole.out,
    )
    return result.model_copy(update={"verdict": (*doubts, *words.verdict(result))})


def _folder_of(seed: int | None) -> str:
    return f"{STITCHED}/{'ensemble' if seed is None else f'seed_{seed}'}"


def _policies(accounts: Mapping[str, Named]) -> list[AccountPath]:
    return [named[POLICY] for named in accounts.values()]


def _stitched(whole: Whole, rows: Sequence[FoldRow], seed: int | None) -> dict[str, Named]:
    """account -> name -> path over the test windows of all folds."""
    own = sorted((row for row in rows if row.seed == seed), key=lambda row: row.fold)
    folders = list(dict.fromkeys(row.evaluation for row in own))
    if len(folders) != len(whole.plan.folds):
        raise DataError(f"{whole.out}: {len(folders)} of {len(whole.plan.folds)} folds are there for seed {seed}.")
    parts = [read_paths(whole.out / folder) for folder in folders]
    return {
        account: {name: stitch([part[account][name] for part in parts]) for name in parts[0][account]}
        for account in parts[0]
    }


def _judged(
    whole: Whole, paths: Mapping[int | None, Mapping[str, Named]], data_hash: str
) -> tuple[tuple[StitchedPath, ...], TrialCount]:
    """The stitched paths, judged, and what is known of the trials, this one included."""
    accounts = list(paths[whole.seeds[0]])
    first = paths[whole.seeds[0]][accounts[0]][POLICY]
    bar = whole.plan.bar
    window = f"{iso(first.time[0] + bar)} {iso(first.time[-1] + bar)} {', '.join(accounts)}"
    for seed in whole.seeds:
        # One number per trial: the mean over accounts, each of which one policy trades.
        ratios = [_statistics(whole, path).sharpe for path in _policies(paths[seed])]
        known = [ratio for ratio in ratios if ratio is not None]
        whole.book.result(
            data=data_hash,
            config=config_hash(whole.config),
            cut=whole.cut,
            seed=seed,
            window=window,
            sharpe=float(np.mean(known)) if known else None,
        )
    found = whole.book.look_up(data_hash, window=window)
    counted = max(found.counted, len(whole.seeds))
    stitched = []
    for speaker in whole.speakers:
        for account in accounts:
            named = paths[speaker][account]
            path = named[POLICY]
            evidence = path_evidence(path, alpha=whole.alpha, trials=counted, trial_sharpes=found.sharpes)
            rules = {name: one for name, one in named.items() if name not in (POLICY, SAMPLED, MOST_LIKELY)}
            speaks = speaker == whole.speakers[-1]
            stitched.append(
                StitchedPath(
                    account=account,
                    seed=speaker,
                    first_bar=iso(path.time[0]),
                    last_bar=iso(path.time[-1]),
                    bars=path.planned,
                    ruined=path.ruined,
                    statistics={name: _statistics(whole, one) for name, one in named.items()},
                    limit=FoldLimit.of(judge_limit(path, whole.config)),
                    evidence=_verdict(evidence),
                    against={name: _against(compare_paths(path, rule)) for name, rule in rules.items() if speaks},
                    odds=_odds(path) if speaks else None,
                    evaluation=_folder_of(speaker),
                )
            )
    return tuple(stitched), TrialCount(counted=counted, known_sharpes=len(found.sharpes), file=str(found.file))


def _verdict(evidence: PathEvidence) -> PathVerdict:
    return PathVerdict(**vars(evidence), verdict=evidence.verdict)


def _against(comparison: Comparison) -> RuleComparison:
    return RuleComparison(**vars(comparison), verdict=comparison.verdict)


def _odds(path: AccountPath) -> AccountOdds:
    """Of a year ahead like these bars, or of as many bars as there are if that is less."""
    bars = min(round(path.periods_per_year), path.planned)
    return account_odds(window_returns(path), path.periods_per_year, bars=bars)


def _statistics(whole: Whole, path: AccountPath) -> PathStatistics:
    return path_statistics(path, alpha=whole.alpha, gamma=whole.config.learner.gamma)


def _across_seeds(whole: Whole, rows: Sequence[FoldRow]) -> AcrossSeeds:
    """Interquartile means over seeds [rows] and folds x accounts [columns]."""
    own = [row for row in rows if row.seed is not None]
    tasks = sorted({(row.fold, row.account) for row in own})

    def over_seeds(score: Callable[[FoldRow], float | None]) -> SeedSummary | None:
        scores = {(row.seed, row.fold, row.account): score(row) for row in own}
        table = [[scores[seed, *task] for task in tasks] for seed in whole.seeds]
        known = all(value is not None for line in table for value in line)
        return summarise_seeds(np.array(table, dtype=np.float64)) if known else None

    return AcrossSeeds(sharpe=over_seeds(lambda row: row.statistics[POLICY].sharpe), mean_return=over_seeds(_growth))


def _growth(row: FoldRow) -> float:
    """Log-return per year of the policy."""
    numbers = row.statistics[POLICY]
    return float(np.log(max(1 + numbers.total_return, _LOWEST)) / numbers.years)


def _overfitting(
    whole: Whole, paths: Mapping[int | None, Mapping[str, Named]], data_hash: str
) -> tuple[Overfitting | None, str | None]:
    """PBO over the seeds, and over what was tried before on the same bars by the same folds; or why there is none."""
    trials = [_returns(paths[seed]) for seed in whole.seeds]
    for other in sorted(whole.out.absolute().parent.glob(f"*/{SUMMARY}")):
        if other.parent == whole.out.absolute():
            continue
        told = read_stored(other, WalkForward, root=other.parent, limit=LARGE)
        if told.data_hash == data_hash and told.cut == whole.cut:
            folders = [other.parent / _folder_of(seed) for seed in told.seeds]
            # Somebody may have deleted the paths of an older one; that must not cost this one its verdict.
            trials += [
                _returns(read_paths(folder, root=other.parent)) for folder in folders if (folder / EQUITY).exists()
            ]
    if len(trials) < 2:
        return None, "a single trial was not chosen among others"
    bars = len(trials[0])
    if bars < 2 * BLOCKS:
        return None, f"{bars} bars are too few for {BLOCKS} blocks"
    found = overfitting(np.stack(trials, axis=1))
    return Overfitting(
        probability=found.probability, loss_probability=found.loss_probability, trials=len(trials), bars=bars
    ), None


def _returns(accounts: Mapping[str, Mapping[str, AccountPath]]) -> Any:
    """Log-returns [bars] of one trial, the mean over its accounts (as many bars as the shortest has)."""
    each = [window_returns(named[POLICY]) for named in accounts.values()]
    bars = min(len(one) for one in each)
    return np.mean([one[:bars] for one in each], axis=0)
