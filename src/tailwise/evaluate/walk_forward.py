"""Walk-forward: train, select and test fold by fold with several seeds, and say what it is evidence of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tailwise.core.atomic import write_json
from tailwise.evaluate.ensemble import How
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
    cells_of,
    claim_folder,
    ensemble_kind,
    finished,
    judge_cell,
    judge_ensemble,
)
from tailwise.evaluate.walk_forward_plan import Plan, Settings, as_kind, check_world, fold_config, make_plan
from tailwise.evaluate.walk_forward_result import SUMMARY, FoldRow, WalkForward
from tailwise.evaluate.walk_forward_summary import Whole, cut_of, summarise
from tailwise.market.leaks.features import LeakVerdict
from tailwise.run.agent import PPO
from tailwise.run.config import Config, warnings_of
from tailwise.run.effective_config import ConfigLike, Effective, effective_config, require_environment
from tailwise.run.jobs import Say, Stop, never, silent
from tailwise.run.training_job import Trained, TrainingJob
from tailwise.run.trials import TrialBook
from tailwise.run.worlds import MarketWorld, make_world

Rows = tuple[FoldRow, ...]


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
