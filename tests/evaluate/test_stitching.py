"""Test windows of several folds as one path."""

from __future__ import annotations

import numpy as np
import pytest

from tailwise import backtest
from tailwise.bars.synthetic import random_walk
from tailwise.core.errors import DataError
from tailwise.evaluate.statistics import path_statistics, window_returns
from tailwise.evaluate.stitching import stitch
from tailwise.evaluate.trips import round_trips
from tailwise.market.path import AccountPath
from tests.evaluate.paths import bar_times, path_of


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
