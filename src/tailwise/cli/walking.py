"""`tailwise walk-forward`: train, select and test fold by fold, several seeds, and say what it is evidence of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailwise.cli.configuring import read_effective
from tailwise.cli.main import CHECK_FAILED, DONE, INTERRUPTED
from tailwise.cli.output import note, print_json, print_table, say_leak_check
from tailwise.run.jobs import do_all, trained
from tailwise.cli.training import require_environment, run_folder
from tailwise.core.atomic import write_json
from tailwise.core.errors import ConfigError
from tailwise.evaluate.walk_forward import (
    SUMMARY,
    Cell,
    cells_of,
    claim_folder,
    ensemble_kind,
    finished,
    judge_cell,
    judge_ensemble,
)
from tailwise.evaluate.walk_forward_plan import Plan, Settings, check_world, fold_config, make_plan
from tailwise.evaluate.walk_forward_summary import Whole, cut_of, summarise
from tailwise.evaluate.walk_forward_words import headings, table_rows
from tailwise.run.agent import PPO
from tailwise.run.config import Config, warnings_of
from tailwise.run.trials import TrialBook
from tailwise.run.worlds import MarketWorld, make_world

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class FoldJob:
    """One fold and seed that a process works on."""

    cell: Cell
    config: Config
    out: Path
    plan: Plan
    silent: bool
    trials: TrialBook

    @property
    def label(self) -> str:
        return self.cell.label

    def do(self, asked: Callable[[], bool]) -> Rows | None:
        """The rows of a run: read where it was finished before, else trained, tested and kept."""
        folder = self.out / self.cell.folder
        known = finished(folder)
        if known is not None:
            return known

        with trained(
            self.config,
            folder,
            asked,
            label=self.label,
            silent=self.silent,
            trials=self.trials,
            check=self.check,
        ) as run:
            if run is None:
                return None
            trainer, world = run.agent.trainer, run.agent.market()
            return judge_cell(
                self.cell,
                self.out,
                world,
                self.plan,
                steps=trainer.steps,
                ended=run.ended,
                refused=trainer.failed,
            )

    def check(self, agent: PPO) -> None:
        """Raise when the market that the run was built on lets anything of the test into the training."""
        check_world(agent.market(), self.plan, self.plan.folds[self.cell.fold - 1])


def run_walk_forward(
    config: str,
    overrides: list[str],
    *,
    settings: Settings,
    seeds: str,
    out: Path | None,
    jobs: int,
    as_json: bool,
) -> int:
    """Train what is not trained yet, test everything, print and keep it; returns the exit code."""
    source, base = read_effective(config, overrides)
    require_environment(base, source.label)
    wanted = read_seeds(seeds, first=base.seed)
    plan = make_plan(base, settings)
    world = _world(base, plan, 0, wanted[0])
    for fold in plan.folds[1:]:
        fold_config(base, plan, fold, wanted[0])  # what cannot be cut is said now, not after hours
    for sentence in (*warnings_of(base), *world.warnings()):
        note(f"warning: {sentence}")
    say_leak_check(world.leak_verdict())  # which refuses features that look ahead, before hours are spent on them
    with run_folder(out, "walk-forward") as folder:
        claim_folder(folder, base, plan, data_hash=world.dataset.data_hash())
    cells = cells_of(plan, wanted)
    done = sum(finished(folder / cell.folder) is not None for cell in cells)
    facts = _facts(base, plan, world)
    if not as_json:
        for sentence in facts:
            print(sentence)
        names = ", ".join(str(seed) for seed in wanted)
        before = f", {done} of them finished before" if done else ""
        print(
            f"{len(cells)} runs of {base.run.total_steps:,} steps, seed{'' if len(wanted) == 1 else 's'} {names}, in "
            f"{folder}{before}",
            flush=True,
        )
    book = TrialBook(TrialBook.beside(folder).file, cut_of(plan))
    work = [
        FoldJob(cell, fold_config(base, plan, plan.folds[cell.fold - 1], _seed(cell)), folder, plan, as_json, book)
        for cell in cells
    ]
    results = do_all(work, jobs=jobs)
    if results is None:
        note(f"interrupted; continue with the same command and --out {folder}")
        return INTERRUPTED
    rows = [row for found in results for row in found]
    how = ensemble_kind(base) if len(wanted) > 1 else None
    if how is not None:
        for fold in plan.folds:
            rows += judge_ensemble(fold, wanted, folder, _world(base, plan, fold.number, wanted[0]), how=how)
    whole = Whole(folder, source.name, base, plan, tuple(wanted), world, book, how)
    told = summarise(whole, rows, facts)
    write_json(folder / SUMMARY, told)
    if as_json:
        print_json({"folder": str(folder), **told})
    else:
        print_table(f"{source.name} ({told['label']}): out of sample, after costs", headings(told), table_rows(told))
        for sentence in told["verdict"]:
            print(sentence)
        print(f"written to {folder / SUMMARY}")
    return CHECK_FAILED if any(row["refused"] for row in rows) else DONE


def read_seeds(text: str, *, first: int) -> list[int]:
    """The seeds of "3" (as many, from the configuration's seed on) or of "1,5,7" (these; "4," is the seed 4 alone)."""
    parts = [part.strip() for part in text.split(",")]
    example = "write --seeds 3 for three seeds, or the seeds themselves, --seeds 0,1,2"
    try:
        numbers = [int(part) for part in parts if part]
    except ValueError as error:
        raise ConfigError(f"the seeds '{text}' are not whole numbers; {example}.") from error
    if not numbers or min(numbers) < 0 or (len(parts) == 1 and not 1 <= numbers[0] <= 1000):
        raise ConfigError(f"the seeds '{text}' name none, too many or a negative one; {example}.")
    if len(parts) == 1:
        return list(range(first, first + numbers[0]))
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"the seeds '{text}' name one of them twice; {example}.")
    return numbers


