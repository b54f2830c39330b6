"""Read a file or a DataFrame, in any of the usual dialects, into raw columns with canonical names.

Every choice made here is either forced by the data as a whole and written into the notes, or refused with a sentence
(docs/bars.md lists the rules). The raw columns are Arrow arrays. They keep text as it was written, so that an error can
show the value; times.py reads the times and validation.py the numbers.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tailwise.core.errors import DataError, text_problem

PRICES = ("open", "high", "low", "close")
RANGE = ("open", "high", "low")
REQUIRED = ("time", *PRICES, "volume")
# In the order of preference: a written date says more than a count since 1970.
TIME_NAMES = (
    "open time",
    "opentime",
    "timestamp",
    "datetime",
    "date time",
    "gmt time",
    "date",
    "time",
    "unix",
    "unix time",
    "unix timestamp",
    "epoch",
)
ALIASES: dict[str, tuple[str, ...]] = {
    **{price: (price,) for price in PRICES},
    "time": TIME_NAMES,
    "volume": ("volume", "vol"),
    "adj close": ("adj close", "adjclose", "adjusted close"),
    "dividends": ("dividends", "dividend"),
    "symbol": ("symbol", "ticker", "tic"),
}
SEPARATORS = (",", ";", "\t", "|")
MISSING_TEXTS = ["", "NA", "N/A", "n/a", "NaN", "nan", "NAN", "null", "NULL", "None"]
LABEL_MARK = "tailwise label: "  # a saved synthetic market says so in its banner line or in its Parquet metadata
_BANNER_LINES = 10
_HEAD_BYTES = 1 << 16
_PARQUET_MAGIC = b"PAR1"


@dataclass(frozen=True)
class RawTable:
    """The columns of a source under canonical names, not yet parsed; row i of the table is data row `row[i]`."""

    name: str  # how errors call the source
    columns: dict[str, Any]  # canonical name -> pyarrow.ChunkedArray [T]
    headers: dict[str, str]  # canonical name -> name in the source
    row: NDArray[np.int64]  # [T] 1-based number of the data row in the source
    notes: tuple[str, ...] = ()
    label: str | None = None
    close_only: bool = False  # the source has no open, high and low: their columns are that of the close
    line_of: Callable[[int], int | None] = lambda _: None  # 1-based data row -> 1-based line of a text file

    def where(self, index: int) -> str:
        """'row 5 (line 6)' for row `index` of the table."""
        row = int(self.row[index])
        line = self.line_of(row)
        return f"row {row}" if line is None else f"row {row} (line {line})"


def read(source: str | Path | pd.DataFrame, *, close_only: bool = False) -> RawTable:
    """Read the raw columns of a CSV file, a Parquet file or a DataFrame. close_only: one without open, high and low
    (and perhaps without volume) is no error."""
    if isinstance(source, pd.DataFrame):
        return _read_frame(source, close_only)
    path = Path(source)
    problem = text_problem(str(path))
    if problem is not None:
        raise DataError(f"{str(path)!r} {problem}.")
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if head.startswith(_PARQUET_MAGIC):
            return _read_parquet(path, close_only)
        if path.suffix.lower() in (".parquet", ".pq"):
            raise DataError(
                f"{path}: the file does not begin like a Parquet file; write it again or rename it to .csv."
            )
        return _read_csv(path, head, close_only)
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read: {error.strerror or error}.") from error


def normalise_header(header: str) -> str:
    """'<CLOSE>', '4. close', 'Adj. Close', 'adj_close' -> 'close', 'close', 'adj close', 'adj close'."""
    plain = re.sub(r"^\d+[.:)]\s*", "", header.strip().strip("\"'<>").lower())
    return re.sub(r"[\s_\-.]+", " ", plain).strip()


def assign_columns(
    headers: Sequence[str], name: str, close_only: bool = False
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Map canonical names to headers (index into `headers`); also return notes on what was chosen or left out.

    close_only: open, high and low may be missing, all of them, and volume with them.
    """
    plain = [normalise_header(header) for header in headers]
    indices: dict[str, int] = {}
    notes: list[str] = []
    for part, aliases in ALIASES.items():
        hits = [i for alias in aliases for i, header in enumerate(plain) if header == alias]
        if (part != "time" and len(hits) > 1) or len({plain[i] for i in hits}) < len(hits):
            both = " and ".join(repr(headers[i]) for i in hits)
            raise DataError(f"{name}: columns {both} both mean {part!r}; remove or rename one of them.")
        if hits:
            indices[part] = hits[0]
    if "volume" not in indices:
        named = [i for i, header in enumerate(plain) if header.startswith("volume ")]
        named += [i for i, header in enumerate(plain) if header in ("tick volume", "tickvol")]
        if named:
            indices["volume"] = named[0]
            notes.append(f"volume is taken from column {headers[named[0]]!r}")
    if "time" not in indices and plain and plain[0] in ("", "index", "index level 0"):
        indices["time"] = 0  # what pandas writes for an index without a name
        notes.append("time is taken from the first column, which has no name")
    if "time" in indices and plain[indices["time"]] == "date" and "time" in plain:
        indices["clock"] = plain.index("time")
    missing = [part for part in REQUIRED if part not in indices]
    closes_alone = "close" in indices and set(missing) >= set(RANGE)
    if missing and not (close_only and set(missing) <= {*RANGE, "volume"} and closes_alone):
        hint = " A file with closes alone is read with --close-only (data.close_only)." if closes_alone else ""
        raise DataError(
            f"{name}: no column for {', '.join(missing)} among {', '.join(repr(header) for header in headers)}; "
            f"bars need {', '.join(REQUIRED)} (in any case and order).{hint}"
        )
    unused = [repr(header) for i, header in enumerate(headers) if i not in indices.values() and plain[i]]
    if unused:
        notes.append(f"columns not used: {', '.join(unused)}")
    return indices, tuple(notes)


