"""The benchmark of the deployed tail: verdicts that can fail, and one smoke run of each kind of action."""

from __future__ import annotations

import pytest

from benchmarks.deployed import ACTIONS, NEAR, Tails, check, measure


@pytest.mark.parametrize(
    ("tails", "passes"),
    [
        ([Tails(-0.040, -0.041, -0.042), Tails(-0.050, -0.049, -0.048)], True),
        ([Tails(-0.040, -0.029, -0.029)], False),  # the run measured another tail than anybody has
        ([Tails(-0.040, -0.040, -0.002)], False),  # the most likely of four positions is flat
        ([Tails(-0.040, -0.040, -0.045)], False),  # worse than what was steered
    ],
)
def test_a_tail_that_is_not_the_steered_one_is_told(tails: list[Tails], passes: bool) -> None:
    found = check("positions", tails)
    assert found.passed == passes
    assert found.value is not None and (found.value <= NEAR) == passes


@pytest.mark.parametrize("name", list(ACTIONS))
def test_a_smoke_run_measures_three_tails(name: str) -> None:
    """Before anything is learnt a continuous policy is its rule, and the sampled one trades around it."""
    for one in measure(name, quick=True):
        assert one.measured < 0 and one.sampled < 0 and one.deployed < 0
        if name == "exposure":
            assert one.sampled != one.deployed
            assert one.deployed == pytest.approx(one.sampled, rel=0.25)
