"""Files with closes alone: refused unless asked for, read in one of two stated ways, and labelled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tailwise.bars.bars import Bars, label_warning, load_bars, save_bars
from tailwise.bars.check_bars import check_bars
from tailwise.bars.synthetic import random_walk
from tailwise.core.errors import DataError
from tailwise.run.config import parse_config
from tailwise.run.worlds import MarketWorld

CLOSES = np.array([10.0, 11.0, 10.5, 10.5, 12.0])


def frame(days: int = 5) -> pd.DataFrame:
    return pd.DataFrame({"Date": pd.date_range("2020-01-01", periods=days).strftime("%Y-%m-%d"), "Close": CLOSES})


def written(folder: Path, kind: str) -> Path | pd.DataFrame:
    if kind == "frame":
        return frame()
    path = folder / f"gold.{kind}"
    if kind == "csv":
        frame().to_csv(path, index=False)
    else:
        frame().to_parquet(path)
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_closes_are_read_as_stated(tmp_path: Path, kind: str) -> None:
    source = written(tmp_path, kind)
    before = load_bars(source, close_only="previous_close")
    assert before.open.tolist() == [10.0, 10.0, 11.0, 10.5, 10.5]
    assert before.high.tolist() == [10.0, 11.0, 11.0, 10.5, 12.0]
    assert before.low.tolist() == [10.0, 10.0, 10.5, 10.5, 10.5]
    same = load_bars(source, close_only="same_close")
    for bars in (before, same):
        assert np.array_equal(bars.close, CLOSES) and not bars.volume.any()
        assert any("no column of volumes" in note for note in bars.notes)
    assert all(np.array_equal(getattr(same, name), CLOSES) for name in ("open", "high", "low"))
    assert before.label == "real, closes only (open = the close before)"
    assert same.label == "real, closes only (open = high = low = close)"
    assert label_warning(before.label) == f"Not whole bars: {before.label}." and label_warning("real") is None


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_closes_are_refused_unless_asked_for(tmp_path: Path, kind: str) -> None:
    with pytest.raises(DataError, match="--close-only"):
        load_bars(written(tmp_path, kind))


def test_half_a_range_is_no_file_of_closes() -> None:
    with pytest.raises(DataError, match="no column for low"):
        load_bars(frame().assign(open=CLOSES, high=CLOSES, volume=1.0), close_only="same_close")
    with pytest.raises(DataError, match="no column for volume"):
        load_bars(frame().assign(open=CLOSES, high=CLOSES, low=CLOSES), close_only="same_close")
    with pytest.raises(DataError, match="close_only is 'close'"):
        load_bars(frame(), close_only="close")  # type: ignore[arg-type]


def test_whole_bars_are_read_as_ever() -> None:
    """The option concerns files without open, high and low alone."""
    whole = random_walk(seed=1, length=300)
    again = load_bars(whole.to_frame(), close_only="previous_close")
    assert again.data_hash() == load_bars(whole.to_frame()).data_hash() and again.label == whole.label


def test_order_adjustment_and_repair_come_before_the_open() -> None:
    """The close before is that of the row before in time, adjusted, of the rows that are left. Rejects an open that is
    made of the file as it stands."""
    turned = load_bars(frame()[::-1], close_only="previous_close")
    assert turned.open.tolist() == [10.0, 10.0, 11.0, 10.5, 10.5]
    adjusted = frame().assign(**{"Adj Close": CLOSES * [0.5, 0.5, 1, 1, 1]})
    assert load_bars(adjusted, close_only="previous_close", adjust="consistent").open.tolist() == [
        5,
        5,
        5.5,
        10.5,
        10.5,
    ]
    broken = frame()
    broken.loc[2, "Close"] = -1.0
    left = load_bars(broken, close_only="previous_close", repair="drop")
    assert left.open.tolist() == [10.0, 10.0, 11.0, 10.5] and left.close.tolist() == [10.0, 11.0, 10.5, 12.0]


def test_the_label_is_in_the_file_that_is_saved_and_in_what_check_says(tmp_path: Path) -> None:
    source = written(tmp_path, "csv")
    bars = load_bars(source, close_only="previous_close")
    save_bars(bars, tmp_path / "whole.csv")
    assert load_bars(tmp_path / "whole.csv").label == bars.label
    facts = check_bars(source, close_only="previous_close")
    assert ("label", bars.label) in facts.lines() and facts.zero_volume == 5


def closes_of(bars: Bars, path: Path) -> Path:
    bars.to_frame()[["close"]].to_csv(path, index_label="time")
    return path


def test_a_run_says_so_in_manifest_and_warning(tmp_path: Path) -> None:
    path = closes_of(random_walk(seed=3, length=800), tmp_path / "walk.csv")
    worlds = {}
    for how in ("previous_close", "same_close"):
        tree = {
            "data": {"kind": "files", "paths": [str(path)], "close_only": how},
            "features": {"include": ["return_1"]},
            "env": {"kind": "market"},
        }
        worlds[how] = MarketWorld(parse_config(tree, source="test"))
        assert "closes only" in worlds[how].facts()["label"] and "closes only" in worlds[how].describe()[0]
    said = [any("filled at the price they were decided at" in w for w in one.warnings()) for one in worlds.values()]
    assert said == [True, False]
