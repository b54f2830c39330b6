"""Paths written as Parquet and read back: nothing is lost, every column has a unit, trades add up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tailwise import backtest
from tailwise.bars.synthetic import random_walk
from tailwise.core.errors import DataError
from tailwise.evaluate.path_files import DECISIONS, EQUITY, TRADES, read_frame, read_paths, save_paths
from tailwise.evaluate.statistics import path_statistics
from tailwise.market.base import momentum
from tailwise.market.path import AccountPath


@pytest.fixture(scope="module")
def paths() -> dict[str, AccountPath]:
    bars = random_walk(seed=3, length=400)
    return {"rule": backtest(momentum(bars, look_back=20), bars), "held": backtest(np.ones(len(bars)), bars)}


def test_what_is_read_back_is_what_was_written(paths: dict[str, AccountPath], tmp_path: Path) -> None:
    """Every number of the ledger bit for bit. Rejects a file that keeps equity alone: statistics need the rest."""
    symbol = paths["rule"].symbol
    save_paths(tmp_path, {symbol: paths})
    found = read_paths(tmp_path)
    assert list(found) == [symbol] and list(found[symbol]) == ["rule", "held"]
    for name, path in paths.items():
        again = found[symbol][name]
        assert (again.label, again.assets, again.planned) == (path.label, path.assets, path.planned)
        assert again.periods_per_year == path.periods_per_year and np.array_equal(again.time, path.time)
        for column, values in path.ledger.items():
            if column not in ("row", "symbol"):
                assert np.array_equal(again.ledger[column], values), column
        assert path_statistics(again, alpha=0.05, gamma=0.9) == path_statistics(path, alpha=0.05, gamma=0.9)


def test_every_column_has_a_unit_or_a_meaning(paths: dict[str, AccountPath], tmp_path: Path) -> None:
    files = save_paths(tmp_path, {"X": paths})
    assert [file.name for file in files] == [EQUITY, DECISIONS, TRADES]
    for file in files:
        frame = read_frame(file)
        told = frame.attrs["units"]
        nameless = [name for name in frame.columns if told.get(name, ("", ""))[1] == ""]
        assert nameless == [], file.name
        times = [name for name in frame.columns if name.endswith("_utc")]
        assert all(str(frame[name].dt.tz) == "UTC" for name in times)
        assert times or str(frame.index.tz) == "UTC"


def test_frames_tell_the_path(paths: dict[str, AccountPath], tmp_path: Path) -> None:
    """Profits of the trades are the change of equity without interest; a decision stands beside its own bar."""
    save_paths(tmp_path, {"X": paths})
    path = paths["rule"]
    equity, trades = read_frame(tmp_path / EQUITY), read_frame(tmp_path / TRADES)
    decisions = read_frame(tmp_path / DECISIONS)
    own = equity[equity.policy == "rule"]
    assert np.allclose(own.log_return, path.log_returns) and np.allclose(own.wealth, path.wealth[1:])
    profit = trades[trades.policy == "rule"].profit.sum()
    assert profit == pytest.approx(path.equity[-1] - path.equity[0] - path.ledger["interest"].sum())
    asked = decisions[decisions.policy == "rule"]
    assert np.array_equal(asked.target, path.target[:, 0])
    assert pd.DatetimeIndex(asked.bar_open_utc).tz_localize(None)[0] == pd.Timestamp(path.time[0])
    assert asked.exposure_before.iloc[0] == 0 and np.allclose(asked.exposure_before.iloc[1:], path.exposures[:-1, 0])


def test_backtest_writes_the_same_files(tmp_path: Path) -> None:
    bars = random_walk(seed=3, length=60)
    path = backtest(np.ones(len(bars)), bars, out=tmp_path / "kept")
    found = read_paths(tmp_path / "kept")[bars.symbol]["rule"]
    assert np.array_equal(found.equity, path.equity)


def test_a_path_without_trades_is_written_too(tmp_path: Path) -> None:
    bars = random_walk(seed=3, length=60)
    backtest(np.zeros(len(bars)), bars, out=tmp_path)
    assert len(read_frame(tmp_path / TRADES)) == 0 and len(read_paths(tmp_path)[bars.symbol]["rule"]) == 59


def test_what_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no paths: there is no equity\.parquet"):
        read_paths(tmp_path)
    pd.DataFrame({"equity": [1.0]}).to_parquet(tmp_path / EQUITY)
    with pytest.raises(DataError, match="older version"):
        read_paths(tmp_path)
