"""`tailwise.frontier`: train the same seeds at several limits, and show return against realised tail as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tailwise.core.errors import DataError
from tailwise.evaluate.frontier import plan_frontier
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
from tailwise.evaluate.study import open_study, run_study, warn_about
from tailwise.pages.curves import GRID, INK
from tailwise.pages.environment import write_page
from tailwise.pages.views import Page, Paragraphs, Plot, Table
from tailwise.run.effective_config import ConfigLike, effective_config
from tailwise.run.jobs import Say, Stop, never, silent

PAGE = "frontier.html"
COLOURS = (
    "#1f6fb2",
    "#c2452d",
    "#3c8d5a",
    "#8757a8",
    "#b8862b",
    "#2f8f9d",
)  # of the limits; no grey, which is the line


def frontier(
    config: ConfigLike,
    limits: Sequence[float],
    *,
    overrides: Sequence[str] = (),
    seeds: int | Sequence[int] = 3,
    unconstrained: bool = True,
    episodes: int | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    stop: Stop = never,
    say: Say = silent,
) -> Frontier:
    """Train the same seeds at several limits on the CVaR and judge them out of sample; files lie in `result.folder`.

    config          a `Config`, a nested dictionary, a YAML file or the name of a preset
    limits          lowest allowed CVaR each; losses are negative
    overrides       "learner.clip=0.1" and the like, changes of the configuration
    seeds           runs per limit: how many, from the configuration's seed on, or the seeds themselves
    unconstrained   also train each seed without a limit
    episodes        test episodes of each run; not for a market, whose test window is played whole
    out             the folder; runs in it of the same configuration are continued. None: runs/frontier-N
    jobs            trainings side by side, a process each. From a script, call it below `if __name__ == "__main__":`
    stop            asked after every update; True ends the runs with a checkpoint and raises StudyStopped
    say             is given the lines of the runs (`tailwise.run.jobs.Line`)

        result = tailwise.frontier("sp500", [-0.05, -0.1], seeds=2)
        for row in result.rows:
            print(row.limit, row.played, row.mean_return.mean, row.cvar_return.mean, row.kept)
    """
    study = plan_frontier(
        effective_config(config, overrides), limits, seeds=seeds, unconstrained=unconstrained, episodes=episodes
    )
    warn_about(study)
    result = run_study(study, open_study(study, out), jobs=jobs, stop=stop, say=say)
    keep_frontier_page(result)
    return result


def keep_frontier_page(frontier: Frontier) -> Path:
    """Write frontier.html into the folder of the study; return the file."""
    if frontier.folder is None:
        raise DataError(f"the frontier {frontier.name} was never kept in a folder; use write_frontier_page.")
    file = frontier.folder / PAGE
    write_frontier_page(file, frontier)
    return file


@dataclass(frozen=True)
class FrontierPage(Page):
    """A frontier. facts: with their warnings; tables: by heading; legend: what the numbers mean."""

    template = "frontier.html"
    facts: Sequence[Paragraphs]
    plot: Plot
    tables: Mapping[str, Table]
    legend: str


def write_frontier_page(path: Path, frontier: Frontier) -> None:
    """Write the picture and the tables."""
    alarms = [*([frontier.label] if frontier.label not in ("", "real") else []), *warnings_about(frontier)]
    tables = {
        title(played): Table(headings(frontier), table_rows(frontier, played), marks=True)
        for played in (SAMPLED, MOST_LIKELY)
    }
    facts = [Paragraphs(frontier.facts, "small"), Paragraphs(alarms, "warning")]
    write_page(path, FrontierPage(frontier.name, facts, Plot(figure(frontier)), tables, " ".join(legend(frontier))))


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
