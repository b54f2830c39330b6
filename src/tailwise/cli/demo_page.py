"""The page of the demonstration: one HTML file with its script inside, so that it opens without a network."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.io import to_html
from plotly.subplots import make_subplots

from tailwise.cli.evaluating import LABELS, statistics
from tailwise.cli.output import number
from tailwise.core.atomic import write_text
from tailwise.run.config import Config
from tailwise.run.play import Played

if TYPE_CHECKING:
    import pandas

INK, GREY, BLUE, RED, GRID = "#1b2733", "#8a97a3", "#1f6fb2", "#c2452d", "#e6eaee"

_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1b2733; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; margin-bottom: .2rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .25rem 1rem .25rem 0; text-align: right; border-bottom: 1px solid #e6eaee; }}
th:first-child, td:first-child {{ text-align: left; }}
.small {{ color: #5b6874; font-size: .9rem; }}
</style></head><body>
<h1>{title}</h1>
<p class="small">{facts}</p>
{table}
{plot}
<p class="small">{legend}</p>
</body></html>
"""


def write_page(path: Path, *, config: Config, metrics: pandas.DataFrame, trained: Played, random: Played) -> None:
    """Write the page: a table of the two policies, learning curves, the returns of the evaluation."""
    critic = config.model.critic
    facts = (
        f"Training on the market is not wired up yet; this page shows that training works. "
        f"{config.run.total_steps:,} steps, core {config.model.core.kind}, "
        f"{'twin ' if critic.twin else ''}{critic.kind} critic, seed {config.seed}."
    )
    legend = (
        "Return of an episode: the sum of its rewards, mean of the last 100 finished episodes. "
        f"Discounted return: from every step on, gamma {config.learner.gamma:g}."
    )
    if config.tail_alpha is not None:
        legend += (
            f" CVaR {100 * config.tail_alpha:g}%: the mean of the worst {100 * config.tail_alpha:g}% of it, "
            "as the targets of the critics see it (risk/cvar_return)."
        )
    text = _TEMPLATE.format(
        title=html.escape(f"Tailwise demo: {config.env.id}"),
        facts=html.escape(facts),
        table=_table(trained, random),
        plot=to_html(
            _figure(config, metrics, trained, random),
            full_html=False,
            include_plotlyjs=True,
            config={"displayModeBar": False, "responsive": True},
        ),
        legend=html.escape(legend),
    )
    write_text(path, text)


def _table(trained: Played, random: Played) -> str:
    ours, theirs = statistics(trained), statistics(random)
    rows = "".join(
        f"<tr><td>{label}</td><td>{number(ours[key])}</td><td>{number(theirs[key])}</td></tr>" for key, label in LABELS
    )
    return f"<table><tr><th>the same seeded episodes</th><th>trained</th><th>random</th></tr>{rows}</table>"


def _figure(config: Config, metrics: pandas.DataFrame, trained: Played, random: Played) -> Any:
    figure = make_subplots(
        rows=2,
        cols=2,
        subplot_titles=(
            "Return of an episode while training",
            "Returns in the evaluation",
            "Discounted return and its tail while training",
            "Entropy of the policy while training",
        ),
        horizontal_spacing=0.1,
        vertical_spacing=0.16,
    )
    steps = metrics["steps"]

    def line(name: str, label: str, colour: str, row: int, col: int, legend: str | None = None) -> None:
        if name in metrics:
            trace = go.Scatter(x=steps, y=metrics[name], name=label, mode="lines", line={"color": colour, "width": 2})
            trace.update(showlegend=legend is not None, legend=legend)
            figure.add_trace(trace, row=row, col=col)

    line("episode/return", "return", BLUE, 1, 1)
    line("return/mean", "mean", BLUE, 2, 1, "legend2")
    if config.tail_alpha is not None:
        line("risk/cvar_return", f"CVaR {100 * config.tail_alpha:g}%", RED, 2, 1, "legend2")
    line("policy/entropy", "entropy", BLUE, 2, 2)
    top = float(max(trained.returns.max(), random.returns.max()))
    size = max(top / 25, 1.0)
    bins = {"start": -size / 2, "end": top + size, "size": size}
    for played, label, colour in ((random, "random", GREY), (trained, "trained", BLUE)):
        figure.add_trace(go.Histogram(x=played.returns, name=label, marker_color=colour, xbins=bins), row=1, col=2)
    figure.update_layout(
        template="plotly_white",
        height=760,
        barmode="overlay",
        font={"color": INK, "size": 13},
        margin={"l": 60, "r": 40, "t": 60, "b": 50},
        # Each panel with two series has its own legend inside it.
        legend={"x": 0.77, "xanchor": "center", "y": 0.97},
        legend2={"x": 0.44, "xanchor": "right", "y": 0.03, "yanchor": "bottom"},
    )
    figure.update_xaxes(gridcolor=GRID, title_text="steps")
    figure.update_xaxes(title_text="return, reward units", row=1, col=2)
    figure.update_yaxes(gridcolor=GRID, rangemode="tozero")
    figure.update_yaxes(title_text="reward units", row=1, col=1)
    figure.update_yaxes(title_text="episodes", row=1, col=2)
    figure.update_yaxes(title_text="reward units", row=2, col=1)
    figure.update_yaxes(title_text="nats", row=2, col=2)
    return figure
