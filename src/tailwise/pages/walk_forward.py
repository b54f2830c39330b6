"""The report of a walk-forward: the test windows of all folds one after the other, and a table of the folds.

Made from the result and the files beside it; nothing is played again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go
import yaml

from tailwise.bars.bars import label_warning
from tailwise.core.errors import DataError
from tailwise.evaluate.bootstrap import REPETITIONS
from tailwise.evaluate.few import of_few_seeds, of_few_trials
from tailwise.evaluate.findings import unchecked_headline
from tailwise.evaluate.judge import Background
from tailwise.evaluate.judgement import POLICY, always_in
from tailwise.evaluate.path_files import read_paths
from tailwise.evaluate.walk_forward_result import FoldRow, Span, StitchedPath, WalkForward, reserved
from tailwise.evaluate.words import (
    EXPOSURES,
    exposures,
    limit_word,
    percent,
    plain,
)
from tailwise.pages.account_panels import curves_of, lines_panel
from tailwise.pages.figures import colours_of, layout, legend
from tailwise.pages.report import metrics_panel, path_panels
from tailwise.pages.risk_panels import odds_panel
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


def write_folds_report(path: Path, folds: WalkForward, folder: Path) -> None:
    """Write the report of a walk-forward; folder: where its files lie."""
    headlines = folds.headlines
    parts = [
        Part(_account_panels(folds, stitched, folder), suffix, stitched.account if len(headlines) > 1 else "")
        for suffix, stitched in with_suffixes(headlines)
    ]
    last = Part(background_panels(_background(folds), folds.alpha))
    doubts = folds.doubts
    tested, earns, *others = folds.verdict[len(doubts) :]
    # Whether it earns is what a reader asks first; a doubt about the numbers stands next to it.
    headline, colour = earns, _colour(folds, headlines[0])
    if folds.leak_check is not None and folds.leak_check.doubtful:
        headline, colour = unchecked_headline(earns), "bad"
    below = [Paragraphs(_warnings(folds), "warning")]
    verdict = Verdict(headline, colour, [*doubts, tested, *others], below=below)
    top = Top([*parts[0].links, *last.links], verdict)
    write_page(path, ReportPage(f"{folds.name}: walk-forward over {folds.folds} folds", top, [*parts, last]))


def fold_rows(folds: WalkForward, account: str) -> list[tuple[str, ...]]:
    """Cells of the table of folds: one row per fold and seed."""
    rows: list[tuple[str, ...]] = []
    for row in folds.rows:
        if row.account != account:
            continue
        own = row.statistics[POLICY]
        rows.append(
            (
                f"{row.fold}",
                "together" if row.seed is None else f"{row.seed}",
                _span(row.windows.train),
                _span(row.windows.test),
                percent(own.total_return),
                percent(row.statistics[always_in(row.statistics)].total_return),
                plain(own.sharpe),
                percent(-own.max_drawdown),
                percent(own.cvar_return),
                exposures(own),
                "" if row.limit is None else limit_word(row.limit.kept, row.limit_acted),
            )
        )
    return rows


def _account_panels(folds: WalkForward, stitched: StitchedPath, folder: Path) -> list[Panel]:
    paths = read_paths(folder / stitched.evaluation, root=folder).get(stitched.account)
    if paths is None:
        raise DataError(f"{folder / stitched.evaluation} has no account '{stitched.account}'; restore it.")
    who = "All seeds of a fold decide together." if stitched.seed is None else f"Seed {stitched.seed}."
    caption = (
        "The test windows of all folds one after the other, after all costs; each was played by a policy that had seen "
        f"only bars before it. {who} Look for whether it was earned in most folds or in one."
    )
    return [
        lines_panel(curves_of(paths), POLICY, kind="equity", caption=caption),
        _folds_panel(folds, stitched.account),
        *path_panels(paths, stitched.statistics[POLICY], stitched.against, REPETITIONS),
        *([odds_panel({POLICY: stitched.odds})] if stitched.odds is not None else []),
        metrics_panel(stitched.statistics, "All accounts over the same bars. A dash is undefined.", {}),
    ]


def _folds_panel(folds: WalkForward, account: str) -> Panel:
    rows = [row for row in folds.rows if row.account == account]
    rule = always_in(rows[0].statistics)
    colours = colours_of([POLICY, "together", rule], POLICY)
    figure = go.Figure()
    held = {row.fold: row.statistics[rule].total_return for row in rows}
    sets = {
        rule: (list(held), list(held.values()), "line-ew", 18),
        POLICY: (*_points([row for row in rows if row.seed is not None]), "circle", 9),
        "together": (*_points([row for row in rows if row.seed is None]), "diamond", 11),
    }
    for name, (x, y, symbol, size) in sets.items():
        marker = {"color": colours[name], "symbol": symbol, "size": size, "line": {"width": 2, "color": colours[name]}}
        if x:
            figure.add_trace(go.Scatter(x=x, y=y, mode="markers", marker=marker, name=name))
    layout(figure, height=300)
    figure.update_xaxes(title="fold", dtick=1)
    figure.update_yaxes(tickformat=".0%", title="total return", zeroline=True)
    heads = (
        "fold",
        "seed",
        "trained on",
        "tested on",
        "total return",
        rule,
        "Sharpe",
        "worst drawdown",
        f"CVaR, {folds.horizon} bars",
        EXPOSURES,
        "limit",
    )
    return Panel(
        "folds",
        "Fold by fold",
        f"{folds.folds} folds, {folds.kind}, with {folds.purge} bars purged and {folds.embargo} embargoed "
        "between training and test. Look for the spread between seeds of one fold: where it is as large as the result, "
        f"the result is luck of the seed. {_over_seeds(folds)}",
        [
            legend({name: colours[name] for name, (x, *_) in sets.items() if x}),
            Plot(figure),
            Table(heads, fold_rows(folds, account), marks=True),
        ],
    )


def _points(rows: Sequence[FoldRow]) -> tuple[list[int], list[float]]:
    return [row.fold for row in rows], [row.statistics[POLICY].total_return for row in rows]


def _background(folds: WalkForward) -> Background:
    return Background(
        facts=list(folds.facts),
        configuration=yaml.safe_dump(folds.config, sort_keys=False),
        hashes={"all bars": {", ".join(folds.symbols): folds.data_hash}},
    )


def _warnings(folds: WalkForward) -> list[str]:
    warnings = [sentence for sentence in [label_warning(folds.label)] if sentence]
    refused = [row for row in folds.rows if row.refused]
    if refused:
        warnings.append(f"{len(refused)} of {len(folds.rows)} trainings were ended by refused updates.")
    return warnings


def _colour(folds: WalkForward, stitched: StitchedPath) -> str:
    limit, verdict = stitched.limit, stitched.evidence.verdict
    if stitched.beyond is not None and verdict != "below zero":
        verdict = stitched.beyond.verdict
    if verdict == "below zero" or (limit is not None and limit.kept is False):
        return "bad"
    words = [one.verdict for one in stitched.against.values()]
    praised = verdict == "above zero" and words and all(word == "better" for word in words)
    return "good" if praised and not reserved(folds, stitched) else ""


def _over_seeds(folds: WalkForward) -> str:
    """The mean over seeds with its interval, and how likely the choice among them was luck."""
    text, ratio, luck = "", folds.across_seeds.sharpe, folds.overfitting
    if ratio is not None:
        spread = "" if ratio.low is None else f" ({plain(ratio.low)} to {plain(ratio.high)})"
        spread += of_few_seeds(ratio.seeds) if ratio.low is not None else ""
        text = f"Sharpe ratio, middle half of all seeds and folds: {plain(ratio.iqm)}{spread}. "
    if luck is not None:
        text += f"Probability of backtest overfitting among {luck.trials} trials: {percent(luck.probability, 0)}"
        text += f"{of_few_trials(luck.trials)}."
    return text.strip()


def _span(window: Span | None) -> str:
    return "-" if window is None else f"{window.first_bar[:10]} to {window.last_bar[:10]}"
