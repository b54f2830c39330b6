"""Panels of the report about how the policy came to be: curves, calibration, alerts, configuration and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from tailwise.core.metrics import METRICS
from tailwise.evaluate.judge import Background
from tailwise.evaluate.words import percent
from tailwise.pages.figures import LIMIT, OWN, QUIET, layout, line, thin
from tailwise.pages.views import Alerts, Block, Cell, Folded, Panel, Paragraphs, Plots, Table

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
BINS = 10  # of a calibration
MOST_ALERTS = 20  # that are shown, the newest


def background_panels(background: Background, alpha: float) -> list[Panel]:
    """Calibration, training curves, alerts, configuration and data: those that there are."""
    panels = []
    if background.calibration is not None:
        panels.append(_calibration(background.calibration, alpha))
    if background.metrics is not None and len(background.metrics) > 1:
        panels.append(_training(background.metrics))
    if background.alerts is not None:
        panels.append(_alerts(background.alerts))
    if background.configuration or background.hashes:
        panels.append(_origin(background))
    return panels


def _calibration(numbers: Mapping[str, float], alpha: float) -> Panel:
    figures = [layout(figure, height=300, bargap=0.12) for figure in calibration_figures(numbers)]
    return Panel(
        "calibration",
        "Were the predictions right?",
        f"{calibration_sentence(numbers, alpha)} Left: on the diagonal, predicted quantiles hold what they promise; "
        "below it at the left end, bad outcomes were rarer than predicted. Right: each tenth of the predicted law "
        "should hold a tenth of what happened. This is of the training; the test window is not among it.",
        [Plots(figures)],
    )


def calibration_sentence(numbers: Mapping[str, float], alpha: float) -> str:
    """Coverage and tail, predicted and realised."""
    covers = ", ".join(f"{100 * numbers[f'coverage_{level}']:.1f}%" for level in ("05", "50", "95"))
    return (
        f"In training, over {numbers['windows']:.0f} newest complete windows, {covers} of the realised discounted "
        f"returns lay below the predicted 5%, 50% and 95% quantiles. Their CVaR {100 * alpha:g}%: predicted "
        f"{percent(numbers['cvar_predicted'])}, realised {percent(numbers['cvar_realised'])} (log-returns)."
    )


def calibration_figures(numbers: Mapping[str, float]) -> tuple[Any, Any]:
    """Predicted against realised quantiles (on the diagonal when right), and the shares in the ten tenths."""
    shares = [numbers[f"pit/{k}"] for k in range(BINS)]
    levels = np.arange(BINS + 1) / BINS
    reached = np.concatenate([[0.0], np.cumsum(shares)])
    quantiles = go.Figure(
        [
            go.Scatter(x=[0, 1], y=[0, 1], mode="lines", line={"color": QUIET, "dash": "dash"}, name="right"),
            go.Scatter(x=levels, y=reached, mode="lines+markers", line={"color": OWN}, name="realised"),
        ]
    )
    quantiles.update_xaxes(title="predicted probability", tickformat=".0%", range=[0, 1])
    quantiles.update_yaxes(title="realised share below", tickformat=".0%", range=[0, 1.02])
    tenths = go.Figure(
        go.Bar(x=[f"{10 * k + 10}%" for k in range(BINS)], y=shares, marker={"color": OWN, "opacity": 0.55})
    )
    tenths.add_hline(y=1 / BINS, line={"color": QUIET, "width": 1.5, "dash": "dash"})
    tenths.update_xaxes(title="tenth of the predicted law, up to", type="category")
    tenths.update_yaxes(tickformat=".0%", rangemode="tozero", title="share of what happened")
    return quantiles, tenths


def _training(metrics: pd.DataFrame) -> Panel:
    figures = []
    for name, title in _CURVES:
        if name not in metrics or metrics[name].notna().sum() < 2:
            continue
        figure = go.Figure()
        _line(figure, metrics, name, OWN, "solid")
        if (limit := _LIMITS.get(name)) in metrics:
            _line(figure, metrics, str(limit), LIMIT, "dash")
        unit = METRICS[name].unit
        text = title if unit == "1" else f"{title}, {unit}"
        layout(figure, height=220, title={"text": text, "font": {"size": 13}, "x": 0, "xanchor": "left", "y": 0.96})
        figure.update_xaxes(nticks=5)
        figures.append(figure)
    steps = int(metrics["steps"].iloc[-1])
    return Panel(
        "training",
        "Training curves",
        f"{len(metrics):,} updates, {steps:,} steps (horizontal axis). Look for curves that have settled, an entropy "
        "that has not collapsed at the start, and a measure of risk that ends on the right side of its limit (dashed).",
        [Plots(figures)],
    )


def _line(figure: Any, metrics: pd.DataFrame, name: str, colour: str, dash: str) -> None:
    rows_of_metric = metrics[["steps", name]].dropna()
    values = rows_of_metric[name].to_numpy(dtype=np.float64)
    rows = thin(values, 600)
    steps = rows_of_metric["steps"].to_numpy()
    figure.add_trace(line(steps[rows], values[rows], name, colour, width=1.5, dash=dash))


def _alerts(alerts: Sequence[Mapping[str, Any]]) -> Panel:
    blocks: list[Block] = []
    if not alerts:
        blocks.append(Paragraphs(["No rule fired: nothing in the training looked unhealthy."], "verdict"))
    elif len(alerts) > MOST_ALERTS:
        newest = f"The newest {MOST_ALERTS} of {len(alerts):,}; alerts.jsonl has all of them."
        blocks.append(Paragraphs([newest], "small"))
    lines = [
        (str(one["rule"]).replace("_", " "), f"update {one['update']}: {one['evidence']}; {one['advice']}")
        for one in alerts[-MOST_ALERTS:]
    ]
    return Panel(
        "alerts",
        "Alerts of the training",
        "What the health rules found while the policy was trained. An alert does not make the result wrong; it says "
        "where to look.",
        [*blocks, Alerts(lines)],
    )


def _origin(background: Background) -> Panel:
    blocks: list[Block] = [Paragraphs(background.facts, "small")]
    if background.hashes:
        rows = [
            (purpose, symbol, Cell(code, code=True))
            for purpose, symbols in background.hashes.items()
            for symbol, code in symbols.items()
        ]
        blocks.append(Table(("window", "symbol", "sha256 of its bars"), rows, kind="hashes"))
    if background.configuration:
        blocks.append(Folded("The complete configuration", text=background.configuration))
    if background.versions:
        blocks.append(Folded("Versions", table=Table(("package", "version"), list(background.versions.items()))))
    return Panel(
        "origin",
        "Configuration and data",
        "All that is needed to do it again: the same bars (by their hash), the same configuration, the same seed.",
        blocks,
    )
