"""`tailwise runs list|prune|reproduce`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from tailwise.cli.options import JsonOption, RunArgument, TrustOption, as_path
from tailwise.cli.output import note, print_json, print_table
from tailwise.core.errors import number

runs_app = typer.Typer(help="List, tidy up and repeat runs.", no_args_is_help=True)

RootArgument = Annotated[
    Path, typer.Argument(parser=as_path, metavar="DIR", help="The folder with the runs; searched three deep.")
]


@runs_app.command("list")
def list_command(root: RootArgument = Path("runs"), json: JsonOption = False) -> None:
    """Every run with its status, steps, score and alerts."""
    from tailwise.run.run_list import describe, find_runs

    runs = [describe(folder) for folder in find_runs(root)]
    if json:
        print_json({"runs": [asdict(one) for one in runs]})
        return
    if not runs:
        print(f"there are no runs in {root}")
        return
    rows = [
        [
            one.folder,
            one.status,
            f"{one.steps:,}" + ("" if one.total_steps is None else f" of {one.total_steps:,}"),
            number(one.score),
            one.measured or "-",
            str(one.alerts),
            size(one.bytes),
            datetime.fromtimestamp(one.changed, UTC).strftime("%Y-%m-%d %H:%M"),
        ]
        for one in runs
    ]
    print_table(
        f"{len(runs)} run{'s' if len(runs) > 1 else ''} in {root}",
        ("run", "status", "steps", "last score", "of", "alerts", "size", "changed (UTC)"),
        rows,
    )
    for one in runs:
        if one.status == "broken":
            print(f"{one.folder}: {one.note}")


@runs_app.command("prune")
def prune_command(
    root: RootArgument = Path("runs"),
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it nothing is touched.")] = False,
    json: JsonOption = False,
) -> None:
    """Delete old checkpoints; the best and the newest of every run stay, and so does a run that is being written."""
    from tailwise.core.errors import TailwiseError
    from tailwise.run.run_list import Spare, find_runs, remove_spare, spare_checkpoints

    spare: list[Spare] = []
    for folder in find_runs(root):
        try:
            spare += remove_spare(folder) if yes else spare_checkpoints(folder)
        except TailwiseError as error:  # one locked or broken run does not keep the others from being tidied up
            note(f"note: nothing is deleted here: {error}")
    freed = sum(one.bytes for one in spare)
    if json:
        print_json({"deleted": yes, "bytes": freed, "checkpoints": [str(one.path) for one in spare]})
        return
    for one in spare:
        print(f"{one.path}  {size(one.bytes)}")
    count = f"{len(spare)} checkpoint{'' if len(spare) == 1 else 's'}, {size(freed)}"
    if not spare:
        print(f"there is nothing to delete in {root}: every run has its best and its newest checkpoint alone")
    elif yes:
        print(f"{count} deleted; the best and the newest of every run stay")
    else:
        print(f"{count} would be freed, nothing was touched; delete them with: tailwise runs prune {root} --yes")


@runs_app.command("reproduce")
def reproduce_command(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option(parser=as_path, metavar="DIR", help="Folder of the repetition; default: RUN-again-N.")
    ] = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Train a run again from its stored configuration and compare metrics and weights bit for bit (exit code 1: no)."""
    from tailwise.cli.training import reproduce

    raise typer.Exit(reproduce(run, out=out, trust=trust, as_json=json))


def size(count: int) -> str:
    """12 B, 3.4 kB, 5.6 MB."""
    value, units = float(count), ("B", "kB", "MB", "GB")
    for unit in units:
        if value < 1000 or unit == units[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")
