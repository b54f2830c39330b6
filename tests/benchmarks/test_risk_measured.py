"""Who is moved by risk: measured where the risk advantage is all there is, with its sign."""

from __future__ import annotations

import pytest

from benchmarks.risk_measured import pushed
from benchmarks.risk_signs import PROBLEMS
from benchmarks.risk_truth import ExposureProblem


@pytest.mark.parametrize(("problem", "sign"), [(PROBLEMS[2].problem, 1), (PROBLEMS[3].problem, -1)])
def test_risk_alone_moves_the_policy_to_where_cvar_is_higher_and_no_critic(problem: ExposureProblem, sign: int) -> None:
    """Rejects a measurement where the risk advantage is 0 and rounding is all that differs, a flipped sign (CVaR rises
    with exposure in one problem and falls in the other), and risk that reaches a critic."""
    push, critics, share = pushed(problem, seed=0, updates=2)
    assert sign * push > 1e-4
    assert critics == 0
    assert share > 0.9
