"""Options that several commands have, and how a path on the command line is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailwise.core.texts import path_problem

TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust", help="Execute the code that a run names, also if it may be somebody else's: read it first."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end and nothing else.")]


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
