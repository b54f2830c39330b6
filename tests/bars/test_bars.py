"""Bars are read-only, hashed by content, cut by row and by date; load_bars adjusts only when told to."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest

from tailwise.bars.bars import load_bars, save_bars
from tailwise.core.errors import DataError, ShapeError


def frame(rows: int = 10, **columns: object) -> pd.DataFrame:
    close = 100.0 + np.arange(rows)
    data = {"Open": close - 0.5, "High": close + 1, "Low": close - 1, "Close": close, "Volume": np.arange(rows) * 10}
    return pd.DataFrame({**data, **columns}, index=pd.date_range("2020-01-01", periods=rows, freq="D", tz="UTC"))


def test_dataframe_values_arrive_unchanged() -> None:
    bars = load_bars(frame(), symbol="X")
    assert len(bars) == 10 and bars.symbol == "X" and bars.label == "real" and bars.source == "DataFrame"
    assert bars.time.dtype == np.dtype("datetime64[ns]") and bars.time[0] == np.datetime64("2020-01-01")
    np.testing.assert_array_equal(bars.close, 100.0 + np.arange(10))
    np.testing.assert_array_equal(bars.high, bars.close + 1)
    np.testing.assert_array_equal(bars.volume, np.arange(10) * 10.0)
    assert bars.dividends is None


@pytest.mark.parametrize("name", ["bars.csv", "bars.parquet"])
def test_round_trip_through_files_is_exact(tmp_path, name: str) -> None:
    """Rejects a writer that rounds and a reader that parses floats inexactly."""
    prices = np.random.default_rng(0).lognormal(size=500) + 1
    table = pd.DataFrame(
        {"open": prices, "high": prices * 1.1, "low": prices * 0.9, "close": prices * 1.01, "volume": prices * 1e7},
        index=pd.date_range("2020-01-01 09:30:00.123456789", periods=500, freq="min", tz="UTC"),
    )
    bars = load_bars(table, symbol="X")
    save_bars(bars, tmp_path / name)
    assert load_bars(tmp_path / name, symbol="X").data_hash() == bars.data_hash()
    assert load_bars(tmp_path / name).symbol == "bars"


def test_hash_sees_every_part() -> None:
    """Rejects a hash over some columns only, or one that takes the same bytes in two columns for equal."""
    table = frame()
    hashes = {load_bars(table, symbol="X").data_hash(), load_bars(table, symbol="Y").data_hash()}
    for column in table.columns:
        changed = table.astype(float)
        changed.iloc[5, changed.columns.get_loc(column)] *= 1 + 1e-12
        hashes.add(load_bars(changed, symbol="X").data_hash())
    moved = table.set_index(table.index + pd.Timedelta("1ns"))
    hashes.add(load_bars(moved, symbol="X").data_hash())
    hashes.add(load_bars(frame(Dividends=0.0), symbol="X").data_hash())
    assert len(hashes) == 9
    assert load_bars(table.copy(), symbol="X").data_hash() in hashes


def test_arrays_cannot_be_written() -> None:
    bars = load_bars(frame())
    with pytest.raises(ValueError, match="read-only"):
        bars.close[0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        bars.time[0] = np.datetime64("2000-01-01")


def test_the_callers_array_stays_writable() -> None:
    """Rejects freezing the caller's own memory."""
    bars = load_bars(frame())
    mine = np.array(bars.close)
    replace(bars, close=mine)
    mine[0] = 1.0
    assert mine[0] == 1.0


def test_between_is_half_open() -> None:
    """Rejects a closed end, with which a bar would be in the train and in the test window."""
    bars = load_bars(frame())
    left, right = bars.between(None, "2020-01-05"), bars.between("2020-01-05", None)
    assert left.time[-1] == np.datetime64("2020-01-04") and right.time[0] == np.datetime64("2020-01-05")
    assert len(left) + len(right) == len(bars)
    assert left.frequency == bars.frequency
    assert len(bars.slice(2, 5)) == 3 and bars.slice(2, 5).close[0] == 102.0
    with pytest.raises(
        DataError, match="none open from 2030-01-01 until before None; the data span 2020-01-01 to 2020-01-10"
    ):
        bars.between("2030-01-01", None)
    with pytest.raises(DataError, match="'yesterday' is not a date"):
        bars.between("yesterday", None)
    with pytest.raises(DataError, match="'9999' is not a date from 1678 to 2261"):
        bars.between("1999", "9999")  # in nanoseconds the year 9999 would wrap around to 1815
    tokyo = datetime(2020, 1, 5, 9, tzinfo=timezone(timedelta(hours=9)))
    assert bars.between(tokyo, None).time[0] == np.datetime64("2020-01-05")
    with pytest.raises(DataError, match="rows 5 to 5 of 10 are empty"):
        bars.slice(5, 5)


