"""Folds without leaks: planted overlaps, what really happens to labels and feature windows; windows as one path."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tailwise import backtest
from tailwise.bars.synthetic import random_walk
from tailwise.core.errors import ConfigError, DataError
from tailwise.evaluate.splits import (
    Fold,
    Range,
    check_fold,
    combinatorial,
    common_clock,
    least_purge,
    rows_of_symbol,
    stitch,
    walk_forward,
)
from tailwise.evaluate.statistics import path_statistics, window_returns
from tailwise.market.path import AccountPath, round_trips
from tests.evaluate.paths import bar_times, path_of


def members(ranges: tuple[Range, ...]) -> set[int]:
    return {row for one in ranges for row in range(one.first, one.end)}


def forbidden(fold: Fold, *, embargo_before: int, embargo_after: int) -> set[int]:
    """Rows that must not train: the test rows and what purge and embargo add."""
    return {
        row
        for one in fold.test
        for row in range(one.first - fold.purge - embargo_before, one.end + fold.purge + embargo_after)
    }


@settings(max_examples=80, deadline=None)
@given(
    rows=st.integers(50, 3000),
    folds=st.integers(1, 8),
    purge=st.integers(0, 40),
    embargo=st.integers(0, 20),
    anchored=st.booleans(),
    tested=st.floats(0.1, 0.8),
    select=st.integers(0, 60),
)
def test_walk_forward_keeps_its_gaps(
    rows: int, folds: int, purge: int, embargo: int, anchored: bool, tested: float, select: int
) -> None:
    """No train or select row in the test rows or their purge and embargo; tests follow one another to the last row."""
    try:
        found = walk_forward(
            rows, folds=folds, purge=purge, embargo=embargo, anchored=anchored, tested=tested, select=select
        )
    except ConfigError:
        assume(False)
        return
    assert [fold.number for fold in found] == list(range(folds))
    tested_rows = [row for fold in found for row in sorted(members(fold.test))]
    assert tested_rows == list(range(tested_rows[0], rows))
    lengths = {len(fold.train[0]) for fold in found}
    for fold in found:
        check_fold(fold, rows, label_horizon=0, look_back=purge)
        used = members(fold.train) | (members((fold.select,)) if fold.select else set())
        assert not used & forbidden(fold, embargo_before=embargo, embargo_after=0)
        assert max(used) < fold.test[0].first  # the future never trains
        assert (fold.select is None) == (select == 0)
        if fold.select is not None:
            assert len(fold.select) == select and fold.select.first - fold.train[0].end == purge + embargo
        assert not anchored or fold.train[0].first == 0
    assert len(lengths) == (folds if anchored else 1)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(120, 600),
    folds=st.integers(2, 7),
    test_folds=st.integers(1, 4),
    purge=st.integers(0, 20),
    embargo=st.integers(0, 10),
    select=st.integers(0, 25),
)
def test_combinatorial_keeps_its_gaps(
    rows: int, folds: int, test_folds: int, purge: int, embargo: int, select: int
) -> None:
    """No train or select row within the purge of a test row, nor within the embargo after one; every choice is tested
    and every path has all rows once."""
    try:
        cuts = combinatorial(rows, folds=folds, test_folds=test_folds, purge=purge, embargo=embargo, select=select)
    except ConfigError:
        assume(False)
        return
    assert len(cuts) == comb(folds, test_folds) == len({fold.test for fold in cuts})
    for fold in cuts:
        check_fold(fold, rows, label_horizon=purge, look_back=0)
        used = members(fold.train) | (members((fold.select,)) if fold.select else set())
        for row in members(fold.test):
            assert not used & set(range(row - purge, row + purge + embargo + 1))
        assert len(fold.paths) == len(fold.test) == test_folds
        assert (fold.select is None) == (select == 0)
        if fold.select is not None:
            assert len(fold.select) == select
            assert not members(fold.train) & set(range(fold.select.first - purge, fold.select.end + purge))
    paths = {name for fold in cuts for name in fold.paths}
    assert paths == set(range(comb(folds - 1, test_folds - 1)))
    for path in paths:
        parts = [one for fold in cuts for one, name in zip(fold.test, fold.paths, strict=True) if name == path]
        assert sorted(row for one in parts for row in range(one.first, one.end)) == list(range(rows))


@pytest.mark.parametrize(("folds", "test_folds"), [(6, 2), (7, 3), (4, 3)])
def test_combinatorial_equals_skfolio(folds: int, test_folds: int) -> None:
    """Train rows, test rows and paths; 403 rows, which no number of folds divides."""
    from skfolio.model_selection import CombinatorialPurgedCV

    ours = combinatorial(403, folds=folds, test_folds=test_folds, purge=7, embargo=4)
    theirs = CombinatorialPurgedCV(n_folds=folds, n_test_folds=test_folds, purged_size=7, embargo_size=4)
    splits = list(theirs.split(np.zeros((403, 1))))
    assert [sorted(members(fold.train)) for fold in ours] == [train.tolist() for train, _ in splits]
    assert [[list(range(one.first, one.end)) for one in fold.test] for fold in ours] == [
        [test.tolist() for test in tests] for _, tests in splits
    ]
    assert [list(fold.paths) for fold in ours] == theirs.get_path_ids().tolist()


def test_combinatorial_by_hand() -> None:
    """41 rows in 4 groups, 2 tested: training before, between and after; the last group has the row left over."""
    cuts = combinatorial(41, folds=4, test_folds=2, purge=2, embargo=1, select=3)
    assert cuts[0] == Fold(0, (Range(23, 36),), Range(38, 41), (Range(0, 10), Range(10, 20)), 2, 1, (0, 0))
    assert cuts[1] == Fold(
        1, (Range(13, 18), Range(33, 36)), Range(38, 41), (Range(0, 10), Range(20, 30)), 2, 1, (1, 0)
    )
    assert [fold.paths for fold in cuts] == [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1), (2, 2)]


def test_walk_forward_by_hand() -> None:
    """100 rows, the newest 40 tested in two folds; gaps of 3 + 2."""
    first, second = walk_forward(100, folds=2, purge=3, embargo=2, tested=0.4, select=10)
    assert first == Fold(0, (Range(0, 40),), Range(45, 55), (Range(60, 80),), 3, 2)
    assert second == Fold(1, (Range(0, 60),), Range(65, 75), (Range(80, 100),), 3, 2)
    rolling = walk_forward(100, folds=2, purge=3, embargo=2, tested=0.4, select=10, anchored=False)
    assert [fold.train for fold in rolling] == [(Range(0, 40),), (Range(20, 60),)]


@pytest.mark.parametrize("anchored", [True, False])
def test_walk_forward_equals_skfolio(anchored: bool) -> None:
    """Without a select window and an embargo it is skfolio's WalkForward."""
    from skfolio.model_selection import WalkForward

    ours = walk_forward(500, folds=4, purge=7, tested=0.4, anchored=anchored)
    theirs = list(
        WalkForward(test_size=50, train_size=293, expand_train=anchored, purged_size=7).split(np.zeros((500, 1)))
    )
    assert len(theirs) == 4
    for fold, (train, test) in zip(ours, theirs, strict=True):
        assert sorted(members(fold.train)) == train.tolist() and sorted(members(fold.test)) == test.tolist()


