"""How the scores of two backends are told apart."""

from __future__ import annotations

import pytest

from benchmarks.backends import chance_of_difference


def test_chance_of_a_difference_between_equals() -> None:
    """Of the 252 ways to deal out five zeros and five ones, two are as far apart as can be; equal scores always are."""
    assert chance_of_difference([0.0] * 5, [1.0] * 5) == pytest.approx(2 / 252)
    assert chance_of_difference([500.0] * 4, [500.0] * 4) == 1.0
