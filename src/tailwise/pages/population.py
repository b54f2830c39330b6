"""The picture of a search: who descends from whom, with which score and which hyperparameters, over generations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tailwise.pages.figures import GRID, INK, LIMIT, OWN, QUIET
from tailwise.pages.frontier import FrontierPage
from tailwise.pages.views import Paragraphs, Table, write_page

PAGE = "tune.html"
PALE = "#b9c2ca"


@dataclass(frozen=True)
class Point:
    """One member after one generation.

    parent    member of the generation before whose state it began from; None at the beginning
    copied    whether that was another one, whose state it took over
    value     its score; None when it failed
    kept      whether it keeps the limit; None without one
    ancestor  whether the best member descends from it, or is it
    """

    generation: int
    member: int
    parent: int | None
    copied: bool
    values: Mapping[str, float | int | str | bool]
    value: float | None
    kept: bool | None
    ancestor: bool


@dataclass(frozen=True)
class PopulationView:
    """What the page shows. score: name of the score; logarithmic: keys with such an axis; configured: values of the
    configuration; learnt: rows of key, configured value, value of the best member, rank correlation with the score."""

    title: str
    headline: Sequence[str]
    facts: Sequence[str]
    warnings: Sequence[str]
    score: str
    points: Sequence[Point]
    keys: Sequence[str]
    logarithmic: Sequence[str]
    configured: Mapping[str, float | int | str | bool]
    learnt: Sequence[Sequence[str]]
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def undrawn(self) -> list[str]:
        """Keys whose configured value has no place on their axis: a logarithmic one begins above 0."""
        values = {key: self.configured[key] for key in self.logarithmic if key in self.configured}
        return [key for key, value in values.items() if not float(value) > 0]


def write_population_page(path: Path, view: PopulationView) -> None:
    """Write the picture and the table."""
    facts = [
        Paragraphs(view.headline, "headline"),
        Paragraphs(view.warnings, "warning"),
        Paragraphs(view.facts, "small"),
    ]
    tables = {
        "Trained to the end, best first": Table(view.headings, view.rows, marks=True),
        "What it learnt": Table(
            ["key", "configuration", "best member", "rank correlation with the score"], view.learnt
        ),
    }
    legend = (
        "A line joins a member to the one whose state it began from. Blue: the best member and those it descends from. "
        "Dotted: a copy, which took over another member and moved to other values. Red: the limit is missed. "
        "Dashed: the value of the configuration, which nobody trained with unless a point lies on it. 95%: of one "
        "score, from its bars or episodes; members share those, so differences between them are known better than "
        "that. A rank correlation near 0 does not say that a value does not matter."
    )
    if view.undrawn:
        told = ", ".join(f"{key} {view.configured[key]}" for key in view.undrawn)
        legend += f" Not drawn, because an axis of logarithms has no place for it: the configuration's {told}."
    write_page(path, FrontierPage(view.title, facts, population_figure(view), tables, legend))


def population_figure(view: PopulationView) -> Any:
    """The score over generations, and below it every searched key."""
    rows = 1 + len(view.keys)
    figure = make_subplots(
        rows=rows,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.25 / rows,
        row_heights=[2.0] + [1.0] * len(view.keys),
        subplot_titles=[view.score, *view.keys],
    )
    known = {(one.generation, one.member): one for one in view.points}
    for row, name in enumerate([None, *view.keys], start=1):
        for trace in _traces(view.points, known, name):
            figure.add_trace(trace, row=row, col=1)
        if name is not None and name in view.configured and name not in view.undrawn:
            figure.add_trace(_configured(view.points, view.configured[name]), row=row, col=1)
        if name is not None and name in view.logarithmic:
            ticks = log_ticks([float(one.values[name]) for one in view.points])
            texts = [f"{tick:g}" for tick in ticks]
            figure.update_yaxes(type="log", tickvals=ticks, ticktext=texts, row=row, col=1)
    figure.update_xaxes(gridcolor=GRID, zeroline=False, dtick=_tick(view.points))
    figure.update_xaxes(title_text="generation", row=rows, col=1)
    figure.update_yaxes(gridcolor=GRID, zeroline=False)
    figure.update_layout(
        template="plotly_white",
        paper_bgcolor="rgba(0,0,0,0)",  # that of the page, light or dark
        plot_bgcolor="rgba(0,0,0,0)",
        height=320 + 170 * len(view.keys),
        font={"color": INK, "size": 13},
        margin={"l": 70, "r": 20, "t": 40, "b": 50},
        showlegend=False,
    )
    return figure


def log_ticks(values: Sequence[float]) -> list[float]:
    """Marks of an axis of logarithms: 1, 2 and 5 of each decade, powers of ten alone where those would be many."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    marks = (1, 2, 5) if high - low <= 2 else (1,)
    return [mark * 10.0**power for power in range(low, high + 1) for mark in marks]


def _tick(points: Sequence[Point]) -> int:
    return max(1, max(one.generation for one in points) // 10)


def _traces(points: Sequence[Point], known: Mapping[tuple[int, int], Point], key: str | None) -> list[go.Scatter]:
    """Lines to the parents, pale ones first, then the members themselves; key None: the score."""
    traces = []
    for ancestor in (False, True):
        for copied in (False, True):
            x: list[float | None] = []
            y: list[Any] = []
            for one in points:
                parent = None if one.parent is None else known[one.generation - 1, one.parent]
                joined = parent is not None and one.ancestor == ancestor and one.copied == copied
                if joined and parent is not None and _shown(one, key) is not None and _shown(parent, key) is not None:
                    x += [parent.generation, one.generation, None]
                    y += [_shown(parent, key), _shown(one, key), None]
            line = {
                "color": OWN if ancestor else PALE,
                "width": 2 if ancestor else 1,
                "dash": "dot" if copied else "solid",
            }
            traces.append(go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip"))
    drawn = [one for one in points if _shown(one, key) is not None]
    traces.append(
        go.Scatter(
            x=[one.generation for one in drawn],
            y=[_shown(one, key) for one in drawn],
            mode="markers",
            marker={"color": [_colour(one) for one in drawn], "size": [8 if one.ancestor else 6 for one in drawn]},
            hovertext=[_words(one) for one in drawn],
            hoverinfo="text",
        )
    )
    return traces


def _configured(points: Sequence[Point], value: float | int | str | bool) -> go.Scatter:
    """A dashed line at the configuration's value, which widens the axis where nobody is near it."""
    ends = [min(one.generation for one in points) - 0.25, max(one.generation for one in points) + 0.25]
    line = {"color": QUIET, "width": 1, "dash": "dash"}
    return go.Scatter(x=ends, y=[value, value], mode="lines", line=line, hoverinfo="skip")


def _shown(one: Point, key: str | None) -> Any:
    return one.value if key is None else one.values[key]


def _colour(one: Point) -> str:
    return LIMIT if one.kept is False else OWN if one.ancestor else PALE


def _words(one: Point) -> str:
    score = "failed" if one.value is None else f"{one.value:.4g}"
    values = ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in one.values.items()
    )
    copied = f", copied from {one.parent}" if one.copied else ""
    return f"generation {one.generation}, member {one.member}{copied}: {score}; {values}"