def read_purge(text: str) -> int | None:
    """Bars, or None for "auto"."""
    if text == "auto":
        return None
    if not text.isdigit():
        raise ConfigError(f"--purge is '{text}'; write auto or a number of bars, at least 0.")
    return int(text)


def _seed(cell: Cell) -> int:
    assert cell.seed is not None  # an ensemble is not trained
    return cell.seed


def _world(base: Config, plan: Plan, fold: int, seed: int) -> MarketWorld:
    world = make_world(fold_config(base, plan, plan.folds[fold], seed))
    assert isinstance(world, MarketWorld)  # the plan refuses anything else
    check_world(world, plan, plan.folds[fold])
    return world


def _facts(base: Config, plan: Plan, world: MarketWorld) -> list[str]:
    """What is trained, a sentence each."""
    found = []
    for bars in world.dataset.bars:
        first, last = (str(moment)[:10] for moment in (bars.time[0], bars.time[-1]))
        found.append(f"{bars.symbol} ({bars.label}): {len(bars):,} bars, {first} to {last}. {bars.frequency.sentence}")
    for fold in plan.folds:
        spans = [
            f"{name} {span.first_bar[:10]} to {span.last_bar[:10]} ({span.bars:,})"
            for name, span in plan.spans(fold).items()
            if span is not None
        ]
        found.append(f"fold {fold.number + 1}: {', '.join(spans)} bars")
    found.append(
        f"{plan.settings.kind}; {plan.purge} bars purged (features look back {plan.look_back}, decisions are judged "
        f"{plan.label_horizon} ahead) and {plan.settings.embargo} under embargo between the windows; data.split is not "
        "used"
    )
    verdict = world.leak_verdict()
    if verdict.features:
        found.append(f"leak-check: {verdict.sentence}")
    if base.evaluate.every is None:
        found.append("evaluate.every is null: the newest policy of each run is tested, none is selected")
    found.append(
        f"core {base.model.core.kind}, {base.model.critic.kind} critic, gamma {base.learner.gamma:g}, "
        f"{base.run.total_steps:,} steps a run"
    )
    return found
