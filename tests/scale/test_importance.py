"""What a search learnt, on populations whose answer is known."""

from __future__ import annotations

import pytest

from tailwise.scale.importance import rank_correlations
from tailwise.scale.population import Measured, Member, Ranking, Step, Trained


def step(generation: int, values: list[float | str], scores: list[float | None]) -> Step:
    return [
        Trained(
            member=Member(
                number=number, generation=generation, folder=f"m{number}", seed=number, values={"key": value}
            ),
            measured=Measured(steps=1, value=score, tail=score, smoothed=score, smoothed_tail=score),
        )
        for number, (value, score) in enumerate(zip(values, scores, strict=True))
    ]


def test_order_counts_and_generations_are_apart() -> None:
    """1, 10, 100, 1000 with rising scores is 1 although no line fits, and with falling ones -1. Two generations, each
    rising, of which the later scores higher and has smaller values, are 1 as well: pooled they would be negative."""
    rising = step(0, [1.0, 10.0, 100.0, 1000.0], [1.0, 2.0, 3.0, 4.0])
    falling = step(0, [1.0, 10.0, 100.0, 1000.0], [4.0, 3.0, 2.0, 1.0])
    later = step(1, [0.01, 0.1, 0.2, 0.3], [11.0, 12.0, 13.0, 14.0])
    assert rank_correlations([rising], ["key"], Ranking()) == {"key": pytest.approx(1.0)}
    assert rank_correlations([falling], ["key"], Ranking()) == {"key": pytest.approx(-1.0)}
    assert rank_correlations([rising, later], ["key"], Ranking()) == {"key": pytest.approx(1.0)}
    assert rank_correlations([rising, falling], ["key"], Ranking()) == {"key": pytest.approx(0.0)}


def test_members_are_ordered_as_the_search_orders_them() -> None:
    """Those that break the limit come last, whatever they earn; here the value that earns most breaks it."""
    members = step(0, [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])
    broken = members[3].measured.model_copy(update={"smoothed_tail": -9.0})
    members = [*members[:3], Trained(member=members[3].member, measured=broken)]
    assert rank_correlations([members], ["key"], Ranking(limit=0.0)) == {"key": pytest.approx(-0.2)}


def test_what_says_nothing_is_left_out() -> None:
    scores: list[float | None] = [1.0, 2.0, 3.0, 4.0]
    for silent in (
        step(0, [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
        step(0, [5.0, 5.0, 5.0, 5.0], scores),
        step(0, [1.0, 2.0, 3.0, 4.0], [7.0, 7.0, 7.0, 7.0]),
        step(0, ["a", "b", "c", "d"], scores),
        step(0, [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, None]),
    ):
        assert rank_correlations([silent], ["key"], Ranking()) == {}
