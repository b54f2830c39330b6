"""From the configuration to tables: windows that do not overlap, features fitted on the train rows alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailwise.bars.bars import save_bars
from tailwise.bars.builtin import sp500
from tailwise.bars.data_config import BuiltinData, DatesSplit, FilesData, SharesSplit, SyntheticData
from tailwise.bars.synthetic import random_walk
from tailwise.core.config import parse
from tailwise.core.errors import ConfigError, DataError
from tailwise.features.config import FeaturesConfig
from tailwise.features.spec import FeatureSpec
from tailwise.features.table import FeatureTable
from tailwise.market.dataset import Dataset, Loaded, build_dataset, load_data
from tailwise.market.split import Window, split_windows

SHORT = FeaturesConfig(include=("return_1", "volatility_20"))
DATES = DatesSplit(
    train=(date(1999, 1, 1), date(2010, 1, 1)),
    select=(date(2010, 1, 1), date(2013, 1, 1)),
    test=(date(2013, 1, 1), None),
)


def test_windows_by_date_follow_one_another_and_share_no_bar() -> None:
    """The first decision of a window is made at the last close before it, its first bar is the first one inside."""
    dataset = build_dataset(BuiltinData(split=DATES), SHORT)
    bars = dataset.bars[0]
    windows = [dataset.window(purpose)[0] for purpose in ("train", "select", "test")]
    assert [w.end for w in windows] == [windows[1].first, windows[2].first, len(bars)]
    assert str(bars.time[windows[2].first])[:10] == "2013-01-02"
    for purpose, window in zip(("train", "select", "test"), windows, strict=True):
        table = dataset.tables(purpose)[0]
        assert len(table.close) == window.end  # nothing after the window is in the table at all
        assert table.first_valid == max(window.first - 1, dataset.features[0].first_valid)


def test_features_are_fitted_on_the_train_rows_alone() -> None:
    """Other bars after the train window change nothing that was fitted, and no feature before it. Rejects a scaler
    fitted on everything, which the same comparison catches."""
    import tempfile

    bars = random_walk(seed=5, length=800)
    wild = random_walk(seed=6, length=800, sigma=0.05)
    specs, tables, wrong = [], [], []
    for tail in (bars, wild):
        joined = {
            name: np.concatenate(
                [getattr(bars, name)[:480], getattr(tail, name)[480:] * (bars.close[479] / tail.open[480])]
            )
            for name in ("open", "high", "low", "close")
        }
        frame = bars.to_frame().assign(**joined)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "one.parquet"
            frame.to_parquet(path)
            data = FilesData(paths=(str(path),), symbols=("ONE",))
            dataset = build_dataset(data, SHORT)
            everything = build_dataset(data.model_copy(update={"split": SharesSplit(select=0.0, test=0.0)}), SHORT)
        specs.append(dataset.spec.to_json())
        wrong.append(everything.spec.to_json())
        tables.append(dataset.features[0].values[:480])
        assert dataset.window("train")[0].end == 480
    assert specs[0] == specs[1]
    assert np.array_equal(tables[0], tables[1], equal_nan=True)
    assert wrong[0]["columns"] != wrong[1]["columns"]


def test_shares_take_every_bar_once_and_cut_all_symbols_at_the_same_time() -> None:
    """Rejects shares of each symbol's own rows: a young symbol would train on the days that an old one is tested on."""
    old = random_walk(seed=0, length=1000)
    young = random_walk(seed=1, length=1000).slice(500, None)
    windows = split_windows([old, young], SharesSplit(select=0.15, test=0.25))
    assert [(w.first, w.end) for w in windows["train"]] == [(0, 600), (0, 100)]
    for i, one in enumerate((old, young)):
        assert windows["train"][i].end == windows["select"][i].first
        assert windows["select"][i].end == windows["test"][i].first
        assert windows["test"][i].end == len(one)
    borders = [{one.time[windows[p][i].first] for i, one in enumerate((old, young))} for p in ("select", "test")]
    assert [len(times) for times in borders] == [1, 1]
    own = [round(len(one) * 0.6) for one in (old, young)]  # the wrong cut, which the same check catches
    assert len({one.time[cut] for one, cut in zip((old, young), own, strict=True)}) == 2
    assert set(split_windows([old], SharesSplit(select=0.0, test=0.5))) == {"train", "test"}
    with pytest.raises(DataError, match=r"the train window is empty.*Every symbol needs bars in every window"):
        split_windows([old, old.slice(700, None)], SharesSplit())


