"""`report.html`: the verdict in words, then every panel, in one file that opens without a network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from tailwise.core.atomic import write_text
from tailwise.evaluate.background import Background
from tailwise.evaluate.findings import Findings
from tailwise.evaluate.judgement import POLICY
from tailwise.evaluate.verdict_words import headline_of, verdict_sentences
from tailwise.evaluate.words import bounds, costly_impact, glossary_rows, percent, plain, ruins
from tailwise.pages.curves import Curve, lines_panel, months_panel, rolling_panel
from tailwise.pages.markup import NOTHING, Html, element, join
from tailwise.pages.page_frame import Panel, contents, paragraphs, report_page, section, table
from tailwise.pages.return_panels import distribution_panel, tail_panel
from tailwise.pages.stress_panels import odds_panel, stress_panels
from tailwise.pages.trading_panel import trading_panel
from tailwise.pages.training_panels import background_panels
from tailwise.pages.verdict import (
    comparison_list,
    comparison_panel,
    judgement_box,
    key_figures,
    leak_paragraph,
)


def write_report(
    path: Path, findings: Sequence[Findings], *, title: str, how: str, gamma: float, background: Background
) -> None:
    """Write the report of one or several accounts of one run.

    how: a sentence that says who decided, and how; gamma: discount per bar of the long tail.
    """
    write_text(path, report_text(findings, title=title, how=how, gamma=gamma, background=background))


def report_text(findings: Sequence[Findings], *, title: str, how: str, gamma: float, background: Background) -> str:
    """The HTML of `write_report`."""
    parts, top = NOTHING, NOTHING
    last = background_panels(background, findings[0].judged.statistics[POLICY].alpha)
    for number, found in enumerate(findings):
        suffix = "" if number == 0 else f"-{number + 1}"
        box = _verdict(found, how) + key_figures(found)
        panels = _panels(found, gamma, suffix)
        body = join(section(panel, suffix) for panel in panels)
        if len(findings) == 1:
            top = box + contents([*panels, *last])
            parts = body
        else:
            heading = element("h1", found.judged.symbol, class_="symbol", id=f"account{suffix}")
            parts += heading + box + contents(panels, suffix) + body
    if len(findings) > 1:
        top = _overview(findings) + contents(last)
        parts += element("h1", "The run", class_="symbol")
    parts += join(section(panel) for panel in last)
    return report_page(title, top=top, parts=parts)


def _overview(findings: Sequence[Findings]) -> Html:
    """A line per account, with a link to it."""
    rows = []
    for number, found in enumerate(findings):
        sentence, _ = headline_of(found)
        anchor = f"#account{'' if number == 0 else f'-{number + 1}'}"
        link = element("a", element("b", found.judged.symbol), href=anchor)
        rows.append(element("p", link, f": {sentence}"))
    return element("div", *rows, class_="judgement")


def _verdict(found: Findings, how: str) -> Html:
    judged = found.judged
    time, numbers = judged.time, judged.statistics[POLICY]
    unseen = "that it was neither trained on nor selected by" if judged.purpose == "test" else "of its selection"
    if judged.purpose == "backtest":
        unseen = "over which the rule was played; nobody can tell whether it was made for them"
    kind = "real bars" if judged.label == "real" else f"bars that are {judged.label}"
    tested = (
        f"Tested on {judged.symbol}, {str(time[0])[:10]} to {str(time[-1])[:10]}: {numbers.bars:,} {kind} {unseen}, "
        f"after all costs. {how}"
    )
    sentence, colour = headline_of(found)
    warnings = [
        *ruins(judged.paths),
        *costly_impact(judged.paths[POLICY]),
        *([found.doubt] if found.doubt else []),
        *judged.left_out,
    ]
    if judged.label != "real":
        warnings.insert(0, f"Not a real market: {judged.label}.")
    rhythm = found.rhythm or f"{numbers.periods_per_year:g} bars per year."
    said = judgement_box(sentence, colour, verdict_sentences(found, tested), warnings, comparison_list(found.against))
    return said + leak_paragraph(found.leak_check) + paragraphs([f"Annual numbers: {rhythm}"], "small")


def _panels(found: Findings, gamma: float, suffix: str) -> list[Panel]:
    judged = found.judged
    numbers = judged.statistics[POLICY]
    curves = {name: Curve.of_path(path) for name, path in judged.paths.items()}
    reference = judged.reference
    shown = [
        lines_panel(curves, POLICY, kind="equity", suffix=suffix),
        lines_panel(curves, POLICY, kind="drawdown", suffix=suffix),
        comparison_panel(found.against, found.repetitions),
        months_panel(curves[POLICY], POLICY),
        trading_panel(judged.paths[POLICY], suffix),
        rolling_panel(curves, POLICY, [POLICY, reference], numbers.alpha, suffix),
        distribution_panel(curves, POLICY, reference, numbers, suffix),
        tail_panel(judged, gamma, suffix),
        *(stress_panels(found.stressed, suffix) if found.stressed else [_no_stress(found.not_stressed)]),
        odds_panel(found.odds, suffix) if found.odds else None,
        metrics_panel(found),
    ]
    return [panel for panel in shown if panel is not None]


def _no_stress(reason: str | None) -> Panel | None:
    if reason is None:
        return None
    body = paragraphs([f"Not played: {reason}"], "verdict")
    return Panel("stress", "Stress tests", "What dearer, later and worse markets would have done.", body)


def metrics_panel(found: Findings) -> Panel:
    """Every number of every account, with intervals where there are some, and what each means."""
    judged, evidence = found.judged, found.evidence
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
    rows: list[list[str | Html]] = [[_named("log-return per year", hint), *yearly]]
    for field, name, show, hint in glossary_rows(example):
        cells = [_with_interval(show(s), intervals.get(field), who) for who, s in judged.statistics.items()]
        rows.append([_named(name, hint), *cells])
    level = f"{100 * evidence.mean_return.level:g}%"
    return Panel(
        "metrics",
        "Every number",
        f"All accounts over the same bars. Below some numbers of the policy: its {level} interval, stationary "
        f"bootstrap, {found.repetitions:,} resamples. A dash is undefined. A drawdown has no interval; see the odds.",
        table(("after all costs", *judged.statistics), rows, kind="metrics"),
    )


def _yearly(total: float, years: float) -> float | None:
    """Mean log-return per year; None for an account that lost everything."""
    return math.log1p(total) / years if total > -1 else None


def _named(name: str, hint: str) -> Html:
    """The name of a number with what it means below it."""
    return join([name, element("span", hint)])


def _with_interval(value: str, interval: str | None, who: str) -> Html:
    """A number; that of the policy with its interval below, where it has one."""
    return join([value, element("span", interval) if interval is not None and who == POLICY else NOTHING])
