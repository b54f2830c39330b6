"""Panels of the report about laws of returns: single bars with VaR and CVaR, and the horizon that a limit speaks of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from tailwise.evaluate.judgement import POLICY, SAMPLED, Judgement
from tailwise.evaluate.statistics import PathStatistics, forward_returns
from tailwise.evaluate.words import percent
from tailwise.pages.curves import Curve
from tailwise.pages.figures import INK, LIMIT, QUIET, colours_of, dash_of, layout, legend, line
from tailwise.pages.views import Panel, Plot

Floats = npt.NDArray[np.float64]
Mark = tuple[float, str, str, str]  # where, text, colour, dash
BINS = 60
_VAR, _CVAR = "#b8862b", LIMIT


def distribution_panel(curves: Mapping[str, Curve], own: str, beside: str, numbers: PathStatistics) -> Panel:
    """Log-returns of single bars of two accounts, with VaR and CVaR of the first."""
    tail = f"{100 * numbers.alpha:g}%"
    marks = [
        (numbers.var_bar, f"VaR {tail}: {percent(numbers.var_bar, 2)}", _VAR, "dot"),
        (numbers.cvar_bar, f"CVaR {tail}: {percent(numbers.cvar_bar, 2)}", _CVAR, "solid"),
    ]
    colours = colours_of(list(curves), own)
    values = {name: curves[name].returns for name in dict.fromkeys((own, beside))}
    figure = _histogram(values, own, colours, marks)
    return Panel(
        "distribution",
        "Returns of single bars",
        f"Log-returns per bar. One bar in {1 / numbers.alpha:.0f} was worse than VaR, and those bars lost CVaR on "
        "average. Look at the left tail: how far it reaches beyond that of the market. The vertical axis is cut above "
        "the second-highest column where an idle account piles up at zero.",
        [
            legend({name: colours[name] for name in values} | {f"VaR {tail}": _VAR, f"CVaR {tail}": _CVAR}),
            Plot(figure),
        ],
    )


def tail_panel(judged: Judgement, gamma: float) -> Panel | None:
    """Realised discounted returns with their tail and the limit; None if the window is shorter than the horizon."""
    names = [name for name in (POLICY, SAMPLED, judged.reference) if name in judged.paths]
    returns = {name: forward_returns(judged.paths[name], gamma) for name in names}
    numbers = judged.statistics[POLICY]
    if any(len(values) == 0 for values in returns.values()) or numbers.cvar_return is None:
        return None
    tail = f"CVaR {100 * numbers.alpha:g}%"
    marks = [(numbers.cvar_return, f"{tail}: {percent(numbers.cvar_return)}", _CVAR, "solid")]
    entries = {tail: _CVAR}
    limited = "This run has no limit."
    if judged.limits:
        verdict = judged.limits[POLICY]
        limited = "The limit of the run speaks of this tail: the line of the realised measure belongs right of it."
        marks.append((verdict.limit, f"limit {percent(verdict.limit)}", INK, "dash"))
        entries["limit"] = QUIET
        if verdict.measure != "cvar" and verdict.realised is not None:
            marks.append((verdict.realised, f"{verdict.measure}: {percent(verdict.realised)}", _VAR, "solid"))
            entries[verdict.measure] = _VAR
    colours = colours_of(list(judged.paths), POLICY)
    figure = _histogram(returns, POLICY, colours, marks)
    return Panel(
        "tail",
        f"Returns over {numbers.horizon} bars" + (", and the limit" if judged.limits else ""),
        f"Discounted log-return over the next {numbers.horizon} bars (gamma {gamma:g}), from every bar of the window. "
        f"Neighbouring values overlap: {_horizons(numbers.bars // numbers.horizon)} into the window without overlap. "
        f"{limited}",
        [legend({name: colours[name] for name in returns} | entries), Plot(figure)],
    )


def _horizons(count: int) -> str:
    return "1 horizon fits" if count == 1 else f"{count} horizons fit"


def _histogram(returns: Mapping[str, Floats], own: str, colours: Mapping[str, str], marks: Sequence[Mark]) -> Any:
    """Bars for `own`, steps for the others, a vertical line for each mark."""
    pooled = np.concatenate(list(returns.values()))
    low, high = float(pooled.min()), float(pooled.max())
    reach = max(high - low, 1e-9)  # an account that never trades has one value
    edges = np.linspace(low - 0.01 * reach, high + 0.01 * reach, BINS + 1)
    figure = go.Figure()
    heights = []
    for name, values in returns.items():
        part = np.histogram(values, edges)[0] / max(len(values), 1)
        heights += sorted(part)[-2:]
        if name == own:
            centres, width = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
            marker = {"color": colours[name], "opacity": 0.55}
            figure.add_trace(go.Bar(x=centres, y=part, width=width, name=name, marker=marker))
        else:
            dash = dash_of(name)
            figure.add_trace(line(edges, [0.0, *part], name, colours[name], width=1.6, shape="vh", dash=dash))
    for row, (x, text, colour, dash) in enumerate(marks):
        figure.add_vline(x=x, line={"color": colour if colour != INK else QUIET, "width": 2, "dash": dash})
        # Above the bars, each on its own line, on the side where there is room.
        side = "left" if x < (edges[0] + edges[-1]) / 2 else "right"
        figure.add_annotation(
            x=x, y=1 + 0.065 * row, yref="paper", yanchor="bottom", xanchor=side, text=text, showarrow=False
        )
    points = [x for x, *_ in marks]
    low, high = min(edges[0], *points), max(edges[-1], *points)
    layout(figure, height=360, margin={"l": 52, "r": 14, "t": 24 + 24 * len(marks), "b": 36}, hovermode="x unified")
    # Lines do not widen the axis by themselves, and a limit far from all returns has to be seen too.
    figure.update_xaxes(tickformat=".1%", range=[low - 0.04 * (high - low), high + 0.02 * (high - low)], nticks=8)
    heights.sort()
    usual = heights[-2] if len(heights) > 1 else heights[-1]
    cut = 1.15 * usual if heights[-1] > 2 * usual > 0 else None
    figure.update_yaxes(tickformat=".0%", title={"text": "share of bars", "font": {"size": 12}})
    if cut is not None:
        figure.update_yaxes(range=[0, cut])
    return figure