GOOD = Fold(0, (Range(0, 50),), Range(60, 70), (Range(80, 100),), 10, 0)


@pytest.mark.parametrize(
    ("planted", "sentence"),
    [
        (replace(GOOD, train=(Range(0, 85),), select=None), "train rows .* overlap the test rows"),
        (replace(GOOD, train=(Range(0, 51),)), "only 9 rows lie between the train rows .* and the select rows"),
        (replace(GOOD, select=Range(60, 75)), "only 5 rows lie between the select rows"),
        (replace(GOOD, select=Range(40, 45)), "train rows .* overlap the select rows"),
        (replace(GOOD, purge=9), "purge of 9 bars is shorter"),
        (replace(GOOD, train=(Range(0, 50), Range(115, 120)), embargo=6, paths=(0,)), "only 15 rows .* come after"),
        (replace(GOOD, embargo=1), "only 10 rows lie between"),
        (replace(GOOD, test=(Range(80, 100), Range(95, 110))), "test rows .* overlap"),
        (replace(GOOD, test=(Range(80, 121),)), "outside the 120 rows"),
        (replace(GOOD, train=()), "no rows to train"),
    ],
)
def test_a_planted_overlap_is_caught(planted: Fold, sentence: str) -> None:
    check_fold(GOOD, 120, label_horizon=1, look_back=10)
    with pytest.raises(DataError, match=sentence):
        check_fold(planted, 120, label_horizon=1, look_back=10)


