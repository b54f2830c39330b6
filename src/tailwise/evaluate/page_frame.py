"""What every page has in common: its frame and style, tables and plots, in one file that opens without a network."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from plotly.io import to_html

INK, GRID = "#1b2733", "#e6eaee"

_FRAME = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1b2733; max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; margin-bottom: .2rem; }}
h2 {{ font-size: 1.15rem; margin: 1.6rem 0 .2rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums; font-size: .92rem; }}
th, td {{ padding: .25rem .9rem .25rem 0; text-align: right; border-bottom: 1px solid #e6eaee; white-space: nowrap; }}
th {{ white-space: normal; vertical-align: bottom; font-weight: 600; }}
th:first-child, td:first-child {{ text-align: left; }}
.small {{ color: #5b6874; font-size: .9rem; }}
.warning {{ color: #8a4b00; font-weight: 600; }}
.verdict {{ margin: .3rem 0; }}
.kept {{ color: #2c7a4b; }} .missed {{ color: #b03a22; font-weight: 600; }}
</style></head><body>
<h1>{title}</h1>
{facts}
{parts}
<p class="small">{legend}</p>
</body></html>
"""


def whole_page(title: str, *, facts: Sequence[str], warnings: Sequence[str] = (), parts: str, legend: str) -> str:
    """The text of a page. `parts` is HTML; title, facts, warnings and legend are plain text."""
    told = paragraphs(facts, "small") + paragraphs(warnings, "warning")
    return _FRAME.format(title=html.escape(title), facts=told, parts=parts, legend=html.escape(legend))


def paragraphs(sentences: Sequence[str], kind: str) -> str:
    """A paragraph of the class `kind` for each sentence."""
    return "".join(f'<p class="{kind}">{html.escape(sentence)}</p>' for sentence in sentences)


def plot(figure: Any, *, script: bool) -> str:
    """A plotly figure as HTML; `script`: with plotly's own script, which the first plot of a page needs."""
    return to_html(
        figure,
        full_html=False,
        include_plotlyjs=script,
        config={"displayModeBar": False, "responsive": True},
    )
