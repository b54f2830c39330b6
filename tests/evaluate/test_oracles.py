"""Sharpe ratios after many trials, PBO and folds against packages that somebody else wrote (extra dev)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tailwise.core.errors import ConfigError
from tailwise.evaluate import outside
from tailwise.evaluate.evidence import deflated_sharpe, overfitting, probabilistic_sharpe
from tailwise.evaluate.outside import check_judge, outside_sentences
from tailwise.evaluate.splits import Fold, combinatorial, walk_forward
from tailwise.evaluate.statistics import excess_kurtosis, sharpe_ratio, skewness
from tests.evaluate.paths import path_of

LAWS = [(0.0005, 5, 1000), (0.002, 4, 250), (-0.001, 8, 500), (0.0, 30, 2000)]  # mean, degrees of freedom, bars


def drawn(mean: float, degrees: int, bars: int) -> np.ndarray:
    return mean + 0.01 * np.random.default_rng(bars).standard_t(degrees, bars)


@pytest.mark.parametrize("law", LAWS)
def test_probabilistic_and_deflated_sharpe_are_those_of_sharpebench(law: tuple[float, int, int]) -> None:
    """To 1e-6. Rejects an excess kurtosis taken for a kurtosis, which both cases move by more than 1e-4."""
    judge = pytest.importorskip("sharpebench")
    returns = drawn(*law)
    ratio, skew, excess = sharpe_ratio(returns, 1.0), skewness(returns), excess_kurtosis(returns)
    assert ratio is not None and skew is not None and excess is not None
    for benchmark in (0.0, 0.05):
        ours = probabilistic_sharpe(ratio, len(returns), skew=skew, kurtosis=excess + 3, benchmark=benchmark)
        assert ours == pytest.approx(judge.probabilistic_sharpe_ratio(returns.tolist(), benchmark), abs=1e-6)
    for trials in (2, 50):
        found = deflated_sharpe(returns, 252.0, trials=trials)
        assert found is not None
        spread = 1 / np.sqrt(len(returns))
        theirs = judge.deflated_sharpe_ratio(returns.tolist(), trials, trials_sr_std=spread)
        assert found.deflated == pytest.approx(theirs, abs=1e-6)
        best = judge.expected_max_sharpe(spread, trials) * np.sqrt(252)
        assert found.expected_best == pytest.approx(best, rel=1e-6)


def test_another_kurtosis_would_be_seen() -> None:
    """The comparison is sharp enough to see the fourth moment."""
    judge = pytest.importorskip("sharpebench")
    returns = drawn(0.002, 4, 250)
    ratio, skew, excess = sharpe_ratio(returns, 1.0), skewness(returns), excess_kurtosis(returns)
    assert ratio is not None and skew is not None and excess is not None
    wrong = probabilistic_sharpe(ratio, 250, skew=skew, kurtosis=excess)
    assert abs(wrong - judge.probabilistic_sharpe_ratio(returns.tolist(), 0.0)) > 1e-5


def test_the_probability_of_overfitting_is_that_of_sharpebench() -> None:
    judge = pytest.importorskip("sharpebench")
    rng = np.random.default_rng(0)
    for edge in (0.0, 0.05, 0.3):
        returns = rng.standard_normal((320, 8))
        returns[:, 3] += edge
        ours = overfitting(returns, blocks=8).probability
        assert ours == judge.probability_of_backtest_overfitting(returns.tolist(), s=8), edge


def rows_of(fold: Fold) -> tuple[set[int], set[int]]:
    train = {row for one in fold.train for row in range(one.first, one.end)}
    return train, {row for one in fold.test for row in range(one.first, one.end)}


def their_times(rows: int, purge: int) -> tuple[Any, Any]:
    """A decision at each hour whose label ends `purge` bars later, which is bar `purge` + 1 as a half-open end."""
    pandas = pytest.importorskip("pandas")
    start = pandas.Series(pandas.date_range("2024-01-01", periods=rows, freq="h"))
    return start, start + pandas.Timedelta(hours=purge + 1)


@pytest.mark.parametrize(("rows", "folds", "test", "purge", "embargo"), [(60, 6, 2, 2, 0), (97, 5, 1, 3, 4)])
def test_combinatorial_folds_are_those_of_purgedcv(rows: int, folds: int, test: int, purge: int, embargo: int) -> None:
    """Every training row of every fold. Rejects a purge on one side only, and an embargo before the test. Their embargo
    counts from the last tested row, ours from the end of the purge."""
    other = pytest.importorskip("purgedcv")
    rows -= rows % folds  # what is left over goes to the last group here and to the first ones there
    start, end = their_times(rows, purge)
    theirs = other.CombinatorialPurgedCV(
        folds, test, prediction_times=start, evaluation_times=end, embargo_observations=purge + embargo
    )
    ours = combinatorial(rows, folds=folds, test_folds=test, purge=purge, embargo=embargo)
    found = sorted((tuple(sorted(tested)), tuple(sorted(train))) for train, tested in map(rows_of, ours))
    expected = [(tuple(map(int, tested)), tuple(map(int, train))) for train, tested in theirs.split(np.zeros(rows))]
    assert found == sorted(expected)
    shorter = combinatorial(rows, folds=folds, test_folds=test, purge=purge - 1, embargo=embargo)
    assert sorted((tuple(sorted(tested)), tuple(sorted(train))) for train, tested in map(rows_of, shorter)) != found


def test_walk_forward_folds_are_those_of_purgedcv() -> None:
    other = pytest.importorskip("purgedcv")
    rows, folds, purge = 120, 4, 5
    start, end = their_times(rows, purge)
    theirs = other.WalkForwardSplit(folds, 15, prediction_times=start, evaluation_times=end)
    ours = walk_forward(rows, folds=folds, purge=purge, tested=0.5)
    for fold, (train, tested) in zip(ours, theirs.split(np.zeros(rows)), strict=True):
        assert rows_of(fold) == (set(map(int, train)), set(map(int, tested)))


def test_the_outside_judge_speaks_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejects silence where the judge is missing, and a verdict that does not see the number of trials."""
    pytest.importorskip("sharpebench")
    path = path_of(0.001 + 0.01 * np.random.default_rng(1).standard_normal(1260))
    (one,), (many,) = (outside_sentences("sharpebench", path, trials) for trials in (1, 1000))
    assert one.startswith("sharpebench ") and " says pass: " in one and "after 1 trial is " in one
    assert " says fail: " in many and "after 1,000 trials is " in many
    assert "never moved" in outside_sentences("sharpebench", path_of(np.zeros(100)), 1)[0]
    monkeypatch.setattr(outside, "find_spec", lambda name: None)
    assert outside_sentences("sharpebench", path, 1) == [
        "sharpebench is not installed, so it was not asked; pip install sharpebench"
    ]
    with pytest.raises(ConfigError, match="--judge is 'nobody'; choose sharpebench"):
        check_judge("nobody")