LOOK_BACK, HORIZON = 12, 5


def what_training_sees(prices: np.ndarray, fold: Fold) -> np.ndarray:
    """Features (mean of LOOK_BACK closes) and labels (return over HORIZON bars) of the train rows."""
    rows = np.array(sorted(members(fold.train)))
    rows = rows[(rows >= LOOK_BACK) & (rows < len(prices) - HORIZON)]
    windows = np.stack([prices[rows - k] for k in range(LOOK_BACK + 1)])
    return np.concatenate([windows.mean(axis=0), np.log(prices[rows + HORIZON] / prices[rows])])


def test_labels_and_feature_windows_do_not_cross_the_cut() -> None:
    """Other prices in the test rows change nothing that training sees, with the purge that `least_purge` asks for; with
    the label horizon alone, feature windows reach into the test, and without a purge labels do as well."""
    prices = 100 * np.exp(0.01 * np.random.default_rng(0).standard_normal(400).cumsum())
    purge = least_purge(label_horizon=HORIZON, look_back=LOOK_BACK)
    assert purge == 12

    def leaks(fold: Fold) -> bool:
        changed = prices.copy()
        for one in fold.test:
            changed[one.first : one.end] *= 3.0
        return not np.array_equal(what_training_sees(prices, fold), what_training_sees(changed, fold))

    for make in (
        lambda p: walk_forward(400, folds=3, purge=p),
        lambda p: combinatorial(400, folds=6, test_folds=2, purge=p),
    ):
        assert not any(leaks(fold) for fold in make(purge))
        assert any(leaks(fold) for fold in make(0))
    assert any(leaks(fold) for fold in combinatorial(400, folds=6, test_folds=2, purge=HORIZON))
    with pytest.raises(DataError, match="shorter than the label horizon 5 or the look-back 12"):
        check_fold(walk_forward(400, folds=3, purge=HORIZON)[0], 400, label_horizon=HORIZON, look_back=LOOK_BACK)


def test_symbols_are_cut_by_common_time() -> None:
    """A symbol that begins later and one with a gap: their rows of a fold share the fold's times. Rejects cutting each
    symbol by its own row numbers."""
    day = np.datetime64("2020-01-01", "ns") + np.arange(100) * np.timedelta64(1, "D")
    late, gap = day[30:], np.delete(day, np.arange(40, 60))
    clock = common_clock([late, gap])
    assert np.array_equal(clock, day)
    fold = walk_forward(100, folds=2, purge=2, tested=0.4)[1]
    for time in (late, gap):
        train, test = (rows_of_symbol(time, clock, part) for part in (fold.train[0], fold.test[0]))
        assert time[test.first] == day[80] and len(test) == 20 and test.end == len(time)
        assert time[train.end - 1] == day[77]
    assert len(rows_of_symbol(late, clock, Range(0, 10))) == 0
    assert rows_of_symbol(late, clock, Range(20, 40)) == Range(0, 10)


