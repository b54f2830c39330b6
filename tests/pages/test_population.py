"""The page of a search: lineage, intervals of scores, the configuration's values, what was learnt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tailwise.pages.population import Point, PopulationView, population_figure, write_population_page
from tests.chromium import browser
from tests.pages.browser import DESKTOP, PHONE, look

RATE = "learner.learning_rate"


def point(generation: int, member: int, value: float | None, *, parent: int | None = None, rate: float) -> Point:
    """A member of a population that searches the learning rate."""
    return Point(
        generation=generation,
        member=member,
        parent=parent,
        copied=parent is not None and parent != member,
        values={RATE: rate},
        value=value,
        kept=None,
        ancestor=member == 1,
    )


VIEW = PopulationView(
    title="wave: search by pbt",
    headline=["best: member 1 with 50%"],
    facts=["searched: learner.learning_rate"],
    warnings=[],
    score="log-return per year, select window",
    points=[
        point(0, 0, 0.1, rate=1e-5),
        point(0, 1, 0.3, rate=1e-3),
        point(1, 0, None, parent=1, rate=2e-3),
        point(1, 1, 0.5, parent=1, rate=1e-3),
    ],
    keys=[RATE],
    logarithmic=[RATE],
    configured={RATE: 5e-2},
    learnt=[[RATE, "0.05", "0.001", "+0.80"]],
    headings=["member", "return", "95%", RATE, "run"],
    rows=[["1", "50%", "30% to 70%", "0.001", "generation-001-member-001"], ["0", "failed", "-", "0.002", "other"]],
)


def test_the_configured_value_is_drawn_and_widens_its_axis() -> None:
    """Rejects a line beside the traces, which lies outside of the axis where no member is near it; and ticks between
    the powers of ten, which lie upon one another."""
    figure = population_figure(VIEW)
    assert figure.layout.yaxis2.type == "log"
    assert list(figure.layout.yaxis2.tickvals) == pytest.approx([1e-5, 1e-4, 1e-3, 1e-2])
    traces = figure.data
    dashed = [one for one in traces if one.mode == "lines" and one.line.dash == "dash"]
    assert [list(one.y) for one in dashed] == [[5e-2, 5e-2]]
    assert dashed[0].x[0] < 0 and dashed[0].x[1] > 1
    nowhere = population_figure(replace(VIEW, configured={}))
    assert not [one for one in nowhere.data if one.mode == "lines" and one.line.dash == "dash"]


def test_a_configured_value_without_a_place_on_its_axis_is_told(tmp_path: Path) -> None:
    """0 on an axis of logarithms. Rejects a line that is there and that nobody sees."""
    view = replace(VIEW, configured={RATE: 0.0})
    assert not [one for one in population_figure(view).data if one.mode == "lines" and one.line.dash == "dash"]
    path = tmp_path / "tune.html"
    write_population_page(path, view)
    assert "no place for it: the configuration's learner.learning_rate 0.0." in path.read_text().replace("&#39;", "'")
    write_population_page(path, VIEW)
    assert "Not drawn" not in path.read_text()


def test_the_page_opens_and_shows_what_was_learnt(tmp_path: Path) -> None:
    path = tmp_path / "tune.html"
    write_population_page(path, VIEW)
    for text in (
        "What it learnt",
        "rank correlation with the score",
        "+0.80",
        "Dashed: the value of the configuration",
    ):
        assert text in path.read_text()
    with browser() as running:
        for size in (DESKTOP, PHONE):
            seen = look(running, path, size)
            assert seen.errors == [] and seen.faint == []
            assert seen.width <= size[0]
