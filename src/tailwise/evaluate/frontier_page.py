"""The frontier as a page: one HTML file with its script inside, so that it opens without a network."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tailwise.core.atomic import write_text
from tailwise.evaluate.frontier_result import MOST_LIKELY, SAMPLED, Band, Frontier, Result, Row
from tailwise.evaluate.frontier_words import (
    UNCONSTRAINED,
    headings,
    legend,
    shown,
    shown_band,
    shown_limit,
    table_rows,
    title,
    verdict,
    warnings_about,
)
from tailwise.evaluate.markup import element, join
from tailwise.evaluate.page_frame import GRID, INK, plot, table, whole_page

COLOURS = (
    "#1f6fb2",
    "#c2452d",
    "#3c8d5a",
    "#8757a8",
    "#b8862b",
    "#2f8f9d",
)  # of the limits; no grey, which is the line


def write_frontier_page(path: Path, frontier: Frontier) -> None:
    """Write the picture and the table."""
    alarms = [*([frontier.label] if frontier.label not in ("", "real") else []), *warnings_about(frontier)]
    tables = join(
        element("h2", title(played)) + table(headings(frontier), table_rows(frontier, played), marks=True)
        for played in (SAMPLED, MOST_LIKELY)
    )
    text = whole_page(
        frontier.name,
        facts=frontier.facts,
        warnings=alarms,
        parts=plot(figure(frontier)) + tables,
        legend=" ".join(legend(frontier)),
        plots=True,
    )
    write_text(path, text)


def figure(frontier: Frontier) -> Any:
    """Return over realised CVaR, one panel per way of playing: means with bands, single seeds, limits as lines."""
    titles = [title(played) for played in (SAMPLED, MOST_LIKELY)]
    drawn = make_subplots(
        rows=1, cols=2, shared_yaxes=True, shared_xaxes=True, horizontal_spacing=0.04, subplot_titles=titles
    )
    limits = list(dict.fromkeys(row.limit for row in frontier.rows))
    colours = {limit: COLOURS[number % len(COLOURS)] for number, limit in enumerate(limits)}
    for column, played in enumerate((SAMPLED, MOST_LIKELY), start=1):
        rows = [row for row in frontier.rows if row.played == played]
        _draw_means(drawn, column, rows, colours, frontier)
        _draw_seeds(drawn, column, played, colours, frontier)
        _draw_rules(drawn, column, frontier)
    heads = headings(frontier)
    form = ".1%" if frontier.market else None
    drawn.update_xaxes(title_text=f"realised {heads[2]}", tickformat=form, gridcolor=GRID, zeroline=False, matches="x")
    drawn.update_yaxes(tickformat=form, gridcolor=GRID, zeroline=False)
    drawn.update_yaxes(title_text=heads[1], col=1)
    drawn.update_layout(
        template="plotly_white",
        height=520,
        font={"color": INK, "size": 13},
        margin={"l": 70, "r": 20, "t": 50, "b": 60},
        legend={"orientation": "h", "y": -0.18, "x": 0},
    )
    return drawn


def _draw_means(
    drawn: Any, column: int, rows: Sequence[Row], colours: dict[float | None, str], frontier: Frontier
) -> None:
    known = [row for row in rows if row.cvar_return.mean is not None]
    ordered = sorted(known, key=lambda row: row.cvar_return.mean or 0.0)
    line = go.Scatter(
        x=[row.cvar_return.mean for row in ordered],
        y=[row.mean_return.mean for row in ordered],
        mode="lines",
        line={"color": "#b9c2ca", "width": 1.5},
        hoverinfo="skip",
        showlegend=False,
    )
    drawn.add_trace(line, row=1, col=column)
    for row in known:
        name = UNCONSTRAINED if row.limit is None else f"limit {shown_limit(row.limit, frontier)}"
        colour = colours[row.limit]
        point = go.Scatter(
            x=[row.cvar_return.mean],
            y=[row.mean_return.mean],
            error_x=_bars(row.cvar_return, colour),
            error_y=_bars(row.mean_return, colour),
            name=name,
            legendgroup=name,
            showlegend=column == 1,
            mode="markers",
            marker={"color": colour, "size": 12, "symbol": "diamond" if row.limit is None else "circle"},
            hovertext=f"{name}: {shown_band(row.mean_return, frontier)} at CVaR "
            f"{shown_band(row.cvar_return, frontier)} {verdict(row)}",
            hoverinfo="text",
        )
        drawn.add_trace(point, row=1, col=column)
        if row.limit is not None:
            drawn.add_vline(
                x=row.limit, line={"color": colour, "width": 1.3, "dash": "dot"}, layer="above", row=1, col=column
            )


def _bars(one: Band, colour: str) -> dict[str, Any] | None:
    if one.half is None:
        return None
    return {"type": "data", "array": [one.half], "color": colour, "thickness": 1.4, "width": 5}


def _draw_seeds(drawn: Any, column: int, played: str, colours: dict[float | None, str], frontier: Frontier) -> None:
    """Small pale points; with one seed the mean is that seed."""
    if len(frontier.seeds) == 1:
        return
    known: list[Result] = [one for one in frontier.results if one.scores[played].cvar_return is not None]
    points = go.Scatter(
        x=[one.scores[played].cvar_return for one in known],
        y=[one.scores[played].mean_return for one in known],
        mode="markers",
        marker={"color": [colours[one.cell.limit] for one in known], "size": 6, "opacity": 0.4},
        hovertext=[one.cell.label for one in known],
        hoverinfo="text",
        name="single seeds",
        legendgroup="single seeds",
        showlegend=False,
    )
    drawn.add_trace(points, row=1, col=column)


def _draw_rules(drawn: Any, column: int, frontier: Frontier) -> None:
    symbols = ("x", "cross", "star", "triangle-up", "square")
    for (name, score), symbol in zip(frontier.references.items(), cycle(symbols)):
        if score.cvar_return is None:
            continue
        point = go.Scatter(
            x=[score.cvar_return],
            y=[score.mean_return],
            mode="markers",
            marker={"color": INK, "size": 10, "symbol": symbol},
            name=name,
            legendgroup=name,
            showlegend=column == 1,
            hovertext=f"{name}: {shown(score.mean_return, frontier)} at CVaR {shown(score.cvar_return, frontier)}",
            hoverinfo="text",
        )
        drawn.add_trace(point, row=1, col=column)
