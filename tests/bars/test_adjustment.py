"""Closes that are adjusted in place, beside open, high and low that are not: recognised, refused, never patched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tailwise.bars.bars import load_bars
from tailwise.bars.builtin import load
from tailwise.bars.synthetic import random_walk
from tailwise.bars.validation import adjustment_steps
from tailwise.core.errors import DataError

DIVIDEND, QUARTER = 0.005, 63


def factor_of(rows: int, *, split_at: int | None = None) -> np.ndarray:
    """Quarterly dividends of 0.5% and, if asked for, a split of seven for one: what a close is multiplied by."""
    factor = np.ones(rows)
    for day in range(QUARTER, rows, QUARTER):
        factor[:day] *= 1 - DIVIDEND
    if split_at is not None:
        factor[:split_at] /= 7
    return factor


def mixed(truth: pd.DataFrame, factor: np.ndarray) -> pd.DataFrame:
    """`truth` is adjusted throughout; what is written has open, high and low as they were traded."""
    traded = truth[["open", "high", "low"]].div(factor, axis=0)
    return truth.assign(**{name: traded[name] for name in traded})


def write(folder: Path, frame: pd.DataFrame) -> Path:
    path = folder / "ibm.csv"
    frame.to_csv(path, index_label="time")
    return path


@pytest.mark.parametrize("split_at", [None, 1500])
@pytest.mark.parametrize("name", ["sp500", "nasdaq"])
def test_mixed_prices_are_refused_with_the_advice_that_is_right(tmp_path, name, split_at: int | None) -> None:
    """Rejects a reader that lists thousands of bad rows and advises to drop them, with or without a repair."""
    truth = load(name).to_frame()
    path = write(tmp_path, mixed(truth, factor_of(len(truth), split_at=split_at)))
    for repair in ("none", "drop", "clip"):
        for adjust in ("refuse", "consistent", "ignore"):
            with pytest.raises(DataError, match="the closes are adjusted for dividends or splits, and open") as caught:
                load_bars(path, repair=repair, adjust=adjust)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: ") and "to 1 (2018-12-31)" in sentence
    assert "pass --adjust-all (data.adjust: all)" in sentence and "no --repair is made" in sentence
    assert "--repair drop" not in sentence


@pytest.mark.parametrize("split_at", [None, 1500])
@pytest.mark.parametrize("name", ["sp500", "nasdaq"])
def test_adjust_all_recovers_the_factor(tmp_path, name: str, split_at: int | None) -> None:
    """Rejects close / mid of each row as its factor (a repair row by row), and one factor for the whole file."""
    bars = load(name)
    truth = bars.to_frame()
    factor = factor_of(len(truth), split_at=split_at)
    adjusted = load_bars(write(tmp_path, mixed(truth, factor)), adjust="all")
    np.testing.assert_allclose(adjusted.close, bars.close, rtol=1e-12)
    np.testing.assert_array_equal(adjusted.volume, bars.volume)
    for price in ("open", "high", "low"):
        error = np.abs(getattr(adjusted, price) / getattr(bars, price) - 1)
        assert np.median(error) < 1e-4 and error.max() < 1.3 * DIVIDEND, "at most one dividend, beside its ex-date"
        assert np.sum(error > DIVIDEND / 2) < 3 * len(truth) / QUARTER, "fewer than three bars beside each ex-date"
    (note,) = [note for note in adjusted.notes if "factor of the adjusted closes" in note]
    steps = (len(truth) - 1) // QUARTER + (split_at is not None and split_at % QUARTER != 0)
    assert f"in {steps} steps" in note
    # The wrong implementation: what each row says of its factor is off by the row's own move.
    rough = mixed(truth, factor)
    rowwise = rough["close"] / np.sqrt(rough["high"] * rough["low"])
    assert np.median(np.abs(rowwise / factor - 1)) > 1e-3


@pytest.mark.parametrize("written", ["cents and six decimals", "float32", "cents alone"])
def test_rounded_prices_make_no_steps_of_their_own(tmp_path, written: str) -> None:
    """Prices as traded have two decimals and often close at their high; adjusted closes are rounded on their own.
    Rejects an exact comparison, which finds a step, up or down, at every second rounding."""
    bars = load("sp500")
    factor = factor_of(len(bars))
    traded = bars.to_frame()[["open", "high", "low", "close"]].div(50).round(2)
    traded["high"] = traded.max(axis=1)
    traded["low"] = traded.min(axis=1)
    frame = traded.assign(close=traded["close"] * factor, volume=bars.volume)
    if written == "float32":
        frame = frame.astype(np.float32)
    else:
        frame["close"] = frame["close"].round(6 if "six" in written else 2)
    adjusted = load_bars(write(tmp_path, frame), adjust="all")
    error = np.abs(adjusted.high / (traded["high"].to_numpy() * factor) - 1)
    assert np.median(error) < (1e-3 if written == "cents alone" else 1e-4) and error.max() < 1.5 * DIVIDEND
    (note,) = [note for note in adjusted.notes if "factor of the adjusted closes" in note]
    steps = int(note.split(" steps")[0].split()[-1])
    assert steps <= (len(bars) - 1) // QUARTER, "not one more than there are dividends"


def test_rounding_alone_is_no_adjustment(tmp_path) -> None:
    """Rejects the word adjusted for closes that leave their bar by rounding: they stay bad rows."""
    truth = random_walk(seed=3, length=1000).to_frame()
    frame = truth.assign(high=truth[["open", "close"]].max(axis=1), low=truth[["open", "close"]].min(axis=1))
    frame["close"] *= np.where(np.arange(1000) % 100 == 50, 1 + 1e-8, 1.0) * np.where(
        np.arange(1000) % 100 == 0, 1 - 1e-8, 1.0
    )
    with pytest.raises(DataError, match=r"\d+ problems in \d+ rows"):
        load_bars(write(tmp_path, frame))


def test_bad_rows_are_not_taken_for_an_adjustment(tmp_path) -> None:
    """Rejects recognition by the number of rows alone: single bad closes, noise, and closes in another unit."""
    truth = random_walk(seed=3, length=1000).to_frame()
    spots = np.arange(5, 1000, 100)
    single = truth.copy()
    single.loc[single.index[spots], "close"] *= 1.3
    noisy = truth.copy()
    noisy["close"] *= np.exp(np.random.default_rng(0).normal(0, 0.2, 1000))
    cents = truth.copy()
    cents.loc[cents.index[300:400], "close"] *= 100
    lowered = truth.copy()
    lowered.loc[lowered.index[300:400], "close"] *= 0.95
    for frame in (single, noisy, cents, lowered):
        with pytest.raises(DataError, match=r"problems in \d+ rows"):
            load_bars(write(tmp_path, frame), adjust="all")


def test_a_bad_row_in_a_mixed_file_is_named_and_not_absorbed(tmp_path) -> None:
    """Rejects a step function that takes two steps around a bad row, which hides it, and one that gives up at it."""
    truth = load("sp500").to_frame()
    frame = mixed(truth, factor_of(len(truth)))
    clean = load_bars(write(tmp_path, frame), adjust="all")
    close = frame.columns.get_loc("close")
    for row, factor in ((1000, 1.5), (2000, 0.9), (2001, 0.9), (3000, 1.05), (4000, 0.3)):
        frame.iloc[row, close] *= factor
    path = write(tmp_path, frame)
    with pytest.raises(DataError, match="the closes are adjusted for dividends or splits"):
        load_bars(path)
    with pytest.raises(DataError, match="5 problems in 5 rows") as caught:
        load_bars(path, adjust="all")
    for row in (1001, 2001, 2002, 3001, 4001):
        assert f"row {row} (line {row + 1}): close" in str(caught.value)
    mended = load_bars(path, adjust="all", repair="drop")
    assert "repair drop: 5 of 5031 rows dropped (rows 1001, 2001-2002, 3001, 4001)" in mended.notes
    others = np.setdiff1d(np.arange(5031), [1000, 2000, 2001, 3000, 4000])
    np.testing.assert_allclose(mended.high, clean.high[others], rtol=1.2 * DIVIDEND)
    assert np.median(np.abs(mended.high / clean.high[others] - 1)) < 1e-6


def test_prices_that_fit_are_left_alone(tmp_path) -> None:
    bars = load("sp500")
    assert adjustment_steps(bars.high, bars.low, bars.close) is None
    again = load_bars(write(tmp_path, bars.to_frame()), adjust="all", symbol=bars.symbol)
    assert again.data_hash() == bars.data_hash()


def test_a_column_of_adjusted_closes_is_used_by_adjust_all(tmp_path) -> None:
    bars = load("sp500")
    frame = bars.to_frame()
    frame["Adj Close"] = frame["close"] * factor_of(len(frame))
    path = write(tmp_path, frame)
    assert load_bars(path, adjust="all").data_hash() == load_bars(path, adjust="consistent").data_hash()
