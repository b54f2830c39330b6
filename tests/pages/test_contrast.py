"""All text of every page can be read: a contrast of at least 4.5 to its ground, in light and dark, wide and narrow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tailwise import backtest
from tailwise.bars.builtin import sp500
from tailwise.doctor.check import Check
from tailwise.doctor.page import write_audit
from tailwise.evaluate.attack import ATTACKS, AttackResult, Certificate, Outcome
from tailwise.evaluate.compare import compare_accounts
from tailwise.evaluate.frontier_result import Score
from tailwise.evaluate.walk_forward_result import read_walk_forward
from tailwise.pages.attack import write_attack_page
from tailwise.pages.compare import write_comparison
from tailwise.pages.frontier import write_frontier_page
from tailwise.pages.population import Point, PopulationView, write_population_page
from tailwise.pages.walk_forward import write_folds_report
from tests.chromium import browser
from tests.evaluate.test_frontier import frontier, result
from tests.pages.browser import DESKTOP, PHONE, look
from tests.pages.contrast import faint
from tests.pages.test_walk_forward import make_folder

SAMPLES = """<body style="background: #fff; color: #000">
<p style="color: #767676">4.54</p><p style="color: #777777">4.48</p>
<div style="background: #000"><p style="color: #777777">4.69</p><p style="opacity: .4; color: #fff">3.66</p></div>
<p style="display: none; color: #fff">hidden</p><p style="color: transparent">clear</p>
<svg width="99" height="20"><text y="15" fill="#999">2.85</text></svg></body>"""


def test_the_measure_agrees_with_known_numbers(tmp_path: Path) -> None:
    """The two greys around 4.5 are the examples of WCAG. Rejects opacity, dark grounds and fills that are not seen."""
    page = tmp_path / "samples.html"
    page.write_text(SAMPLES)
    with browser() as running:
        tab = running.new_page()
        tab.goto(page.as_uri())
        found = [sentence.split(" ")[0] + sentence[-7:] for sentence in faint(tab)]
    assert found == ["4.48 '4.48'", "3.66 '3.66'", "2.85 '2.85'"]


def write_attack(file: Path) -> None:
    """The page of an attack that costs something, with a certificate."""
    clean = Outcome("none", 0.0, 0.1, None, (0.1,), -0.03, None, 0.0, 0.0, 0.0)
    attacked = [
        Outcome(name, budget, 0.1 - budget, 0.01, (0.1,), -0.04, 0.2, 0.1, budget, 0.0)
        for name in ATTACKS
        for budget in (0.1, 0.2)
    ]
    found = (Certificate(0.1, 0.4, None),)
    result = AttackResult(
        "runs/a", "best", "market", "std", ("return_1",), True, 0, True, -0.2, clean, tuple(attacked), found, None
    )
    write_attack_page(file, result)


def write_population(file: Path) -> None:
    """The page of a search: three members over three generations, one of which misses the limit."""
    points = [
        Point(g, m, None if g == 0 else m, g == 2 and m == 1, {"learner.clip": 0.1 * (m + 1)}, 0.1 * m, m > 0, m == 2)
        for g in range(3)
        for m in range(3)
    ]
    rows = [["2", "20%", "kept"], ["0", "0%", "missed"]]
    view = PopulationView(
        title="A search",
        headline=["best: member 2"],
        facts=["a fact"],
        warnings=["a warning"],
        score="score",
        points=points,
        keys=["learner.clip"],
        logarithmic=["learner.clip"],
        configured={"learner.clip": 0.2},
        learnt=[["learner.clip", "0.2", "0.3", "+0.80"]],
        headings=["member", "return", "limit"],
        rows=rows,
    )
    write_population_page(file, view)


def write_accounts(folder: Path) -> None:
    """The page of a comparison, and the picture of a backtest by itself."""
    bars = sp500().slice(4000, 4600)
    paths = {f"run {k}": backtest(np.where(np.arange(600) % 40 < 20 * k, 1.0, 0.5), bars, first=300) for k in (1, 2)}
    paths["run 1"].plot(folder / "plot.html")
    statistics = {name: path.statistics() for name, path in paths.items()}
    compared = compare_accounts(paths, "run 2", statistics)
    write_comparison(folder / "compare.html", [compared], title="One and two", facts=["a fact"])


def write_pages(folder: Path) -> list[Path]:
    """One page of each kind that has no test in a browser elsewhere."""
    write_attack(folder / "attack.html")
    write_population(folder / "tune.html")
    write_accounts(folder)
    checks = [
        Check(name, name, "evidence of it", "what it means", "what to do") for name in ("fail", "warn", "unknown")
    ]
    write_audit(
        folder / "audit.html", [*checks, Check("ok", "ok", "fine", "good", "")], title="Audit", facts=["a fact"]
    )
    scores = [
        result(limit, seed, Score(0.1, tail, -0.01), references={"buy and hold": Score(0.3, -0.3, -0.03)})
        for limit, tail in ((None, -0.2), (-0.05, -0.04), (-0.02, -0.03))
        for seed in (0, 1)
    ]
    write_frontier_page(folder / "frontier.html", replace(frontier(*scores), label="a wave"))
    study = folder / "folds"
    study.mkdir()
    write_folds_report(folder / "walk-forward.html", read_walk_forward(make_folder(study)), study)
    return sorted(folder.glob("*.html"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_pages(tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_can_be_read(written: list[Path], scheme: str) -> None:
    """Rejects colours of a light page on a dark one, pale text of pictures and words that run out of a phone."""
    with browser() as running:
        for page in written:
            for size in (DESKTOP, PHONE):
                seen = look(running, page, size, color_scheme=scheme)
                assert seen.undrawn == 0, (page.name, scheme, size)
                assert (seen.faint, seen.errors) == ([], []), (page.name, scheme, size)
                assert seen.width <= size[0], (page.name, scheme, size)
