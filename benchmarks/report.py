"""What every benchmark shares: checks with goals, a table for people, one JSON object for machines."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

from benchmarks.journal import Journal
from benchmarks.measured import facts_of


@dataclass(frozen=True)
class Check:
    """One measured statement. value is None where it could not be measured; `detail` then says why."""

    name: str
    value: float | None
    goal: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Options:
    """How a benchmark was called.

    say      prints progress for people, on standard error when JSON was asked for
    journal  outcomes of jobs that a run before this one finished; None: everything is run
    """

    quick: bool
    say: Callable[[str], None]
    only: tuple[str, ...]
    journal: Journal | None = None


def main(title: str, run: Callable[[Options], list[Check]]) -> None:
    """Parse --json, --quick, --only and --journal, run, print, and exit with 1 when a check failed."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on standard output")
    parser.add_argument("--quick", action="store_true", help="a smoke run of under a minute; goals are not judged")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="run only these parts")
    parser.add_argument(
        "--journal", type=Path, metavar="FOLDER", help="keep finished jobs there, and continue a run that was stopped"
    )
    arguments = parser.parse_args()
    measured = facts_of(Path(inspect.getfile(run)).stem)  # before the run: a source may be edited while it goes on
    console = Console(stderr=arguments.json)
    journal = None if arguments.journal is None else Journal(arguments.journal, measured["sources"])

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    checks = run(Options(arguments.quick, say, tuple(arguments.only), journal))
    facts = {**measured, "quick": arguments.quick, "only": arguments.only}
    present(title, checks, measured=facts, as_json=arguments.json, console=console)


def present(title: str, checks: list[Check], *, measured: dict[str, Any], as_json: bool, console: Console) -> NoReturn:
    """Print the checks, as one JSON object on standard output or as a table, and exit: 1 when a check failed."""
    passed = all(check.passed for check in checks)
    if as_json:
        payload = {"passed": passed, "measured": measured, "checks": [asdict(check) for check in checks]}
        json.dump(payload, sys.stdout)
        sys.stdout.write("\n")
    else:
        console.print(_table(title, checks))
    sys.exit(0 if passed else 1)


def _table(title: str, checks: list[Check]) -> Table:
    table = Table(title=title)
    for column in ("check", "value", "goal", "", "detail"):
        table.add_column(column)
    for check in checks:
        value = "-" if check.value is None else f"{check.value:.4g}"
        table.add_row(check.name, value, check.goal, "ok" if check.passed else "FAILED", check.detail)
    return table
