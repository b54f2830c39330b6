"""The audit as a page of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from tailwise.core.atomic import write_text
from tailwise.doctor.check import VERDICTS, Check, counted, thin
from tailwise.pages.markup import NOTHING, Html, element
from tailwise.pages.page_frame import whole_page

WIDTH, HEIGHT, POINTS = 120, 26, 60
_STYLE = """
.audit td, .audit th { text-align: left; white-space: normal; vertical-align: top; overflow-wrap: anywhere; }
.audit td:first-child { font-weight: 600; min-width: 8rem; } .audit svg { display: block; margin-top: .25rem; }
.audit .mark { font-weight: 700; white-space: nowrap; } .audit small { color: #6b7884; display: block; }
.audit .fail .mark { color: #c0392b; } .audit .warn .mark { color: #b9770e; } .audit .ok .mark { color: #2e8b57; }
.audit .unknown .mark { color: #6b7884; }
@media (max-width: 640px) { .audit, .audit tbody, .audit tr, .audit td { display: block; } .audit th { display: none; }
  .audit tr { border-bottom: 1px solid #8883; padding: .5rem 0; } .audit td { border: 0; padding: .1rem 0; } }
"""


def write_audit(path: Path, checks: Sequence[Check], *, title: str, facts: Sequence[str]) -> None:
    """Write the table, the worst first, in one file that opens without a network."""
    ordered = sorted(checks, key=lambda check: VERDICTS.index(check.verdict))
    heads = ("check", "verdict", "evidence", "what it means", "what to do")
    head = element("tr", *(element("th", name) for name in heads))
    parts = element("div", element("table", head, *(_row(check) for check in ordered), class_="audit"), class_="wide")
    legend = "fail: something is broken or a limit was missed. unknown: there is not enough to judge."
    text = whole_page(title, facts=[counted(checks), *facts], parts=parts, legend=legend, style=_STYLE)
    write_text(path, text)


def _row(check: Check) -> Html:
    return element(
        "tr",
        element("td", check.name.replace("_", " ")),
        element("td", check.verdict, class_="mark"),
        element("td", check.evidence, picture(check.series)),
        element("td", element("small", check.meaning)),
        element("td", check.advice),
        class_=check.verdict,
    )


def picture(series: Sequence[float]) -> Html:
    """A series as a small line, in the colour of the text; empty without two numbers."""
    values = thin(series, POINTS)
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return NOTHING
    low, high = min(known), max(known)
    scale = (HEIGHT - 4) / (high - low) if high > low else 0.0
    step = WIDTH / (len(values) - 1)
    points = " ".join(
        f"{k * step:.1f},{HEIGHT - 2 - (value - low) * scale:.1f}"
        for k, value in enumerate(values)
        if math.isfinite(value)
    )
    line = element("polyline", points=points, fill="none", stroke="currentColor", stroke_width="1.4", opacity=".7")
    box = f"0 0 {WIDTH} {HEIGHT}"
    return element(
        "svg", line, width=f"{WIDTH}", height=f"{HEIGHT}", viewBox=box, role="img", aria_label="course of the values"
    )
