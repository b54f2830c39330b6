"""`tailwise walk-forward` and `tailwise frontier`: studies of many runs, with progress; resumable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tailwise.cli.output import CHECK_FAILED, DONE, INTERRUPTED, note, print_json, print_table, say_leak_check
from tailwise.cli.progress import stop_after_update
from tailwise.core.errors import ConfigError
from tailwise.evaluate.combinatorial import SUMMARY as COMBINATORIAL_SUMMARY
from tailwise.evaluate.combinatorial import (
    CombinatorialCV,
    path_headings,
    path_rows,
    plan_combinatorial,
    sharpe_headings,
    sharpe_rows,
)
from tailwise.evaluate.frontier import plan_frontier
from tailwise.evaluate.frontier_result import HOW, MOST_LIKELY, SAMPLED, Frontier, legend, warnings_about
from tailwise.evaluate.frontier_result import headings as frontier_headings
from tailwise.evaluate.frontier_result import table_rows as frontier_rows
from tailwise.evaluate.study import Outcome, Result, Study, StudyStopped, open_study, run_jobs
from tailwise.evaluate.walk_forward import plan_walk_forward
from tailwise.evaluate.walk_forward_folds import AnySettings, CombinatorialSettings, Settings
from tailwise.evaluate.walk_forward_result import SUMMARY, WalkForward, headings, table_rows
from tailwise.pages.frontier import PAGE, keep_frontier_page
from tailwise.run.config import effective_config
from tailwise.run.jobs import Line
from tailwise.run.placement import Placement
from tailwise.run.progress import Recorder

StudyResult = TypeVar("StudyResult", WalkForward, CombinatorialCV, Frontier)
SPLITS = ("walk-forward", "combinatorial")
TEST_FOLDS = 2


def run_walk_forward(
    config: str,
    overrides: list[str],
    *,
    settings: AnySettings,
    seeds: str,
    out: Path | None,
    where: Placement,
    as_json: bool,
) -> int:
    """Train the runs that are missing, test all, print and save the result; return the exit code."""
    effective = effective_config(config, overrides)
    if isinstance(settings, CombinatorialSettings):
        choices = plan_combinatorial(effective, settings, seeds=read_seeds(seeds))
        result = _run(choices, out=out, where=where, as_json=as_json)
        return _print_result(result, _print_combinatorial, as_json=as_json)
    study = plan_walk_forward(effective, settings, seeds=read_seeds(seeds))
    return _print_result(_run(study, out=out, where=where, as_json=as_json), _print_walk_forward, as_json=as_json)


@dataclass(frozen=True)
class Cells:
    """What a frontier trains: each of the limits ("-0.02,-0.05") with `seeds` seeds.

    unconstrained: also each seed without a limit; episodes: of each test, None for a market or the default.
    """

    limits: str | None
    seeds: int
    unconstrained: bool
    episodes: int | None


def run_frontier(
    config: str,
    overrides: list[str],
    cells: Cells,
    *,
    out: Path | None,
    where: Placement,
    as_json: bool,
) -> int:
    """Train the runs that are missing, judge all, print and save the result; return the exit code."""
    limits = read_limits(cells.limits)
    effective = effective_config(config, overrides)
    study = plan_frontier(
        effective, limits, seeds=cells.seeds, unconstrained=cells.unconstrained, episodes=cells.episodes
    )
    result = _run(study, out=out, where=where, as_json=as_json)
    if result is not None:
        keep_frontier_page(result)
    return _print_result(result, _print_frontier, as_json=as_json)


def _print_result(result: StudyResult | None, show: Callable[[StudyResult], None], *, as_json: bool) -> int:
    """Print the result of a study; return the exit code."""
    if result is None:
        return INTERRUPTED
    if as_json:
        print_json({"folder": str(result.folder), **result.to_json()})
    else:
        show(result)
    return CHECK_FAILED if result.refused else DONE


def _run(study: Study[Result, Outcome], *, out: Path | None, where: Placement, as_json: bool) -> Outcome | None:
    """Run a study with its warnings, facts and progress; None after Ctrl-C."""
    for sentence in study.warnings:
        note(f"warning: {sentence}")
    say_leak_check(study.leak_check)
    folder = open_study(study, out)
    if not as_json:
        for sentence in study.facts:
            print(sentence)
        work = study.jobs(folder)
        done = sum(job.finished() is not None for job in work)
        seeds = f"seed{'' if len(study.seeds) == 1 else 's'} {', '.join(map(str, study.seeds))}"
        before = f", {done} of them finished before" if done else ""
        count = "1 run" if len(work) == 1 else f"{len(work)} runs"
        print(f"{count} of {study.base.run.total_steps:,} steps, {seeds}, in {folder}{before}", flush=True)

    def say(line: Line) -> None:
        if line.kind == "note":
            note(f"note: {line.label}: {line.text}")
        elif not as_json:
            print(f"{line.label}: {line.text}", flush=True)

    recorder = Recorder()
    executor = where.executor(jobs=1, threads=study.base.run.threads)
    try:
        with stop_after_update(recorder):
            results = run_jobs(study, folder, executor=executor, stop=lambda: recorder.stop, say=say)
        return study.combine(folder, results)
    except (StudyStopped, KeyboardInterrupt):
        note(f"interrupted; continue with the same command and --out {folder}")
        return None


def _print_walk_forward(result: WalkForward) -> None:
    title = f"{result.name} ({result.label}): out of sample, after costs"
    print_table(title, headings(result), table_rows(result))
    for sentence in result.verdict:
        print(sentence)
    assert result.folder is not None
    print(f"written to {result.folder / SUMMARY}")


def _print_combinatorial(result: CombinatorialCV) -> None:
    title = f"{result.name} ({result.label}): out of sample, after costs"
    print_table(title, path_headings(result), path_rows(result))
    print_table("Sharpe ratio per year over the paths", sharpe_headings(result), sharpe_rows(result))
    for sentence in result.verdict:
        print(sentence)
    assert result.folder is not None
    print(f"written to {result.folder / COMBINATORIAL_SUMMARY}")


def _print_frontier(result: Frontier) -> None:
    """Print the table, what its numbers mean, and where the page is."""
    for played in (SAMPLED, MOST_LIKELY):
        title = f"{result.environment}: {HOW[played]}"
        print_table(title, frontier_headings(result), frontier_rows(result, played))
    for sentence in legend(result):
        print(sentence)
    for sentence in warnings_about(result):
        print(f"warning: {sentence}")
    assert result.folder is not None
    print(f"page: {result.folder / PAGE}")


def read_seeds(text: str) -> int | list[int]:
    """Parse the number of seeds, "3", or the seeds themselves, "1,5,7" ("4," is the seed 4 alone)."""
    parts = [part.strip() for part in text.split(",")]
    example = "write --seeds 3 for three seeds, or the seeds themselves, --seeds 0,1,2"
    try:
        numbers = [int(part) for part in parts if part]
    except ValueError as error:
        raise ConfigError(f"the seeds '{text}' are not whole numbers; {example}.") from error
    if not numbers or min(numbers) < 0 or (len(parts) == 1 and not 1 <= numbers[0] <= 1000):
        raise ConfigError(f"the seeds '{text}' name none, too many or a negative one; {example}.")
    if len(parts) == 1:
        return numbers[0]
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"the seeds '{text}' name one of them twice; {example}.")
    return numbers


def read_splits(splits: str, settings: Settings, test_folds: int | None) -> AnySettings:
    """Choose how folds are cut: as `settings` say, or combinatorially with their folds, purge, embargo and select."""
    if splits not in SPLITS:
        raise ConfigError(f"--splits is '{splits}'; choose {' or '.join(SPLITS)}.")
    if splits == "walk-forward":
        if test_folds is not None:
            raise ConfigError(
                f"--test-folds is {test_folds}, and walk-forward folds test one window each; leave it out, or add "
                "--splits combinatorial."
            )
        return settings
    plain = Settings()
    if (settings.kind, settings.tested) != (plain.kind, plain.tested):
        raise ConfigError(
            f"--kind is {settings.kind} and --tested {settings.tested:g}, and combinatorial folds test every bar and "
            "train on bars before and after; leave --kind and --tested out."
        )
    return CombinatorialSettings(
        settings.folds,
        TEST_FOLDS if test_folds is None else test_folds,
        purge=settings.purge,
        embargo=settings.embargo,
        select=settings.select,
    )


def read_purge(text: str) -> int | None:
    """Parse a number of bars; None for "auto"."""
    if text == "auto":
        return None
    if not text.isdigit():
        raise ConfigError(f"--purge is '{text}'; write auto or a number of bars, at least 0.")
    return int(text)


def read_limits(text: str | None) -> list[float]:
    """Parse the limits "-0.02,-0.05"; ConfigError for what is no number."""
    example = "write for example --limits -0.02,-0.05,-0.1"
    if text is None or not text.strip():
        raise ConfigError(f"there are no limits; {example}.")
    limits: list[float] = []
    for part in text.split(","):
        try:
            limits.append(float(part))
        except ValueError as error:
            raise ConfigError(f"the limit '{part.strip()}' is not a number; {example} (-0.02 for -2%).") from error
    return limits
