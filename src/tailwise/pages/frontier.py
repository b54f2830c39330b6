"""`tailwise.frontier`: train the same seeds at several limits, and show return against realised tail as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tailwise.core.errors import DataError
from tailwise.evaluate.frontier import plan_frontier
from tailwise.evaluate.frontier_result import (
    MOST_LIKELY,
    SAMPLED,
    UNCONSTRAINED,
    Band,
    Frontier,
    Row,
    format_band,
    format_limit,
    format_value,
    headings,
    headline,
    legend,
    table_rows,
    title,
    verdict,
    warnings_about,
)
from tailwise.evaluate.study import open_study, run_study, warn_about
from tailwise.pages.figures import GRID, INK, QUIET
from tailwise.pages.views import Page, Paragraphs, Table, write_page
from tailwise.run.config import ConfigLike, effective_config
from tailwise.run.jobs import Say, Stop, never, silent

PAGE = "frontier.html"
# Of the limits; no grey, which is the line.
COLOURS = ("#1f6fb2", "#c2452d", "#3c8d5a", "#8757a8", "#b8862b", "#2f8f9d")


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
    figure: Any
    tables: Mapping[str, Table]
    legend: str


def write_frontier_page(path: Path, frontier: Frontier) -> None:
    """Write the picture and the tables."""
    alarms = [*([frontier.label] if frontier.label not in ("", "real") else []), *warnings_about(frontier)]
    tables = {
        title(played): Table(headings(frontier), table_rows(frontier, played), marks=True)
        for played in (SAMPLED, MOST_LIKELY)
    }
    facts = [
        Paragraphs(headline(frontier), "headline"),
        Paragraphs(alarms, "warning"),
        Paragraphs(frontier.facts, "small"),
    ]
    write_page(path, FrontierPage(frontier.name, facts, figure(frontier), tables, " ".join(legend(frontier))))


def figure(frontier: Frontier) -> Any:
    """Return over realised CVaR, one panel per way of playing: means with bands, single seeds, limits as lines.

    The panels stand one below the other: side by side their titles run into each other on a phone.
    """
    titles = [title(played) for played in (SAMPLED, MOST_LIKELY)]
    drawn = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.09, subplot_titles=titles)
    limits = list(dict.fromkeys(row.limit for row in frontier.rows))
    colours = {limit: COLOURS[number % len(COLOURS)] for number, limit in enumerate(limits)}
    for panel, played in enumerate((SAMPLED, MOST_LIKELY), start=1):
        for trace in (
            *_means([row for row in frontier.rows if row.played == played], colours, frontier),
            *_seeds(played, colours, frontier),
            *_rules(frontier),
        ):
            trace.showlegend = panel == 1 and trace.showlegend is None
            drawn.add_trace(trace, row=panel, col=1)
        for row in frontier.rows:
            if row.played == played and row.limit is not None and row.cvar_return.mean is not None:
                line = {"color": colours[row.limit], "width": 1.3, "dash": "dot"}
                drawn.add_vline(x=row.limit, line=line, layer="above", row=panel, col=1)
    heads = headings(frontier)
    form = ".1%" if frontier.market else None
    drawn.update_xaxes(tickformat=form, gridcolor=GRID, zeroline=False, matches="x")
    drawn.update_xaxes(title_text=f"realised {heads[2]}", row=2)
    drawn.update_yaxes(title_text=heads[1], tickformat=form, gridcolor=GRID, zeroline=False)
    drawn.update_layout(
        template="plotly_white",
        paper_bgcolor="rgba(0,0,0,0)",  # that of the page, light or dark
        plot_bgcolor="rgba(0,0,0,0)",
        height=840,
        font={"color": INK, "size": 13},
        margin={"l": 70, "r": 20, "t": 50, "b": 60},
        legend={"orientation": "h", "y": -0.12, "x": 0},
    )
    return drawn


def _means(rows: Sequence[Row], colours: Mapping[float | None, str], frontier: Frontier) -> Iterator[go.Scatter]:
    """A pale line through the means, and a point with its band for each."""
    measured = [row for row in rows if row.cvar_return.mean is not None]
    ordered = sorted(measured, key=lambda row: row.cvar_return.mean or 0.0)
    yield go.Scatter(
        x=[row.cvar_return.mean for row in ordered],
        y=[row.mean_return.mean for row in ordered],
        mode="lines",
        line={"color": "#b9c2ca", "width": 1.5},
        hoverinfo="skip",
        showlegend=False,
    )
    for row in measured:
        name = UNCONSTRAINED if row.limit is None else f"limit {format_limit(row.limit, frontier)}"
        colour = colours[row.limit]
        band = f"{format_band(row.mean_return, frontier)} at CVaR {format_band(row.cvar_return, frontier)}"
        marker = {"color": colour, "size": 12, "symbol": "diamond" if row.limit is None else "circle"}
        point = _points([row.cvar_return.mean], [row.mean_return.mean], name, f"{name}: {band} {verdict(row)}", marker)
        yield point.update(error_x=_bars(row.cvar_return, colour), error_y=_bars(row.mean_return, colour))


def _bars(one: Band, colour: str) -> dict[str, Any] | None:
    if one.half is None:
        return None
    return {"type": "data", "array": [one.half], "color": colour, "thickness": 1.4, "width": 5}


def _seeds(played: str, colours: Mapping[float | None, str], frontier: Frontier) -> Iterator[go.Scatter]:
    """Small pale points; with one seed the mean is that seed."""
    if len(frontier.seeds) > 1:
        measured = [one for one in frontier.results if one.scores[played].cvar_return is not None]
        scores = [one.scores[played] for one in measured]
        x, y = [score.cvar_return for score in scores], [score.mean_return for score in scores]
        marker = {"color": [colours[one.cell.limit] for one in measured], "size": 6, "opacity": 0.4}
        labels = [one.cell.label for one in measured]
        yield _points(x, y, "single seeds", labels, marker).update(showlegend=False)


def _rules(frontier: Frontier) -> Iterator[go.Scatter]:
    symbols = ("x", "cross", "star", "triangle-up", "square")
    for (name, score), symbol in zip(frontier.references.items(), cycle(symbols)):
        if score.cvar_return is not None:
            mean, tail = (format_value(value, frontier) for value in (score.mean_return, score.cvar_return))
            marker = {"color": QUIET, "size": 10, "symbol": symbol}
            yield _points([score.cvar_return], [score.mean_return], name, f"{name}: {mean} at CVaR {tail}", marker)


def _points(x: Any, y: Any, name: str, text: str | list[str], marker: dict[str, Any]) -> go.Scatter:
    """Points that share one entry of the legend in both panels. text: on hovering."""
    group = {"name": name, "legendgroup": name}
    return go.Scatter(x=x, y=y, mode="markers", marker=marker, hovertext=text, hoverinfo="text", **group)
