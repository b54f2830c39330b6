"""`tailwise demo`: options of the first command that somebody tries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailwise.cli.options import QuietOption, as_path


def demo(
    out: Annotated[
        Path | None,
        typer.Option(parser=as_path, metavar="DIR", help="Folder of the run; default: runs/demo-N, the first free N."),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps to train; default: the preset's.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Also print what the verdict rests on.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Serve the live page while it trains (extra watch).")] = False,
    quiet: QuietOption = False,
) -> None:
    """Train on S&P 500 bars, judge the policy out of sample against simple rules, write a page (about two minutes)."""
    from tailwise.cli.demo import run_demo

    raise typer.Exit(run_demo(out=out, steps=steps, explain=explain, watched=watch, quiet=quiet))