# --- CSV -------------------------------------------------------------------------------------------------------------


def _read_csv(path: Path, head: bytes, close_only: bool) -> RawTable:
    name = str(path)
    if not head.removeprefix(codecs.BOM_UTF8).strip():
        raise DataError(f"{name}: the file is empty; bars need a header line and rows.")
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{name}: the file is UTF-16 text; save it as UTF-8.")
    if b"\0" in head:
        raise DataError(f"{name}: the file is binary, neither CSV text nor Parquet; convert it to one of the two.")
    start, separator, headers, banner = _find_header(head, name, least=2 if close_only else 3)
    indices, notes = assign_columns(headers, name, close_only)
    if banner:
        notes = (f"{len(banner)} line(s) before the header skipped: {banner[0]!r}", *notes)
    _refuse_odd_quotes(path, start, separator, name)
    columns, rows = _parse_csv(path, start, separator, headers, indices, name)
    labels = [line.split(LABEL_MARK, 1)[1].strip() for line in banner if LABEL_MARK in line]
    table = RawTable(
        name=name,
        columns=columns,
        headers={part: headers[i] for part, i in indices.items()},
        row=np.arange(1, rows + 1),
        notes=notes,
        label=labels[0] if labels else None,
        line_of=lambda row: _line_of(path, start, row),
    )
    return _with_range(table)


def _with_range(table: RawTable) -> RawTable:
    """The same; without open, high and low their columns are that of the close, and a missing volume is 0."""
    if not set(RANGE).isdisjoint(table.columns):
        return table
    close, header = table.columns["close"], table.headers["close"]
    columns = {**table.columns, **dict.fromkeys(RANGE, close)}
    headers = {**table.headers, **dict.fromkeys(RANGE, header)}
    notes = table.notes
    if "volume" not in columns:
        columns["volume"] = pa.chunked_array([pa.array(np.zeros(len(table.row)))])
        headers["volume"] = header
        notes = (*notes, "there is no column of volumes: they are 0")
    return replace(table, columns=columns, headers=headers, notes=notes, close_only=True)


