"""Panels of the report about how the policy came to be: curves, calibration, alerts, configuration and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from tailwise.core.metrics import METRICS
from tailwise.evaluate.background import Background
from tailwise.pages.calibration_panel import calibration_figures, calibration_sentence
from tailwise.pages.curves import layout, thin
from tailwise.pages.markup import Html, element, join
from tailwise.pages.page_frame import Panel, paragraphs, plot, table

if TYPE_CHECKING:
    import pandas as pd

# What is drawn of a training, if the run wrote it; a limit is drawn beside the measure that it bounds.
_CURVES = (
    ("episode/return", "Return of finished episodes"),
    ("evaluate/return", "Return on the selection window"),
    ("risk/measure", "Measure of risk, and its limit"),
    ("risk/multiplier", "Weight of the risk"),
    ("policy/entropy", "Entropy of the policy"),
    ("policy/kl", "Change of the policy per update"),
    ("critic/explained_variance", "Variance that the critics explain"),
    ("grad/norm_before", "Gradient norm before clipping"),
)
_LIMITS = {"risk/measure": "risk/limit"}


def background_panels(known: Background, alpha: float) -> list[Panel]:
    """Calibration, training curves, alerts, configuration and data: those that there are."""
    found = []
    if known.calibration is not None:
        found.append(_calibration(known.calibration, alpha))
    if known.metrics is not None and len(known.metrics) > 1:
        found.append(_training(known.metrics))
    if known.alerts is not None:
        found.append(_alerts(known.alerts))
    if known.configuration or known.hashes:
        found.append(_origin(known))
    return found


def _calibration(numbers: Mapping[str, float], alpha: float) -> Panel:
    shown = [layout(figure, height=300, bargap=0.12) for figure in calibration_figures(numbers)]
    plots = [element("div", plot(figure, name=f"plot-calibration-{number}")) for number, figure in enumerate(shown)]
    return Panel(
        "calibration",
        "Were the predictions right?",
        f"{calibration_sentence(numbers, alpha)} Left: on the diagonal, predicted quantiles hold what they promise; "
        "below it at the left end, bad outcomes were rarer than predicted. Right: each tenth of the predicted law "
        "should hold a tenth of what happened. This is of the training; the test window is not among it.",
        element("div", *plots, class_="plots"),
    )


def _training(metrics: pd.DataFrame) -> Panel:
    plots = []
    for name, title in _CURVES:
        if name not in metrics or metrics[name].notna().sum() < 2:
            continue
        figure = go.Figure()
        _line(figure, metrics, name, "#1f6fb2", "solid")
        if (limit := _LIMITS.get(name)) in metrics:
            _line(figure, metrics, str(limit), "#c2452d", "dash")
        unit = METRICS[name].unit
        text = title if unit == "1" else f"{title}, {unit}"
        layout(figure, height=220, title={"text": text, "font": {"size": 13}, "x": 0, "xanchor": "left", "y": 0.96})
        figure.update_xaxes(nticks=5)
        plots.append(element("div", plot(figure, name=f"plot-training-{name.replace('/', '-')}")))
    steps = int(metrics["steps"].iloc[-1])
    return Panel(
        "training",
        "Training curves",
        f"{len(metrics):,} updates, {steps:,} steps (horizontal axis). Look for curves that have settled, an entropy "
        "that has not collapsed at the start, and a measure of risk that ends on the right side of its limit (dashed).",
        element("div", *plots, class_="plots"),
    )


def _line(figure: Any, metrics: pd.DataFrame, name: str, colour: str, dash: str) -> None:
    known = metrics[["steps", name]].dropna()
    values = known[name].to_numpy(dtype=np.float64)
    rows = thin(values, 600)
    line = {"color": colour, "width": 1.5, "dash": dash}
    x = known["steps"].to_numpy()[rows]
    figure.add_trace(go.Scatter(x=x, y=values[rows], name=name, mode="lines", line=line))


def _alerts(alerts: Sequence[Mapping[str, Any]]) -> Panel:
    if not alerts:
        body = paragraphs(["No rule fired: nothing in the training looked unhealthy."], "verdict")
    else:
        body = join(
            element(
                "p",
                element("b", str(alert["rule"]).replace("_", " ")),
                f", update {alert['update']}: {alert['evidence']}; {alert['advice']}",
                class_="alert",
            )
            for alert in alerts[-20:]
        )
        if len(alerts) > 20:
            body = paragraphs([f"The newest 20 of {len(alerts):,}; alerts.jsonl has all of them."], "small") + body
    return Panel(
        "alerts",
        "Alerts of the training",
        "What the health rules found while the policy was trained. An alert does not make the result wrong; it says "
        "where to look.",
        body,
    )


def _origin(known: Background) -> Panel:
    rows = [(purpose, symbol, code) for purpose, symbols in known.hashes.items() for symbol, code in symbols.items()]
    heads = ("window", "symbol", "sha256 of its bars")
    parts = paragraphs(known.facts, "small")
    if rows:
        parts += table(
            heads, [(purpose, symbol, element("code", code)) for purpose, symbol, code in rows], kind="hashes"
        )
    if known.configuration:
        parts += _folded("The complete configuration", element("pre", known.configuration))
    if known.versions:
        versions = [(name, version) for name, version in known.versions.items()]
        parts += _folded("Versions", table(("package", "version"), versions))
    return Panel(
        "origin",
        "Configuration and data",
        "All that is needed to do it again: the same bars (by their hash), the same configuration, the same seed.",
        parts,
    )


def _folded(summary: str, body: Html) -> Html:
    """What is read on a click."""
    return element("details", element("summary", summary), body)
