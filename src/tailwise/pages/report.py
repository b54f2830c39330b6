"""`report.html`: the verdict in words, then every panel, in one file that opens without a network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tailwise.evaluate.background import Background
from tailwise.evaluate.findings import Findings
from tailwise.evaluate.judgement import POLICY
from tailwise.evaluate.verdict_words import headline_of
from tailwise.evaluate.words import bounds, glossary_rows, percent, plain
from tailwise.pages.curves import Curve, lines_panel, months_panel, rolling_panel
from tailwise.pages.environment import write_page
from tailwise.pages.return_panels import distribution_panel, tail_panel
from tailwise.pages.stress_panels import odds_panel, stress_panels
from tailwise.pages.trading_panel import trading_panel
from tailwise.pages.training_panels import background_panels
from tailwise.pages.verdict import cards_of, comparison_panel, verdict_of
from tailwise.pages.views import Cell, Panel, Paragraphs, Part, ReportPage, Table, Top, with_suffixes


def write_report(
    path: Path, findings: Sequence[Findings], *, title: str, how: str, gamma: float, background: Background
) -> None:
    """Write the report of one or several accounts of one run.

    how: a sentence that says who decided, and how; gamma: discount per bar of the long tail.
    """
    write_page(path, report_page(findings, title=title, how=how, gamma=gamma, background=background))


def report_page(
    findings: Sequence[Findings], *, title: str, how: str, gamma: float, background: Background
) -> ReportPage:
    """What `write_report` writes, as view data."""
    last = Part(background_panels(background, findings[0].judged.statistics[POLICY].alpha))
    if len(findings) == 1:
        (account,) = findings
        part = Part(_panels(account, gamma))
        top = Top([*part.links, *last.links], verdict_of(account, how), cards_of(account))
        return ReportPage(title, top, [part, last])
    parts, overview = [], []
    for suffix, account in with_suffixes(findings):
        symbol, anchor = account.judged.symbol, f"account{suffix}"
        part = Part(_panels(account, gamma), suffix, symbol, anchor)
        parts.append(replace(part, top=Top(part.links, verdict_of(account, how), cards_of(account))))
        overview.append((anchor, symbol, headline_of(account)[0]))
    top = Top(last.links, overview=overview)
    return ReportPage(title, top, [*parts, replace(last, heading="The run")])


def _panels(account: Findings, gamma: float) -> list[Panel]:
    judged = account.judged
    numbers = judged.statistics[POLICY]
    curves = {name: Curve.of_path(path) for name, path in judged.paths.items()}
    reference = judged.reference
    panels = [
        lines_panel(curves, POLICY, kind="equity"),
        lines_panel(curves, POLICY, kind="drawdown"),
        comparison_panel(account.against, account.repetitions),
        months_panel(curves[POLICY], POLICY),
        trading_panel(judged.paths[POLICY]),
        rolling_panel(curves, POLICY, [POLICY, reference], numbers.alpha),
        distribution_panel(curves, POLICY, reference, numbers),
        tail_panel(judged, gamma),
        *(stress_panels(account.stressed) if account.stressed else [_no_stress(account.not_stressed)]),
        odds_panel(account.odds) if account.odds else None,
        metrics_panel(account),
    ]
    return [panel for panel in panels if panel is not None]


def _no_stress(reason: str | None) -> Panel | None:
    if reason is None:
        return None
    caption = "What dearer, later and worse markets would have done."
    return Panel("stress", "Stress tests", caption, [Paragraphs([f"Not played: {reason}"], "verdict")])


def metrics_panel(account: Findings) -> Panel:
    """Every number of every account, with intervals where there are some, and what each means."""
    judged, evidence = account.judged, account.evidence
    example = judged.statistics[POLICY]
    intervals = {
        "sharpe": bounds(evidence.sharpe, plain),
        "annual_volatility": bounds(evidence.volatility, percent),
        "cvar_bar": bounds(evidence.cvar_bar, lambda value: percent(value, 2)),
    }
    yearly = [
        _with_interval(percent(_yearly(s.total_return, s.years)), bounds(evidence.mean_return, percent), who)
        for who, s in judged.statistics.items()
    ]
    hint = "mean of log-returns per bar x bars per year; what intervals and comparisons speak of"
    rows = [[Cell("log-return per year", hint), *yearly]]
    for field, name, show, hint in glossary_rows(example):
        cells = [_with_interval(show(s), intervals.get(field), who) for who, s in judged.statistics.items()]
        rows.append([Cell(name, hint), *cells])
    level = f"{100 * evidence.mean_return.level:g}%"
    return Panel(
        "metrics",
        "Every number",
        f"All accounts over the same bars. Below some numbers of the policy: its {level} interval, stationary "
        f"bootstrap, {account.repetitions:,} resamples. A dash is undefined. A drawdown has no interval; see the odds.",
        [Table(("after all costs", *judged.statistics), rows, kind="metrics")],
    )


def _yearly(total: float, years: float) -> float | None:
    """Mean log-return per year; None for an account that lost everything."""
    return math.log1p(total) / years if total > -1 else None


def _with_interval(value: str, interval: str | None, who: str) -> Cell:
    """A number; that of the policy with its interval below, where it has one."""
    return Cell(value, interval if who == POLICY else None)
