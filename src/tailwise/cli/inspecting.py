"""`tailwise doctor` and `tailwise watch`: the audit as a table, as JSON and as a page; the live page."""

from __future__ import annotations

import contextlib
import time
import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tailwise.cli.output import CHECK_FAILED, DONE, print_json
from tailwise.core.errors import ConfigError, DataError
from tailwise.doctor.check import Check, counted, counts, failed, sparkline

RUNS = Path("runs")
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "unknown": "dim"}


def run_doctor(run: Path | None, *, itself: bool, full: bool, trust: bool, as_json: bool, page: Path | None) -> int:
    """Audit a run or this installation; return the exit code."""
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

        examination = check_installation(everything=full)
        checks, compiling = examination.checks, examination.compiling
        title = "this installation: self-check"
    seconds = time.perf_counter() - started - compiling
    if page is not None:
        from tailwise.doctor.page import write_audit

        write_audit(page, checks, title=title, facts=[])
    if as_json:
        summary = {
            "passed": not failed(checks),
            "seconds": seconds,
            "compile_seconds": compiling,
            "counts": counts(checks),
        }
        subject = {"run_dir": None if run is None else str(run), "page": None if page is None else str(page)}
        print_json({**subject, **summary, "checks": [check.to_json() for check in checks]})
    else:
        print_checks(title, checks)
        extra = f", and {compiling:.1f} s to compile kernels, which are kept" if compiling else ""
        print(f"{counted(checks)}, in {seconds:.1f} s{extra}" + ("" if page is None else f"; page: {page}"))
    return CHECK_FAILED if failed(checks) else DONE


def print_checks(title: str, checks: Sequence[Check]) -> None:
    """Print a row per check: verdict, evidence, sparkline; unless it is ok, also its meaning and advice."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False)
    wide = console if console.is_terminal else Console(highlight=False, markup=False, width=max(console.width, 140))
    table = Table(show_lines=False, pad_edge=False)
    for heading, ratio in (("check", 3), ("verdict", None), ("evidence", 8), ("course", None)):
        table.add_column(heading, ratio=ratio, overflow="fold", no_wrap=heading in ("verdict", "course"))
    for check in checks:
        evidence = Text(check.evidence)
        if check.verdict != "ok":
            evidence.append(f"\n{check.meaning}", style="dim")
            if check.advice:
                evidence.append(f"\n-> {check.advice}")
        course = sparkline(check.series, 16)
        table.add_row(check.name, Text(check.verdict, style=STYLES[check.verdict]), evidence, course)
    print(title)
    wide.print(table)


def require_watch() -> None:
    """Raise where the packages of the live page are missing."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise DataError(
            f"tailwise watch needs {' and '.join(missing)}, which the extra 'watch' brings: "
            "pip install 'tailwise[watch]'"
        )


def watch_runs(paths: Sequence[Path], *, host: str, port: int, token: str | None, browse: bool) -> None:
    """Serve the live page until Ctrl-C."""
    require_watch()
    from tailwise.watch.server import serve

    def ready(address: str) -> None:
        print(f"watching {', '.join(str(path) for path in paths or [RUNS])}", flush=True)
        print(f"open {address} (Ctrl-C ends)", flush=True)
        if browse:
            webbrowser.open(address)

    with contextlib.suppress(KeyboardInterrupt):
        serve(list(paths) or [RUNS], host=host, port=port, token=token, ready=ready)
