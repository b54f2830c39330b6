"""Two hundred files that want to hurt: each is refused with a sentence that names it, or loaded correctly.

A correct load is judged against the table the file was made from: every bar that comes back must be one of its rows,
number for number, and without a repair none may be missing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailwise.bars.bars import Bars, load_bars
from tailwise.core.errors import TailwiseError

FILES = 240
HEADER = ["time", "open", "high", "low", "close", "volume"]
Rows = list[list[str]]


def clean_rows(rng: random.Random) -> Rows:
    """Valid daily rows. Prices are written with all their digits, so that a load can be compared exactly."""
    rows: Rows = []
    price = 100.0
    for k in range(rng.randint(30, 60)):
        close = price * (1 + rng.uniform(-0.03, 0.03))
        high, low = max(price, close) * 1.01, min(price, close) * 0.99
        day = str(np.datetime64("2020-01-01") + k)
        rows.append([day, repr(price), repr(high), repr(low), repr(close), str(rng.randint(0, 10**6))])
        price = close
    return rows


def cell(value: str, *columns: str) -> Callable[[Rows, random.Random], None]:
    """Put `value` into a random row of a random one of `columns`."""

    def change(rows: Rows, rng: random.Random) -> None:
        rng.choice(rows)[HEADER.index(rng.choice(columns))] = value

    return change


def swap_high_and_low(rows: Rows, rng: random.Random) -> None:
    row = rng.choice(rows)
    row[2], row[3] = row[3], row[2]


def duplicate(rows: Rows, rng: random.Random) -> None:
    at = rng.randrange(len(rows))
    rows.insert(at, list(rows[at]))


def shuffle(rows: Rows, rng: random.Random) -> None:
    a, b = rng.sample(range(5, len(rows) - 5), 2)
    rows[a], rows[b] = rows[b], rows[a]


def mix_zones(rows: Rows, rng: random.Random) -> None:
    for row in rows:
        row[0] += "T00:00:00"
    rng.choice(rows)[0] += rng.choice(["Z", "+02:00"])


def other_format(rows: Rows, rng: random.Random) -> None:
    row = rng.choice(rows)
    year, month, day = row[0].split("-")
    row[0] = rng.choice([f"{day}.{month}.{year}", f"{month}/{day}/{year}", "1580000000"])


def lose_field(rows: Rows, rng: random.Random) -> None:
    rng.choice(rows).pop()


def add_field(rows: Rows, rng: random.Random) -> None:
    rng.choice(rows).append("7")


def decimal_comma(rows: Rows, rng: random.Random) -> None:
    rng.choice(rows)[4] = '"' + rng.choice(rows)[4].replace(".", ",") + '"'


# What must be refused, as damage to the rows ...
PRICE_COLUMNS = ("open", "high", "low", "close")
REFUSED: dict[str, Callable[[Rows, random.Random], None]] = {
    "nan": cell("NaN", *PRICE_COLUMNS, "volume"),
    "nothing": cell("", *PRICE_COLUMNS, "volume", "time"),
    "inf": cell("inf", *PRICE_COLUMNS, "volume"),
    "minus inf": cell("-Infinity", *PRICE_COLUMNS),
    "negative": cell("-5.0", *PRICE_COLUMNS, "volume"),
    "zero": cell("0", *PRICE_COLUMNS),
    "tiny": cell("1e-400", *PRICE_COLUMNS),
    "huge": cell("1e400", *PRICE_COLUMNS, "volume"),
    "huge but finite": cell("1e300", *PRICE_COLUMNS, "volume"),
    "tiny but positive": cell("1e-300", *PRICE_COLUMNS),
    "words": cell("n.a.", *PRICE_COLUMNS, "volume"),
    "thousands": cell('"1,234.5"', *PRICE_COLUMNS, "volume"),
    "hexadecimal": cell("0x1F", *PRICE_COLUMNS, "volume"),
    "no such day": cell("2020-02-31", "time"),
    "year 9999": cell("9999-12-31", "time"),
    "nul byte": cell("1\0", *PRICE_COLUMNS),
    "open quote": cell('"5', *PRICE_COLUMNS),
    "swapped": swap_high_and_low,
    "duplicate": duplicate,
    "unsorted": shuffle,
    "mixed zones": mix_zones,
    "other format": other_format,
    "short line": lose_field,
    "long line": add_field,
    "decimal comma": decimal_comma,
}


def text(rows: Rows, separator: str = ",", ending: str = "\n", header: list[str] | None = None) -> bytes:
    return ending.join(separator.join(row) for row in [header or HEADER, *rows]).encode() + ending.encode()


def milliseconds(day: str) -> str:
    return str(int(np.datetime64(day, "ms").astype(np.int64)))


def replaced(column: int) -> list[str]:
    return [*HEADER[:column], "x", *HEADER[column + 1 :]]


OFFSETS = ("T00:00:00+99:99", "T00:00:00+25:00", "T00:00:00-14:61")

# ... or as a file that is no table of bars at all ...
REFUSED_WHOLE: dict[str, Callable[[Rows, random.Random], bytes]] = {
    "empty": lambda rows, rng: b"",
    "only a mark": lambda rows, rng: b"\xef\xbb\xbf" + b"\n" * rng.randint(0, 3),
    "huge prices": lambda rows, rng: text([[r[0], *["1e300"] * 4, r[5]] for r in rows]),
    "no such offset": lambda rows, rng: text([[r[0] + rng.choice(OFFSETS), *r[1:]] for r in rows]),
    "blank": lambda rows, rng: b" \n" * rng.randint(1, 50),
    "blank in another way": lambda rows, rng: "\u00a0\n".encode() * rng.randint(1, 50),
    "header only": lambda rows, rng: text([]),
    "one row": lambda rows, rng: text(rows[:1]),
    "binary": lambda rows, rng: rng.randbytes(rng.randint(10, 5000)),
    "text then binary": lambda rows, rng: text(rows) + rng.randbytes(500),
    "utf-16": lambda rows, rng: text(rows).decode().encode("utf-16"),
    "latin-1": lambda rows, rng: text(rows, header=[*HEADER[:5], "volumé"]).decode().encode("latin-1"),
    "missing column": lambda rows, rng: text(rows, header=replaced(rng.randint(0, 5))),
    "no header": lambda rows, rng: text(rows).split(b"\n", 1)[1],
    "wrong separator": lambda rows, rng: text(rows, rng.choice([":", " ", "~"])),
    "two separators": lambda rows, rng: text(rows).replace(b",", b";", 40),
    "truncated parquet": lambda rows, rng: b"PAR1" + rng.randbytes(200),
    "json": lambda rows, rng: b'{"time": 1, "open": 2, "high": 3}',
    "html": lambda rows, rng: b"<html><body>404 time, open, high</body></html>",
}

# ... and what is odd but right, and must arrive number for number.
LOADED: dict[str, Callable[[Rows, random.Random], bytes]] = {
    "plain": lambda rows, rng: text(rows),
    "crlf": lambda rows, rng: text(rows, ending="\r\n"),
    "bom": lambda rows, rng: b"\xef\xbb\xbf" + text(rows),
    "semicolons": lambda rows, rng: text(rows, ";"),
    "tabs": lambda rows, rng: text(rows, "\t"),
    "quotes": lambda rows, rng: text([[f'"{value}"' for value in row] for row in rows]),
    "descending": lambda rows, rng: text(rows[::-1]),
    "banner": lambda rows, rng: b"downloaded somewhere, some day\n" + text(rows),
    "blank lines": lambda rows, rng: text(rows).replace(b"\n", b"\n\n\n"),
    "milliseconds": lambda rows, rng: text([[milliseconds(r[0]), *r[1:]] for r in rows]),
    "german dates": lambda rows, rng: text([[".".join(reversed(r[0].split("-"))), *r[1:]] for r in rows]),
    "zone": lambda rows, rng: text([[r[0] + "T02:00:00+02:00", *r[1:]] for r in rows]),
    "no last newline": lambda rows, rng: text(rows).rstrip(b"\n"),
    "upper case": lambda rows, rng: text(rows, header=[name.upper() for name in HEADER]),
    "extra column": lambda rows, rng: text([[*r, "x"] for r in rows], header=[*HEADER, "comment"]),
    "huge volume": lambda rows, rng: text([[*r[:5], "1e100"] for r in rows]),
}

ALL = [*REFUSED, *REFUSED_WHOLE, *LOADED]


def make(seed: int) -> tuple[str, bytes, Rows]:
    """Kind, content and underlying rows of hostile file number `seed`; the kinds take turns."""
    rng = random.Random(seed)
    kind = ALL[seed % len(ALL)]
    rows = clean_rows(rng)
    if kind in REFUSED:
        damaged = [list(row) for row in rows]
        REFUSED[kind](damaged, rng)
        return kind, text(damaged), rows
    return kind, {**REFUSED_WHOLE, **LOADED}[kind](rows, rng), rows


def as_loaded(bars: Bars) -> list[tuple[str, ...]]:
    columns = [bars.open, bars.high, bars.low, bars.close]
    return [(str(t)[:10], *map(repr, map(float, row))) for t, *row in zip(bars.time, *columns, strict=True)]


def attempt(path: Path, repair: Any) -> tuple[Bars | None, str]:
    """The bars, or the sentence with which they were refused; every other exception goes through."""
    try:
        return load_bars(path, repair=repair), ""
    except TailwiseError as error:
        return None, str(error)


def test_hostile_files(tmp_path: Path) -> None:
    """Rejects any exception but ours, a sentence without the file, and a load that is not exactly the rows."""
    started = time.perf_counter()
    outcomes = {"refused": 0, "loaded": 0}
    for seed in range(FILES):
        kind, content, rows = make(seed)
        path = tmp_path / f"hostile{seed}.csv"
        path.write_bytes(content)
        truth = [(row[0], *(repr(float(value)) for value in row[1:5])) for row in rows]
        for repair in ("none", "drop", "clip"):
            what = f"file {seed} ({kind}), repair {repair}"
            bars, sentence = attempt(path, repair)
            if bars is None:
                assert f"hostile{seed}.csv" in sentence, what
                assert kind not in LOADED, f"{what}: {sentence}"
                outcomes["refused"] += repair == "none"
                continue
            if repair == "none":
                assert kind in LOADED, f"{what} was loaded"
                assert as_loaded(bars) == truth, what
                outcomes["loaded"] += 1
            elif repair == "drop":
                assert set(as_loaded(bars)) <= set(truth), what
                assert kind in LOADED or any("repair drop" in note for note in bars.notes), what
            else:
                assert kind in LOADED or any("repair clip" in note for note in bars.notes), what
    assert outcomes["refused"] + outcomes["loaded"] == FILES
    assert outcomes["refused"] >= 150 and outcomes["loaded"] >= 50
    assert time.perf_counter() - started < 10


@pytest.mark.parametrize("seed", range(12))
def test_random_bytes_in_a_good_file(tmp_path: Path, seed: int) -> None:
    """Single bytes changed at random: a sentence, or a table that still obeys every rule; no other exception."""
    rng = random.Random(seed)
    path = tmp_path / "flipped.csv"
    for _ in range(10):
        content = bytearray(text(clean_rows(rng)))
        for _ in range(rng.randint(1, 4)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(bytes(content))
        bars, sentence = attempt(path, "none")
        if bars is None:
            assert "flipped.csv" in sentence
            continue
        assert (np.diff(bars.time) > np.timedelta64(0, "ns")).all()
        assert (bars.low > 0).all() and np.isfinite(bars.volume).all()
        assert (bars.high * (1 + 1e-9) >= np.maximum(bars.open, bars.close)).all()


@pytest.mark.parametrize("seed", range(6))
def test_broken_parquet(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "broken.parquet"
    rows = [[float(value) for value in row[1:]] for row in clean_rows(rng)]
    frame = pd.DataFrame(rows, columns=HEADER[1:]).assign(time=pd.date_range("2020-01-01", periods=len(rows)))
    frame.to_parquet(path)
    whole = path.read_bytes()
    for end in (4, 12, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(TailwiseError, match=r"broken\.parquet"):
            load_bars(path)


ROWS = 10_000_000


def _ten_million(folder: Path, kind: str) -> Path:
    rng = np.random.default_rng(0)
    close = np.round(100 * np.exp(np.cumsum(rng.normal(size=ROWS) * 1e-4)), 4)
    opens = np.concatenate([[100.0], close[:-1]])
    stamps = np.datetime64("2000-01-01", "ns") + np.arange(ROWS) * np.timedelta64(60 * 10**9, "ns")
    table = pa.table(
        {
            "time": pa.array(stamps).cast(pa.timestamp("s", "UTC")),
            "open": opens,
            "high": np.round(np.maximum(opens, close) + 0.01, 4),
            "low": np.round(np.minimum(opens, close) - 0.01, 4),
            "close": close,
            "volume": rng.integers(0, 10**6, ROWS).astype(np.float64),
        }
    )
    path = folder / f"ten_million.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        import pyarrow.csv as pa_csv

        pa_csv.write_csv(table, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seconds"), [("parquet", 10), ("csv", 40)])
def test_ten_million_rows(tmp_path: Path, kind: str, seconds: float) -> None:
    """Loads in a process of its own, so that its peak memory is its own: below 3 GB."""
    import subprocess
    import sys

    path = _ten_million(tmp_path, kind)
    code = (
        "import resource, sys, time; from tailwise.bars.bars import load_bars; start = time.perf_counter(); "
        "bars = load_bars(sys.argv[1]); print(len(bars), time.perf_counter() - start, "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, bars.frequency.periods_per_year)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    rows, took, gigabytes, per_year = (float(value) for value in done.stdout.split())
    print(f"{kind}: {took:.1f} s, {gigabytes:.2f} GB")
    assert (rows, per_year) == (ROWS, 365 * 24 * 60)
    assert took < seconds and gigabytes < 3
