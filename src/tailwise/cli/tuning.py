"""`tailwise tune`: a search over hyperparameters with progress; resumable."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailwise.cli.output import CHECK_FAILED, DONE, INTERRUPTED, note, print_json, print_table, say_leak_check
from tailwise.cli.training import Recorder, stop_after_update
from tailwise.evaluate.study import StudyStopped
from tailwise.run.config import effective_config
from tailwise.run.jobs import Executor, Line
from tailwise.run.placement import Placement
from tailwise.scale.tune import SEARCH, TunePlan, keep_tune_page, open_tune, plan_tune, run_tune
from tailwise.scale.tune_result import FILE, TuneResult


def run_tuning(
    config: str,
    overrides: list[str],
    *,
    search: str,
    space: Path | None,
    settings: Mapping[str, Any],
    where: Placement,
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Train what is missing, print and save the result; return the exit code."""
    plan = plan_tune(effective_config(config, overrides), search=search, space=space, settings=settings)
    executor = where.executor(jobs=1, threads=plan.base.run.threads)
    for sentence in plan.warnings:
        note(f"warning: {sentence}")
    say_leak_check(plan.leak_check)
    folder = open_tune(plan, out)
    result = _run(plan, folder, executor, silent=as_json, quiet=quiet)
    if result is None:
        return INTERRUPTED
    page = keep_tune_page(result)
    if as_json:
        print_json({"folder": str(folder), "page": str(page), **result.to_json()})
    else:
        _print(result, page)
    return CHECK_FAILED if result.best is None else DONE


def _run(plan: TunePlan, folder: Path, executor: Executor, *, silent: bool, quiet: bool) -> TuneResult | None:
    """Run a search with its facts and progress; None after Ctrl-C. quiet: no lines of single runs."""
    if not silent:
        for sentence in plan.facts:
            print(sentence)
        done = len(plan.done(folder))
        before = f", {done} steps finished before" if done else ""
        print(f"{plan.kind}: {plan.size}, in {folder}{before}", flush=True)

    def say(line: Line) -> None:
        if line.kind == "note":
            note(f"note: {line.label}: {line.text}")
        elif not silent and (not quiet or line.label == SEARCH):
            print(f"{line.label}: {line.text}", flush=True)

    recorder = Recorder()
    try:
        with stop_after_update(recorder):
            return run_tune(plan, folder, executor=executor, stop=lambda: recorder.stop, say=say)
    except (StudyStopped, KeyboardInterrupt):
        note(f"interrupted; continue with the same command and --out {folder}")
        return None


def _print(result: TuneResult, page: Path) -> None:
    print_table(f"{result.environment}: {result.search}, best first", result.headings(), result.table())
    for sentence in result.verdict():
        print(sentence)
    print(f"written to {result.folder / FILE}")
    print(f"page: {page}")
