"""`tailwise doctor`: the audit as a table, as JSON and as a page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tailwise.cli.output import CHECK_FAILED, DONE, print_json
from tailwise.core.errors import ConfigError
from tailwise.doctor.check import Check, counted, counts, failed, sparkline

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "unknown": "dim"}


def run_doctor(run: Path | None, *, itself: bool, full: bool, trust: bool, as_json: bool, page: Path | None) -> int:
    """Audit a run or this installation; returns the exit code."""
    if itself == (run is not None):
        raise ConfigError("give either RUN, the folder of a run, or --self for this installation.")
    if full and not itself:
        raise ConfigError("--full belongs to --self: it compiles what is missing, so that every kernel is checked.")
    started, compiling = time.perf_counter(), 0.0
    if run is not None:
        from tailwise.doctor.audit import audit_run

        checks, title = audit_run(run, trust=trust), f"{run.resolve().name}: audit of the run"
    else:
        from tailwise.doctor.self_check import check_installation

        found = check_installation(everything=full)
        checks, title, compiling = found.checks, "this installation: self-check", found.compiling
    seconds = time.perf_counter() - started - compiling
    if page is not None:
        from tailwise.doctor.page import write_audit

        write_audit(page, checks, title=title, facts=[])
    if as_json:
        told = {
            "passed": not failed(checks),
            "seconds": seconds,
            "compile_seconds": compiling,
            "counts": counts(checks),
        }
        subject = {"run_dir": None if run is None else str(run), "page": None if page is None else str(page)}
        print_json({**subject, **told, "checks": [check.to_json() for check in checks]})
    else:
        print_checks(title, checks)
        extra = f", and {compiling:.1f} s to compile kernels, which are kept" if compiling else ""
        print(f"{counted(checks)}, in {seconds:.1f} s{extra}" + ("" if page is None else f"; page: {page}"))
    return CHECK_FAILED if failed(checks) else DONE


def print_checks(title: str, checks: Sequence[Check]) -> None:
    """Check, verdict, evidence with its course; below it what it means and what to do, unless all is well."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False)
    wide = console if console.is_terminal else Console(highlight=False, markup=False, width=max(console.width, 140))
    table = Table(show_lines=False, pad_edge=False)
    for heading, ratio in (("check", 3), ("verdict", None), ("evidence", 8), ("course", None)):
        table.add_column(heading, ratio=ratio, overflow="fold", no_wrap=heading in ("verdict", "course"))
    for check in checks:
        told = Text(check.evidence)
        if check.verdict != "ok":
            told.append(f"\n{check.meaning}", style="dim")
            if check.advice:
                told.append(f"\n-> {check.advice}")
        course = sparkline(check.series, 16)
        table.add_row(check.name, Text(check.verdict, style=STYLES[check.verdict]), told, course)
    print(title)
    wide.print(table)
