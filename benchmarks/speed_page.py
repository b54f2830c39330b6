"""Fills the tables of docs/speed.md from the objects of `benchmarks.speed`.

    python -m benchmarks.speed --json > speed.json
    python -m benchmarks.speed_page speed.json [more.json ...]

The words of the page are written by hand; a table stands between `<!-- table: NAME -->` and `<!-- end -->`. Later files
replace what earlier ones say about the same thing. A table of which nothing was measured stays as it is.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from benchmarks.speed_alike import ALIKE
from benchmarks.speed_contenders import CONTRIB, FUSED, SB3, TORCH
from benchmarks.speed_profile import AUDIT, NETWORKS, PARTS
from benchmarks.speed_scaling import FACTORS
from benchmarks.speed_sizes import JAX, NAME, SIZES
from tailwise.core.atomic import write_text

PAGE = Path(__file__).parent.parent / "docs" / "speed.md"
Values = dict[tuple[str, ...], float | None]


def values_of(paths: list[Path]) -> Values:
    """Values by the parts of their names."""
    found: Values = {}
    for path in paths:
        for check in json.loads(path.read_text(encoding="utf-8"))["checks"]:
            found[tuple(check["name"].split(NAME))] = check["value"]
    return found


def fill(page: str, values: Values) -> str:
    """The page with its tables renewed."""
    tables = {"sizes": _sizes(values), "other": _other(values), "profile": _profile(values)}
    tables |= {"scaling": _scaling(values), "alike": _alike(values)}
    for name, lines in tables.items():
        if not lines:
            continue
        marked = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not marked.search(page):
            raise SystemExit(f"{PAGE.name} has no place for the table {name}")
        text = "\n".join(lines)
        page = marked.sub(lambda match, text=text: f"{match[1]}{text}\n{match[2]}", page)  # type: ignore[misc]
    return page


def _sizes(values: Values) -> list[str]:
    """Steps per CPU-second, and in brackets how many times as fast ours is."""
    names = [size.work.name for size in SIZES.values()]
    works = [name for name in names if (name, FUSED.name, "steps per CPU-second") in values]
    if not works:
        return []
    lines = _head(["", *works])
    for entry in (FUSED, TORCH, SB3, CONTRIB, JAX):
        cells = []
        for work in works:
            speed = values.get((work, entry.name, "steps per CPU-second"))
            times = values.get((work, entry.name, "times its steps per CPU-second"))
            cells.append("-" if speed is None else _thousands(speed) + ("" if times is None else f" ({times:.1f}x)"))
        lines.append(_row([entry.name, *cells]))
    shares = [values.get((work, FUSED.name, "share of the GEMM limit")) for work in works]
    lines.append(_row(["share of the GEMM limit", *("-" if share is None else f"{share:.0%}" for share in shares)]))
    return lines


def _alike(values: Values) -> list[str]:
    """Steps per CPU-second with one scalar critic each; in brackets how many times as fast our two paths are."""
    works = [alike.work.name for alike in ALIKE.values()]
    works = [work for work in works if (work, TORCH.name, "steps per CPU-second") in values]
    if not works:
        return []
    lines = _head(["", *works])
    for entry in (FUSED, TORCH, SB3, CONTRIB, JAX):
        cells = []
        for work in works:
            speed = values.get((work, entry.name, "steps per CPU-second"))
            times = [
                values.get((work, entry.name, quantity))
                for quantity in ("times its steps per CPU-second", f"{TORCH.name}, times its steps per CPU-second")
            ]
            brackets = " and ".join(f"{value:.1f}x" for value in times if value is not None)
            cells.append("-" if speed is None else _thousands(speed) + (f" ({brackets})" if brackets else ""))
        lines.append(_row([entry.name, *cells]))
    return lines


def _other(values: Values) -> list[str]:
    """Memory and first iterations."""
    quantities = ("steps per second of wall time", "first iteration, CPU-seconds", "peak memory, MiB")
    lines = []
    for size in SIZES.values():
        for entry in (FUSED, TORCH, SB3, CONTRIB, JAX):
            cells = [values.get((size.work.name, entry.name, quantity)) for quantity in quantities]
            if any(cell is not None for cell in cells):
                shown = ["-" if cell is None else f"{cell:,.0f}" if cell >= 100 else f"{cell:.2g}" for cell in cells]
                lines.append(_row([size.work.name, entry.name, *shown]))
    return [*_head(["work", "contender", *quantities]), *lines] if lines else []


def _profile(values: Values) -> list[str]:
    """Microseconds per sample of each part, torch and fused."""
    works = [SIZES[name].work.name for name in NETWORKS]
    columns = [
        (work, entry)
        for work in works
        for entry in (TORCH, FUSED)
        if (work, entry.name, PARTS[0], "us per sample") in values
    ]
    if not columns:
        return []
    lines = _head(["us per sample", *(f"{work.split(',')[0]}, {entry.name.split()[-1]}" for work, entry in columns)])
    totals = [0.0] * len(columns)
    for part in PARTS:
        cells = [values.get((work, entry.name, part, "us per sample")) or 0.0 for work, entry in columns]
        totals = [total + cell for total, cell in zip(totals, cells, strict=True)]
        lines.append(_row([part, *(f"{cell:.2f}" for cell in cells)]))
    audits = [values.get((work, entry.name, AUDIT, "us per sample")) for work, entry in columns]
    audits = [audit if entry == FUSED else None for audit, (_, entry) in zip(audits, columns, strict=True)]
    return [
        *lines,
        _row(["together", *(f"{total:.2f}" for total in totals)]),
        _row([f"{AUDIT}, beside", *("-" if audit is None else f"{audit:.2f}" for audit in audits)]),
    ]


def _scaling(values: Values) -> list[str]:
    lines = []
    for factor, sizes in FACTORS.items():
        for size in sizes:
            name = f"LSTM, {factor} {size}"
            speeds = [values.get((name, entry.name, "steps per CPU-second")) for entry in (FUSED, TORCH)]
            if any(speed is not None for speed in speeds):
                lines.append(_row([factor, str(size), *("-" if s is None else _thousands(s) for s in speeds)]))
    return [*_head(["factor", "value", "fused", "torch"]), *lines] if lines else []


def _thousands(speed: float) -> str:
    return f"{speed / 1e3:.0f} k" if speed >= 1e4 else f"{speed / 1e3:.1f} k"


def _head(cells: list[str]) -> list[str]:
    return [_row(cells), "|" + "---|" * len(cells)]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    write_text(PAGE, fill(PAGE.read_text(encoding="utf-8"), values_of([Path(name) for name in sys.argv[1:]])))
