"""Run the examples as notebooks and keep what they showed: python examples/notebooks.py [NAME...]

A script of this folder is a notebook in the percent format: "# %%" begins a cell of code, "# %% [markdown]" one of
text. NAME.ipynb is written from NAME.py by running its cells in one namespace, and holds what was printed and the value
of each cell's last expression, as Jupyter would show it. Nothing but Tailwise is needed; Jupyter opens and runs it.
"""

from __future__ import annotations

import ast
import contextlib
import html
import io
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TEXT = "# %% [markdown]"


@dataclass
class Cell:
    """One cell. outputs: as a notebook has them."""

    source: str
    markdown: bool
    outputs: list[dict[str, Any]] = field(default_factory=list)


def scripts() -> list[Path]:
    """All examples."""
    return sorted(path for path in HERE.glob("*.py") if path != Path(__file__))


def read_cells(script: Path) -> list[Cell]:
    """The cells of a script; whatever stands before the first one is refused."""
    cells: list[Cell] = []
    for line in script.read_text(encoding="utf-8").splitlines():
        if line.startswith("# %%"):
            cells.append(Cell("", line == TEXT))
        elif not cells:
            raise ValueError(f"{script.name} begins with {line!r}; a cell begins with '# %%'")
        else:
            cells[-1].source += (line.removeprefix("#").removeprefix(" ") if cells[-1].markdown else line) + "\n"
    for cell in cells:
        cell.source = cell.source.strip("\n")
    return cells


def run(cells: list[Cell]) -> dict[str, Any]:
    """Run the code in one namespace, which is returned; each cell is given its outputs."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells, start=1):
        if cell.markdown:
            continue
        body = ast.parse(cell.source).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module(body, []), f"<cell {number}>", "exec"), names)
            value = None
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval"), names)
        if printed.getvalue():
            cell.outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
        if value is not None:
            cell.outputs.append(
                {"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": shown(value)}
            )
    return names


def shown(value: Any) -> dict[str, str]:
    """What is displayed of a value: its text, and its table where it has one."""
    table = getattr(value, "_repr_html_", None)
    text = {"text/plain": repr(value)}
    return text if table is None else {**text, "text/html": table() or html.escape(repr(value))}


def notebook(cells: list[Cell]) -> dict[str, Any]:
    """The file of a notebook, as nbformat 4.5 has it."""
    written = []
    for number, cell in enumerate(cells, start=1):
        kind = "markdown" if cell.markdown else "code"
        code = {} if cell.markdown else {"execution_count": None, "outputs": cell.outputs}
        written.append(
            {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": lines_of(cell.source), **code}
        )
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": written, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def lines_of(source: str) -> list[str]:
    return source.splitlines(keepends=True)


def main(chosen: list[str]) -> None:
    """Write the notebooks of these scripts; of all, if none is named."""
    for script in scripts():
        if chosen and script.stem not in chosen:
            continue
        cells = read_cells(script)
        run(cells)
        target = script.with_suffix(".ipynb")
        target.write_text(json.dumps(notebook(cells), indent=1) + "\n", encoding="utf-8")
        print(target.name)


if __name__ == "__main__":
    main(sys.argv[1:])
