"""`report.html`: the verdict in words, then every panel, in one file that opens without a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tailwise.bars.bars import label_warning
from tailwise.core.errors import ConfigError
from tailwise.evaluate.bootstrap import LEVEL
from tailwise.evaluate.evidence import Comparison
from tailwise.evaluate.findings import (
    SYMBOL_HEADS,
    Findings,
    alpha_of,
    headline_of,
    meaning_of,
    symbol_row,
    symbols_beyond_noise,
    verdict_sentences,
)
from tailwise.evaluate.judge import Background
from tailwise.evaluate.judgement import POLICY, always_in
from tailwise.evaluate.members import Members
from tailwise.evaluate.same_tail import SameTail
from tailwise.evaluate.statistics import PathStatistics
from tailwise.evaluate.walk_forward_result import RuleComparison
from tailwise.evaluate.windows import Windows
from tailwise.evaluate.words import (
    BASE_RULE,
    bounds,
    costly_impact,
    difference_cells,
    difference_heads,
    exposures,
    glossary_rows,
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
    Block,
    Cell,
    Panel,
    Paragraphs,
    Part,
    ReportPage,
    Table,
    Tile,
    Top,
    Verdict,
    with_suffixes,
    write_page,
)

MOST_DRAWN = 3  # symbols that are shown in full; all stand in the table
MOST_ROWS = 200  # of that table; of more symbols, those with the largest alpha and those with the smallest


def write_report(
    path: Path,
    findings: Sequence[Findings],
    *,
    title: str,
    how: str,
    gamma: float,
    background: Background,
    portfolio: Findings | None = None,
    outside: Sequence[str] = (),
) -> None:
    """Write the report of one or several accounts of one run.

    how: a sentence that says who decided, and how; gamma: discount per bar of the long tail; portfolio: the evidence of
    several accounts together, on which the verdict is; outside: what another judge says, in sentences.
    """
    last = Part(background_panels(background, findings[0].judged.statistics[POLICY].alpha))
    if portfolio is None and len(findings) == 1:
        (account,) = findings
        part = Part(_panels(account, gamma, [how, *outside]))
        top = Top([*part.links, *last.links], verdict_of(account), tiles_of(account), equity_panel(account))
        write_page(path, ReportPage(title, top, [part, last]))
        return
    parts = []
    for suffix, account in with_suffixes(findings[:MOST_DRAWN], first=2):
        symbol, anchor = account.judged.symbol, f"account{suffix}"
        part = Part(_panels(account, gamma, [how]), suffix, symbol, anchor)
        lead = equity_panel(account)
        parts.append(replace(part, top=Top(part.links, verdict_of(account), tiles_of(account), lead)))
    last = replace(last, heading="The run")
    if portfolio is None:
        raise ConfigError(f"{title}: {len(findings)} accounts have no verdict without their portfolio; give both.")
    whole = Part([symbols_panel(findings), *_panels(portfolio, gamma, [how, *outside])])
    top = Top(
        [*whole.links, *last.links],
        verdict_of(portfolio),
        tiles_of(portfolio),
        equity_panel(portfolio),
    )
    write_page(path, ReportPage(title, top, [whole, *parts, last]))


def equity_panel(account: Findings) -> Panel:
    """What stands on the first screen below the verdict and its tiles."""
    return lines_panel(curves_of(account.judged.paths), POLICY, kind="equity")


def _panels(account: Findings, gamma: float, besides: Sequence[str]) -> list[Panel]:
    judged, paths = account.judged, account.judged.paths
    panels = [
        _full_verdict(account, besides),
        windows_panel(account.windows) if account.windows is not None else None,
        members_panel(account.members) if account.members is not None else None,
        *path_panels(
            paths, judged.statistics[POLICY], account.against, account.repetitions, same_tail=account.same_tail
        ),
        tail_panel(judged, gamma),
        *(stress_panels(account.stressed) if account.stressed else [_no_stress(account.not_stressed)]),
        odds_panel(account.odds) if account.odds else None,
        _account_metrics(account),
    ]
    return [panel for panel in panels if panel is not None]


def _full_verdict(account: Findings, besides: Sequence[str]) -> Panel:
    """Every sentence behind the headline. besides: who decided, and what another judge says."""
    rhythm = account.rhythm or f"{account.judged.statistics[POLICY].periods_per_year:g} bars per year."
    blocks = [table_of(account), Paragraphs([*verdict_sentences(account), *besides], "verdict")]
    return Panel(
        "verdict",
        "The verdict in full",
        f"What the headline rests on, with how far each number can be believed. Annual numbers: {rhythm}",
        blocks,
    )


def symbols_panel(findings: Sequence[Findings]) -> Panel:
    """A row for each symbol, those with the largest alpha first."""
    ranked = sorted(findings, key=alpha_of, reverse=True)
    shown = ranked
    if len(ranked) > MOST_ROWS:
        shown = [*ranked[: MOST_ROWS // 2], *ranked[-(MOST_ROWS // 2) :]]
    above, below, chance = symbols_beyond_noise(findings)
    caption = (
        f"Each account by itself, {len(findings):,} symbols. Beyond noise {above} of them earned beyond their exposure "
        f"and {below} lost; where no symbol has an edge, chance alone shows {chance:.1f} of each, so a single row "
        "is no finding. "
    )
    drawn = [account.judged.symbol for account in findings[:MOST_DRAWN]]
    caption += f"Shown in full below: {', '.join(drawn)}." if len(findings) > len(drawn) else ""
    if len(shown) < len(ranked):
        caption += f" The {len(shown) // 2} highest and the {len(shown) // 2} lowest of them are listed."
    return Panel(
        "symbols", "Symbol by symbol", caption, [Table(SYMBOL_HEADS, [symbol_row(one) for one in shown], marks=True)]
    )


def path_panels(
    paths: Mapping[str, AccountPath],
    numbers: PathStatistics,
    against: Mapping[str, Comparison | RuleComparison],
    repetitions: int,
    *,
    same_tail: Mapping[str, SameTail] | None = None,
) -> list[Panel]:
    """The path of a policy beside those of the rules. numbers: of the policy; against: the policy minus each rule;
    same_tail: the rules held at its tail."""
    curves, rule = curves_of(paths), always_in(paths)
    panels = [
        lines_panel(curves, POLICY, kind="drawdown"),
        comparison_panel(against, repetitions, same_tail or {}) if against else None,
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


def verdict_of(account: Findings) -> Verdict:
    """The verdict on one account in a few lines."""
    judged = account.judged
    time, numbers = judged.time, judged.statistics[POLICY]
    unseen = "that it was neither trained on nor selected by" if judged.purpose == "test" else "of its selection"
    if judged.purpose == "backtest":
        unseen = "over which the rule was played; nobody can tell whether it was made for them"
    kind = "real bars" if judged.label == "real" else f"bars that are {judged.label}"
    tested = (
        f"Tested on {judged.symbol}, {str(time[0])[:10]} to {str(time[-1])[:10]}: {numbers.bars:,} {kind} {unseen}, "
        "after all costs."
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
    sentence, colour = headline_of(account)
    return Verdict(sentence, colour, [tested, *meaning_of(account)], below=below)


def tiles_of(account: Findings) -> list[Tile]:
    """Six numbers of the policy, each above that of the rule that is always in the market."""
    judged, reference = account.judged, account.judged.reference
    own, rule = judged.statistics[POLICY], judged.statistics[reference]
    limit, beyond = judged.limits.get(POLICY), account.beyond.get(reference)
    tail = [f"limit {percent(limit.limit)}"] if limit is not None and limit.measure == "cvar" else []
    if beyond is None:
        alpha = Tile("earned beyond its exposure, a year", "-", ["it held nothing, or the market never moved"])
    else:
        interval = bounds(beyond.alpha, signed_percent) if beyond.alpha.low is not None else "no interval"
        estimate = signed_percent(beyond.alpha.estimate)
        alpha = Tile("earned beyond its exposure, a year", estimate, [interval, f"beta {plain(beyond.beta.estimate)}"])

    def tile(label: str, show: Callable[[PathStatistics], str], *notes: str) -> Tile:
        return Tile(label, show(own), [*notes, f"{reference} {show(rule)}"])

    return [
        tile("return per year (log)", lambda one: percent(_log_return(one))),
        alpha,
        tile("Sharpe ratio", lambda one: plain(one.sharpe)),
        tile("worst drawdown", lambda one: percent(-one.max_drawdown)),
        tile(f"CVaR {100 * own.alpha:g}%, {own.horizon} bars", lambda one: percent(one.cvar_return), *tail),
        tile("net exposure, mean", lambda one: plain(one.net_exposure)),
    ]


def table_of(account: Findings) -> Table:
    """The policy, its base rule and the rule that is always in the market, with what the tiles leave out."""
    judged, reference = account.judged, account.judged.reference
    names = [name for name in (POLICY, BASE_RULE, reference) if name in judged.statistics]
    numbers = {name: judged.statistics[name] for name in names}
    own, beyond = numbers[POLICY], account.beyond.get(reference)
    limit = judged.limits.get(POLICY)
    own_year = account.evidence.mean_return.estimate
    rows: list[list[str | Cell]] = [
        ["return per year (log)", *(percent(_log_return(numbers[name])) for name in names)],
        ["Sharpe ratio", *(plain(numbers[name].sharpe) for name in names)],
        ["worst drawdown", *(percent(-numbers[name].max_drawdown) for name in names)],
        [
            Cell(
                f"CVaR {100 * own.alpha:g}%, {own.horizon} bars",
                None if limit is None else f"limit {percent(limit.limit)}",
            ),
            *(percent(numbers[name].cvar_return) for name in names),
        ],
        ["exposure: long / short / net", *(exposures(numbers[name]) for name in names)],
        ["turnover per year", *(plain(numbers[name].turnover, 1) for name in names)],
    ]
    if account.same_tail:
        at = [percent(own_year) if name == POLICY else _at_same_tail(account, name) for name in names]
        rows.insert(1, [Cell("the same, held at the policy's tail"), *at])
    if beyond is not None:
        dash = ["-"] * (len(names) - 1)
        interval = bounds(beyond.alpha, signed_percent) if beyond.alpha.low is not None else "no interval"
        alpha = Cell(signed_percent(beyond.alpha.estimate), interval)
        rows.append([Cell("earned beyond its exposure, a year (alpha)"), alpha, *dash])
        rows.append([Cell(f"exposure to {reference} (beta)"), plain(beyond.beta.estimate), *dash])
    return Table(("after all costs", *names), rows, kind="first")


def _at_same_tail(account: Findings, name: str) -> str:
    return percent(account.same_tail[name].per_year) if name in account.same_tail else "-"


def _log_return(numbers: PathStatistics) -> float | None:
    return math.log1p(numbers.total_return) / numbers.years if numbers.total_return > -1 else None


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


def comparison_panel(
    against: Mapping[str, Comparison | RuleComparison], repetitions: int, held: Mapping[str, SameTail]
) -> Panel:
    """The paired differences as tables: to the rules held at the tail of the policy, and as they are."""
    rows = [(name, *difference_cells(one.mean_return, one.sharpe, one.verdict)) for name, one in against.items()]
    level = next((one.mean_return.level for one in against.values()), LEVEL)
    blocks: list[Block] = []
    if held:
        heads = ("policy minus ... at its tail", "times held", "its return per year", *difference_heads(level))
        cells = [
            (
                name,
                plain(one.factor),
                percent(one.per_year),
                *difference_cells(one.comparison.mean_return, one.comparison.sharpe, one.verdict),
            )
            for name, one in held.items()
        ]
        blocks.append(Table(heads, cells, marks=True))
        tail = next(iter(held.values())).tail
        blocks.append(
            Paragraphs(
                [
                    "Above: each rule held as many times as gives it the tail of the policy "
                    f"({'returns over the horizon' if tail == 'horizon' else 'single bars'}), borrowing "
                    "at the rate of the account. Below: as it is."
                ],
                "small",
            )
        )
    return Panel(
        "baselines",
        "Against the baselines",
        "The policy minus each rule, bar by bar over the same bars with the same costs, so that what they share, the "
        "market, cancels. An interval that holds 0 is no evidence. Rules that anybody could have followed: if none is "
        f"beaten at the same risk, nothing was learned that pays. Stationary bootstrap, {repetitions:,} resamples.",
        [*blocks, Table(("policy minus ...", *difference_heads(level)), rows, marks=True)],
    )