def test_wrong_arrays_are_refused() -> None:
    bars = load_bars(frame())
    with pytest.raises(ShapeError, match="close is float32"):
        replace(bars, close=bars.close.astype(np.float32))
    with pytest.raises(DataError, match="not strictly increasing"):
        replace(bars, time=bars.time[::-1])


def adjusted_frame() -> pd.DataFrame:
    """A dividend of 2% between row 4 and 5: earlier adjusted closes are 2% lower."""
    table = frame()
    return table.assign(**{"Adj Close": table["Close"] * np.where(np.arange(10) < 5, 0.98, 1.0)})


def test_adjusted_close_is_refused_when_it_differs() -> None:
    """Rejects using Close (or Adj Close) beside it without a word."""
    with pytest.raises(
        DataError, match=r"row 1: adjusted close 98.0 differs from close 100.0 \(5 rows do\); pass --adjust"
    ):
        load_bars(adjusted_frame())


def test_adjusted_close_scales_all_four_prices() -> None:
    """Rejects replacing the close alone: its bars would open 2% above their close."""
    bars = load_bars(adjusted_frame(), adjust="consistent")
    plain = load_bars(frame())
    factor = np.where(np.arange(10) < 5, 0.98, 1.0)
    for name in ("open", "high", "low", "close"):
        np.testing.assert_allclose(getattr(bars, name), getattr(plain, name) * factor, rtol=1e-15)
    np.testing.assert_array_equal(bars.volume, plain.volume)
    assert any("scaled by adjusted close / close in 5 rows" in note for note in bars.notes)


def test_adjusted_close_ignored_and_equal() -> None:
    ignored = load_bars(adjusted_frame(), adjust="ignore")
    np.testing.assert_array_equal(ignored.close, load_bars(frame()).close)
    assert any("ignored" in note for note in ignored.notes)
    equal = load_bars(frame(**{"Adj Close": 100.0 + np.arange(10)}))
    assert any("nothing to adjust" in note for note in equal.notes)


def test_a_missing_adjusted_close_is_a_bad_row() -> None:
    table = adjusted_frame()
    table.loc[table.index[6], "Adj Close"] = np.nan
    with pytest.raises(DataError, match="row 7: adj close is missing"):
        load_bars(table, adjust="consistent")


def test_dividends_are_kept_unless_the_prices_contain_them() -> None:
    """Rejects paying a dividend twice: once in adjusted prices and once in cash."""
    paid = np.zeros(10)
    paid[5] = 2.0
    np.testing.assert_array_equal(load_bars(frame(Dividends=paid)).dividends, paid)
    both = load_bars(adjusted_frame().assign(Dividends=paid), adjust="consistent")
    assert both.dividends is None and any("dividends left out" in note for note in both.notes)
    with pytest.raises(DataError, match=r"row 6: dividends -2.0 is negative"):
        load_bars(frame(Dividends=-paid))


def test_several_symbols_in_one_table() -> None:
    """Rejects mixing the rows of two symbols, and row numbers that count only the selected rows."""
    table = pd.concat([frame().assign(Symbol="A"), (frame() * 2).assign(Symbol="B")])
    bars = load_bars(table, symbol="B")
    assert len(bars) == 10 and bars.close[0] == 200.0 and bars.symbol == "B"
    with pytest.raises(DataError, match=r"holds 2 symbols \(A, B\) and None was asked for"):
        load_bars(table)
    table.iloc[12, table.columns.get_loc("Close")] = -1.0
    with pytest.raises(DataError, match=r"row 13: close -1.0 is not positive"):
        load_bars(table, symbol="B")
    assert load_bars(table, symbol="A").close[0] == 100.0
    assert load_bars(frame().assign(ticker="ABC")).symbol == "ABC"


def test_unknown_options_get_a_sentence() -> None:
    with pytest.raises(DataError, match="adjust is 'maybe'; it must be one of refuse, consistent, ignore"):
        load_bars(frame(), adjust="maybe")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="repair is 'fill'; it must be one of none, drop, clip"):
        load_bars(frame(), repair="fill")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="time unit is 'h'"):
        load_bars(frame(), time_unit="h")


def test_files_that_cannot_be_read_get_a_sentence(tmp_path) -> None:
    with pytest.raises(DataError, match=r"none\.csv: the file cannot be read: No such file"):
        load_bars(tmp_path / "none.csv")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        load_bars(tmp_path)
    with pytest.raises(DataError, match="a column of type complex128 holds neither numbers nor times"):
        load_bars(frame(Close=np.ones(10, complex)))
    with pytest.raises(DataError, match="column 'Close' is of type bool; close must hold numbers"):
        load_bars(frame(Close=True))
    with pytest.raises(DataError, match="several levels"):
        load_bars(pd.concat({"A": frame()}, axis=1))
