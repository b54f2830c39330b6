"""The panel of the report that shows what was done: orders on the price, and the exposure that came of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tailwise.market.path import AccountPath
from tailwise.pages.figures import LIMIT, OWN, QUIET, colours_of, layout, left_titles, line, thin, thinned_note
from tailwise.pages.views import Legend, Panel, Plot

MOST_MARKS = 400  # orders that are drawn; of more, the largest
_PRICE, _BUY, _SELL, _EXIT = QUIET, "#2f8f5a", LIMIT, "#b8862b"
_OUT = "stop, take-profit or liquidation"
_SIGNS = {"bought": "▲", "sold": "▼", _OUT: "✕"}


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
    colours = {path.assets[0]: OWN} if single else colours_of(path.assets, "")
    for a, asset in enumerate(path.assets):
        values = path.exposures[:, a]
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


def _orders(figure: Any, path: AccountPath) -> tuple[int, int]:
    """Draw the price and the orders; how many orders were drawn, of how many."""
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
