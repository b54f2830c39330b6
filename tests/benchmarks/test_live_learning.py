"""The benchmark of online learning: its markets are what they are said to be."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from benchmarks import live_learning
from benchmarks.live_learning import BEFORE_FLIP, TRAIN, WORLDS, garch, regime_bars
from benchmarks.report import Options


def test_no_challenger_of_the_simulated_markets_is_better() -> None:
    """The mean difference is 0 but for its standard error; crash sellers earn on nearly all bars."""
    for world, draw in WORLDS.items():
        values = np.concatenate([draw(2000, seed).mean(axis=1) for seed in range(10)])
        assert abs(values.mean()) < 4 * values.std() / np.sqrt(len(values)), world
    assert (WORLDS["crash sellers"](5000, 0) > -1).mean() > 0.98
    assert np.corrcoef(WORLDS["20 correlated symbols"](5000, 0).T)[0, 1] == pytest.approx(0.8, abs=0.05)


def test_garch_streams_have_clusters_and_fat_tails() -> None:
    streams = garch(40, 3000, seed=1)
    squares = streams**2 - (streams**2).mean(axis=1, keepdims=True)
    clusters = (squares[:, 1:] * squares[:, :-1]).mean(axis=1) / squares.var(axis=1)
    assert np.median(clusters) > 0.03
    assert np.median((streams**4).mean(axis=1) / (streams**2).mean(axis=1) ** 2) > 3.5


@pytest.mark.parametrize(("kind", "sign"), [("flip", -1), ("stationary", 1)])
def test_the_regime_flips_where_it_is_said_to(kind: str, sign: int) -> None:
    bars = regime_bars(kind, 3, TRAIN + BEFORE_FLIP + 1500)
    moves = np.log(bars.close / bars.open)
    early, late = moves[: TRAIN + BEFORE_FLIP], moves[TRAIN + BEFORE_FLIP :]
    assert np.corrcoef(early[1:], early[:-1])[0, 1] > 0.3
    assert np.corrcoef(late[1:], late[:-1])[0, 1] * sign > 0.3
    assert np.array_equal(bars.open[1:], bars.close[:-1])


@pytest.mark.parametrize(("learnt", "passed"), [(-1.9, True), (-2.1, False)])
def test_half_of_what_the_frozen_policy_loses_is_judged_and_written(
    learnt: float, passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen policies lose 4: half of it is 2. Rejects a share of single seeds, and a verdict that JSON cannot hold."""

    def outcomes(jobs: list[Any], options: Options) -> list[dict[str, float]]:
        counts = {"trained": 1.0, "promoted": 1.0, "rolled back": 0.0, "drift": 1.0}
        return [{"frozen": -4.0 - (-1) ** k, "learnt": learnt + (-1) ** k, **counts} for k in range(len(jobs))]

    monkeypatch.setattr(live_learning, "run_all", outcomes)
    (check,) = live_learning.recoveries(Options(False, print, ("flip",)))
    assert json.loads(json.dumps(asdict(check)))["passed"] is passed
    assert check.value == pytest.approx((learnt + 4) / 4) and f"-5.00 {learnt + 1:+.2f}" in check.detail
