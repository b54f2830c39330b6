"""Were the predicted laws right? The newest calibration of a run in words and as a picture for its page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from tailwise.run.metric_store import read

PREFIX = "calibration/"
BINS = 10


def newest_calibration(run_dir: str | Path) -> dict[str, float] | None:
    """The last calibration that the training of a run wrote, names without `calibration/`; None if it wrote none."""
    rows = read(run_dir)
    names = [name for name in rows if name.startswith(PREFIX)]
    if not names:
        return None
    known = rows[names].dropna()
    if known.empty:
        return None
    return {name.removeprefix(PREFIX): float(value) for name, value in known.iloc[-1].items()}


def calibration_sentence(numbers: Mapping[str, float], alpha: float) -> str:
    """Coverage and tail, predicted and realised."""
    covers = ", ".join(f"{100 * numbers[f'coverage_{level}']:.1f}%" for level in ("05", "50", "95"))
    return (
        f"In training, over {numbers['windows']:.0f} newest complete windows, {covers} of the realised discounted "
        f"returns lay below the predicted 5%, 50% and 95% quantiles. CVaR {100 * alpha:g}%: predicted "
        f"{numbers['cvar_predicted']:.3g}, realised {numbers['cvar_realised']:.3g}."
    )


def calibration_figure(numbers: Mapping[str, float], *, colour: str, ink: str, grid: str) -> Any:
    """Shares of realised returns in the ten tenths of their predicted laws; all should be a tenth."""
    shares = [numbers[f"pit/{k}"] for k in range(BINS)]
    figure = go.Figure(
        go.Bar(x=[f"{10 * k}-{10 * k + 10}%" for k in range(BINS)], y=shares, marker={"color": colour, "opacity": 0.55})
    )
    figure.add_hline(y=1 / BINS, line={"color": ink, "width": 1.5, "dash": "dash"})
    figure.update_layout(
        template="plotly_white",
        height=300,
        title={"text": "Predicted against realised returns in training: each bar should be 10%", "x": 0.5},
        font={"color": ink, "size": 13},
        margin={"l": 60, "r": 30, "t": 60, "b": 50},
        showlegend=False,
    )
    figure.update_xaxes(title="tenth of the predicted law into which the realised return fell", gridcolor=grid)
    figure.update_yaxes(tickformat=".0%", rangemode="tozero", gridcolor=grid)
    return figure
