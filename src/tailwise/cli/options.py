"""Arguments and options that several commands have, each declared once, and how a path on the command line is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailwise.core.errors import path_problem


def as_path(text: str | Path) -> Path:
    """The path that `text` names; a default is one already.

    An empty text is refused: it would mean the current folder, and `--out "$NOT_SET"` would train into it.
    """
    if isinstance(text, Path):
        return text
    problem = path_problem(text)
    if problem is not None:
        raise typer.BadParameter(f"{text!r} {problem}.")
    return Path(text)


ConfigArgument = Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file, or the name of a preset.")]
RunArgument = Annotated[
    Path, typer.Argument(parser=as_path, metavar="RUN", help="The folder of a run, as train made it.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Change one value, e.g. -s learner.clip=0.1; repeatable."),
]
CheckpointOption = Annotated[str | None, typer.Option(help="A checkpoint's name; default: best, else the newest.")]
StochasticOption = Annotated[bool, typer.Option("--stochastic", help="Sample actions instead of the most likely.")]
StressOption = Annotated[
    bool, typer.Option("--stress/--no-stress", help="Replay dearer, later and worse markets for the report.")
]
TrackOption = Annotated[
    list[str] | None, typer.Option("--track", metavar="mlflow|wandb", help="Also log the run there; repeatable.")
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust", help="Execute the code that a run names, also if it may be somebody else's: read it first."
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress; only warnings and the result.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end and nothing else.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the file of --out if it exists.")]

# Of commands that train many runs.
StudyOutOption = Annotated[
    Path | None,
    typer.Option(
        parser=as_path,
        metavar="DIR",
        help="Folder; default: runs/COMMAND-N, the first free N. An old one is continued.",
    ),
]
SeedJobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs", min=1, max=256, help="Seeds side by side, a process each; default: as many as there are cores."
    ),
]
OnOption = Annotated[str, typer.Option("--on", metavar="local|ray", help="Where trainings run.")]
AddressOption = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Of a Ray cluster; default: Ray is started here.")
]
JobsOption = Annotated[int, typer.Option(min=1, max=256, help="Runs side by side, a process each.")]

# How bars are read.
RepairOption = Annotated[
    str, typer.Option(metavar="none|drop|clip", help="Bad rows: an error, left out, or high and low widened.")
]
AdjustOption = Annotated[
    str,
    typer.Option(metavar="refuse|consistent|ignore|all", help="An Adj Close that differs: error, scale all, prices."),
]
AdjustAllOption = Annotated[
    bool,
    typer.Option("--adjust-all", help="Closes adjusted in place: scale open, high and low alike (--adjust all)."),
]
CloseOnlyOption = Annotated[
    str,
    typer.Option(
        metavar="refuse|previous_close|same_close",
        help="Files with closes alone: error, open at the close before, or all prices the close.",
    ),
]
TimeUnitOption = Annotated[
    str | None, typer.Option(metavar="s|ms|us|ns", help="Unit of times that count since 1970; default: inferred.")
]
PeriodsOption = Annotated[
    float | None, typer.Option(metavar="X", help="Bars per year; default: inferred from the times.")
]
