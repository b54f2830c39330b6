"""The verdict before any picture: the headline in its box, six numbers, and the comparison with baselines."""

from __future__ import annotations

from collections.abc import Mapping

from tailwise.evaluate.evidence import Comparison
from tailwise.evaluate.findings import Findings
from tailwise.evaluate.judgement import POLICY
from tailwise.evaluate.verdict_words import headline_of, verdict_sentences
from tailwise.evaluate.words import bounds, costly_impact, held, percent, plain, ruins
from tailwise.pages.views import Panel, Paragraphs, Table, Verdict

_AGAINST = {"better": "better than", "worse": "worse than", "no evidence": "not told apart from"}


def verdict_of(account: Findings, how: str) -> Verdict:
    """The verdict on one account. how: a sentence that says who decided, and how."""
    judged = account.judged
    time, numbers = judged.time, judged.statistics[POLICY]
    unseen = "that it was neither trained on nor selected by" if judged.purpose == "test" else "of its selection"
    if judged.purpose == "backtest":
        unseen = "over which the rule was played; nobody can tell whether it was made for them"
    kind = "real bars" if judged.label == "real" else f"bars that are {judged.label}"
    tested = (
        f"Tested on {judged.symbol}, {str(time[0])[:10]} to {str(time[-1])[:10]}: {numbers.bars:,} {kind} {unseen}, "
        f"after all costs. {how}"
    )
    warnings = [
        *([] if judged.label == "real" else [f"Not a real market: {judged.label}."]),
        *ruins(judged.paths),
        *costly_impact(judged.paths[POLICY]),
        *([account.doubt] if account.doubt else []),
        *judged.left_out,
    ]
    below = [Paragraphs(warnings, "warning")]
    leaks = account.leak_check
    if leaks is not None:  # in red where nothing is known about look-ahead
        below.append(Paragraphs([f"Leak-check: {leaks.sentence}."], "missed" if leaks.doubtful else "small"))
    rhythm = account.rhythm or f"{numbers.periods_per_year:g} bars per year."
    below.append(Paragraphs([f"Annual numbers: {rhythm}"], "small"))
    sentence, colour = headline_of(account)
    against = [
        (_AGAINST[one.verdict], name, f"{_signed(one.mean_return.estimate)} ({bounds(one.mean_return, _signed)})")
        for name, one in account.against.items()
    ]
    level = _level(account.against)
    title = f"Against the baselines, difference of log-return per year and its {level} interval, same bars:"
    return Verdict(sentence, colour, verdict_sentences(account, tested), against, title, below)


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
    level = _level(against)
    heads = ("policy minus ...", "return per year", f"{level} interval", "Sharpe ratio", f"{level} interval", "verdict")
    return Panel(
        "baselines",
        "Against the baselines",
        "The policy minus each rule, bar by bar over the same bars with the same costs, so that what they share, the "
        "market, cancels. An interval that holds 0 is no evidence. Rules that anybody could have followed: if none is "
        f"beaten, nothing was learned that pays. Stationary bootstrap, {repetitions:,} resamples.",
        [Table(heads, rows, marks=True)],
    )


def cards_of(account: Findings) -> list[tuple[str, str, str]]:
    """Six numbers, each with its interval where it has one, beside the rule that is always in."""
    judged, evidence = account.judged, account.evidence
    numbers, beside = judged.statistics[POLICY], judged.statistics[judged.reference]
    rule = judged.reference
    long_tail = f"CVaR {100 * numbers.alpha:g}%, {numbers.horizon} bars"
    limit = (
        f"limit {percent(judged.limits[POLICY].limit)}" if judged.limits else f"{rule} {percent(beside.cvar_return)}"
    )
    return [
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


def _level(against: Mapping[str, Comparison]) -> str:
    """Confidence of the intervals; empty without any."""
    return next((f"{100 * one.mean_return.level:g}%" for one in against.values()), "")


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{100 * value + 0.0:+.1f}%"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value + 0.0:+.2f}"
