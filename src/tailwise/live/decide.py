"""`tailwise decide`: what trained runs would hold now, in sentences and as a page with the predicted law."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import plotly.graph_objects as go

from tailwise.bars.bars import Bars
from tailwise.evaluate.words import percent
from tailwise.live.bar_files import read_bars
from tailwise.market.action_kinds import action_kind
from tailwise.pages.figures import INK, LIMIT, OWN, layout, line
from tailwise.pages.views import Panel, Part, Plot, ReportPage, Table, Top, Verdict, with_suffixes, write_page
from tailwise.run.decide import market_of
from tailwise.run.decision import Holding, LiveDecision, show
from tailwise.run.opening import Since
from tailwise.run.policy import Trader

MOST_DRIVES = 8  # rows that are printed
DRIVE_HEADS = ("entry of the observation", "value", "effect on the expected target", "on the CVaR", "decision changes")


def decisions(
    trader: Trader,
    files: Sequence[str],
    *,
    since: Since = None,
    account: Holding | None = None,
    stochastic: bool = False,
) -> list[LiveDecision]:
    """A decision for each symbol, or one for an account with several.

    files: SYMBOL=FILE or FILE; empty: the bars of the run, read again
    """
    market, _ = market_of(trader)
    bars: list[Bars] = read_bars(trader, files) if files else list(trader.market().dataset.bars)
    deterministic = False if stochastic else None
    each = [bars] if action_kind(market.action).portfolio else [[one] for one in bars]
    return [trader.decide(one, account, since=since, deterministic=deterministic) for one in each]


def sentences(made: LiveDecision) -> list[str]:
    """The decision in words: what to hold, how sure, the tail beside the limit, guards, and where it comes from."""
    what = "; ".join(
        f"{symbol}: {_exposure(target)} (now {_exposure(held)})"
        for symbol, target, held in zip(made.symbols, made.target, made.exposure, strict=True)
    )
    drawn = "" if made.deterministic else " (drawn from the probabilities)"
    lines = [f"At the close of the bar of {show(made.time)}, for the next open: hold {what} of equity{drawn}."]
    if made.choices is not None and made.probabilities is not None:
        odds = ", ".join(
            f"{_exposure(target)} {100 * p:.1f}%" for target, p in zip(made.choices, made.probabilities, strict=True)
        )
        lines.append(f"Probabilities: {odds}.")
    else:
        widths = ", ".join(
            f"{symbol} {_exposure(mean)} ± {spread:.2f}"
            for symbol, mean, spread in zip(made.symbols, made.expected, made.spread, strict=True)
        )
        lines.append(f"Mean and width of the policy: {widths}.")
    lines += [_law(made), _guards(made), made.hidden_state]
    return lines


def _law(made: LiveDecision) -> str:
    law = made.forecast
    span = f"discounted log-return of the next {law.horizon:,} bars"
    if law.cvar is None:
        return f"Predicted mean of the {span}: {percent(float(law.mean[0]))}; these critics predict no law."
    tail = f"CVaR {100 * law.alpha:g}% {percent(float(law.cvar[0]))}"
    text = f"Predicted {span}: mean {percent(float(law.mean[0]))}, {tail}"
    if law.limit is None:
        return f"{text}; the run has no limit."
    side = "within" if law.cvar[0] >= law.limit else "beyond"
    return f"{text}, {side} the limit of {percent(law.limit)} (which speaks of all bars together)."


def _guards(made: LiveDecision) -> str:
    verdict = made.verdict
    if not np.isfinite([verdict.low, verdict.high]).any():
        return "Guards: none is set."
    spoken = f"{', '.join(verdict.speaking)} speak" if verdict.speaking else "none speaks"
    left = "; ".join(
        f"{symbol} from {_exposure(low)} to {_exposure(high)}"
        for symbol, low, high in zip(made.symbols, verdict.low, verdict.high, strict=True)
    )
    return f"Guards: {spoken}; they leave {left}{', which cuts the target' if verdict.cut else ''}."


def _exposure(value: float) -> str:
    return f"{value:+.2f}" if value else "0"


def drive_rows(made: LiveDecision, most: int = MOST_DRIVES) -> list[tuple[str, ...]]:
    """What drove the expected target, the largest effect first: a row for each entry."""
    return [
        (
            one.name,
            f"{one.value:.3g}",
            ", ".join(f"{effect:+.3f}" for effect in one.effect),
            "-" if one.cvar is None else f"{100 * one.cvar:+.2f}%",
            "yes" if one.flips else "no",
        )
        for one in made.drives[:most]
    ]


def write_decisions(path: Path, made: Sequence[LiveDecision], *, title: str) -> None:
    """Write a page: each decision in words, its law as a picture, what drove it."""
    parts = [
        Part(_panels(one), suffix, " + ".join(one.symbols) if len(made) > 1 else "")
        for suffix, one in with_suffixes(list(made))
    ]
    first, *others = [text for one in made for text in sentences(one)]
    write_page(path, ReportPage(title, Top(parts[0].links, Verdict(first, "", others)), parts))


def _panels(made: LiveDecision) -> list[Panel]:
    drives = Panel(
        "drives",
        "What drove it",
        "One entry of the observation at a time is replaced by its mean over the training, and the policy is asked "
        "again. The hidden state stays, so this tells what the newest observation did, not what was remembered.",
        [Table(DRIVE_HEADS, drive_rows(made, len(made.drives)))],
    )
    return [panel for panel in (law_panel(made), drives) if panel is not None]


def law_panel(made: LiveDecision) -> Panel | None:
    """The predicted distribution function with mean, CVaR and limit; None for critics that predict no law."""
    law = made.forecast
    if law.quantiles is None or law.levels is None or law.cvar is None:
        return None
    figure = go.Figure()
    values = law.quantiles[0]
    tail = law.levels <= law.alpha
    figure.add_trace(line(values, law.levels, "predicted law", OWN, width=2))
    figure.add_trace(line(values[tail], law.levels[tail], f"worst {100 * law.alpha:g}%", LIMIT, width=4))
    marks = [(float(law.mean[0]), f"mean {percent(float(law.mean[0]))}", OWN, "dot")]
    marks.append((float(law.cvar[0]), f"CVaR {percent(float(law.cvar[0]))}", LIMIT, "solid"))
    if law.limit is not None:
        marks.append((law.limit, f"limit {percent(law.limit)}", INK, "dash"))
    for k, (place, text, colour, dash) in enumerate(marks):
        figure.add_vline(place, line={"color": colour, "dash": dash, "width": 1.5})
        figure.add_annotation(x=place, y=1.2 - 0.1 * (k % 2), yref="paper", text=text, showarrow=False)
    layout(figure, height=320, margin={"l": 52, "r": 14, "t": 60, "b": 36})
    figure.update_xaxes(tickformat=".1%")
    figure.update_yaxes(tickformat=".0%", range=[0, 1])
    return Panel(
        "law",
        "The law of what follows, as the critics predict it",
        f"Share of outcomes below each discounted log-return of the next {law.horizon:,} bars. The limit speaks of all "
        "bars together: a single forecast beyond it is no breach, many are.",
        [Plot(figure)],
    )
