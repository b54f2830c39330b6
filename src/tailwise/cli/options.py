"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust", help="Execute the code that a run names, also if it may be somebody else's: read it first."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end and nothing else.")]
