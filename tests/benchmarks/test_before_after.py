"""The verdict on training speed: what counts as slower, and by how much two sides may differ."""

from __future__ import annotations

import pytest

from benchmarks.before_after import CASES, ratio_check


@pytest.mark.parametrize(("factor", "passed"), [(0.8, True), (1.04, True), (1.06, False)])
def test_a_side_that_takes_a_twentieth_more_fails(factor: float, passed: bool) -> None:
    before = [1.0, 1.1, 0.9, 1.3]
    check = ratio_check("MLP 64", before, [factor * seconds for seconds in before], judged=True)
    assert check.value == pytest.approx(factor)
    assert check.passed is passed
    assert f"95% interval {factor:.3f} to {factor:.3f}" in check.detail


def test_one_disturbed_turn_does_not_decide() -> None:
    """The median of pairs: rejects a ratio of sums, which would be 1.9 here."""
    check = ratio_check("demo", [1.0] * 7, [1.0] * 6 + [7.3], judged=True)
    assert check.value == 1.0
    assert check.passed


def test_a_smoke_run_is_not_judged() -> None:
    check = ratio_check("demo", [1.0, 1.0], [2.0, 2.0], judged=False)
    assert check.passed
    assert check.detail.endswith("the goal is not judged")


def test_the_configurations_are_those_that_are_promised() -> None:
    assert list(CASES) == ["MLP 64", "LSTM 64", "LSTM 128", "demo", "MLP 64, torch", "LSTM 64, torch"]
