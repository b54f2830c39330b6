"""The page of an evaluation on bars: one HTML file with its script inside, so that it opens without a network."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tailwise.core.atomic import write_text
from tailwise.evaluate.calibration_panel import calibration_figure, calibration_sentence
from tailwise.evaluate.drawdowns import drawdowns
from tailwise.evaluate.judgement import POLICY, SAMPLED, Judgement
from tailwise.evaluate.page_frame import GRID, INK, paragraphs, plot, whole_page
from tailwise.evaluate.statistics import forward_returns
from tailwise.evaluate.words import columns, legend, ruins

LIMIT = "#111111"
BINS = 60  # of the histogram of returns
COLOURS = ("#1f6fb2", "#c2452d", "#8a97a3", "#3c8d5a", "#8757a8", "#b8862b", "#2f8f9d", "#b0578d")


def write_page(
    path: Path,
    judgements: Sequence[Judgement],
    *,
    title: str,
    facts: Sequence[str],
    gamma: float,
    calibration: Mapping[str, float] | None = None,
) -> None:
    """Write the verdict on the limit, the table, equity, drawdown, exposure and the tail of every symbol.

    calibration: that of the training (`newest_calibration`), for a panel of its own.
    """
    parts = []
    for number, judged in enumerate(judgements):
        label = [] if judged.label == "real" else [judged.label]
        told = paragraphs([*label, *ruins(judged.paths)], "warning")
        tail = _tail_figure(judged, gamma)
        pictures = plot(_figure(judged), script=number == 0) + ("" if tail is None else plot(tail, script=False))
        parts.append(f"<h2>{html.escape(judged.symbol)}</h2>{told}{_verdict(judged)}{_table(judged)}{pictures}")
    example = next(iter(judgements[0].statistics.values()))
    if calibration is not None:
        shown = calibration_figure(calibration, colour=COLOURS[0], ink=INK, grid=GRID)
        said = html.escape(calibration_sentence(calibration, example.alpha))
        parts.append(f"<h2>Were the predictions right?</h2><p>{said}</p>{plot(shown, script=False)}")
    write_text(path, whole_page(title, facts=facts, parts="\n".join(parts), legend=legend(example, gamma=gamma)))


def _verdict(judged: Judgement) -> str:
    """Whether the limit was kept, a paragraph per sentence."""
    kept = judged.limits[POLICY].kept if judged.limits else None
    colour = {True: "#2c6e45", False: "#a8321c", None: INK}[kept]
    sentences = [html.escape(sentence[0].upper() + sentence[1:]) + "." for sentence in judged.limit_sentences()]
    first = "".join(f'<p class="verdict" style="color: {colour}; font-weight: 600">{s}</p>' for s in sentences[:1])
    return first + "".join(f'<p class="verdict">{s}</p>' for s in sentences[1:])


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
    for (name, path), colour in zip(judged.paths.items(), cycle(COLOURS)):
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


def _tail_figure(judged: Judgement, gamma: float) -> Any | None:
    """Realised discounted returns as a histogram, with their tail and the limit; None if the window is too short."""
    shown = [name for name in (POLICY, SAMPLED, judged.reference) if name in judged.paths]
    returns = {name: forward_returns(judged.paths[name], gamma) for name in shown}
    if any(len(values) == 0 for values in returns.values()):
        return None
    pooled = np.concatenate(list(returns.values()))
    reach = max(float(pooled.max() - pooled.min()), 1e-9)  # an account that never trades has one value
    edges = np.linspace(pooled.min() - 0.01 * reach, pooled.max() + 0.01 * reach, BINS + 1)
    colours = dict(zip(judged.paths, cycle(COLOURS)))
    numbers = judged.statistics[POLICY]
    figure = go.Figure()
    for name, values in returns.items():
        part = np.histogram(values, edges)[0] / len(values)
        if name == POLICY:
            centres, width = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
            figure.add_trace(
                go.Bar(x=centres, y=part, width=width, name=name, marker={"color": colours[name], "opacity": 0.55})
            )
        else:
            line = {"color": colours[name], "width": 1.6, "shape": "vh", "dash": "dot" if name == SAMPLED else "solid"}
            figure.add_trace(go.Scatter(x=edges, y=[0.0, *part], name=name, mode="lines", line=line))
    tail = f"CVaR {100 * numbers.alpha:g}%"
    assert numbers.cvar_return is not None  # there are returns
    lines = [(numbers.cvar_return, f"{tail} of the policy {100 * numbers.cvar_return:.1f}%", COLOURS[0], "solid")]
    if judged.limits:
        verdict = judged.limits[POLICY]
        lines.append((verdict.limit, f"limit {100 * verdict.limit:.1f}%", LIMIT, "dash"))
        if verdict.measure != "cvar" and verdict.realised is not None:
            said = f"{verdict.measure} of the policy {100 * verdict.realised:.1f}%"
            lines.append((verdict.realised, said, COLOURS[4], "solid"))
    for row, (x, text, colour, dash) in enumerate(lines):
        figure.add_vline(x=x, line={"color": colour, "width": 2, "dash": dash})
        figure.add_annotation(  # above the bars, each on its own line
            x=x,
            y=1 + 0.075 * row,
            yref="paper",
            yanchor="bottom",
            text=text,
            font={"color": colour},
            showarrow=False,
        )
    low, high = min(edges[0], *(line[0] for line in lines)), max(edges[-1], *(line[0] for line in lines))
    figure.update_layout(
        template="plotly_white",
        height=380,
        title={"text": f"Discounted log-return over the next {numbers.horizon} bars, from every bar", "x": 0.5},
        font={"color": INK, "size": 13},
        margin={"l": 60, "r": 30, "t": 110, "b": 40},
        legend={"orientation": "h", "y": -0.12, "x": 0},
        bargap=0,
    )
    # Lines do not widen the axis by themselves, and a limit far from all returns has to be seen too.
    figure.update_xaxes(gridcolor=GRID, tickformat=".1%", range=[low - 0.04 * (high - low), high + 0.02 * (high - low)])
    figure.update_yaxes(gridcolor=GRID, tickformat=".0%", title="share of bars")
    return figure
