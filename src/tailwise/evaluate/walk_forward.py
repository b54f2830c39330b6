"""Walk-forward: train, select and test fold by fold with several seeds, and say what it is evidence of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tailwise.core.atomic import write_json
from tailwise.core.errors import DataError
from tailwise.core.numerics import tail_horizon
from tailwise.evaluate.bootstrap import SeedSummary, summarise_seeds
from tailwise.evaluate.ensemble import How
from tailwise.evaluate.evidence import AccountOdds, Comparison, PathEvidence, account_odds, compare_paths, path_evidence
from tailwise.evaluate.judgement import DEFAULT_ALPHA, MOST_LIKELY, POLICY, SAMPLED, judge_limit
from tailwise.evaluate.overfitting import BLOCKS, overfitting
from tailwise.evaluate.path_files import EQUITY, read_paths, save_paths
from tailwise.evaluate.splits import stitch
from tailwise.evaluate.statistics import PathStatistics, annualisation_doubt, path_statistics, window_returns
from tailwise.evaluate.study import (
    Study,
    StudyJob,
    leak_verdict_of,
    named_seeds,
    open_study,
    run_study,
    training_fact,
    warn_about,
)
from tailwise.evaluate.walk_forward_folds import (
    Cell,
    Plan,
    Settings,
    as_kind,
    cells_of,
    check_world,
    claim_folder,
    ensemble_kind,
    finished,
    fold_config,
    iso,
    judge_cell,
    judge_ensemble,
    make_plan,
)
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
    verdict,
)
from tailwise.market.leaks.own_features import LeakVerdict
from tailwise.market.path import AccountPath
from tailwise.run.agent import PPO
from tailwise.run.config import Config, warnings_of
from tailwise.run.effective_config import ConfigLike, Effective, effective_config, require_environment
from tailwise.run.jobs import Say, Stop, never, silent
from tailwise.run.run_files import LARGE, read_stored
from tailwise.run.training_job import Trained, TrainingJob
from tailwise.run.trials import TrialBook, config_hash, plan_hash
from tailwise.run.worlds import MarketWorld, make_world

Rows = tuple[FoldRow, ...]
STITCHED = "stitched"
_LOWEST = 1e-6  # wealth whose logarithm a ruined account is given
Named = dict[str, AccountPath]  # policy and baselines by name


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
    require_environment(effective)
    base = effective.config
    chosen = named_seeds(seeds, first=base.seed)
    plan = make_plan(base, settings)
    world = _world(base, plan, 0, chosen[0])
    for fold in plan.folds[1:]:
        fold_config(base, plan, fold, chosen[0])  # what cannot be cut is an error now, not after hours
    warned = (*warnings_of(base), *world.warnings())
    leaks = leak_verdict_of(world, warned)
    return WalkForwardStudy(
        name=effective.name,
        base=base,
        seeds=chosen,
        facts=tuple(_facts(base, plan, world, leaks)),
        warnings=warned,
        leak_check=leaks,
        plan=plan,
        world=world,
    )


@dataclass(frozen=True, eq=False)
class WalkForwardStudy(Study[Rows, WalkForward]):
    """Every fold with every seed. world: of the first fold; its bars are those of all."""

    plan: Plan
    world: MarketWorld

    kind = "walk-forward"

    def claim(self, folder: Path) -> None:
        claim_folder(folder, self.base, self.plan, data_hash=self.world.dataset.data_hash())

    def jobs(self, folder: Path) -> list[FoldJob]:
        book = self._book(folder)
        return [
            FoldJob(
                TrainingJob(
                    label=cell.label,
                    config=fold_config(self.base, self.plan, self.plan.folds[cell.fold - 1], seed),
                    folder=folder / cell.folder,
                    trials=book,
                ),
                cell,
                self.plan,
            )
            for seed in self.seeds
            for cell in cells_of(self.plan, [seed])
        ]

    def combine(self, folder: Path, results: Sequence[Rows]) -> WalkForward:
        rows = [row for fold in results for row in fold]
        how: How | None = ensemble_kind(self.base) if len(self.seeds) > 1 else None
        if how is not None:
            for fold in self.plan.folds:
                world = _world(self.base, self.plan, fold.number, self.seeds[0])
                rows += judge_ensemble(fold, self.seeds, folder, world, how=how)
        book = self._book(folder)
        whole = Whole(folder, self.name, self.base, self.plan, self.seeds, self.world, book, how)
        result = summarise(whole, rows, self.facts)
        write_json(folder / SUMMARY, result.to_json())
        return result

    def _book(self, folder: Path) -> TrialBook:
        return TrialBook(TrialBook.beside(folder).file, cut_of(self.plan))


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
        trainer = run.agent.trainer
        return judge_cell(
            self.cell,
            self.training.folder.parent,
            run.agent.market(),
            self.plan,
            steps=trainer.steps,
            ended=run.ended,
            refused=trainer.failed,
        )


def _world(base: Config, plan: Plan, fold: int, seed: int) -> MarketWorld:
    world = make_world(fold_config(base, plan, plan.folds[fold], seed)).market()
    check_world(world, plan, plan.folds[fold])
    return world


def _facts(base: Config, plan: Plan, world: MarketWorld, verdict: LeakVerdict | None) -> list[str]:
    """What is trained, a sentence each."""
    facts = []
    for bars in world.dataset.bars:
        first, last = (str(moment)[:10] for moment in (bars.time[0], bars.time[-1]))
        facts.append(f"{bars.symbol} ({bars.label}): {len(bars):,} bars, {first} to {last}. {bars.frequency.sentence}")
    for fold in plan.folds:
        spans = [
            f"{name} {span.first_bar[:10]} to {span.last_bar[:10]} ({span.bars:,})"
            for name, span in dict(plan.windows(fold)).items()
            if span is not None
        ]
        facts.append(f"fold {fold.number + 1}: {', '.join(spans)} bars")
    facts.append(
        f"{plan.settings.kind}; {plan.purge} bars purged (features look back {plan.look_back}, decisions are judged "
        f"{plan.label_horizon} ahead) and {plan.settings.embargo} under embargo between the windows; data.split is not "
        "used"
    )
    if verdict is not None and verdict.features:
        facts.append(f"leak-check: {verdict.sentence}")
    if base.evaluate.every is None:
        facts.append("evaluate.every is null: the newest policy of each run is tested, none is selected")
    return [*facts, training_fact(base)]


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
    return result.model_copy(update={"verdict": (*doubts, *verdict(result))})


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
