"""Each kind of bad row is an error that names file, row, line, value and fix; repairs change only what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwise.bars.bars import load_bars
from tailwise.core.errors import DataError

GOOD = [[f"2020-01-{day:02d}", "10", "12", "9", "11", "100"] for day in range(1, 21)]
COLUMN = {"time": 0, "open": 1, "high": 2, "low": 3, "close": 4, "volume": 5}


def write(folder: Path, rows: list[list[str]]) -> Path:
    path = folder / "bars.csv"
    path.write_text("\n".join(["time,open,high,low,close,volume", *(",".join(row) for row in rows)]) + "\n")
    return path


def with_cell(row: int, column: str, value: str) -> list[list[str]]:
    rows = [list(line) for line in GOOD]
    rows[row - 1][COLUMN[column]] = value
    return rows


def later(count: int) -> list[list[str]]:
    """Good rows of the days that follow GOOD: enough of them make a few bad rows less than 1%."""
    days = np.arange(np.datetime64("2020-01-21"), np.datetime64("2020-01-21") + count)
    return [[str(day), *GOOD[0][1:]] for day in days]


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("close", "", "close is missing"),
        ("close", "NaN", "close is missing"),
        ("open", "inf", r"open is infinite \(inf\)"),
        ("low", "-inf", r"low is infinite \(-inf\)"),
        ("close", "1e400", r"close is infinite"),
        ("low", "0", "low 0.0 is not positive"),
        ("open", "-3", "open -3.0 is not positive"),
        ("volume", "-1", "volume -1.0 is negative"),
        ("volume", "", "volume is missing"),
        ("volume", "inf", "volume is infinite"),
        ("high", "8", r"high 8.0 < low 9.0"),
        ("open", "13", r"open 13.0 is outside low 9.0 to high 12.0"),
        ("close", "8.5", r"close 8.5 is outside low 9.0 to high 12.0"),
        ("close", "abc", "close 'abc' is not a number"),
        ("close", "1_0", "close '1_0' is not a number"),
        ("time", "2020-01-06", "time 2020-01-06 stands in the row before as well"),
        ("time", "", "time is missing"),
        ("time", "2020-01-32", "time '2020-01-32' is not a time"),
    ],
)
def test_each_problem_names_file_row_line_value_and_fix(tmp_path, column: str, value: str, says: str) -> None:
    path = write(tmp_path, with_cell(7, column, value))
    with pytest.raises(DataError, match=says) as caught:
        load_bars(path)
    assert str(caught.value).startswith(f"{path} row 7 (line 8): ")
    assert str(caught.value).endswith("fix the row or pass --repair drop.")
    bars = load_bars(path, repair="drop")
    assert len(bars) == 19 and np.datetime64("2020-01-07") not in bars.time
    assert "repair drop: 1 of 20 rows dropped (rows 7)" in bars.notes


def test_lines_count_banner_and_blank_lines_and_survive_turning(tmp_path) -> None:
    """Rejects line numbers taken from the row, and rows counted after a descending file has been turned."""
    rows = with_cell(7, "close", "-1")
    path = tmp_path / "bars.csv"
    lines = ["banner", "time,open,high,low,close,volume", "", *(",".join(row) for row in reversed(rows))]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"row 14 \(line 17\): close -1.0"):
        load_bars(path)
    assert path.read_text().splitlines()[16].startswith("2020-01-07")
    assert "repair drop: 1 of 20 rows dropped (rows 14)" in load_bars(path, repair="drop").notes


def test_the_first_five_of_many_problems_and_their_number(tmp_path) -> None:
    rows = [list(line) for line in GOOD]
    for row in range(3, 13):
        rows[row][4] = "-1"
    rows[1][5] = "-9"
    with pytest.raises(DataError) as caught:
        load_bars(write(tmp_path, rows))
    message = str(caught.value)
    assert "11 problems in 11 rows" in message and "and 6 more" in message
    assert [f"row {n} " in message for n in (2, 4, 5, 6, 7, 8)] == [True] * 5 + [False]
    bars = load_bars(write(tmp_path, rows + later(1100)), repair="drop")
    assert "repair drop: 11 of 1120 rows dropped (rows 2, 4-13)" in bars.notes and len(bars) == 1109


def test_unsorted_rows_are_never_repaired(tmp_path) -> None:
    """Rejects sorting without a word, and dropping whatever does not fit."""
    rows = [list(line) for line in GOOD]
    rows[5], rows[12] = rows[12], rows[5]
    for repair in ("none", "drop", "clip"):
        with pytest.raises(
            DataError, match=r"row 7 \(line 8\): time 2020-01-07 does not follow 2020-01-13.*sort the file"
        ):
            load_bars(write(tmp_path, rows), repair=repair)  # type: ignore[arg-type]


def test_clip_widens_and_touches_nothing_else(tmp_path) -> None:
    """Rejects moving open and close into the range, and swapping high and low."""
    rows = with_cell(3, "open", "13")
    rows[4][COLUMN["close"]] = "8.5"
    rows[8][COLUMN["high"]], rows[8][COLUMN["low"]] = "9", "12"
    bars = load_bars(write(tmp_path, rows + later(300)), repair="clip")
    good = load_bars(write(tmp_path, GOOD + later(300)))
    assert (bars.open[2], bars.high[2], bars.low[2]) == (13.0, 13.0, 9.0)
    assert (bars.close[4], bars.high[4], bars.low[4]) == (8.5, 12.0, 8.5)
    assert (bars.open[8], bars.high[8], bars.low[8], bars.close[8]) == (10.0, 11.0, 10.0, 11.0)
    others = np.setdiff1d(np.arange(320), [2, 4, 8])
    for name in ("open", "high", "low", "close", "volume"):
        np.testing.assert_array_equal(getattr(bars, name)[others], getattr(good, name)[others])
    assert any("repair clip: high and low of 3 of 320 rows widened" in n and "(rows 3, 5, 9)" in n for n in bars.notes)
    with pytest.raises(DataError, match=r"close is missing.*; --repair clip cannot mend this: fix"):
        load_bars(write(tmp_path, with_cell(7, "close", "")), repair="clip")


@pytest.mark.parametrize(
    ("repair", "column", "value", "deed"),
    [("drop", "close", "-1", "drop would leave out"), ("clip", "open", "13", "clip would change")],
)
def test_a_repair_of_more_than_a_hundredth_is_refused(tmp_path, repair, column: str, value: str, deed: str) -> None:
    """Rejects a repair without bound, which turns a file that is wrong as a whole into one that looks right, and a
    bound that counts problems instead of rows. One row may be repaired in any file."""
    rows = GOOD + later(180)
    for row in (3, 50):  # 2 of 200 rows: exactly 1%
        rows[row] = [*rows[row]]
        rows[row][COLUMN[column]] = value
    rows[50][COLUMN["volume"]] = "7"
    assert any(f"repair {repair}" in note for note in load_bars(write(tmp_path, rows), repair=repair).notes)
    rows[120] = [*rows[120]]
    rows[120][COLUMN[column]] = value
    with pytest.raises(DataError, match=rf"bars.csv: --repair {deed} 3 of 200 rows \(1.5%\), more than 1%") as caught:
        load_bars(write(tmp_path, rows), repair=repair)
    assert f"row 4 (line 5): {column}" in str(caught.value)
    assert any(
        f"repair {repair}" in n for n in load_bars(write(tmp_path, with_cell(3, column, value)), repair=repair).notes
    )


def test_rounding_is_tolerated_and_left_alone(tmp_path) -> None:
    """Rejects an exact comparison, which refuses adjusted prices, and a quiet correction of them."""
    bars = load_bars(write(tmp_path, with_cell(7, "close", "12.00000000001")))
    assert bars.close[6] == 12.00000000001 and bars.high[6] == 12.0
    with pytest.raises(DataError, match="outside"):
        load_bars(write(tmp_path, with_cell(7, "close", "12.0000001")))


def test_too_few_rows(tmp_path) -> None:
    with pytest.raises(DataError, match=r"1 usable row\(s\) left; bars need at least 2"):
        load_bars(write(tmp_path, GOOD[:1]))
    with pytest.raises(DataError, match=r"1 usable row\(s\) left"):
        load_bars(write(tmp_path, with_cell(1, "close", "-1")[:2]), repair="drop")
    assert len(load_bars(write(tmp_path, GOOD[:2]))) == 2


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="0123456789.eE+-_ xnaifINF", min_size=1, max_size=8), st.booleans())
def test_a_number_is_read_as_python_reads_it_or_refused(tmp_path_factory, text: str, other_is_bad: bool) -> None:
    """Rejects a second number syntax on the error path: with a bad value elsewhere, the same texts must be numbers."""
    rows = with_cell(7, "volume", text) + later(200)
    if other_is_bad:
        rows[9][5] = "bad"
    path = write(tmp_path_factory.mktemp("numbers"), rows)
    bars = None
    try:
        bars = load_bars(path, repair="drop")
    except DataError as error:  # only a whole column of nothing could get here
        raise AssertionError(str(error)) from error
    kept = np.flatnonzero(bars.time == np.datetime64("2020-01-07"))
    try:
        value = float(text.replace("_", "x"))
    except ValueError:
        value = np.nan
    if np.isfinite(value) and value >= 0:
        assert bars.volume[kept] == [value]
    else:
        assert not len(kept)