def test_in_one_account_all_symbols_begin_together() -> None:
    """An asset with a gap before the test window must not pull the start back into the train window."""
    whole = random_walk(seed=0, length=1000)
    gap = np.r_[0:600, 760:1000]
    columns = {name: getattr(whole, name)[gap] for name in ("time", "open", "high", "low", "close", "volume")}
    spec = FeatureSpec.fit(SHORT, [whole.slice(0, 600)])
    table = spec.table(whole)
    dataset = Dataset(
        (Loaded(whole, {}), Loaded(replace(whole, symbol="GAP", **columns), {})),
        spec,
        (table, FeatureTable(table.values[gap], table.names, 20)),
        {"test": (Window(750, 1000), Window(600, 840))},
    )
    apart, together = dataset.tables("test"), dataset.tables("test", together=True)
    assert [t.time[t.first_valid] for t in apart if t.time is not None] == [whole.time[749], whole.time[599]]
    assert [t.time[t.first_valid] for t in together if t.time is not None] == [whole.time[749], whole.time[760]]


def test_synthetic_symbols_one_per_seed_and_the_leak_column() -> None:
    data = SyntheticData(market="leak", seeds=(1, 2), parameters={"length": 500})
    dataset = build_dataset(data, SHORT)
    assert [bars.symbol for bars in dataset.bars] == ["SYNTHETIC-LEAK-1", "SYNTHETIC-LEAK-2"]
    assert dataset.label.startswith("synthetic: leak(")
    table, bars = dataset.features[0], dataset.bars[0]
    assert table.names[-1] == "next_log_return"
    following = np.log(bars.close[1:] / bars.close[:-1])
    assert np.corrcoef(table.values[:-1, -1], following)[0, 1] == pytest.approx(1.0, abs=1e-6)


def test_files_in_two_formats_equal_what_was_saved(tmp_path: Path) -> None:
    bars = sp500().slice(0, 300)
    for name in ("a.csv", "b.parquet"):
        save_bars(bars, tmp_path / name)
    loaded = load_data(FilesData(paths=(str(tmp_path / "a.csv"), str(tmp_path / "b.parquet"))))
    assert [item.bars.symbol for item in loaded] == ["a", "b"]
    for item in loaded:
        assert np.array_equal(item.bars.close, bars.close) and np.array_equal(item.bars.time, bars.time)


def refused(data: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(DatesSplit, data, source="test")
    return str(caught.value)


def test_overlapping_or_empty_windows_are_refused() -> None:
    """No policy is judged on bars that it was made with."""
    text = refused({"train": ["2000-01-01", "2010-01-01"], "test": ["2009-12-31", "2012-01-01"]})
    assert "without overlap" in text and "2009-12-31" in text
    assert "must not be empty" in refused({"train": ["2010-01-01", "2009-01-01"]})
    assert "without overlap" in refused({"train": ["2010-01-01", None], "test": ["2011-01-01", None]})


def test_what_cannot_be_traded_is_a_sentence() -> None:
    with pytest.raises(DataError, match="no select window"):
        build_dataset(BuiltinData(split=SharesSplit(select=0.0)), SHORT).tables("select")
    early = DatesSplit(train=(date(1980, 1, 1), date(1981, 1, 1)))
    with pytest.raises(DataError, match="none open from"):
        build_dataset(BuiltinData(split=early), SHORT)
    with pytest.raises(DataError, match="occurs more than once"):
        load_data(BuiltinData(names=("sp500", "sp500")))


def test_pieces_of_a_window_hold_every_bar_once_with_the_features_of_the_whole_series() -> None:
    """Rejects pieces that compute features of their own (each would begin with a warm-up) and pieces that overlap."""
    dataset = build_dataset(BuiltinData(split=DATES), SHORT)
    bars, window = dataset.bars[0], dataset.window("test")[0]
    pieces = dataset.in_pieces("test", 100)
    tables = pieces.tables("test")
    assert [len(table.close) - 1 for table in tables[:-1]] == [100] * (len(tables) - 1)
    lived = np.concatenate([table.close[table.first_valid + 1 :] for table in tables])
    assert np.array_equal(lived, bars.close[window.first : window.end])
    for i in (0, 3, len(tables) - 1):
        first = window.first + 100 * i - 1  # the close at which the first decision is made
        assert np.array_equal(tables[i].features, dataset.features[0].values[first : first + len(tables[i].close)])
    with pytest.raises(ConfigError, match="pieces of 0 bars"):
        dataset.in_pieces("test", 0)
