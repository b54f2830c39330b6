"""Attacks on the path of a market: what is said is what the account got, and the search beats chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tailwise.core.errors import ConfigError, NotBuiltError, number
from tailwise.evaluate.attack_path import PathPlan, attack_path
from tailwise.pages.attack import headings, sentences, table_rows, write_attack_page
from tailwise.run.agent import PPO
from tailwise.run.config import parse_config
from tests.run.test_path_worlds import MARKET
from tests.support import merged

PLAN = PathPlan(budgets=(0.05, 0.01), steps=4, draws=5)


def policy(**changes: Any) -> PPO:
    return PPO(config=parse_config(merged(MARKET, changes), source="test"))


def test_the_worst_path_costs_more_than_chance_and_more_with_the_budget(tmp_path: Any) -> None:
    """Budgets in order, two rows each; clean is the policy's own trade of its test; moves keep their limits; the same
    call says the same. Rejects a random path that is the mean of some instead of the worst, and shifts beyond 4 x."""
    agent = policy(learner={"gamma": 0.9})
    result = attack_path(agent, PLAN)
    own = [float(np.log(path.wealth[-1])) for path in agent.trade("test")]
    assert list(result.clean.returns) == own
    assert [(one.budget, one.attack) for one in result.outcomes] == [
        (budget, name) for budget in (0.01, 0.05) for name in ("random path", "worst path")
    ]
    small_chance, small, large_chance, large = result.outcomes
    assert small.mean_return < small_chance.mean_return < result.clean.mean_return
    assert large.mean_return < min(large_chance.mean_return, small.mean_return)
    for one in result.outcomes:
        assert 0 < one.largest_move <= 4 * one.budget * (1 + 1e-9) and one.excess <= 1e-9 and one.changed > 0
        assert one.market is not None and one.market != result.clean.market and one.tail is not None
    assert attack_path(agent, PLAN).to_json() == result.to_json()
    rows = table_rows(result)
    assert [len(row) for row in rows] == [len(headings(result))] * 5 and rows[0][1] == "none"
    assert f"At 0.05 the worst path that was found leaves {number(large.mean_return)}" in " ".join(sentences(result))
    write_attack_page(tmp_path / "page.html", result)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Return on other paths" in page and "Symbols whose bars move" in page and "worst path" in page


def test_a_plan_that_makes_no_sense_is_refused() -> None:
    for plan, words in (
        ({"budgets": (0.0,)}, "not above 0"),
        ({"largest": 0.5}, "from 1 to 100"),
        ({"draws": 0}, "at least 1"),
    ):
        with pytest.raises(ConfigError, match=words):
            PathPlan(**plan)  # type: ignore[arg-type]
    weights = policy(env={"action": {"kind": "weights", "low": -1, "high": 1}})
    with pytest.raises(NotBuiltError, match="accounts with one asset"):
        attack_path(weights, PLAN)
