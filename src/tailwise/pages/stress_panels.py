"""Panels of the report about what was not: dearer, later and worse markets, and futures that resemble the past."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tailwise.evaluate.judgement import POLICY
from tailwise.evaluate.monte_carlo import AccountOdds
from tailwise.evaluate.stress import StressResult
from tailwise.evaluate.words import EXPOSURES, chance, exposures, percent, plain
from tailwise.pages.figures import colours_of, layout, legend
from tailwise.pages.views import Panel, Plot, Table

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
        chosen = _ordered(group, scenarios)
        x = [_short(group, row, unchanged) for row in chosen]
        for column, y in enumerate(
            ([r.statistics.total_return for r in chosen], [-r.statistics.max_drawdown for r in chosen]), start=1
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
