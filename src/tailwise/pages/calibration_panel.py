"""Were the predicted laws right? A calibration in words and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tailwise.evaluate.words import percent

BINS = 10
_COLOUR, _IDEAL = "#1f6fb2", "#7b8794"


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
            go.Scatter(x=[0, 1], y=[0, 1], mode="lines", line={"color": _IDEAL, "dash": "dash"}, name="right"),
            go.Scatter(x=levels, y=reached, mode="lines+markers", line={"color": _COLOUR}, name="realised"),
        ]
    )
    quantiles.update_xaxes(title="predicted probability", tickformat=".0%", range=[0, 1])
    quantiles.update_yaxes(title="realised share below", tickformat=".0%", range=[0, 1.02])
    tenths = go.Figure(
        go.Bar(x=[f"{10 * k + 10}%" for k in range(BINS)], y=shares, marker={"color": _COLOUR, "opacity": 0.55})
    )
    tenths.add_hline(y=1 / BINS, line={"color": _IDEAL, "width": 1.5, "dash": "dash"})
    tenths.update_xaxes(title="tenth of the predicted law, up to", type="category")
    tenths.update_yaxes(tickformat=".0%", rangemode="tozero", title="share of what happened")
    return quantiles, tenths
