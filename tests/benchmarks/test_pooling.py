"""The benchmark of pooling: a smoke run of each kind of arm."""

from __future__ import annotations

import pytest

from benchmarks.pooling import POOLED, RESAMPLED, check, measure


@pytest.mark.parametrize(
    ("arm", "symbols"), [("pool: tails", {"CALM", "WILD"}), ("random_walk: half, drift removed", {"RANDOM_WALK"})]
)
def test_a_smoke_run_measures_every_symbol(arm: str, symbols: set[str]) -> None:
    found = measure(arm, 0, quick=True)
    assert set(found) == symbols
    for one in found.values():
        assert one.use > 0.3, "two updates leave the policy close to a base rule that is scaled to its limit"
    said = check(arm, [found[symbol] for symbol in symbols])
    assert said.goal == "for comparison" and "budget use" in said.detail


def test_every_arm_changes_one_thing() -> None:
    reference = POOLED["reference"]
    assert RESAMPLED["none"] == {} and all(changes for name, changes in RESAMPLED.items() if name != "none")
    for name, changes in POOLED.items():
        assert (changes == reference) == (name == "reference")
        assert name == "scales" or changes["features"]["scales"] == reference["features"]["scales"]
