"""The page of a frontier: every limit, kept or missed, in one file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tailwise.evaluate.frontier_result import Score
from tailwise.pages.frontier import write_frontier_page
from tests.evaluate.test_frontier import frontier, result


def test_the_page_shows_every_limit_and_opens_without_a_network(tmp_path: Path) -> None:
    rules = {"buy <and> hold": Score(0.3, -0.3, -0.03)}
    results = [
        result(limit, seed, Score(0.1, tail - 0.01 * seed, -0.01), references=rules)
        for limit, tail in ((None, -0.2), (-0.05, -0.04), (-0.02, -0.03))
        for seed in (0, 1)
    ]
    made = replace(frontier(*results), label="synthetic: a wave")
    write_frontier_page(tmp_path / "frontier.html", made)
    page = (tmp_path / "frontier.html").read_text()
    assert 1_500_000 < len(page) < 3_000_000 and 'src="http' not in page
    for text in ("limit -5%", "limit -2%", "unconstrained", "buy &lt;and&gt; hold", "synthetic: a wave"):
        assert text in page
    first = page[page.index('class="headline"') :]  # before the picture
    assert first.startswith('class="headline">Sampled actions: limit -5% kept, 2 of 2, -2% missed, 0 of 2; ')
    assert "10.0% at the tightest, 10.0% without a limit." in first[:300]
    assert '<td class="kept">kept, 2 of 2</td>' in page and '<td class="missed">missed, 0 of 2</td>' in page
    told = json.loads(json.dumps(made.to_json()))
    assert told["references"] == {"buy <and> hold": {"mean_return": 0.3, "cvar_return": -0.3, "cvar_bar": -0.03}}
    assert [run["limit"] for run in told["runs"]] == [None, None, -0.05, -0.05, -0.02, -0.02]
    assert told["rows"][2]["cvar_return"]["mean"] == pytest.approx(-0.045)
