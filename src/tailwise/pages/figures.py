"""What all figures share: colours, lines, thinning of long ones, axes and legends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from tailwise.pages.views import Legend

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
# Of a drawn line, two for each pixel of its width; a longer one keeps the lowest and the highest of each stretch.
MOST_POINTS = 2000
INK, GRID = "#1b2733", "#e6eaee"
OWN, QUIET, LIMIT = "#1f6fb2", "#7b8794", "#c2452d"  # what is judged, what it is judged by, what it must not cross
_OWN_PALE = "#6fa8d6"
_OTHERS = ("#b8862b", "#8a6bb0", "#3c8d5a", "#b0578d", "#2f8f9d")
# The market is grey on every page, whatever else is there.
_KNOWN = {"buy and hold": QUIET, "flat": "#b4bec7", "random, same turnover": "#c99f8f"}


def colours_of(names: Sequence[str], own: str) -> dict[str, str]:
    """Choose a colour for each name: strong for what is judged, quiet for what it is judged by."""
    colours, free = {}, list(_OTHERS)
    for name in names:
        if name == own:
            colours[name] = OWN
        elif name.startswith(f"{own}, "):
            colours[name] = _OWN_PALE
        else:
            colours[name] = _KNOWN.get(name) or free.pop(0)
            if not free:
                free = list(_OTHERS)
    return colours


def thin(values: Floats, most: int = MOST_POINTS) -> Rows:
    """Rows of values [n] to draw: all, or the first, the last, and the lowest and highest of each of most/2 stretches.

    Peaks and troughs stay where they were, which taking every k-th value would lose.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(0, count, most // 2 + 1).astype(np.int64)
    rows = [np.array([0, count - 1])]
    for first, end in pairwise(edges.tolist()):
        part = values[first:end]
        rows.append(first + np.array([int(part.argmin()), int(part.argmax())]))
    return np.unique(np.concatenate(rows))


def thinned_note(bars: int) -> str:
    """A sentence where lines are thinned; empty where they are whole."""
    if bars + 1 <= MOST_POINTS:
        return ""
    return f" Drawn with at most {MOST_POINTS:,} of {bars:,} points: the lowest and highest of each stretch are kept."


def layout(figure: Any, *, height: int, **more: Any) -> Any:
    """Give a figure the look that all share; backgrounds are those of the page."""
    figure.update_layout(
        template="none",
        height=height,
        font={"family": "system-ui, sans-serif", "color": INK, "size": 12},
        margin={"l": 52, "r": 14, "t": 30, "b": 36},
        showlegend=False,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hoverlabel={"font": {"family": "system-ui, sans-serif", "size": 12}},
        dragmode=False,
        bargap=0,
    )
    figure.update_xaxes(gridcolor=GRID, showgrid=False, zeroline=False, automargin=True)
    figure.update_yaxes(gridcolor=GRID, zeroline=False, automargin=True)
    figure.update_layout(**more)
    figure.update_annotations(font_size=13)
    return figure


def left_titles(figure: Any) -> Any:
    """Put the titles of stacked pictures at the left edge."""
    return figure.update_annotations(x=0, xanchor="left")


def legend(colours: Mapping[str, str]) -> Legend:
    """What the colours mean, dotted where the lines are."""
    return Legend(colours, [name for name in colours if is_dotted(name)])


def is_dotted(name: str) -> bool:
    """Lines of chance and of the same policy played another way are dotted."""
    return name.startswith("random") or ", sampled" in name or ", most likely" in name


def line(x: Any, y: Any, name: str, colour: str, *, width: float = 1.3, **more: Any) -> go.Scatter:
    """A line without markers, in single precision: finer than a pixel. more: of the line itself (dash, shape)."""
    y = y.astype(np.float32) if isinstance(y, np.ndarray) and y.dtype == np.float64 else y
    return go.Scatter(x=x, y=y, name=name, mode="lines", line={"color": colour, "width": width, **more})


def dash_of(name: str) -> str:
    """The dash of the line of an account."""
    return "dot" if is_dotted(name) else "solid"
