"""Several runs over the same test bars as a page: each against the first, pair by pair."""

from __future__ import annotations

from pathlib import Path

from tailwise.core.atomic import write_text
from tailwise.evaluate.compare_accounts import PAIR_HEADS, Compared, pair_rows
from tailwise.evaluate.markup import NOTHING, element, join
from tailwise.evaluate.page_frame import Panel, contents, report_page, section, table
from tailwise.evaluate.report_curves import Curve, lines_panel
from tailwise.evaluate.report_verdict import judgement_box
from tailwise.evaluate.words import bounds, glossary_rows, plain


def write_comparison(path: Path, accounts: list[Compared], *, title: str, facts: list[str]) -> None:
    """The page of a comparison."""
    parts, panels = NOTHING, []
    for number, compared in enumerate(accounts):
        suffix = "" if number == 0 else f"-{number + 1}"
        own = next(iter(compared.paths))
        curves = {name: Curve.of_path(one) for name, one in compared.paths.items()}
        found = [
            lines_panel(curves, own, kind="equity", suffix=suffix),
            lines_panel(curves, own, kind="drawdown", suffix=suffix),
            Panel(
                "pairs",
                "Pair by pair",
                "The first minus the second, bar by bar over the same bars: what they share, the market, cancels. An "
                "interval that holds 0 is no evidence. With many pairs some differ by chance: one in twenty, on either "
                "side, of those that are alike.",
                table(PAIR_HEADS, pair_rows(compared), marks=True),
            ),
            Panel(
                "metrics",
                "Every number",
                "All over the same bars, after all costs. A dash is undefined; intervals of the Sharpe ratio in the "
                "first row.",
                table(
                    ("", *compared.statistics),
                    [
                        (
                            "Sharpe ratio, 95% interval",
                            *(bounds(one.sharpe, plain) for one in compared.evidence.values()),
                        ),
                        *(
                            (name, *(show(numbers) for numbers in compared.statistics.values()))
                            for _, name, show, _ in glossary_rows(compared.statistics[own])
                        ),
                    ],
                    kind="metrics",
                ),
            ),
        ]
        if len(accounts) > 1:
            parts += element("h1", compared.symbol, class_="symbol")
        parts += join(section(panel, suffix) for panel in found)
        panels += found if number == 0 else []
    told = [sentence for compared in accounts for sentence in compared.sentences()]
    first = told[0] if told else "There is nothing to compare."
    box = judgement_box(first, "", [*told[1:], *facts], [])
    write_text(path, report_page(title, top=box + contents(panels), parts=parts))
