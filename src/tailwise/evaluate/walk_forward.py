"""Walk-forward: train, select and test fold by fold with several seeds, and say what it is evidence of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tailwise.core.atomic import write_json
from tailwise.core.errors import DataError
from tailwise.core.numerics import tail_horizon
from tailwise.evaluate.bootstrap import SeedSummary, summarise_seeds
from tailwise.evaluate.evidence import BLOCKS, compare_paths, odds_of_next_year, overfitting, path_evidence
from tailwise.evaluate.judgement import DEFAULT_ALPHA, MOST_LIKELY, POLICY, SAMPLED, always_in
from tailwise.evaluate.path_files import EQUITY, read_paths, save_paths
from tailwise.evaluate.regression import regress
from tailwise.evaluate.splits import Fold, stitch
from tailwise.evaluate.statistics import Floats, PathStatistics, annualisation_doubt, path_statistics, window_returns
from tailwise.evaluate.study import (
    Outcome,
    Study,
    StudyJob,
    leak_verdict_of,
    named_seeds,
    open_study,
    run_study,
    training_facts,
    warn_about,
)
from tailwise.evaluate.walk_forward_folds import (
    AnySettings,
    Cell,
    Plan,
    Settings,
    as_kind,
    check_world,
    claim_folder,
    finished,
    fold_config,
    iso,
    judge_cell,
    judge_ensemble,
    make_plan,
    stitched_limit,
)
from tailwise.evaluate.walk_forward_result import (
    FORMAT,
    SUMMARY,
    AcrossSeeds,
    EnsembleOf,
    FoldRow,
    FoldWindows,
    Headline,
    Overfitting,
    PathVerdict,
    RuleComparison,
    StitchedPath,
    TrialCount,
    WalkForward,
    verdict,
)
from tailwise.market.leaks.features import LeakVerdict
from tailwise.market.path import AccountPath
from tailwise.run.agent import PPO
from tailwise.run.config import Config, ConfigLike, Effective, effective_config, require_environment, warnings_of
from tailwise.run.ensemble import EnsembleMethod
from tailwise.run.jobs import Say, Stop, never, silent
from tailwise.run.run_files import LARGE, read_stored
from tailwise.run.seeds import alone
from tailwise.run.training_job import Trained, TrainingJob
from tailwise.run.trials import TrialBook, Trials, config_hash, plan_hash
from tailwise.run.worlds import MarketWorld, make_world

Rows = tuple[FoldRow, ...]
STITCHED = "stitched"
_LOWEST = 1e-6  # wealth whose logarithm a ruined account is given
Paths = Mapping[str, AccountPath]  # policy and baselines by name
Accounts = Mapping[str, Paths]


def walk_forward(
    config: ConfigLike,
    *,
    overrides: Sequence[str] = (),
    folds: int = 5,
    seeds: int | Sequence[int] = 3,
    kind: str = "anchored",
    purge: int | None = None,
    embargo: int = 0,
    tested: float = 0.5,
    select: float | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    stop: Stop = never,
    say: Say = silent,
) -> WalkForward:
    """Train, select and test fold by fold; the result, whose files lie in `result.folder`.

    config    a market: a `Config`, a nested dictionary, a YAML file or the name of a preset; its data.split is not used
    overrides "learner.clip=0.1" and the like, changes of the configuration
    folds     test windows, one after the other
    seeds     how many, from the configuration's seed on; or the seeds themselves
    kind      "anchored": training begins at the first bar and grows; "rolling": it keeps its length
    purge     bars left out between windows; None: as far as features look back and decisions look ahead
    embargo   further bars left out
    tested    share of the bars, the newest, that all test windows cover together
    select    share of the bars in each select window; None: that of data.split, else 0.15
    out       the folder; one that holds this walk-forward already is continued. None: runs/walk-forward-N
    jobs      trainings side by side, a process each. From a script, call it below `if __name__ == "__main__":`
    stop      asked after every update; True ends the runs with a checkpoint and raises StudyStopped
    say       is given the lines of the runs (`tailwise.run.jobs.Line`)

        result = tailwise.walk_forward("sp500", folds=3, seeds=2, out="runs/sp500-folds")
        print(result.verdict[1], result.headlines[0].statistics["policy"].sharpe)
    """
    settings = Settings(folds, as_kind(kind), purge, embargo, tested, select)
    study = plan_walk_forward(effective_config(config, overrides), settings, seeds=seeds)
    warn_about(study)
    return run_study(study, open_study(study, out), jobs=jobs, stop=stop, say=say)


def plan_walk_forward(effective: Effective, settings: Settings, *, seeds: int | Sequence[int] = 3) -> WalkForwardStudy:
    """Cut the folds and check them, the features included, before hours are spent on training."""
    return plan_folds(WalkForwardStudy, effective, settings, seeds=seeds)


def plan_folds(
    study: type[AnyFoldsStudy], effective: Effective, settings: AnySettings, *, seeds: int | Sequence[int]
) -> AnyFoldsStudy:
    """Cut the folds of a study and check them, the features included."""
    require_environment(effective)
    base = alone(effective.config)
    seeds = named_seeds(seeds, first=base.seed)
    plan = make_plan(base, settings)
    world = _world(base, plan, plan.folds[0], seeds[0])
    for fold in plan.folds[1:]:
        fold_config(base, plan, fold, seeds[0])  # what cannot be cut is an error now, not after hours
    warned = (*warnings_of(base), *world.warnings())
    leaks = leak_verdict_of(world, warned)
    return study(
        name=effective.name,
        base=base,
        seeds=seeds,
        facts=tuple(_facts(base, plan, world, leaks)),
        warnings=warned,
        leak_check=leaks,
        plan=plan,
        world=world,
    )


@dataclass(frozen=True, eq=False)
class FoldsStudy(Study[Rows, Outcome]):
    """Every fold with every seed. world: of the first fold; its bars are those of all."""

    plan: Plan
    world: MarketWorld

    kind = "walk-forward"

    @property
    def ensemble(self) -> EnsembleMethod | None:
        """How the seeds decide together: by their mean, as those of a run do; None with one seed."""
        return "average" if len(self.seeds) > 1 else None

    @property
    def speakers(self) -> list[int | None]:
        """Seeds, and None for all of them together; the last one speaks for the study."""
        return [*self.seeds, *([None] if self.ensemble is not None else [])]

    @property
    def alpha(self) -> float:
        """Tail probability."""
        return self.base.tail_alpha or DEFAULT_ALPHA

    @property
    def cut(self) -> str:
        """Hash that tells this plan of folds from others on the same bars."""
        return plan_hash(self.plan.identity())

    def claim(self, folder: Path) -> None:
        claim_folder(folder, self.base, self.plan, data_hash=self.world.dataset.data_hash())

    def jobs(self, folder: Path) -> list[FoldJob]:
        """Seed by seed, so that a whole walk-forward of the first seed is there early."""
        book = self.book(folder)
        jobs = []
        for seed in self.seeds:
            for fold in self.plan.folds:
                cell, config = Cell(fold.number + 1, seed), fold_config(self.base, self.plan, fold, seed)
                training = TrainingJob(label=cell.label, config=config, folder=folder / cell.folder, trials=book)
                jobs.append(FoldJob(training, cell, self.plan))
        return jobs

    def with_ensemble(self, folder: Path, results: Sequence[Rows]) -> list[FoldRow]:
        """The rows of all jobs, then those of all seeds together, which are tested now."""
        rows = [row for fold in results for row in fold]
        if self.ensemble is not None:
            for fold in self.plan.folds:
                world = _world(self.base, self.plan, fold, self.seeds[0])
                rows += judge_ensemble(fold, self.seeds, folder, world, how=self.ensemble)
        return rows

    def book(self, folder: Path) -> TrialBook:
        """Where the trials on these bars are written down, under this plan of folds."""
        return TrialBook(TrialBook.beside(folder).file, self.cut)

    def statistics(self, path: AccountPath) -> PathStatistics:
        return path_statistics(path, alpha=self.alpha, gamma=self.base.learner.gamma)

    def doubts(self, accounts: Accounts) -> list[str]:
        """Sentences about leaks and bars per year that stand before the verdict, mostly none."""
        leaks = self.world.leak_verdict()
        doubts = [f"leak-check: {leaks.sentence}"] if leaks.doubtful else []
        each = (annualisation_doubt(named[POLICY]) for named in accounts.values())
        return [*doubts, *dict.fromkeys(filter(None, each))]


AnyFoldsStudy = TypeVar("AnyFoldsStudy", bound=FoldsStudy[Any])


class WalkForwardStudy(FoldsStudy[WalkForward]):
    """Test windows one after the other."""

    def combine(self, folder: Path, results: Sequence[Rows]) -> WalkForward:
        result = _summarise(self, folder, self.with_ensemble(folder, results))
        write_json(folder / SUMMARY, result.to_json())
        return result


@dataclass(frozen=True)
class FoldJob(StudyJob[Rows]):
    """One fold and seed."""

    cell: Cell
    plan: Plan

    def finished(self) -> Rows | None:
        return finished(self.training.folder)

    def check(self, agent: PPO) -> None:
        """Raise when the market that the run was built on lets anything of the test into the training."""
        check_world(agent.market(), self.plan, self.plan.folds[self.cell.fold - 1])

    def judge(self, run: Trained) -> Rows:
        return judge_cell(self.cell, self.training.folder.parent, run, self.plan)


def _world(base: Config, plan: Plan, fold: Fold, seed: int) -> MarketWorld:
    world = make_world(fold_config(base, plan, fold, seed)).market()
    check_world(world, plan, fold)
    return world


def _facts(base: Config, plan: Plan, world: MarketWorld, leak_check: LeakVerdict | None) -> list[str]:
    """What is trained, a sentence each."""
    facts = []
    for bars in world.dataset.bars:
        first, last = (str(moment)[:10] for moment in (bars.time[0], bars.time[-1]))
        facts.append(f"{bars.symbol} ({bars.label}): {len(bars):,} bars, {first} to {last}. {bars.frequency.sentence}")
    for fold in plan.folds:
        spans = [
            f"{purpose} {span.first_bar[:10]} to {span.last_bar[:10]} ({span.bars:,})"
            for purpose, each in plan.spans(fold).items()
            for span in each
        ]
        facts.append(f"fold {fold.number + 1}: {', '.join(spans)} bars")
    facts.append(
        f"{plan.settings.kind}; {plan.purge} bars purged (features look back {plan.look_back}, decisions are judged "
        f"{plan.label_horizon} ahead) and {plan.settings.embargo} under embargo between the windows; data.split is not "
        "used"
    )
    if base.evaluate.every is None:
        facts.append("evaluate.every is null: the newest policy of each run is tested, none is selected")
    return [*facts, *training_facts(base, leak_check)]


# ---------------------------------------------------------------- all folds and seeds together


def _summarise(study: WalkForwardStudy, folder: Path, rows: Sequence[FoldRow]) -> WalkForward:
    """Combine the rows of all folds; write the stitched paths beside the folds."""
    plan, config, data = study.plan, study.base, study.world.dataset
    paths = {seed: _stitched_paths(study, folder, rows, seed) for seed in study.speakers}
    for seed, accounts in paths.items():
        save_paths(folder / folder_of(seed), accounts)
    data_hash, accounts = data.data_hash(), paths[study.seeds[0]]
    trials, counted = _count_trials(study, folder, paths, data_hash)
    pbo, reason = _overfitting(study, folder, paths, data_hash)
    doubts = study.doubts(accounts)
    result = WalkForward(
        format=FORMAT,
        name=study.name,
        label=data.label,
        symbols=tuple(accounts),
        kind=plan.settings.kind,
        folds=len(plan.folds),
        seeds=study.seeds,
        purge=plan.purge,
        embargo=plan.settings.embargo,
        look_back=plan.look_back,
        label_horizon=plan.label_horizon,
        clock_bars=len(plan.clock),
        periods_per_year=data.bars[0].frequency.periods_per_year,
        alpha=study.alpha,
        gamma=config.learner.gamma,
        horizon=tail_horizon(config.learner.gamma),
        data_hash=data_hash,
        config_hash=config_hash(config),
        cut=study.cut,
        config=config.model_dump(mode="json"),
        facts=study.facts,
        leak_check=study.world.leak_verdict(),
        windows=tuple(FoldWindows(fold=fold.number + 1, **dict(plan.windows(fold))) for fold in plan.folds),
        rows=tuple(rows),
        ensemble=None if study.ensemble is None else EnsembleOf(how=study.ensemble, seeds=study.seeds),
        stitched=tuple(
            _stitched(study, account, rows, seed, named, counted, trials)
            for seed in study.speakers
            for account, named in paths[seed].items()
        ),
        across_seeds=_across_seeds(study.seeds, rows),
        overfitting=pbo,
        overfitting_reason=reason,
        trials=TrialCount(counted=counted, known_sharpes=len(trials.sharpes), file=str(study.book(folder).file)),
        headline=Headline(account=next(iter(accounts)), seed=study.speakers[-1]),
        doubts=tuple(doubts),
        verdict=(),
        folder=folder,
    )
    return result.model_copy(update={"verdict": (*doubts, *verdict(result))})


def folder_of(seed: int | None) -> str:
    """Folder, relative to that of the study, with the stitched paths of a seed; None: of all seeds together."""
    return f"{STITCHED}/{'ensemble' if seed is None else f'seed_{seed}'}"


def _stitched_paths(study: WalkForwardStudy, folder: Path, rows: Sequence[FoldRow], seed: int | None) -> Accounts:
    """Paths over the test windows of all folds, by account and name."""
    own = sorted((row for row in rows if row.seed == seed), key=lambda row: row.fold)
    evaluations = list(dict.fromkeys(row.evaluation for row in own))
    if len(evaluations) != len(study.plan.folds):
        raise DataError(f"{folder}: {len(evaluations)} of {len(study.plan.folds)} folds are there for seed {seed}.")
    parts = [read_paths(folder / evaluation) for evaluation in evaluations]
    return {
        account: {name: stitch([part[account][name] for part in parts]) for name in parts[0][account]}
        for account in parts[0]
    }


def _count_trials(
    study: WalkForwardStudy, folder: Path, paths: Mapping[int | None, Accounts], data_hash: str
) -> tuple[Trials, int]:
    """Write this study into the book of trials; return all trials on these bars, and how many they are at least."""
    book, bar, accounts = study.book(folder), study.plan.bar, paths[study.seeds[0]]
    first = next(iter(accounts.values()))[POLICY]
    window = f"{iso(first.time[0] + bar)} {iso(first.time[-1] + bar)} {', '.join(accounts)}"
    for seed in study.seeds:
        # One number per trial: the mean over accounts, each of which one policy trades.
        ratios = [study.statistics(named[POLICY]).sharpe for named in paths[seed].values()]
        defined = [ratio for ratio in ratios if ratio is not None]
        book.result(
            data=data_hash,
            config=config_hash(study.base),
            cut=study.cut,
            seed=seed,
            window=window,
            sharpe=float(np.mean(defined)) if defined else None,
        )
    trials = book.look_up(data_hash, window=window)
    return trials, max(trials.counted, len(study.seeds))


def _stitched(
    study: WalkForwardStudy,
    account: str,
    rows: Sequence[FoldRow],
    seed: int | None,
    named: Paths,
    counted: int,
    trials: Trials,
) -> StitchedPath:
    """Judge one stitched path; the one that speaks for the study is compared with the rules and given odds."""
    path, speaks = named[POLICY], seed == study.speakers[-1]
    own = [row for row in rows if (row.account, row.seed) == (account, seed)]
    evidence = path_evidence(path, alpha=study.alpha, trials=counted, trial_sharpes=trials.sharpes)
    against = {}
    if speaks:
        rules = {name: rule for name, rule in named.items() if name not in (POLICY, SAMPLED, MOST_LIKELY)}
        against = {name: compare_paths(path, rule) for name, rule in rules.items()}
    return StitchedPath(
        account=account,
        seed=seed,
        first_bar=iso(path.time[0]),
        last_bar=iso(path.time[-1]),
        bars=path.planned,
        ruined=path.ruined,
        statistics={name: study.statistics(one) for name, one in named.items()},
        limit=stitched_limit(path, study.base, own),
        evidence=PathVerdict(**vars(evidence), verdict=evidence.verdict),
        against={name: RuleComparison(**vars(one), verdict=one.verdict) for name, one in against.items()},
        beyond=regress(path, named[always_in(named)], against=always_in(named)) if speaks else None,
        odds=odds_of_next_year(path) if speaks else None,
        evaluation=folder_of(seed),
    )


def _across_seeds(seeds: Sequence[int], rows: Sequence[FoldRow]) -> AcrossSeeds:
    """Interquartile means over seeds [rows] and folds x accounts [columns]."""
    own = [row for row in rows if row.seed is not None]
    tasks = sorted({(row.fold, row.account) for row in own})

    def over_seeds(score: Callable[[FoldRow], float | None]) -> SeedSummary | None:
        scores = {(row.seed, row.fold, row.account): score(row) for row in own}
        table = [[scores[seed, *task] for task in tasks] for seed in seeds]
        defined = all(value is not None for line in table for value in line)
        return summarise_seeds(np.array(table, dtype=np.float64)) if defined else None

    return AcrossSeeds(sharpe=over_seeds(lambda row: row.statistics[POLICY].sharpe), mean_return=over_seeds(_growth))


def _growth(row: FoldRow) -> float:
    """Log-return per year of the policy."""
    numbers = row.statistics[POLICY]
    return float(np.log(max(1 + numbers.total_return, _LOWEST)) / numbers.years)


def _overfitting(
    study: WalkForwardStudy, folder: Path, paths: Mapping[int | None, Accounts], data_hash: str
) -> tuple[Overfitting | None, str | None]:
    """PBO over the seeds, and over what was tried before on the same bars by the same folds; or why there is none."""
    trials = [_returns(paths[seed]) for seed in study.seeds]
    for summary in sorted(folder.absolute().parent.glob(f"*/{SUMMARY}")):
        if summary.parent == folder.absolute():
            continue
        other = read_stored(summary, WalkForward, root=summary.parent, limit=LARGE)
        if other.data_hash == data_hash and other.cut == study.cut:
            places = [summary.parent / folder_of(seed) for seed in other.seeds]
            # Somebody may have deleted the paths of an older one; that must not cost this one its verdict.
            trials += [_returns(read_paths(one, root=summary.parent)) for one in places if (one / EQUITY).exists()]
    if len(trials) < 2:
        return None, "a single trial was not chosen among others"
    bars = len(trials[0])
    if bars < 2 * BLOCKS:
        return None, f"{bars} bars are too few for {BLOCKS} blocks"
    pbo = overfitting(np.stack(trials, axis=1))
    return Overfitting(
        probability=pbo.probability, loss_probability=pbo.loss_probability, trials=len(trials), bars=bars
    ), None


def _returns(accounts: Accounts) -> Floats:
    """Log-returns [bars] of one trial, the mean over its accounts (as many bars as the shortest has)."""
    each = [window_returns(named[POLICY]) for named in accounts.values()]
    bars = min(len(one) for one in each)
    return np.asarray(np.mean([one[:bars] for one in each], axis=0))
