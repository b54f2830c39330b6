"""`tailwise.compare`: several runs over the same test bars, pair by pair, in numbers and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tailwise.evaluate.compare import PAIR_HEADS, Compared, RunComparison, compare_runs, pair_rows
from tailwise.evaluate.words import bounds, plain
from tailwise.pages.account_panels import curves_of, lines_panel
from tailwise.pages.report import metrics_panel
from tailwise.pages.views import Panel, Part, ReportPage, Table, Top, Verdict, with_suffixes, write_page

PAGE = "compare.html"


def compare(runs: Sequence[str | Path], *, page: str | Path | None = None, trust: bool = False) -> RunComparison:
    """Play the test window with every run and compare them bar by bar, so that the market they share cancels.

    runs    folders of runs on the same test bars, two or more
    page    HTML file to write; None: none
    trust   execute the code that a run names although somebody else may have written it (docs/security.md)

        compared = tailwise.compare(["runs/sp500-1", "runs/sp500-2"])
        for (first, second), difference in compared.accounts[0].pairs.items():
            print(first, second, difference.verdict, difference.mean_return.low, difference.mean_return.high)
    """
    compared = compare_runs(runs, trust=trust)
    if page is None:
        return compared
    write_comparison(Path(page), compared.accounts, title=compared.title, facts=compared.facts)
    return replace(compared, file=Path(page))


def write_comparison(path: Path, accounts: Sequence[Compared], *, title: str, facts: Sequence[str]) -> None:
    """Write the page of a comparison."""
    parts = [
        Part(_panels(compared), suffix, compared.symbol if len(accounts) > 1 else "")
        for suffix, compared in with_suffixes(accounts)
    ]
    first, *others = [one for compared in accounts for one in compared.sentences()] or ["There is nothing to compare."]
    links = parts[0].links if parts else []
    write_page(path, ReportPage(title, Top(links, Verdict(first, "", [*others, *facts])), parts))


def _panels(compared: Compared) -> list[Panel]:
    own = next(iter(compared.paths))
    curves = curves_of(compared.paths)
    intervals = {name: {"sharpe": bounds(one.sharpe, plain)} for name, one in compared.evidence.items()}
    return [
        lines_panel(curves, own, kind="equity"),
        lines_panel(curves, own, kind="drawdown"),
        Panel(
            "pairs",
            "Pair by pair",
            "The first minus the second, bar by bar over the same bars: what they share, the market, cancels. An "
            "interval that holds 0 is no evidence. With many pairs some differ by chance: one in twenty, on either "
            "side, of those that are alike.",
            [Table(PAIR_HEADS, pair_rows(compared), marks=True)],
        ),
        metrics_panel(
            compared.statistics,
            "All over the same bars. A dash is undefined; below each Sharpe ratio its 95% interval.",
            intervals,
        ),
    ]
