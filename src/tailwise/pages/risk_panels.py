"""Panels of a report about risk: laws of returns with VaR, CVaR and the limit; stress tests; odds of other futures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tailwise.evaluate.evidence import AccountOdds
from tailwise.evaluate.judgement import POLICY, SAMPLED, Judgement
from tailwise.evaluate.statistics import PathStatistics, forward_returns
from tailwise.evaluate.stress import StressResult
from tailwise.evaluate.words import EXPOSURES, chance, exposures, percent, plain
from tailwise.pages.account_panels import Curve
from tailwise.pages.figures import INK, LIMIT, QUIET, colours_of, dash_of, layout, legend, line
from tailwise.pages.views import Panel, Plot, Table

Floats = npt.NDArray[np.float64]
Mark = tuple[float, str, str, str]  # where, text, colour, dash
BINS = 60
_VAR, _CVAR = "#b8862b", LIMIT
# Group of scenarios -> key and title of its panel, name of "as it was" on the axis, what to look for.
_GROUPS = {
    "costs": (
        "costs",
        "If trading had cost more or less",
        "1x",
        "All costs times a factor, from none to five times. Look for where the return turns negative: an edge that "
        "dies at twice the costs is a bet on the cost model. The policy decides anew in each case.",
    ),
    "latency": (
        "latency",
        "If orders had come later",
        "in time",
        "Fills one, two and five bars later than planned, with the same decisions. A large loss from a single bar "
        "means that the result hangs on the open right after the decision.",
    ),
    "crash": (
        "crash",
        "If a crash had come at the worst moment",
        "none",
        "A gap against the largest position, in the bar after it was reached; the level stays there. No stop can be "
        "filled inside a gap. What is lost follows from exposure alone: compare with the rule that is always in.",
    ),
    "volatility": (
        "volatility",
        "If volatility had doubled",
        "1x",
        "Every move twice as large around the mean return of all bars, so that good years become better too. Look at "
        "the drawdown: whether the policy takes smaller positions, or loses twice as much.",
    ),
    "missing bars": (
        "missing",
        "If bars had been missing",
        "none",
        "A random share of the bars left out, as a feed loses them. The result should hardly change.",
    ),
}
_HEADS = ("", "total return", "per year", "Sharpe", "worst drawdown", "CVaR, bar", "turnover/year", EXPOSURES)


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


def stress_panels(results: Mapping[str, Sequence[StressResult]]) -> list[Panel]:
    """One panel per group of scenarios, with the policy and the rule that is always in side by side."""
    groups = dict.fromkeys(row.group for row in next(iter(results.values())) if row.group in _GROUPS)
    return [_group_panel(group, results) for group in groups]


def _group_panel(group: str, results: Mapping[str, Sequence[StressResult]]) -> Panel:
    name, title, unchanged, caption = _GROUPS[group]
    colours = colours_of(list(results), POLICY)
    titles = ("Total return", "Worst drawdown")
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.16, subplot_titles=titles)
    for who, scenarios in results.items():
        ordered = _ordered(group, scenarios)
        x = [_short(group, row, unchanged) for row in ordered]
        for column, y in enumerate(
            ([r.statistics.total_return for r in ordered], [-r.statistics.max_drawdown for r in ordered]), start=1
        ):
            marker = {"color": colours[who], "size": 8}
            line = {"color": colours[who], "width": 1.6}
            trace = go.Scatter(x=x, y=y, name=who, mode="lines+markers", marker=marker, line=line)
            figure.add_trace(trace, row=1, col=column)
    layout(figure, height=270, hovermode="closest")
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    figure.update_xaxes(type="category", tickangle=0, tickfont={"size": 10})
    first, *others = (_ordered(group, scenarios) for scenarios in results.values())
    rows = [
        (row.label, *_numbers(row), *(part for o in others for part in _beside(o[at]))) for at, row in enumerate(first)
    ]
    names = list(results)[1:]
    heads = (*_HEADS, *(f"{who}: {what}" for who in names for what in ("total return", "worst drawdown")))
    return Panel(name, title, caption, [legend(colours), Plot(figure), Table(heads, rows)])


def _ordered(group: str, scenarios: Sequence[StressResult]) -> list[StressResult]:
    """ "As it was" and the scenarios of one group, in the order of their values."""
    at = {"costs": 1.0, "volatility": 1.0}.get(group, 0.0)
    places = [(at if row.group == "none" else row.value, row) for row in scenarios if row.group in ("none", group)]
    return [row for _, row in sorted(places, key=lambda place: place[0])]


def _short(group: str, row: StressResult, unchanged: str) -> str:
    if row.group == "none":
        return unchanged
    if group in ("costs", "volatility"):
        return f"{row.value:g}x"
    return f"+{row.value:g}" if group == "latency" else f"{row.value:.0%}"


def _beside(row: StressResult) -> tuple[str, str]:
    return percent(row.statistics.total_return), percent(-row.statistics.max_drawdown)


def _numbers(row: StressResult) -> tuple[str, ...]:
    s = row.statistics
    return (
        percent(s.total_return),
        percent(s.annual_return),
        plain(s.sharpe),
        percent(-s.max_drawdown),
        percent(s.cvar_bar, 2),
        plain(s.turnover, 1),
        exposures(s),
    )


def odds_panel(odds: Mapping[str, AccountOdds]) -> Panel:
    """Odds of loss, drawdowns and ruin by resampling the account's own returns."""
    one = odds[POLICY] if POLICY in odds else next(iter(odds.values()))
    colours = colours_of(list(odds), POLICY)
    labels = ["loss", *(f"-{size:.0%}" for size, _ in one.drawdowns), "ruin"]
    figure = go.Figure()
    for who, account in odds.items():
        chances = [account.loss, *(p for _, p in account.drawdowns), account.ruin]
        bars = go.Bar(x=labels, y=chances, name=who, marker={"color": colours[who], "opacity": 0.75})
        figure.add_trace(bars)
    layout(figure, height=300, bargap=0.35, hovermode="x unified")
    figure.update_yaxes(tickformat=".0%", range=[0, 1.02])
    figure.update_xaxes(type="category", tickangle=0)  # -10% is a name here, not a number
    rows = [
        (
            who,
            chance(account.loss, account.repetitions),
            *(chance(p, account.repetitions) for _, p in account.drawdowns),
            chance(account.ruin, account.repetitions),
            *(f"{value:.2f}" for _, value in account.wealth),
        )
        for who, account in odds.items()
    ]
    heads = ("", *labels, *(f"wealth, {level:.0%}" for level, _ in one.wealth))
    return Panel(
        "odds",
        "What else could have happened",
        f"{one.repetitions:,} futures of {_years(one.years)}, put together from blocks of the account's own returns "
        f"(about {one.block} bars each): the odds of ending with a loss, of ever being 10, 20, 30, 50% below the "
        f"peak, and of ruin ({one.ruin_level:.0%} of the start left); then quantiles of final wealth, as multiples of "
        f"the start. Sampling error up to {100 * one.error:.1f} points. A future like the past: a crash that these "
        "bars do not contain has no odds here.",
        [legend(colours), Plot(figure), Table(heads, rows)],
    )


def _years(years: float) -> str:
    return "a year" if abs(years - 1) < 0.01 else f"{years:.2g} years"
