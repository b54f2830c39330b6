"""The report of combinatorial folds: how the Sharpe ratio is distributed over the paths, and the paths themselves.

Made from the result and the files beside it; nothing is played again.
"""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go
import yaml

from tailwise.bars.bars import label_warning
from tailwise.core.errors import DataError
from tailwise.evaluate.combinatorial import (
    CombinatorialCV,
    SharpeDistribution,
    path_headings,
    path_rows,
    sharpe_headings,
    sharpe_rows,
)
from tailwise.evaluate.findings import unchecked_headline
from tailwise.evaluate.judge import Background
from tailwise.evaluate.judgement import POLICY
from tailwise.evaluate.path_files import read_paths
from tailwise.market.path import AccountPath
from tailwise.pages.figures import colours_of, layout, legend, line, thin
from tailwise.pages.training_panels import background_panels
from tailwise.pages.views import (
    Panel,
    Paragraphs,
    Part,
    Plot,
    ReportPage,
    Table,
    Top,
    Verdict,
    with_suffixes,
    write_page,
)


def write_combinatorial_report(path: Path, result: CombinatorialCV, folder: Path) -> None:
    """Write the report of combinatorial folds; folder: where its files lie."""
    headlines = result.headlines
    parts = [
        Part(
            [_sharpe_panel(result, one.account), _equity_panel(result, one, folder)],
            suffix,
            one.account if len(headlines) > 1 else "",
        )
        for suffix, one in with_suffixes(headlines)
    ]
    background = Background(
        facts=list(result.facts),
        configuration=yaml.safe_dump(result.config, sort_keys=False),
        hashes={"all bars": {", ".join(result.symbols): result.data_hash}},
    )
    tables = [
        Panel("paths", "Path by path", _ABOUT_PATHS, [Table(path_headings(result), path_rows(result), marks=True)]),
        *background_panels(background, result.alpha),
    ]
    last = Part(tables)
    tested, distribution, *others = result.verdict[len(result.doubts) :]
    headline, colour = distribution, "bad" if (headlines[0].median or 0.0) < 0 else ""
    if result.leak_check is not None and result.leak_check.doubtful:
        headline, colour = unchecked_headline(distribution), "bad"
    verdict = Verdict(
        headline, colour, [*result.doubts, tested, *others], below=[Paragraphs(_warnings(result), "warning")]
    )
    title = f"{result.name}: {result.folds} combinatorial folds"
    write_page(path, ReportPage(title, Top([*parts[0].links, *last.links], verdict), [*parts, last]))


_ABOUT_PATHS = (
    "Each path has all bars once; every stretch of it was played by a policy that was trained on the other groups. "
    "Look for a path that is much worse than the others: the training bars that it lacked made the result."
)


def _sharpe_panel(result: CombinatorialCV, account: str) -> Panel:
    """A point per path, a line of points per seed, beside the rule that is always invested."""
    each = [one for one in result.sharpe if one.account == account]
    rule = each[0].rule
    colours = colours_of([POLICY, rule], POLICY)
    figure = go.Figure()
    for one in each:
        name = "together" if one.seed is None else f"seed {one.seed}"
        statistics = [path.statistics for path in result.paths_of(account, one.seed)]
        for who, symbol, size in ((rule, "line-ns", 16), (POLICY, "circle", 9)):
            ratios = [numbers[who].sharpe for numbers in statistics if numbers[who].sharpe is not None]
            marker = {
                "color": colours[who],
                "symbol": symbol,
                "size": size,
                "line": {"width": 2, "color": colours[who]},
            }
            figure.add_trace(go.Scatter(x=ratios, y=[name] * len(ratios), mode="markers", marker=marker, name=who))
    layout(figure, height=120 + 40 * len(each))
    figure.update_xaxes(title="Sharpe ratio per year", zeroline=True, showgrid=True)
    caption = (
        f"{result.folds} trainings per seed, {result.test_groups} of {result.groups} groups of bars tested in each, "
        f"with {result.purge} bars purged on both sides of a test and {result.embargo} embargoed after it. A point is "
        "a path. Look for whether the whole cloud lies right of 0 and of the rule, not for its best point."
    )
    table = Table(sharpe_headings(result), sharpe_rows(result))
    return Panel("sharpe", "Sharpe ratio of the paths", caption, [legend(colours), Plot(figure), table])


def _equity_panel(result: CombinatorialCV, one: SharpeDistribution, folder: Path) -> Panel:
    """Equity of all paths of those that speak."""
    colours = colours_of([POLICY, one.rule], POLICY)
    figure = go.Figure()
    paths = result.paths_of(one.account, one.seed)
    named = [_read(folder, path.evaluation, one.account) for path in paths]
    _add_line(figure, named[0][one.rule], one.rule, colours[one.rule])
    for path, accounts in zip(paths, named, strict=True):
        _add_line(figure, accounts[POLICY], f"path {path.path}", colours[POLICY])
    layout(figure, height=400)
    figure.update_yaxes(tickformat=".2f")
    caption = (
        "Equity of each path after all costs as a multiple of its start; every group begins flat with what the one "
        "before it ended with. Look for how far the lines part: the bars are the same, only the training bars differ."
    )
    return Panel("equity", "Equity of the paths", caption, [legend(colours), Plot(figure)])


def _add_line(figure: go.Figure, path: AccountPath, name: str, colour: str) -> None:
    wealth = path.wealth[1:]
    rows = thin(wealth)
    figure.add_trace(line(path.time[rows], wealth[rows], name, colour))


def _read(folder: Path, evaluation: str, account: str) -> dict[str, AccountPath]:
    accounts = read_paths(folder / evaluation, root=folder)
    if account not in accounts:
        raise DataError(f"{folder / evaluation} has no account '{account}'; restore it.")
    return dict(accounts[account])


def _warnings(result: CombinatorialCV) -> list[str]:
    warnings = [sentence for sentence in [label_warning(result.label)] if sentence]
    refused = {(row.fold, row.seed) for row in result.rows if row.refused}
    if refused:
        warnings.append(
            f"{len(refused)} of {result.folds * len(result.seeds)} trainings were ended by refused updates."
        )
    return warnings
