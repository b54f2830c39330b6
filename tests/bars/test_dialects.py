"""The dialects in which people keep bars are read to the same numbers, and each choice is written down."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tailwise.bars.bars import load_bars
from tailwise.bars.dialects import normalise_header
from tailwise.core.errors import DataError

OHLCV = ["1,4,0.5,2,10", "2,5,1.5,3,20", "3,6,2.5,4,30"]


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "bars.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def table(times: list[str], header: str = "time,open,high,low,close,volume") -> str:
    return "\n".join([header, *(f"{time},{row}" for time, row in zip(times, OHLCV, strict=True))]) + "\n"


JANUARY = ["2020-01-13", "2020-01-14", "2020-01-15"]


def check_january(path: Path, first: str = "2020-01-13", **options: object):
    """The three bars of the 13th to the 15th of January, whatever the dialect; returns them for their notes."""
    bars = load_bars(path, **options)  # type: ignore[arg-type]
    assert bars.time[0] == np.datetime64(first)
    assert (np.diff(bars.time) == np.timedelta64(1, "D")).all()
    np.testing.assert_array_equal(bars.open, [1, 2, 3])
    np.testing.assert_array_equal(bars.close, [2, 3, 4])
    np.testing.assert_array_equal(bars.volume, [10, 20, 30])
    return bars


@pytest.mark.parametrize(
    "name", ["Date", "date", "TIMESTAMP", "Time", "datetime", "Open time", "<DATE>", "", "Gmt time"]
)
def test_time_column_by_any_name(tmp_path, name: str) -> None:
    check_january(write(tmp_path, table(JANUARY, f"{name},open,high,low,close,volume")))


@pytest.mark.parametrize(
    "header",
    [
        "Date,Open,High,Low,Close,Volume",
        "DATE,OPEN,HIGH,LOW,CLOSE,VOLUME",
        "timestamp,1. open,2. high,3. low,4. close,5. volume",
        "<DATE>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>",
        '"Date","Open","High","Low","Close","Volume"',
        "Date, Open, High, Low, Close, Volume",
        "Date,Open,High,Low,Close,Volume_(BTC)",
    ],
)
def test_header_in_any_case(tmp_path, header: str) -> None:
    check_january(write(tmp_path, table(JANUARY, header)))


def test_normalised_headers() -> None:
    assert [normalise_header(h) for h in ("Adj. Close", "adj_close", "<VOL>", "5. Volume")] == [
        "adj close",
        "adj close",
        "vol",
        "volume",
    ]


@pytest.mark.parametrize(
    ("times", "note"),
    [
        (["13.01.2020", "14.01.2020", "15.01.2020"], "%d.%m.%Y"),
        (["13.01.2020 00:00", "14.01.2020 00:00", "15.01.2020 00:00"], "%d.%m.%Y %H:%M"),
        (["13.01.2020 00:00:00.000", "14.01.2020 00:00:00.000", "15.01.2020 00:00:00.000"], "%d.%m.%Y"),
        (["2020/01/13", "2020/01/14", "2020/01/15"], "%Y/%m/%d"),
        (["2020.01.13", "2020.01.14", "2020.01.15"], "%Y.%m.%d"),
        (["01/13/2020", "01/14/2020", "01/15/2020"], "%m/%d/%Y"),
        (["13/01/2020", "14/01/2020", "15/01/2020"], "%d/%m/%Y"),
        (["20200113", "20200114", "20200115"], "YYYYMMDD"),
        (["2020-01-13 12-AM", "2020-01-14 12-AM", "2020-01-15 12-AM"], "%I-%p"),
        (["2020-01-13T00:00:00Z", "2020-01-14T00:00:00Z", "2020-01-15T00:00:00Z"], "times are UTC"),
        (["2020-01-13 00:00:00 UTC", "2020-01-14 00:00:00 UTC", "2020-01-15 00:00:00 UTC"], "times are UTC"),
        (["2020-01-13T02:00+02:00", "2020-01-14T02:00+02:00", "2020-01-15T02:00+02:00"], "from UTC+2 h"),
        (["2020-01-12 19:00-0500", "2020-01-13 19:00-0500", "2020-01-14 19:00-0500"], "from UTC-5 h"),
        (["1578873600", "1578960000", "1579046400"], "count of s since 1970"),
        (["1578873600.0", "1578960000.0", "1579046400.0"], "count of s since 1970"),
        (["1578873600000", "1578960000000", "1579046400000"], "count of ms since 1970"),
        (["1578873600000000", "1578960000000000", "1579046400000000"], "count of us since 1970"),
        (JANUARY, "no zone and are taken as UTC"),
    ],
)
def test_time_formats(tmp_path, times: list[str], note: str) -> None:
    """Rejects month-first reading of DD.MM.YYYY, milliseconds taken for seconds, and offsets that are cut off."""
    bars = check_january(write(tmp_path, table(times)))
    assert any(note in said for said in bars.notes), bars.notes


def test_day_and_month_are_never_swapped_by_value(tmp_path) -> None:
    """Rejects a parser that reads 02.01. as February because it can, and 13.01. as January because it must."""
    bars = load_bars(write(tmp_path, table(["02.01.2020", "03.01.2020", "04.01.2020"])))
    assert bars.time[0] == np.datetime64("2020-01-02") and bars.time[2] == np.datetime64("2020-01-04")
    with pytest.raises(DataError, match=r"'02/01/2020' are ambiguous: no value shows which part is the month"):
        load_bars(write(tmp_path, table(["02/01/2020", "03/01/2020", "04/01/2020"])))
    with pytest.raises(DataError, match="some need the day first and some the month"):
        load_bars(write(tmp_path, table(["13/01/2020", "01/14/2020", "01/15/2020"])))
    with pytest.raises(DataError, match=r"row 2 \(line 3\): time '31\.02\.2020' is not a time"):
        load_bars(write(tmp_path, table(["30.01.2020", "31.02.2020", "03.03.2020"])))


def test_the_unit_of_counts_is_decided_by_the_whole_column(tmp_path) -> None:
    """Rejects deciding by the first value: seconds followed by milliseconds are an error that names the option."""
    with pytest.raises(DataError, match=r"counts from 1578873600 to 1579046400000.*--time-unit"):
        load_bars(write(tmp_path, table(["1578873600", "1578960000", "1579046400000"])))
    with pytest.raises(DataError, match=r"counts from 1 to 3.*--time-unit"):
        load_bars(write(tmp_path, table(["1", "2", "3"])))
    bars = load_bars(write(tmp_path, table(["1", "2", "3"])), time_unit="ms")
    assert bars.time[0] == np.datetime64("1970-01-01T00:00:00.001")
    assert any("count of ms since 1970 UTC, as asked for" in note for note in bars.notes)
    huge = load_bars(write(tmp_path, table([str(1578873600 * 10**9 + k) for k in (1, 2, 3)])))
    assert huge.time[0] == np.datetime64("2020-01-13T00:00:00.000000001")  # exact, not through a float


def test_mixed_zones_are_an_error(tmp_path) -> None:
    """Rejects dropping the zone, and taking the zoneless rows as UTC beside zoned ones."""
    mixed = table(["2020-01-13T00:00:00Z", "2020-01-14T00:00:00", "2020-01-15T00:00:00Z"])
    with pytest.raises(DataError, match=r"mixed: row 1 \(line 2\) has .* with a zone and row 2 \(line 3\)"):
        load_bars(write(tmp_path, mixed))
    offsets = table(["2020-01-13T00:00+01:00", "2020-01-14T00:00+05:30", "2020-01-15T00:00+01:00"])
    with pytest.raises(DataError, match=r"mixed \(offsets \+1 h, \+5\.5 h\)"):
        load_bars(write(tmp_path, offsets))
    summer = ["2020-03-27T00:00:00-05:00", "2020-03-30T00:00:00-04:00", "2020-03-31T00:00:00-04:00"]
    bars = load_bars(write(tmp_path, table(summer)))
    assert list(bars.time.astype("datetime64[h]").astype(str)) == ["2020-03-27T05", "2020-03-30T04", "2020-03-31T04"]
    assert any("daylight saving" in note for note in bars.notes)


def test_descending_order_is_turned_and_noted(tmp_path) -> None:
    lines = table(JANUARY).splitlines()
    bars = check_january(write(tmp_path, "\n".join([lines[0], *reversed(lines[1:])])))
    assert any("descending" in note for note in bars.notes)


def test_banner_lines_are_skipped_and_noted(tmp_path) -> None:
    bars = check_january(write(tmp_path, "https://www.example.org\n\n" + table(JANUARY)))
    assert any("1 line(s) before the header skipped: 'https://www.example.org'" in note for note in bars.notes)


@pytest.mark.parametrize("separator", [";", "\t", "|"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_separators_and_line_ends(tmp_path, separator: str, ending: str) -> None:
    check_january(write(tmp_path, table(JANUARY).replace(",", separator).replace("\n", ending)))


def test_bom_quotes_spaces_and_blank_lines(tmp_path) -> None:
    text = "\n\n".join(",".join(f'"{cell}"' for cell in line.split(",")) for line in table(JANUARY).splitlines())
    check_january(write(tmp_path, b"\xef\xbb\xbf" + text.encode()))
    check_january(write(tmp_path, table(JANUARY).replace(",", " , ")))


def test_dates_and_clock_times_in_two_columns(tmp_path) -> None:
    times = ["2020.01.13,09:30", "2020.01.13,09:31", "2020.01.13,09:32"]
    bars = load_bars(write(tmp_path, table(times, "Date,Time,Open,High,Low,Close,Volume")))
    assert bars.time[2] == np.datetime64("2020-01-13T09:32")
    times = ["2020-01-13,1578873600", "2020-01-14,1578960000", "2020-01-15,1579046400"]
    with pytest.raises(DataError, match="'Date' and 'Time' both tell times"):
        load_bars(write(tmp_path, table(times, "Date,Time,Open,High,Low,Close,Volume")))


def test_written_dates_are_preferred_to_counts_and_the_rest_is_noted(tmp_path) -> None:
    times = ["1578873600,2020-01-13", "1578960000000,2020-01-14", "1579046400,2020-01-15"]
    bars = check_january(write(tmp_path, table(times, "unix,date,open,high,low,close,Volume BTC")))
    assert "columns not used: 'unix'" in bars.notes and "volume is taken from column 'Volume BTC'" in bars.notes


@pytest.mark.parametrize("kind", ["naive", "zoned", "date", "text", "count"])
def test_parquet_and_dataframe_times(tmp_path, kind: str) -> None:
    stamps = pd.date_range("2020-01-13", periods=3, freq="D")
    times = {
        "naive": stamps,
        "zoned": stamps.tz_localize("UTC").tz_convert("Asia/Tokyo"),
        "date": stamps.date,
        "text": stamps.strftime("%d.%m.%Y"),
        "count": stamps.astype("datetime64[s]").astype(np.int64),
    }[kind]
    rows = np.array([[float(x) for x in row.split(",")] for row in OHLCV])
    data = pd.DataFrame(rows, columns=["open", "high", "low", "close", "volume"]).assign(time=times)
    data.to_parquet(tmp_path / "column.parquet")
    data.set_index("time").to_parquet(tmp_path / "index.parquet")
    for source in (data, data.set_index("time"), tmp_path / "column.parquet", tmp_path / "index.parquet"):
        check_january(source)


def test_parquet_names_with_dots_and_odd_types(tmp_path) -> None:
    """Dots are not taken for nesting; categories, decimals and nullable integers are numbers and text like others."""
    data = pd.DataFrame(
        {
            "date": pd.Categorical(JANUARY),
            "1. open": [Decimal(1), Decimal(2), Decimal(3)],
            "2. high": [4.0, 5.0, 6.0],
            "3. low": [0.5, 1.5, 2.5],
            "4. close": pd.array([2, 3, 4], dtype="Int32"),
            "Adj. Close": np.array([2, 3, 4], np.float32),
            "vol.": ["10", "20", "30"],
        }
    )
    data.to_parquet(tmp_path / "odd.parquet")
    check_january(tmp_path / "odd.parquet")
    check_january(data)


def test_mixed_zones_in_a_dataframe_of_objects() -> None:
    """Rejects a conversion that takes the zone of the first object for all."""
    times = [pd.Timestamp("2020-01-13", tz="UTC"), pd.Timestamp("2020-01-14"), pd.Timestamp("2020-01-15", tz="UTC")]
    data = pd.DataFrame({"open": 1.0, "high": 2.0, "low": 1.0, "close": 1.5, "volume": 1}, index=range(3))
    with pytest.raises(DataError, match="time zones are mixed: row 1 has"):
        load_bars(data.assign(time=pd.Series(times, dtype=object)))


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("time,open,high,low,price,volume", r"no column for close among 'time', 'open'"),
        ("when,open,high,low,close,volume", r"no column for time"),
        ("time,open,high,low,close,amount", r"no column for volume"),
        ("time,open,high,Open,close,volume", r"columns 'open' and 'Open' both mean 'open'"),
        ("a,b,c,d,e,f", r"no header line among the first 10 lines \(the first is 'a,b,c,d,e,f'\)"),
    ],
)
def test_missing_and_double_columns(tmp_path, header: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        load_bars(write(tmp_path, table(JANUARY, header)))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "the file is empty"),
        (b"\n\n  \n", "the file is empty"),
        (b"time,open,high,low,close,volume\n", "header but no rows"),
        (b"time,open,high,low,close,volume\n\n\n", "header but no rows"),
        (table(JANUARY).encode("utf-16"), "UTF-16"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "binary"),
        (b"\xe9t\xe9,open,high,low,close,volume\n", "not UTF-8"),
        (table(JANUARY).encode() + b"total,1\n", "the line 'total,1' has 2 fields and the header has 6"),
        (table(JANUARY).replace("10\n", '"10\n').encode(), "a quote that does not enclose"),
        (table(JANUARY).replace("10\n", '"1"0\n').encode(), "a quote that does not enclose"),
    ],
)
def test_files_that_are_no_tables(tmp_path, data: bytes, says: str) -> None:
    """The quotes reject a reader that swallows lines up to the next quote, or reads "1"0 as 10."""
    with pytest.raises(DataError, match=says) as caught:
        load_bars(write(tmp_path, data))
    assert "bars.csv" in str(caught.value)


def test_a_parquet_name_without_parquet_inside(tmp_path) -> None:
    path = tmp_path / "bars.parquet"
    path.write_text(table(JANUARY))
    with pytest.raises(DataError, match="does not begin like a Parquet file"):
        load_bars(path)
    path.write_bytes(b"PAR1" + b"x" * 100)
    with pytest.raises(DataError, match="the Parquet file cannot be read"):
        load_bars(path)
