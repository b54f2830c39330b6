"""The benchmark of planted edges: markets without an order, one smoke run, and verdicts that can fail."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.planted import Played, _kept, _left_alone, measure, shuffled
from tailwise.bars.builtin import sp500


def played(sharpe: float, *, turnover: float = 3.0, exposure: float = 0.5, difference: float = 0.0) -> Played:
    return Played((sharpe, 0.5), difference, 0.01, (exposure, 0.5), (turnover, 3.0), 0.8, ())


def test_shuffled_days_have_the_same_moves_in_another_order() -> None:
    bars, mixed = sp500(), shuffled(3)
    moves = [np.log(one.close[1:] / one.close[:-1]) for one in (bars, mixed)]
    first = np.log(bars.close[0] / bars.open[0])
    known = np.sort(np.append(moves[0], first))
    found = np.sort(np.append(moves[1], np.log(mixed.close[0] / mixed.open[0])))
    assert known == pytest.approx(found, abs=1e-9)
    assert abs(np.corrcoef(moves[0], moves[1])[0, 1]) < 0.1
    assert (mixed.high >= np.maximum(mixed.open, mixed.close)).all() and (mixed.low > 0).all()


def test_a_prior_that_never_lets_go_does_not_pass() -> None:
    free = [played(1.5), played(1.7)]
    assert not _kept("ar1", [played(0.5), played(0.5)], free).passed
    assert not _kept("ar1", [played(1.2), played(1.2)], free).passed
    assert _kept("ar1", [played(1.4), played(1.6)], free).passed
    assert not _kept("ar1", [played(0.4)], [played(0.4)]).passed, "where nobody finds anything nothing was shown"


@pytest.mark.parametrize(
    ("outcome", "failing"),
    [
        (played(0.5), []),
        (played(0.5, difference=0.05), [0]),
        (played(0.5, turnover=6.0), [1]),
        (played(0.5, exposure=0.1), [2]),
    ],
)
def test_noise_trading_and_a_flat_account_are_told(outcome: Played, failing: list[int]) -> None:
    assert [i for i, check in enumerate(_left_alone("walk", [outcome])) if not check.passed] == failing


def test_a_smoke_run_plays_beside_the_base_rule() -> None:
    found = measure("random walk", 0, False, quick=True)
    assert found.exposures[0] == pytest.approx(found.exposures[1], rel=0.3), "two updates leave it close to the rule"
    assert found.use is not None and found.turnovers[1] > 0
