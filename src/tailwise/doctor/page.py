"""The audit as a page of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tailwise.doctor.check import VERDICTS, Check, counted, thin
from tailwise.pages.views import Page, write_page

WIDTH, HEIGHT, POINTS = 120, 26, 60


@dataclass(frozen=True)
class AuditPage(Page):
    """An audit. rows: checks with their course, points of an SVG line; width, height: of the lines, pixels."""

    template = "audit.html"
    plots = False
    facts: Sequence[str]
    rows: Sequence[tuple[Check, str]]
    width: int = WIDTH
    height: int = HEIGHT


def write_audit(path: Path, checks: Sequence[Check], *, title: str, facts: Sequence[str]) -> None:
    """Write the table, the worst first, in one file that opens without a network."""
    ordered = sorted(checks, key=lambda check: VERDICTS.index(check.verdict))
    rows = [(check, points(check.series)) for check in ordered]
    write_page(path, AuditPage(title, [counted(checks), *facts], rows))


def points(series: Sequence[float]) -> str:
    """A series as the points of an SVG line, WIDTH x HEIGHT pixels; empty without two numbers."""
    values = thin(series, POINTS)
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    scale = (HEIGHT - 4) / (high - low) if high > low else 0.0
    step = WIDTH / (len(values) - 1)
    return " ".join(
        f"{k * step:.1f},{HEIGHT - 2 - (value - low) * scale:.1f}"
        for k, value in enumerate(values)
        if math.isfinite(value)
    )
