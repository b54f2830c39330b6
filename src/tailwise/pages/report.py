"""`report.html`: the verdict in words, then every panel, in one file that opens without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tailwise.bars.bars import label_warning
from tailwise.evaluate.bootstrap import LEVEL
from tailwise.evaluate.evidence import Comparison
from tailwise.evaluate.findings import Findings, headline_of, verdict_sentences
from tailwise.evaluate.judge import Background
from tailwise.evaluate.judgement import POLICY, always_in
from tailwise.evaluate.members import Members
from tailwise.evaluate.statistics import PathStatistics
from tailwise.evaluate.walk_forward_result import RuleComparison
from tailwise.evaluate.windows import Windows
from tailwise.evaluate.words import (
    bounds,
    costly_impact,
    difference_cells,
    difference_heads,
    glossary_rows,
    held,
    percent,
    plain,
    ruins,
    signed_percent,
)
from tailwise.market.path import AccountPath
from tailwise.pages.account_panels import curves_of, lines_panel, months_panel, rolling_panel, trading_panel
from tailwise.pages.risk_panels import distribution_panel, odds_panel, stress_panels, tail_panel
from tailwise.pages.training_panels import background_panels
from tailwise.pages.views import (
    Cell,
    Panel,
    Paragraphs,
    Part,
    ReportPage,
    Table,
    Top,
    Verdict,
    with_suffixes,
    write_page,
)

_AGAINST = {"better": "better than", "worse": "worse than", "no evidence": "not told apart from"}


def write_report(
    path: Path, findings: Sequence[Findings], *, title: str, how: str, gamma: float, background: Background
) -> None:
    """Write the report of one or several accounts of one run.

    how: a sentence that says who decided, and how; gamma: discount per bar of the long tail.
    """
    last = Part(background_panels(background, findings[0].judged.statistics[POLICY].alpha))
    if len(findings) == 1:
        (account,) = findings
        part = Part(_panels(account, gamma))
        top = Top([*part.links, *last.links], verdict_of(account, how), cards_of(account))
        write_page(path, ReportPage(title, top, [part, last]))
        return
    parts, overview = [], []
    for suffix, account in with_suffixes(findings):
        symbol, anchor = account.judged.symbol, f"account{suffix}"
        part = Part(_panels(account, gamma), suffix, symbol, anchor)
        parts.append(replace(part, top=Top(part.links, verdict_of(account, how), cards_of(account))))
        overview.append((anchor, symbol, headline_of(account)[0]))
    top = Top(last.links, overview=overview)
    write_page(path, ReportPage(title, top, [*parts, replace(last, heading="The run")]))


def _panels(account: Findings, gamma: float) -> list[Panel]:
    judged, paths = account.judged, account.judged.paths
    panels = [
        lines_panel(curves_of(paths), POLICY, kind="equity"),
        windows_panel(account.windows) if account.windows is not None else None,
        members_panel(account.members) if account.members is not None else None,
        *path_panels(paths, judged.statistics[POLICY], account.against, account.repetitions),
        tail_panel(judged, gamma),
        *(stress_panels(account.stressed) if account.stressed else [_no_stress(account.not_stressed)]),
        odds_panel(account.odds) if account.odds else None,
        _account_metrics(account),
    ]
    return [panel for panel in panels if panel is not None]


def path_panels(
    paths: Mapping[str, AccountPath],
    numbers: PathStatistics,
    against: Mapping[str, Comparison | RuleComparison],
    repetitions: int,
) -> list[Panel]:
    """The path of a policy beside those of the rules. numbers: of the policy; against: the policy minus each rule."""
    curves, rule = curves_of(paths), always_in(paths)
    panels = [
        lines_panel(curves, POLICY, kind="drawdown"),
        comparison_panel(against, repetitions) if against else None,
        months_panel(curves[POLICY], POLICY),
        trading_panel(paths[POLICY]),
        rolling_panel(curves, POLICY, [POLICY, rule], numbers.alpha),
        distribution_panel(curves, POLICY, rule, numbers),
    ]
    return [panel for panel in panels if panel is not None]


def _no_stress(reason: str | None) -> Panel | None:
    if reason is None:
        return None
    caption = "What dearer, later and worse markets would have done."
    return Panel("stress", "Stress tests", caption, [Paragraphs([f"Not played: {reason}"], "verdict")])


def _account_metrics(account: Findings) -> Panel:
    """Every number of every account, with intervals where there are some."""
    judged, evidence = account.judged, account.evidence
    intervals = {
        "log_return": bounds(evidence.mean_return, percent),
        "sharpe": bounds(evidence.sharpe, plain),
        "annual_volatility": bounds(evidence.volatility, percent),
        "cvar_bar": bounds(evidence.cvar_bar, lambda value: percent(value, 2)),
    }
    level = f"{100 * evidence.mean_return.level:g}%"
    caption = (
        f"All accounts over the same bars. Below some numbers of the policy: its {level} interval, stationary "
        f"bootstrap, {account.repetitions:,} resamples. A dash is undefined. A drawdown has no interval; see the odds."
    )
    return metrics_panel(judged.statistics, caption, {POLICY: intervals})


def metrics_panel(
    statistics: Mapping[str, PathStatistics], caption: str, intervals: Mapping[str, Mapping[str, str]]
) -> Panel:
    """Every number of every account and its meaning. intervals: what stands below a number, by account and field."""
    rows = [
        [Cell(name, hint), *(Cell(show(one), intervals.get(who, {}).get(field)) for who, one in statistics.items())]
        for field, name, show, hint in glossary_rows(next(iter(statistics.values())))
    ]
    return Panel("metrics", "Every number", caption, [Table(("after all costs", *statistics), rows, kind="metrics")])


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
        *(sentence for sentence in [label_warning(judged.label)] if sentence),
        *ruins(judged.paths),
        *costly_impact(judged.paths[POLICY]),
        *([account.doubt] if account.doubt else []),
        *(account.windows.sentences() if account.windows is not None else []),
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
        (
            _AGAINST[one.verdict],
            name,
            f"{signed_percent(one.mean_return.estimate)} ({bounds(one.mean_return, signed_percent)})",
        )
        for name, one in account.against.items()
    ]
    level = account.evidence.mean_return.level
    title = f"Against the baselines, difference of log-return per year and its {100 * level:g}% interval, same bars:"
    return Verdict(sentence, colour, verdict_sentences(account, tested), against, title, below)


def windows_panel(windows: Windows) -> Panel:
    """The policy on its train, select and test bars."""
    return Panel(
        "windows",
        "Train, select and test",
        "The same policy, played over the bars that it was trained on, those that may have chosen its checkpoint, and "
        "those that nobody looked at. What it learnt by heart is in the first column and not in the last.",
        [Table(("after all costs", *windows.statistics), windows.rows())],
    )


def members_panel(members: Members) -> Panel:
    """Each policy of an ensemble by itself, and their spread."""
    caption = (
        "The policies that decide together, each trading by itself, over the same bars with the same costs. Seeds of "
        "one configuration differ in nothing but chance, so their spread is how much of a result is chance of training."
    )
    table = Table(members.heads, members.rows())
    return Panel("members", "The seeds", caption, [table, Paragraphs([members.sentence])])


def comparison_panel(against: Mapping[str, Comparison | RuleComparison], repetitions: int) -> Panel:
    """The paired differences as a table."""
    rows = [(name, *difference_cells(one.mean_return, one.sharpe, one.verdict)) for name, one in against.items()]
    level = next((one.mean_return.level for one in against.values()), LEVEL)
    return Panel(
        "baselines",
        "Against the baselines",
        "The policy minus each rule, bar by bar over the same bars with the same costs, so that what they share, the "
        "market, cancels. An interval that holds 0 is no evidence. Rules that anybody could have followed: if none is "
        f"beaten, nothing was learned that pays. Stationary bootstrap, {repetitions:,} resamples.",
        [Table(("policy minus ...", *difference_heads(level)), rows, marks=True)],
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
