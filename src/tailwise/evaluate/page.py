"""The page of an evaluation on bars: one HTML file with its script inside, so that it opens without a network."""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.io import to_html
from plotly.subplots import make_subplots

from tailwise.core.atomic import write_text
from tailwise.evaluate.drawdowns import drawdowns
from tailwise.evaluate.judgement import POLICY, Judgement
from tailwise.evaluate.words import columns, legend, ruins

INK, GRID = "#1b2733", "#e6eaee"
COLOURS = ("#1f6fb2", "#c2452d", "#8a97a3", "#3c8d5a", "#8757a8", "#b8862b")

_TEMPLATE = """<!doctype html>
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
</style></head><body>
<h1>{title}</h1>
{facts}
{parts}
<p class="small">{legend}</p>
</body></html>
"""


def write_page(path: Path, judgements: Sequence[Judgement], *, title: str, facts: Sequence[str], gamma: float) -> None:
    """Write equity, drawdown and exposure of every symbol, with the table of statistics."""
    parts = []
    for number, judged in enumerate(judgements):
        plot = to_html(
            _figure(judged),
            full_html=False,
            include_plotlyjs=number == 0,
            config={"displayModeBar": False, "responsive": True},
        )
        real = judged.label == "real"
        told = "" if real else f'<p class="warning">{html.escape(judged.label)}</p>'
        told += "".join(f'<p class="warning">{html.escape(sentence)}</p>' for sentence in ruins(judged.paths))
        parts.append(f"<h2>{html.escape(judged.symbol)}</h2>{told}{_table(judged)}{plot}")
    example = next(iter(judgements[0].statistics.values()))
    text = _TEMPLATE.format(
        title=html.escape(title),
        facts="".join(f'<p class="small">{html.escape(fact)}</p>' for fact in facts),
        parts="\n".join(parts),
        legend=html.escape(legend(example, gamma=gamma)),
    )
    write_text(path, text)


def _table(judged: Judgement) -> str:
    heads = columns(next(iter(judged.statistics.values())))
    first = "<tr><th></th>" + "".join(f"<th>{html.escape(name)}</th>" for name, _ in heads) + "</tr>"
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td>" + "".join(f"<td>{show(numbers)}</td>" for _, show in heads) + "</tr>"
        for name, numbers in judged.statistics.items()
    )
    return f'<div class="wide"><table>{first}{rows}</table></div>'


def _figure(judged: Judgement) -> Any:
    figure = make_subplots(
        rows=3,
        cols=1,
        shared_xaxes=True,
        row_heights=[0.5, 0.27, 0.23],
        vertical_spacing=0.06,
        subplot_titles=(
            "Equity, multiple of the start",
            "Drawdown from the highest equity",
            "Exposure of the policy, multiple of equity",
        ),
    )
    for (name, path), colour in zip(judged.paths.items(), COLOURS, strict=False):
        wealth = path.wealth
        line = {"color": colour, "width": 2.4 if name == POLICY else 1.4}
        drawdown = -drawdowns(wealth)
        time = np.concatenate([path.time[:1] - (path.time[1:2] - path.time[:1]), path.time])  # where it starts at 1
        figure.add_trace(go.Scatter(x=time, y=wealth, name=name, line=line, legendgroup=name), row=1, col=1)
        figure.add_trace(
            go.Scatter(x=time, y=drawdown, name=name, line=line, legendgroup=name, showlegend=False),
            row=2,
            col=1,
        )
    policy = judged.paths[POLICY]
    for a, (asset, colour) in enumerate(zip(policy.assets, cycle(COLOURS), strict=False)):
        line = {"color": colour, "width": 1}
        shown = go.Scatter(x=policy.time, y=policy.exposures[:, a], name=asset, line=line, showlegend=False)
        figure.add_trace(shown, row=3, col=1)
    figure.update_layout(
        template="plotly_white",
        height=760,
        font={"color": INK, "size": 13},
        margin={"l": 60, "r": 30, "t": 50, "b": 40},
        legend={"orientation": "h", "y": -0.06, "x": 0},
        hovermode="x unified",
    )
    figure.update_xaxes(gridcolor=GRID)
    figure.update_yaxes(gridcolor=GRID)
    figure.update_yaxes(tickformat=".0%", row=2, col=1)
    return figure