def test_impossible_folds_are_sentences() -> None:
    with pytest.raises(ConfigError, match="0 are left to train on"):
        walk_forward(100, folds=2, purge=60)
    with pytest.raises(ConfigError, match="at least 0"):
        walk_forward(100, folds=2, purge=-1)
    with pytest.raises(ConfigError, match=r"combinatorial folds, 3 of 3 groups tested over 100 rows .* 1 left to"):
        combinatorial(100, folds=3, test_folds=3, purge=0)
    with pytest.raises(ConfigError, match="0 of 3 groups tested"):
        combinatorial(100, folds=3, test_folds=0, purge=0)
    with pytest.raises(ConfigError, match="12,870 choices, each a training, and at most 1,000 are allowed; use fewer"):
        combinatorial(1000, folds=16, test_folds=8, purge=0)
    with pytest.raises(ConfigError, match="a group would have no row; use fewer folds or more bars"):
        combinatorial(3, folds=4, test_folds=1, purge=0)
    with pytest.raises(
        ConfigError, match=r"no row is left to train on where the test is \[0, 10\) and \[20, 30\); use"
    ):
        combinatorial(40, folds=4, test_folds=2, purge=10)
    with pytest.raises(ConfigError, match=r"purge 5, embargo 0 and 20 rows to select: no row is left"):
        combinatorial(80, folds=4, test_folds=2, purge=5, select=20)


def parts() -> list[AccountPath]:
    """Three test windows that follow one another, an account that trades each of them from the same cash."""
    bars = random_walk(seed=5, length=301)
    targets = np.where(np.arange(301) % 40 < 20, 1.0, -0.5)
    return [backtest(targets, bars, first=first, last=first + 100) for first in (0, 100, 200)]


def test_returns_are_those_of_the_folds_one_after_the_other() -> None:
    """Rejects paths that are glued together as they are: equity would fall back to its start at each seam."""
    folds = parts()
    whole = stitch(folds)
    wanted = np.concatenate([fold.log_returns for fold in folds])
    assert np.allclose(whole.log_returns, wanted, atol=1e-12)
    glued = np.concatenate([fold.ledger["equity"] for fold in folds])
    assert not np.allclose(np.diff(np.log(glued)), wanted[1:], atol=1e-12)
    assert whole.wealth[-1] == pytest.approx(np.prod([fold.wealth[-1] for fold in folds]))
    assert whole.planned == len(whole) == 300


def test_exposures_costs_and_trips_keep_their_meaning() -> None:
    """Money and units are scaled, prices are not: what is a fraction of equity stays what it was."""
    folds = parts()
    whole = stitch(folds)
    for name in ("exposures", "traded", "costs", "target"):
        assert np.allclose(getattr(whole, name), np.concatenate([getattr(fold, name) for fold in folds])), name
    assert np.allclose(whole.ledger["order_price"], np.concatenate([fold.ledger["order_price"] for fold in folds]))
    assert len(round_trips(folds[0])) > 2
    statistics = path_statistics(whole, alpha=0.05, gamma=0.9)
    assert statistics.trades == sum(path_statistics(fold, alpha=0.05, gamma=0.9).trades for fold in folds)


def test_a_ruin_ends_the_path() -> None:
    """Rejects an account that comes back to life with the next fold."""
    times = bar_times("daily, exchange", 60)
    first = path_of(np.full(20, 0.01), time=times[:20])
    ruined = path_of(np.r_[np.zeros(9), -6.0], time=times[20:30])
    third = path_of(np.full(20, 0.5), time=times[40:])
    whole = stitch([first, ruined, third])
    assert len(whole) == 30 and whole.planned == 50 and whole.ruined
    assert np.array_equal(window_returns(whole)[30:], np.zeros(20))


def test_windows_that_overlap_are_refused() -> None:
    times = bar_times("daily, exchange", 30)
    one, two = path_of(np.zeros(20), time=times[:20]), path_of(np.zeros(15), time=times[15:])
    with pytest.raises(DataError, match="must follow one another without overlap"):
        stitch([one, two])
