"""The verdict as HTML, before any picture: the headline in its box, the comparison with baselines, six numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailwise.evaluate.evidence import Comparison
from tailwise.evaluate.findings import Findings
from tailwise.evaluate.judgement import POLICY
from tailwise.evaluate.words import bounds, held, percent, plain
from tailwise.market.leaks.own_features import LeakVerdict
from tailwise.pages.markup import NOTHING, Html, element
from tailwise.pages.page_frame import Panel, paragraphs, table


def comparison_list(against: Mapping[str, Comparison]) -> Html:
    """A line per baseline with the difference and its interval, as HTML."""
    if not against:
        return NOTHING
    words = {"better": "better than", "worse": "worse than", "no evidence": "not told apart from"}
    level = f"{100 * next(iter(against.values())).mean_return.level:g}%"
    lines = [
        element(
            "li",
            f"{words[one.verdict]} ",
            element("b", name),
            f": {_signed(one.mean_return.estimate)} ({bounds(one.mean_return, _signed)})",
        )
        for name, one in against.items()
    ]
    said = f"Against the baselines, difference of log-return per year and its {level} interval, same bars:"
    return element("p", said) + element("ul", *lines)


def comparison_panel(against: Mapping[str, Comparison], repetitions: int) -> Panel:
    """The paired differences as a table."""
    rows = [
        (
            name,
            _signed(one.mean_return.estimate),
            bounds(one.mean_return, _signed),
            _ratio(one.sharpe.estimate),
            bounds(one.sharpe, _ratio),
            one.verdict,
        )
        for name, one in against.items()
    ]
    level = f"{100 * next(iter(against.values())).mean_return.level:g}%"
    heads = ("policy minus ...", "return per year", f"{level} interval", "Sharpe ratio", f"{level} interval", "verdict")
    return Panel(
        "baselines",
        "Against the baselines",
        "The policy minus each rule, bar by bar over the same bars with the same costs, so that what they share, the "
        "market, cancels. An interval that holds 0 is no evidence. Rules that anybody could have followed: if none is "
        f"beaten, nothing was learned that pays. Stationary bootstrap, {repetitions:,} resamples.",
        table(heads, rows, marks=True),
    )


def leak_paragraph(verdict: LeakVerdict | None) -> Html:
    """What is known about look-ahead in own features; in red where that is nothing."""
    if verdict is None:
        return NOTHING
    return paragraphs([f"Leak-check: {verdict.sentence}."], "missed" if verdict.doubtful else "small")


def judgement_box(
    sentence: str, kind: str, sentences: Sequence[str], warnings: Sequence[str], more: Html = NOTHING
) -> Html:
    """The verdict as HTML; kind: good, bad or nothing; more: what stands below its sentences."""
    headline = element("p", sentence, class_="headline")
    box = element("div", headline, paragraphs(sentences), more, class_=f"judgement {kind}", id="verdict")
    return box + paragraphs(warnings, "warning")


def key_figures(found: Findings) -> Html:
    """Six numbers, each with its interval where it has one, beside the rule that is always in."""
    judged, evidence = found.judged, found.evidence
    numbers, beside = judged.statistics[POLICY], judged.statistics[judged.reference]
    rule = judged.reference
    long_tail = f"CVaR {100 * numbers.alpha:g}%, {numbers.horizon} bars"
    limit = (
        f"limit {percent(judged.limits[POLICY].limit)}" if judged.limits else f"{rule} {percent(beside.cvar_return)}"
    )
    shown = [
        ("Total return", percent(numbers.total_return), f"{rule} {percent(beside.total_return)}"),
        ("Log-return per year", percent(evidence.mean_return.estimate), bounds(evidence.mean_return, percent)),
        ("Sharpe ratio", plain(numbers.sharpe), bounds(evidence.sharpe, plain)),
        ("Worst drawdown", percent(-numbers.max_drawdown), f"{rule} {percent(-beside.max_drawdown)}"),
        (long_tail, percent(numbers.cvar_return), limit),
        (
            "Net exposure",
            plain(numbers.net_exposure),
            f"{held(numbers)}; turnover {plain(numbers.turnover, 1)} per year",
        ),
    ]
    cells = [
        element("div", element("dt", name), element("dd", value, element("span", more))) for name, value, more in shown
    ]
    return element("dl", *cells, class_="facts")


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{100 * value + 0.0:+.1f}%"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value + 0.0:+.2f}"
