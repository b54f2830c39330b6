"""Panels of a report about the path of an account: equity, drawdown, months, rolling risk, orders and exposure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tailwise.evaluate.statistics import drawdowns, worst_share
from tailwise.market.path import AccountPath
from tailwise.pages.figures import (
    LIMIT,
    OWN,
    QUIET,
    colours_of,
    dash_of,
    layout,
    left_titles,
    legend,
    line,
    thin,
    thinned_note,
)
from tailwise.pages.views import Legend, Months, Panel, Plot

Floats = npt.NDArray[np.float64]
MOST_WINDOWS = 400  # points of a rolling measure
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MOST_LINES = 8  # exposures of single assets that are drawn
MOST_MARKS = 400  # orders that are drawn; of more, the largest
_PRICE, _BUY, _SELL, _EXIT = QUIET, "#2f8f5a", LIMIT, "#b8862b"
_OUT = "stop, take-profit or liquidation"
_SIGNS = {"bought": "▲", "sold": "▼", _OUT: "✕"}


@dataclass(frozen=True, eq=False)
class Curve:
    """Equity of one account as a multiple of its start, wealth float64 [n + 1], at the closes of bars `time` [n]."""

    time: npt.NDArray[np.datetime64]
    wealth: Floats
    periods_per_year: float

    @property
    def returns(self) -> Floats:
        """Log-returns float64 [n]; wealth of nothing counts as a millionth."""
        return np.diff(np.log(np.maximum(self.wealth, 1e-6)))

    @property
    def times(self) -> npt.NDArray[np.datetime64]:
        """[n + 1]: one step before the first bar, where it starts at 1, then the bars."""
        step = self.time[1] - self.time[0] if len(self.time) > 1 else np.timedelta64(1, "D")
        return np.concatenate([self.time[:1] - step, self.time])


def curves_of(paths: Mapping[str, AccountPath]) -> dict[str, Curve]:
    return {name: Curve(path.time, path.wealth, path.periods_per_year) for name, path in paths.items()}


def lines_panel(curves: Mapping[str, Curve], own: str, *, kind: str, caption: str | None = None) -> Panel:
    """Equity (kind 'equity') or drawdown from the highest equity (kind 'drawdown') of all accounts."""
    colours = colours_of(list(curves), own)
    figure = go.Figure()
    for name, curve in list(curves.items())[::-1]:  # what is judged lies on top
        values = curve.wealth if kind == "equity" else -drawdowns(curve.wealth)
        rows = thin(values)
        width = 2.4 if name == own else 1.3
        figure.add_trace(line(curve.times[rows], values[rows], name, colours[name], width=width, dash=dash_of(name)))
    layout(figure, height=400 if kind == "equity" else 260, hovermode="x unified")
    figure.update_yaxes(tickformat=".2f" if kind == "equity" else ".0%")
    longest = max(len(curve.time) for curve in curves.values())
    captions = {
        "equity": "Equity after all costs as a multiple of its start. Look for when it was earned: one lucky month or "
        "many, and whether the line only follows the market.",
        "drawdown": "How far each account stood below its highest equity so far. Look at depth and at how long it "
        "takes to come back.",
    }
    title = {"equity": "Equity against the baselines", "drawdown": "Drawdown"}[kind]
    return Panel(
        kind,
        title,
        (captions[kind] if caption is None else caption) + thinned_note(longest),
        [legend(colours), Plot(figure)],
    )


def months_panel(curve: Curve, name: str) -> Panel | None:
    """Returns by month, a row per year; None where fewer than two months are there."""
    months = curve.time.astype("datetime64[M]")
    present, first = np.unique(months, return_index=True)
    if len(present) < 2:
        return None
    ends = np.append(first[1:], len(months))
    growth = {m: curve.wealth[e] / curve.wealth[f] - 1 for m, f, e in zip(present, first, ends, strict=True)}
    largest = max(max(abs(value) for value in growth.values()), 1e-9)
    years = np.unique(present.astype("datetime64[Y]"))
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
    strength = 0.08 + 0.62 * min(abs(value) / largest, 1.0) if abs(value) >= 5e-4 else 0.0
    base = "31, 111, 178" if value > 0 else "194, 69, 45"
    return _tenths(value), f"rgba({base}, {strength:.2f})"


def _tenths(value: float) -> str:
    """Percent with one digit, never -0.0."""
    return f"{round(100 * value, 1) + 0.0:.1f}"


def rolling_panel(curves: Mapping[str, Curve], own: str, names: Sequence[str], alpha: float) -> Panel:
    """Volatility and CVaR over a rolling half year (a third of the window, if that is shorter)."""
    longest = max(curves[own].returns.size, 2)
    span = max(min(round(curves[own].periods_per_year / 2), longest // 3), 2)
    colours = colours_of(list(curves), own)
    titles = ("Volatility per year", f"CVaR {100 * alpha:g}% of single bars")
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.13, subplot_titles=titles)
    for name in reversed(names):
        curve = curves[name]
        ends = np.unique(np.linspace(span, len(curve.returns), MOST_WINDOWS).astype(np.int64))
        if len(curve.returns) < span:
            continue
        windows = [curve.returns[end - span : end] for end in ends]
        spread = [float(w.std(ddof=1) * np.sqrt(curve.periods_per_year)) for w in windows]
        tails = [float(worst_share(w, alpha)[1]) for w in windows]
        for row, values in enumerate((spread, tails), start=1):
            width = 2.2 if name == own else 1.3
            figure.add_trace(line(curve.time[ends - 1], values, name, colours[name], width=width), row=row, col=1)
    left_titles(layout(figure, height=430, hovermode="x unified"))
    figure.update_yaxes(tickformat=".1%")
    figure.update_yaxes(rangemode="tozero", row=1, col=1)
    return Panel(
        "rolling",
        "Risk over time",
        f"Each point looks back over {span:,} bars. Look for whether risk was cut before or after it rose: a policy "
        "that only follows falls with the market first.",
        [legend({name: colours[name] for name in names}), Plot(figure)],
    )


def trading_panel(path: AccountPath) -> Panel:
    """Price with orders and exits, and exposure; a portfolio has its exposures alone, one line per asset."""
    single = len(path.assets) == 1
    titles = ("Price and orders", "Exposure, multiple of equity") if single else ("Exposure, multiple of equity",)
    heights = [0.62, 0.38] if single else [1.0]
    figure = make_subplots(
        rows=len(titles), cols=1, shared_xaxes=True, vertical_spacing=0.12, row_heights=heights, subplot_titles=titles
    )
    entries, note = {}, ""
    if single:
        drawn, total = _orders(figure, path)
        entries = {"price": _PRICE, "bought": _BUY, "sold": _SELL}
        if (path.ledger["exit_units"] != 0).any():
            entries[_OUT] = _EXIT
        if drawn < total:
            note = f" Of {total:,} orders the {drawn:,} largest are drawn."
    held = _exposures(path)
    colours = {path.assets[0]: OWN} if single else colours_of(list(held), "")
    for asset, values in held.items():
        rows = thin(values)
        trace = line(path.time[rows], values[rows], asset, colours[asset], width=1.2, shape="hv")
        if single:
            trace.update(fill="tozeroy", fillcolor="rgba(31, 111, 178, 0.18)")
        figure.add_trace(trace, row=len(titles), col=1)
    left_titles(layout(figure, height=500 if single else 340))
    figure.update_yaxes(tickformat=".2f", row=len(titles), col=1)
    return Panel(
        "trading",
        "What it did",
        "Every order on the price, and the exposure held at each close: 1 is the whole equity, negative is short. Look "
        f"for whether it times, or merely holds less.{note}{thinned_note(len(path))}",
        [Legend(entries if single else colours, signs=_SIGNS), Plot(figure)],
    )


def _exposures(path: AccountPath) -> dict[str, Floats]:
    """Exposure float64 [n] of each asset; of more than MOST_LINES of them, of all long and all short positions."""
    values = path.exposures
    if len(path.assets) <= MOST_LINES:
        return {asset: values[:, a] for a, asset in enumerate(path.assets)}
    long, short = np.maximum(values, 0.0).sum(axis=1), np.minimum(values, 0.0).sum(axis=1)
    return {"all long": long, "all short": short, "net": long + short}


def _orders(figure: Any, path: AccountPath) -> tuple[int, int]:
    """Draw the price and the orders; return how many orders were drawn, and of how many."""
    close = path.close[:, 0]
    rows = thin(close)
    figure.add_trace(line(path.time[rows], close[rows], "price", _PRICE, width=1.2), row=1, col=1)
    units, exits = path.ledger["order_units"][:, 0], path.ledger["exit_units"][:, 0]
    size = np.abs(units) * path.ledger["order_price"][:, 0] / np.maximum(path.ledger["equity_before"], 1e-12)
    ordered = np.flatnonzero(units)
    kept = ordered if len(ordered) <= MOST_MARKS else np.sort(ordered[np.argsort(-size[ordered])[:MOST_MARKS]])
    kinds = (
        ("bought", kept[units[kept] > 0], "order_price", _BUY, "triangle-up"),
        ("sold", kept[units[kept] < 0], "order_price", _SELL, "triangle-down"),
        ("exit", np.flatnonzero(exits)[:MOST_MARKS], "exit_price", _EXIT, "x"),
    )
    for name, at, price, colour, symbol in kinds:
        marker = {"color": colour, "symbol": symbol, "size": 6.5, "opacity": 0.85}
        trace = go.Scatter(
            x=path.time[at],
            y=path.ledger[price][at, 0],
            name=name,
            mode="markers",
            marker=marker,
            text=[f"{name} {size[t]:.2f} of equity" for t in at],
            hoverinfo="x+y+text",
        )
        figure.add_trace(trace, row=1, col=1)
    return len(kept), len(ordered)