def _find_header(head: bytes, name: str, *, least: int) -> tuple[int, str, list[str], list[str]]:
    """(byte at which the data begin, separator, headers, banner lines before the header).

    The header is the first of the first ten lines that, cut at one of the separators, has `least` names we know.
    """
    names = {alias for aliases in ALIASES.values() for alias in aliases}
    banner: list[str] = []
    end = 0
    for raw in re.findall(rb"[^\r\n]*(?:\r\n|\n|\r|$)", head)[: 3 * _BANNER_LINES]:
        end += len(raw)
        try:
            line = raw.decode("utf-8-sig" if not banner else "utf-8").strip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{name}: the file is not UTF-8 text ({error.reason}); save it as UTF-8.") from error
        for separator in SEPARATORS:
            headers = [part.strip().strip("\"'") for part in line.split(separator)]
            if sum(normalise_header(header) in names for header in headers) >= least:
                return end, separator, headers, banner
        if line.strip():
            banner.append(line)
        if len(banner) >= _BANNER_LINES:
            break
    first = f"the first is {banner[0][:60]!r}" if banner else "all are blank"
    raise DataError(
        f"{name}: no header line among the first {_BANNER_LINES} lines ({first}); "
        "the first line should read time,open,high,low,close,volume (with --close-only: time,close)."
    )


def _data_lines(path: Path, start: int) -> Iterator[tuple[int, bytes]]:
    """The non-empty lines of the data, with their offset from the first data line."""
    number = 0
    with path.open("rb") as file:
        file.seek(start)
        for chunk in file:  # ends at a line feed; a file with carriage returns alone is one chunk
            for line in chunk.splitlines():
                if line:
                    yield number, line
                number += 1


def _line_of(path: Path, start: int, row: int) -> int | None:
    with path.open("rb") as file:
        before = len(file.read(start).splitlines())
    for data_row, (number, _) in enumerate(_data_lines(path, start), start=1):
        if data_row == row:
            return before + number + 1
    return None


def _refuse_odd_quotes(path: Path, start: int, separator: str, name: str) -> None:
    """A quote that does not enclose a field can swallow lines or glue digits together without any error."""
    with path.open("rb") as file:
        file.seek(start)
        if not any(b'"' in block for block in iter(lambda: file.read(1 << 24), b"")):
            return
    cut = re.escape(separator.encode())
    glued = re.compile(rb'(?<!^)(?<!%b)"(?!%b|\s*$)' % (cut, cut))
    for number, line in _data_lines(path, start):
        if b'"' in line and (line.count(b'"') % 2 or glued.search(line)):
            excerpt = line.decode("utf-8", "replace")[:80]
            raise DataError(
                f"{name}: data line {number + 1} has a quote that does not enclose a whole field: {excerpt!r}; "
                "fix the line."
            )


