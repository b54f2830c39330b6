"""Curves of accounts for the report: colours, thinning for the drawing, and the pictures that equity alone can give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tailwise.evaluate.drawdowns import drawdowns
from tailwise.evaluate.tails import worst_share
from tailwise.market.path import AccountPath
from tailwise.pages.views import Legend, Months, Panel, Plot

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
MOST_POINTS = 2500  # of a drawn line; a longer one keeps the lowest and the highest value of each stretch
MOST_WINDOWS = 400  # points of a rolling measure
INK, GRID = "#1b2733", "#e6eaee"
_OWN, _OWN_PALE = "#1f6fb2", "#6fa8d6"
_OTHERS = ("#7b8794", "#b8862b", "#8a6bb0", "#3c8d5a", "#b0578d", "#2f8f9d")
_QUIET = {"flat": "#b4bec7", "random, same turnover": "#c99f8f"}
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, eq=False)
class Curve:
    """Equity of one account as a multiple of its start, wealth float64 [n + 1], at the closes of bars `time` [n]."""

    time: npt.NDArray[np.datetime64]
    wealth: Floats
    periods_per_year: float

    @classmethod
    def of_path(cls, path: AccountPath) -> Curve:
        return cls(path.time, path.wealth, path.periods_per_year)

    @property
    def returns(self) -> Floats:
        """Log-returns float64 [n]; wealth of nothing counts as a millionth."""
        return np.diff(np.log(np.maximum(self.wealth, 1e-6)))

    @property
    def times(self) -> npt.NDArray[np.datetime64]:
        """[n + 1]: one step before the first bar, where it starts at 1, then the bars."""
        step = self.time[1] - self.time[0] if len(self.time) > 1 else np.timedelta64(1, "D")
        return np.concatenate([self.time[:1] - step, self.time])


def colours_of(names: Sequence[str], own: str) -> dict[str, str]:
    """A colour for each name: strong for what is judged, quiet for what it is judged by."""
    found, free = {}, list(_OTHERS)
    for name in names:
        if name == own:
            found[name] = _OWN
        elif name.startswith(f"{own}, "):
            found[name] = _OWN_PALE
        else:
            found[name] = _QUIET.get(name) or free.pop(0)
            if not free:
                free = list(_OTHERS)
    return found


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
    """The look that all pictures share; backgrounds are those of the page."""
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
    """Titles of stacked pictures at the left edge, where the reader looks first."""
    return figure.update_annotations(x=0, xanchor="left")


def legend(colours: Mapping[str, str]) -> Legend:
    """What the colours mean, dotted where the lines are."""
    return Legend(colours, [name for name in colours if is_dotted(name)])


def is_dotted(name: str) -> bool:
    """Lines of chance and of the same policy played another way are dotted."""
    return name.startswith("random") or ", sampled" in name or ", most likely" in name


def lines_panel(
    curves: Mapping[str, Curve], own: str, *, kind: str, suffix: str = "", caption: str | None = None
) -> Panel:
    """Equity (kind 'equity') or drawdown from the highest equity (kind 'drawdown') of all accounts."""
    colours = colours_of(list(curves), own)
    figure = go.Figure()
    for name, curve in list(curves.items())[::-1]:  # what is judged lies on top
        values = curve.wealth if kind == "equity" else -drawdowns(curve.wealth)
        rows = thin(values)
        line = {"color": colours[name], "width": 2.4 if name == own else 1.3}
        line["dash"] = "dot" if is_dotted(name) else "solid"
        figure.add_trace(go.Scatter(x=curve.times[rows], y=values[rows], name=name, mode="lines", line=line))
    layout(figure, height=400 if kind == "equity" else 260, hovermode="x unified")
    figure.update_yaxes(tickformat=".2f" if kind == "equity" else ".0%")
    longest = max(len(curve.time) for curve in curves.values())
    said = {
        "equity": "Equity after all costs as a multiple of its start. Look for when it was earned: one lucky month or "
        "many, and whether the line only follows the market.",
        "drawdown": "How far each account stood below its highest equity so far. Look at depth and at how long it "
        "takes to come back.",
    }
    title = {"equity": "Equity against the baselines", "drawdown": "Drawdown"}[kind]
    return Panel(
        kind,
        title,
        (said[kind] if caption is None else caption) + thinned_note(longest),
        [legend(colours), Plot(figure, kind + suffix)],
    )


def months_panel(curve: Curve, name: str) -> Panel | None:
    """Returns by month, a row per year; None where fewer than two months are there."""
    months = curve.time.astype("datetime64[M]")
    found, first = np.unique(months, return_index=True)
    if len(found) < 2:
        return None
    ends = np.append(first[1:], len(months))
    growth = {m: curve.wealth[e] / curve.wealth[f] - 1 for m, f, e in zip(found, first, ends, strict=True)}
    largest = max(max(abs(value) for value in growth.values()), 1e-9)
    years = np.unique(found.astype("datetime64[Y]"))
    rows = []
    for year in years:
        own = {int((m - year.astype("datetime64[M]")).astype(int)): v for m, v in growth.items() if m >= year}
        inside = np.flatnonzero(months.astype("datetime64[Y]") == year)
        total = curve.wealth[inside[-1] + 1] / curve.wealth[inside[0]] - 1
        rows.append((f"{year}", [_month(own.get(k), largest) for k in range(12)], _tenths(total)))
    return Panel(
        "months",
        "Month by month",
        f"Return of the {name} in each calendar month, percent, after costs; the last column is the year. Look for "
        "whether a few cells make the whole result. First and last months may be incomplete.",
        [Months(("", *_MONTHS, "year"), rows)],
    )


def _month(value: float | None, largest: float) -> tuple[str, str]:
    """Text and colour."""
    if value is None:
        return "", ""
    strength = 0.08 + 0.72 * min(abs(value) / largest, 1.0) if abs(value) >= 5e-4 else 0.0
    base = "31, 111, 178" if value > 0 else "194, 69, 45"
    return _tenths(value), f"rgba({base}, {strength:.2f})"


def _tenths(value: float) -> str:
    """Percent with one digit, never -0.0."""
    return f"{round(100 * value, 1) + 0.0:.1f}"


def rolling_panel(curves: Mapping[str, Curve], own: str, shown: Sequence[str], alpha: float, suffix: str) -> Panel:
    """Volatility and CVaR over a rolling half year (a third of the window, if that is shorter)."""
    longest = max(curves[own].returns.size, 2)
    span = max(min(round(curves[own].periods_per_year / 2), longest // 3), 2)
    colours = colours_of(list(curves), own)
    titles = ("Volatility per year", f"CVaR {100 * alpha:g}% of single bars")
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.13, subplot_titles=titles)
    for name in reversed(shown):
        curve = curves[name]
        ends = np.unique(np.linspace(span, len(curve.returns), MOST_WINDOWS).astype(np.int64))
        if len(curve.returns) < span:
            continue
        windows = [curve.returns[end - span : end] for end in ends]
        spread = [float(w.std(ddof=1) * np.sqrt(curve.periods_per_year)) for w in windows]
        tails = [float(worst_share(w, alpha)[1]) for w in windows]
        line = {"color": colours[name], "width": 2.2 if name == own else 1.3}
        time = curve.time[ends - 1]
        figure.add_trace(go.Scatter(x=time, y=spread, name=name, mode="lines", line=line), row=1, col=1)
        figure.add_trace(go.Scatter(x=time, y=tails, name=name, mode="lines", line=line), row=2, col=1)
    left_titles(layout(figure, height=430, hovermode="x unified"))
    figure.update_yaxes(tickformat=".1%")
    figure.update_yaxes(rangemode="tozero", row=1, col=1)
    return Panel(
        "rolling",
        "Risk over time",
        f"Each point looks back over {span:,} bars. Look for whether risk was cut before or after it rose: a policy "
        "that only follows falls with the market first.",
        [legend({name: colours[name] for name in shown}), Plot(figure, "rolling" + suffix)],
    )
