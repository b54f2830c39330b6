"""Bars: open, high, low, close and volume of one symbol, stamped in UTC at the OPEN of each bar.

`load_bars` reads CSV, Parquet and DataFrames. It either returns bars in which every row has been checked, with notes
on everything that was decided or repaired, or it raises a DataError that says what to fix.

`resample` makes longer bars. They are labelled at their OPEN time like all others, so a label says nothing about when
the close was known. A bar is complete when its interval has passed by the clock: one of [00:00, 24:00) is not complete
when the exchange closes at 21:00, because nothing in the data says that no trade will follow. That is one bar late at
times, and never early.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from tailwise.bars.frequency import (
    DAY,
    FIRST_YEAR,
    LAST_YEAR,
    WEEK,
    Frequency,
    describe_step,
    infer_frequency,
    parse_rule,
    with_calendar,
)
from tailwise.core.errors import DataError, ShapeError

if TYPE_CHECKING:
    import pandas as pd

    from tailwise.bars.dialects import RawTable
    from tailwise.bars.validation import Adjust, Repair, Table


Floats: TypeAlias = NDArray[np.float64]
Moment: TypeAlias = str | date | np.datetime64

COLUMNS = ("open", "high", "low", "close", "volume")
CloseOnly: TypeAlias = Literal["refuse", "previous_close", "same_close"]
CLOSES_ONLY: dict[CloseOnly, str] = {  # what the label of such bars says
    "previous_close": "closes only (open = the close before)",
    "same_close": "closes only (open = high = low = close)",
}
FORMATS = (".csv", ".parquet", ".pq")  # endings of files that can be written
_FIRST_DAY, _LAST_DAY = np.datetime64(f"{FIRST_YEAR}-01-01"), np.datetime64(f"{LAST_YEAR}-12-31")


@dataclass(frozen=True, eq=False)
class Bars:
    """T bars of one symbol, oldest first. Arrays are read-only."""

    symbol: str
    time: NDArray[np.datetime64]  # datetime64[ns] [T], UTC, the open of each bar, strictly increasing
    open: Floats  # [T], in the currency of the quote, as are high, low and close
    high: Floats
    low: Floats
    close: Floats
    volume: Floats  # [T], in the unit of the source, >= 0
    label: str  # "real", or "synthetic: ..." with the law and its parameters
    source: str  # path or name of the origin
    frequency: Frequency
    notes: tuple[str, ...] = ()  # decisions of the reader, repairs, adjustments
    dividends: Floats | None = None  # [T], cash per share paid at the bar's open; None when unknown

    def __post_init__(self) -> None:
        if self.time.dtype != np.dtype("datetime64[ns]"):
            raise ShapeError(
                f"bars of {self.symbol}: time has dtype {self.time.dtype}; datetime64[ns] (UTC) is needed."
            )
        if not len(self.time):
            raise DataError(f"bars of {self.symbol}: there are no rows.")
        if (np.diff(self.time) <= np.timedelta64(0, "ns")).any():
            raise DataError(f"bars of {self.symbol}: times are not strictly increasing; sort them and drop duplicates.")
        for name in (*COLUMNS, "dividends"):
            values = getattr(self, name)
            if values is None:
                continue
            if values.dtype != np.float64 or values.shape != self.time.shape:
                raise ShapeError(
                    f"bars of {self.symbol}: {name} is {values.dtype} {values.shape}; "
                    f"float64 {self.time.shape} is needed."
                )
            object.__setattr__(self, name, _read_only(values))
        object.__setattr__(self, "time", _read_only(self.time))

    def __len__(self) -> int:
        return len(self.time)

    def data_hash(self) -> str:
        """sha256 (hex) of the symbol and all arrays: equal exactly when the numbers are."""
        digest = hashlib.sha256()
        for name in ("time", *COLUMNS, "dividends"):
            values = getattr(self, name)
            digest.update(f"{name}:{-1 if values is None else len(values)};".encode())
            if values is not None:
                number = values.astype("<i8" if name == "time" else "<f8")
                digest.update(np.ascontiguousarray(number).data)
        digest.update(f"symbol:{self.symbol}".encode())
        return digest.hexdigest()

    def slice(self, start: int | None, stop: int | None) -> Bars:
        """Select rows [start, stop) as in Python; the frequency stays that of all bars."""
        rows = slice(start, stop)
        if not len(self.time[rows]):
            raise DataError(f"bars of {self.symbol}: rows {start} to {stop} of {len(self)} are empty.")
        columns = {name: getattr(self, name)[rows] for name in ("time", *COLUMNS)}
        dividends = None if self.dividends is None else self.dividends[rows]
        return replace(self, **columns, dividends=dividends)

    def between(self, start: Moment | None, end: Moment | None) -> Bars:
        """Select the bars that open in [start, end): UTC dates or times, None for no limit."""
        first = 0 if start is None else int(np.searchsorted(self.time, _moment(start), side="left"))
        last = len(self) if end is None else int(np.searchsorted(self.time, _moment(end), side="left"))
        if first >= last:
            span = f"{self.time[0].astype('datetime64[D]')} to {self.time[-1].astype('datetime64[D]')}"
            raise DataError(f"bars of {self.symbol}: none open from {start} until before {end}; the data span {span}.")
        return self.slice(first, last)

    def to_frame(self) -> pd.DataFrame:
        """A DataFrame with a UTC index named `time`; `load_bars` reads it back, label included."""
        import pandas as pd

        columns = {name: getattr(self, name) for name in COLUMNS}
        if self.dividends is not None:
            columns["dividends"] = self.dividends
        frame = pd.DataFrame(columns, index=pd.DatetimeIndex(self.time, tz="UTC", name="time"))
        frame.attrs = {"label": self.label, "symbol": self.symbol}
        return frame


def data_hash_of(ranges: Sequence[Bars]) -> str:
    """sha256 (hex) of ranges of one symbol: of a single one its own `data_hash`, of several that of all of theirs."""
    if len(ranges) == 1:
        return ranges[0].data_hash()
    return hashlib.sha256("\n".join(one.data_hash() for one in ranges).encode()).hexdigest()


def _read_only(values: NDArray[Any]) -> NDArray[Any]:
    view = np.ascontiguousarray(values).view()
    view.flags.writeable = False
    return view


def _moment(value: Moment) -> np.datetime64:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    try:
        moment: np.datetime64 = np.datetime64(value)  # type: ignore[assignment, call-overload]  # all kinds of Moment
        day = moment.astype("datetime64[D]")
    except ValueError as error:
        raise DataError(f"{value!r} is not a date; write it as 2013-01-31 (UTC).") from error
    # numpy wraps around silently outside the range of nanoseconds.
    if np.isnat(day) or not _FIRST_DAY <= day <= _LAST_DAY:
        years = f"{FIRST_YEAR} to {LAST_YEAR}"
        raise DataError(f"{value!r} is not a date from {years}; write it as 2013-01-31 (UTC), None for no limit.")
    return moment.astype("datetime64[ns]")


def load_bars(
    source: str | Path | pd.DataFrame,
    *,
    symbol: str | None = None,
    repair: Repair = "none",
    adjust: Adjust = "refuse",
    time_unit: str | None = None,
    periods_per_year: float | None = None,
    close_only: CloseOnly = "refuse",
) -> Bars:
    """Load and check bars from a CSV file, a Parquet file or a DataFrame.

    symbol: name of the bars, and which rows to take when the source holds several symbols.
    repair: "none": a bad row is an error; "drop": bad rows are left out; "clip": high and low are widened to cover
        open and close. Repairs are noted; one of more than 1% of the rows is refused.
    adjust: what to do when an Adj Close column differs from Close: "refuse"; "consistent": scale open, high, low and
        close by Adj Close / Close; "ignore": use the prices as they are. "all": as "consistent", and where the closes
        are adjusted in place (which is refused otherwise), scale open, high and low by their factor.
    time_unit: "s", "ms", "us" or "ns" for times that are counts since 1970; by default decided from the column.
    periods_per_year: bars per year, for irregular bars; by default inferred.
    close_only: a source without open, high and low: "refuse"; "previous_close": a bar opens at the close before, its
        high and low are the larger and the smaller of the two; "same_close": all four prices are the close. The label
        says so.
    """
    from tailwise.bars import dialects, validation

    if adjust not in get_args(validation.Adjust):
        allowed = ", ".join(get_args(validation.Adjust))
        raise DataError(f"adjust is {adjust!r}; it must be one of {allowed}.")
    if close_only not in get_args(CloseOnly):
        raise DataError(f"close_only is {close_only!r}; it must be one of {', '.join(get_args(CloseOnly))}.")
    table_read = dialects.read(source, close_only=close_only != "refuse")
    raw, known_symbol = dialects.select_symbol(table_read, symbol)
    if not len(raw.row):
        raise DataError(f"{raw.name}: there are no rows; bars need at least {validation.MIN_ROWS}.")
    table = validation.chronological(validation.adjust_by_column(_parse(raw, time_unit, adjust), adjust))
    table = validation.validate(validation.adjust_by_close(table, adjust), repair)
    label = raw.label or "real"
    if raw.close_only:
        label = f"{label}, {CLOSES_ONLY[close_only]}"
        table = replace(table, values=_with_range(table.values, close_only), notes=(*table.notes, label))
    time = table.time.astype("datetime64[ns]")
    frequency = infer_frequency(time, name=raw.name, periods_per_year=periods_per_year)
    return Bars(
        symbol=known_symbol or (Path(raw.name).stem if raw.name != "DataFrame" else "UNKNOWN"),
        time=time,
        **{name: table.values[name] for name in COLUMNS},  # type: ignore[arg-type]  # mypy takes them for any field
        label=label,
        source=raw.name,
        frequency=frequency,
        notes=table.notes,
        dividends=table.values.get("dividends"),
    )


def _with_range(values: dict[str, Floats], close_only: CloseOnly) -> dict[str, Floats]:
    """Open, high and low of closes alone."""
    if close_only == "same_close":
        return values
    close = values["close"]
    before = np.concatenate([close[:1], close[:-1]])
    return {**values, "open": before, "high": np.maximum(before, close), "low": np.minimum(before, close)}


def label_warning(label: str) -> str | None:
    """What a page has to say about bars with this label, a sentence; None for real ones with all prices."""
    if label == "real":
        return None
    return f"Not whole bars: {label}." if label.startswith("real, ") else f"Not a real market: {label}."


def _parse(raw: RawTable, time_unit: str | None, adjust: Adjust) -> Table:
    """Parse all columns to numbers; values that cannot be read become findings of the validation."""
    from tailwise.bars import validation
    from tailwise.bars.times import NOT_A_TIME, parse_times

    times = parse_times(raw, time_unit)
    findings = []
    unreadable = (times.values == NOT_A_TIME) & raw.columns["time"].is_valid().to_numpy()
    if unreadable.any():
        findings.append(validation.unreadable_finding(raw, "time", unreadable))
    parts = [*COLUMNS, *(["dividends"] if "dividends" in raw.columns else [])]
    if "adj close" in raw.columns and adjust != "ignore":
        parts.append("adj close")
    values = {}
    for part in parts:
        values[part], bad = validation.parse_numbers(raw, part)
        if bad is not None:
            findings.append(validation.unreadable_finding(raw, part, bad))
    notes = (*raw.notes, *times.notes)
    return validation.Table(raw, np.arange(len(raw.row)), times.values, values, tuple(findings), notes)


def save_bars(bars: Bars, path: str | Path) -> None:
    """Write bars as CSV or, for .parquet, Parquet. A synthetic market says so in the file and when it is read back."""
    from tailwise.bars.dialects import LABEL_MARK
    from tailwise.core import atomic

    target = Path(path)
    if target.suffix.lower() in (".parquet", ".pq"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_pandas(bars.to_frame())
        marks = {LABEL_MARK.strip(": "): bars.label} if bars.label != "real" else {}
        sink = pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata({**(table.schema.metadata or {}), **marks}), sink)
        atomic.write_bytes(target, sink.getvalue().to_pybytes())
        return
    banner = f"# {LABEL_MARK}{bars.label}\n" if bars.label != "real" else ""
    frame = bars.to_frame()
    # All nine digits: pandas would write microseconds and cut the rest off.
    frame.index = [f"{stamp}Z" for stamp in np.datetime_as_string(bars.time, unit="ns")]
    atomic.write_text(target, banner + frame.to_csv(index_label="time"))


def check_target(out: Path, *, force: bool, sources: tuple[Path, ...] = ()) -> None:
    """Refuse a target before work begins: wrong ending, no folder, a file that exists or that is being read."""
    if out.suffix.lower() not in FORMATS:
        raise DataError(f"{out}: the ending {out.suffix!r} is neither .csv nor .parquet; choose one of them.")
    if not out.parent.is_dir():
        raise DataError(f"{out}: there is no folder {out.parent}; make it first.")
    if any(out.exists() and source.exists() and out.samefile(source) for source in sources):
        raise DataError(f"{out}: is the file that is read; choose another name for --out.")
    if out.exists() and not force:
        raise DataError(f"{out}: the file exists; remove it, choose another name or pass --force.")


@dataclass(frozen=True)
class SavedBars:
    """A file of bars with the symbol and hash under which it loads."""

    file: str
    symbol: str
    data_hash: str


def save_and_read_back(bars: Bars, out: Path) -> SavedBars:
    """Write the bars, load the file again and compare; return the symbol and hash under which it loads."""
    save_bars(bars, out)
    again = load_bars(out, periods_per_year=bars.frequency.periods_per_year)
    if again.label != bars.label or len(again) != len(bars) or (again.close != bars.close).any():
        raise DataError(f"{out}: the file does not read back as it was written; the disk may be faulty.")
    return SavedBars(str(out), again.symbol, again.data_hash())


# ---------------------------------------------------------------------- longer bars
_MONDAY = 4 * DAY  # 1970-01-05: weeks begin on Monday 00:00 UTC


def resample(bars: Bars, rule: str) -> Bars:
    """Resample to bars of length `rule`, labelled at their open time; an incomplete last bar is left out.

    Days begin at 00:00 UTC and weeks on Monday. Bars below a day are aligned like the given ones (those at half past
    give 4 h bars at half past). Intervals without trades have no bar. A first bar whose beginning lies before the data
    is left out where the market never closes; an exchange may simply have opened later.
    """
    size, step = parse_rule(rule), bars.frequency.bar_ns
    if size < step or size % step:
        raise DataError(
            f"bars of {bars.symbol}: {rule!r} is not a multiple of their step of {describe_step(step)}; "
            "choose one that is."
        )
    stamps = bars.time.astype(np.int64)
    origin = _MONDAY if size % WEEK == 0 else int(stamps[0] % step) if size < DAY else 0
    start = (stamps - origin) // size * size + origin
    _refuse_straddling(bars, stamps + step, start + size, rule)
    first = np.flatnonzero(np.diff(start, prepend=start[0] - size))
    opens = start[first]
    # By the clock of the last bar given, which intervals have passed?
    keep = opens + size <= stamps[-1] + step
    notes = [*bars.notes, f"resampled from {describe_step(step)} to {rule}"]
    if not keep[-1]:
        notes.append("the incomplete last bar is left out")
    if bars.frequency.calendar == "24/7" and stamps[0] > opens[0]:
        keep[0] = False
        notes.append("the first bar, whose beginning lies before the data, is left out")
    if not keep.any():
        raise DataError(
            f"bars of {bars.symbol}: the {len(bars)} bars do not complete one bar of {rule!r}; use more data."
        )
    last = np.append(first[1:], len(stamps)) - 1
    time = opens[keep].astype("datetime64[ns]")
    frequency = with_calendar(time, np.timedelta64(size, "ns"), bars.frequency.calendar, "that of the shorter bars")
    return replace(
        bars,
        time=time,
        open=bars.open[first][keep],
        high=np.maximum.reduceat(bars.high, first)[keep],
        low=np.minimum.reduceat(bars.low, first)[keep],
        close=bars.close[last][keep],
        volume=np.add.reduceat(bars.volume, first)[keep],
        dividends=None if bars.dividends is None else np.add.reduceat(bars.dividends, first)[keep],
        frequency=frequency,
        notes=tuple(notes),
    )


def _refuse_straddling(bars: Bars, close: NDArray[np.int64], end: NDArray[np.int64], rule: str) -> None:
    """A short bar that ends after the long bar it opened in would carry the future into it."""
    over = close > end
    if over.any():
        at = int(np.argmax(over))
        raise DataError(
            f"bars of {bars.symbol} row {at + 1}: the bar that opens at {bars.time[at]} UTC lasts beyond the end "
            f"of its {rule!r} bar ({int(over.sum())} bars do); use a rule whose bars begin where the given ones do."
        )


def completion_index(fine: Bars, coarse: Bars) -> NDArray[np.int64]:
    """For each fine bar, the newest coarse bar that was complete at the fine bar's close; -1 for none: int64 [T].

    A bar is complete at its open time plus its length. Joining by open time instead would show, at the first minute of
    a day, that day's close.
    """
    fine_close = fine.time + fine.frequency.bar
    coarse_end = coarse.time + coarse.frequency.bar
    return np.searchsorted(coarse_end, fine_close, side="right").astype(np.int64) - 1