def _parse_csv(
    path: Path, start: int, separator: str, headers: list[str], indices: dict[str, int], name: str
) -> tuple[dict[str, Any], int]:
    """Text columns by canonical name and the number of rows. Column names are made unique by their position."""
    names = [f"{i}" for i in range(len(headers))]
    wanted = {part: names[i] for part, i in indices.items()}
    with pa.OSFile(str(path)) as file:
        file.seek(start)
        if file.size() - start == 0:
            raise DataError(f"{name}: there is a header but no rows.")
        try:
            table = pa_csv.read_csv(
                file,
                read_options=pa_csv.ReadOptions(column_names=names, block_size=1 << 22),
                parse_options=pa_csv.ParseOptions(delimiter=separator),
                convert_options=pa_csv.ConvertOptions(
                    include_columns=sorted(set(wanted.values())),
                    column_types=dict.fromkeys(names, pa.string()),
                    null_values=MISSING_TEXTS,
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid as error:
            fields = re.search(r"Expected \d+ columns, got (\d+): (.*)", str(error))
            if fields is None:
                raise DataError(f"{name}: the file is not well-formed CSV: {error}; fix or convert it.") from error
            raise DataError(
                f"{name}: the line {fields[2][:80]!r} has {fields[1]} fields and the header has {len(headers)}; "
                "fix the line (numbers with a decimal comma have to be written with a point)."
            ) from error
    if not table.num_rows:
        raise DataError(f"{name}: there is a header but no rows.")
    return {part: table.column(column) for part, column in wanted.items()}, table.num_rows


# --- Parquet and DataFrame -------------------------------------------------------------------------------------------


def _read_parquet(path: Path, close_only: bool) -> RawTable:
    name = str(path)
    try:
        with pq.ParquetFile(path) as file:
            headers = list(file.schema_arrow.names)
            indices, notes = assign_columns(headers, name, close_only)
            table = file.read(columns=[headers[i] for i in sorted(set(indices.values()))])
            metadata = file.schema_arrow.metadata or {}
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{name}: the Parquet file cannot be read: {error}; write it again.") from error
    label = metadata.get(LABEL_MARK.strip(": ").encode())
    read = RawTable(
        name=name,
        columns={part: _decoded(table.column(headers[i])) for part, i in indices.items()},
        headers={part: headers[i] for part, i in indices.items()},
        row=np.arange(1, table.num_rows + 1),
        notes=notes,
        label=label.decode() if label else None,
    )
    return _with_range(read)


def _read_frame(frame: pd.DataFrame, close_only: bool) -> RawTable:
    name = "DataFrame"
    if isinstance(frame.columns, pd.MultiIndex) or isinstance(frame.index, pd.MultiIndex):
        raise DataError(f"{name}: the index or the columns have several levels; select one symbol first.")
    series: list[tuple[str, Any]] = [(str(header), frame.iloc[:, i]) for i, header in enumerate(frame.columns)]
    index_name = "" if frame.index.name is None else str(frame.index.name)
    notes: tuple[str, ...] = ()
    if isinstance(frame.index, pd.DatetimeIndex) or normalise_header(index_name) in TIME_NAMES:
        others = [header for header, _ in series if normalise_header(header) in TIME_NAMES]
        if others:
            notes = (f"time is taken from the index; columns not used: {', '.join(map(repr, others))}",)
        series = [(h, column) for h, column in series if normalise_header(h) not in TIME_NAMES]
        series.insert(0, (index_name, frame.index))
    headers = [header for header, _ in series]
    indices, more = assign_columns(headers, name, close_only)
    label = frame.attrs.get("label")
    table = RawTable(
        name=name,
        columns={part: _arrow(series[i][1]) for part, i in indices.items()},
        headers={part: headers[i] for part, i in indices.items()},
        row=np.arange(1, len(frame) + 1),
        notes=notes + more,
        label=None if label is None else str(label),
    )
    return _with_range(table)


def _arrow(values: Any) -> Any:
    """A pandas column as Arrow. Objects become text: Arrow would read mixed time zones as one."""
    if values.dtype == object:
        texts = [None if _is_missing(value) else str(value) for value in values]
        return pa.chunked_array([pa.array(texts, pa.string())])
    try:
        array = pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(
            f"DataFrame: a column of type {values.dtype} holds neither numbers nor times; convert it."
        ) from error
    return _decoded(array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array]))


def _is_missing(value: object) -> bool:
    return value is None or value is pd.NaT or value is pd.NA or (isinstance(value, float) and value != value)


def _decoded(column: Any) -> Any:
    """Categories and large strings as plain strings."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _decoded(column.cast(kind.value_type))
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.string())
    return column


def select_symbol(raw: RawTable, symbol: str | None) -> tuple[RawTable, str | None]:
    """Keep the rows of one symbol if the table has a symbol column; return them and the symbol's name, if known."""
    if "symbol" not in raw.columns:
        return raw, symbol
    column = raw.columns["symbol"].cast(pa.string())
    symbols = sorted(str(value) for value in pc.unique(column).to_pylist())
    if len(symbols) <= 1:
        return raw, symbol or (symbols[0] if symbols else None)
    if symbol not in symbols:
        listed = ", ".join(symbols[:10]) + (", ..." if len(symbols) > 10 else "")
        raise DataError(
            f"{raw.name}: holds {len(symbols)} symbols ({listed}) and {symbol!r} was asked for; pass one of them."
        )
    keep = pc.fill_null(pc.equal(column, symbol), False)
    note = f"rows of symbol {symbol!r} selected from {len(symbols)} symbols"
    columns = {part: values.filter(keep) for part, values in raw.columns.items()}
    rows = raw.row[keep.to_numpy()]
    return replace(raw, columns=columns, row=rows, notes=(*raw.notes, note)), symbol
