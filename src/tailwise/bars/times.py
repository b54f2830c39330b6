"""Parse a column of times, in any of the usual dialects, to nanoseconds since 1970 UTC.

Nothing is guessed from single values: the format, which of two parts is the month, whether a number counts seconds or
milliseconds, and the zone are decided by a rule on the whole column and written into the notes, or refused with a
sentence (docs/bars.md lists the rules).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailwise.bars.dialects import RawTable
from tailwise.bars.frequency import FIRST_YEAR, LAST_YEAR
from tailwise.core.errors import DataError

TIME_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}  # nanoseconds per unit
NOT_A_TIME = np.iinfo(np.int64).min  # numpy's NaT as an integer
_FIRST_SECOND, _LAST_SECOND = 31_536_000, 4_102_444_800  # 1971-01-01 and 2100-01-01
_DATES = (
    (r"\d{4}/\d{1,2}/\d{1,2}", "%Y/%m/%d"),
    (r"\d{4}\.\d{1,2}\.\d{1,2}", "%Y.%m.%d"),
    (r"\d{1,2}\.\d{1,2}\.\d{4}", "%d.%m.%Y"),
    (r"\d{1,2}/\d{1,2}/\d{4}", "slashes"),
    (r"\d{4}-\d{2}-\d{2}(?= \d{1,2}-[AP]M)", "%Y-%m-%d"),
)
_CLOCKS = (
    ("", ""),
    (r"\d{1,2}:\d{2}", " %H:%M"),
    (r"\d{1,2}:\d{2}:\d{2}", " %H:%M:%S"),
    (r"\d{1,2}:\d{2}:\d{2}\.\d+", " %H:%M:%S.%f"),
    (r"\d{1,2}-[AP]M", " %I-%p"),
)
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}.*)?")
_COUNT = re.compile(r"[+-]?\d+(\.\d*)?")
_OFFSET = r"(?:Z|[+-]\d{2}(?::?\d{2})?)$"


@dataclass(frozen=True)
class Times:
    """Open times in nanoseconds since 1970 UTC, int64 [T], NOT_A_TIME where missing or unreadable."""

    values: NDArray[np.int64]
    notes: tuple[str, ...]


def parse_times(raw: RawTable, time_unit: str | None = None) -> Times:
    """Parse the time column (with the clock column, if dates and clock times are in two) to UTC nanoseconds."""
    if time_unit is not None and time_unit not in TIME_UNITS:
        raise DataError(f"time unit is {time_unit!r}; it must be one of {', '.join(TIME_UNITS)}.")
    column, kind = raw.columns["time"], raw.columns["time"].type
    if "clock" in raw.columns:
        column = _with_clock(raw)
        kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _parse_timestamps(raw, column)
    if pa.types.is_string(kind):
        return _parse_text(raw, column, time_unit)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _parse_epoch(raw, column, time_unit)
    if pa.types.is_null(kind):
        return Times(np.full(len(column), NOT_A_TIME), ())
    raise DataError(f"{raw.name}: column {raw.headers['time']!r} is of type {kind}, which is no time; convert it.")


def _with_clock(raw: RawTable) -> Any:
    """Dates and clock times in two columns as one column of text."""
    date, clock = raw.columns["time"], raw.columns["clock"]
    clock = clock.cast(pa.string())
    is_clock = pc.match_substring_regex(clock, r"^\s*\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?\s*$")
    if not pc.all(pc.fill_null(is_clock, False)).as_py():
        raise DataError(
            f"{raw.name}: columns {raw.headers['time']!r} and {raw.headers['clock']!r} both tell times and the second "
            "is not a clock time like 09:30; remove or rename one of them."
        )
    return pc.binary_join_element_wise(date.cast(pa.string()), pc.utf8_trim_whitespace(clock), " ")


def _nanoseconds(column: Any) -> NDArray[np.int64]:
    """An Arrow timestamp[ns] column as integers, NOT_A_TIME where null."""
    filled = pc.fill_null(column.cast(pa.int64()), NOT_A_TIME)
    values: NDArray[np.int64] = filled.to_numpy()
    return values


def _parse_timestamps(raw: RawTable, column: Any) -> Times:
    zone = getattr(column.type, "tz", None)
    try:
        values = _nanoseconds(column.cast(pa.timestamp("ns", zone)))
    except pa.ArrowInvalid as error:
        years = f"{FIRST_YEAR} to {LAST_YEAR}"
        raise DataError(f"{raw.name}: a time lies outside the years {years} ({error}); fix the rows.") from error
    return Times(values, (_zone_note(zone),))


def _zone_note(zone: str | None) -> str:
    if zone is None:
        return "times have no zone and are taken as UTC"
    return "times are UTC" if zone in ("UTC", "Z", "+00:00") else f"times are converted to UTC from {zone}"


def _parse_text(raw: RawTable, column: Any, time_unit: str | None) -> Times:
    column = pc.utf8_trim_whitespace(column)
    style, example = _style(column)
    if style == "count":
        return _parse_epoch(raw, _counts(column), time_unit)
    if style == "iso":
        return _parse_iso(raw, column)
    if style is None:
        raise DataError(
            f"{raw.name}: time {example!r} in column {raw.headers['time']!r} is in no known format; write times like "
            "2020-01-31 09:30:00 (UTC), 31.01.2020 09:30, or as a count of seconds or milliseconds since 1970."
        )
    text = column.to_pandas()
    if "slashes" in style:
        style = style.replace("slashes", _slash_order(raw, text))
    values = pd.to_datetime(text, format=style, errors="coerce").astype("datetime64[ns]")
    return Times(values.to_numpy().astype(np.int64), (f"times are read as {style}", _zone_note(None)))


def _style(column: Any) -> tuple[str | None, str]:
    """The format of the first value that has a known one ('iso', 'count' or a strptime format), and an example."""
    candidates = column.drop_null().slice(0, 100).to_pylist()
    for text in candidates:
        if _COUNT.fullmatch(text):
            return "count", text
        for date, date_format in _DATES:
            for clock, clock_format in _CLOCKS:
                if re.fullmatch(f"{date} {clock}" if clock else date, text):
                    return date_format + clock_format, text
        if _ISO.fullmatch(text):
            return "iso", text
    if not candidates:
        return "iso", ""  # nothing but missing times: each is reported as missing
    return None, candidates[0]


def _slash_order(raw: RawTable, text: Any) -> str:
    parts = text.str.extract(r"^(\d{1,2})/(\d{1,2})/").astype(float)
    day_first, month_first = bool((parts[0] > 12).any()), bool((parts[1] > 12).any())
    if day_first == month_first:
        why = "some need the day first and some the month" if day_first else "no value shows which part is the month"
        raise DataError(
            f"{raw.name}: dates like {text.dropna().iloc[0]!r} are ambiguous: {why}; write them as 2020-01-31."
        )
    return "%d/%m/%Y" if day_first else "%m/%d/%Y"


def _parse_iso(raw: RawTable, column: Any) -> Times:
    column = pc.replace_substring_regex(column, r" ?UTC$", "Z") if _ends_with_utc(column) else column
    # Arrow reads a column that has no zone at all, or a zone in every value; all else is looked at by value.
    for kind in (pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
        try:
            values = _nanoseconds(column.cast(kind))
        except pa.ArrowInvalid:
            continue
        return Times(values, (_zone_note(None) if kind.tz is None else _offset_note(raw, column),))
    text = column.to_pandas()
    parsed = pd.to_datetime(text, format="ISO8601", utc=True, errors="coerce")
    zoned = text.str.contains(rf"[T ]\d{{2}}.*{_OFFSET}", regex=True, na=False).to_numpy()
    readable = parsed.notna().to_numpy()
    if (zoned & readable).any() and (~zoned & readable).any():
        one, other = int(np.argmax(zoned & readable)), int(np.argmax(~zoned & readable))
        raise DataError(
            f"{raw.name}: time zones are mixed: {raw.where(one)} has {text[one]!r} with a zone and "
            f"{raw.where(other)} has {text[other]!r} without; write all of them in UTC."
        )
    usable = zoned & readable
    note = _offset_note(raw, column.filter(pa.array(usable))) if usable.any() else _zone_note(None)
    return Times(parsed.dt.tz_localize(None).astype("datetime64[ns]").to_numpy().astype(np.int64), (note,))


def _ends_with_utc(column: Any) -> bool:
    return bool(pc.any(pc.fill_null(pc.ends_with(column, "UTC"), False)).as_py())


def _offset_note(raw: RawTable, column: Any) -> str:
    """One offset, or two an hour apart (daylight saving), are converted; other mixtures are two sources in one file."""
    tails = pc.unique(pc.utf8_slice_codeunits(column, start=-6)).drop_null().to_pylist()
    offsets = set()
    for tail in tails:
        match = re.search(_OFFSET, tail)
        if match:
            offsets.add(_offset_minutes(match.group()))
    if max(offsets) - min(offsets) > 60 or len(offsets) > 2:
        listed = ", ".join(f"{minutes / 60:+g} h" for minutes in sorted(offsets))
        raise DataError(f"{raw.name}: time zones are mixed (offsets {listed}); write all times in UTC.")
    zones = " and ".join(f"UTC{minutes / 60:+g} h" for minutes in sorted(offsets))
    return _zone_note("UTC" if offsets == {0} else zones + (" (daylight saving)" if len(offsets) > 1 else ""))


def _offset_minutes(zone: str) -> int:
    if zone == "Z":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    return (-1 if zone[0] == "-" else 1) * (60 * int(digits[:2]) + int(digits[2:]))


def _counts(column: Any) -> Any:
    """Text as integers, as floats if it has fractions; what is neither becomes null."""
    for kind in (pa.int64(), pa.float64()):
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    plain = pc.match_substring_regex(column, r"^[+-]?\d+(\.\d*)?$")
    return pc.if_else(plain, column, pa.scalar(None, pa.string())).cast(pa.float64())


def _parse_epoch(raw: RawTable, column: Any, time_unit: str | None) -> Times:
    """Counts since 1970-01-01 UTC. Without `time_unit`, the unit is the one in which ALL values fall into 1971 to 2099.

    The ranges of the units do not overlap (seconds end at 4.1e9, milliseconds begin at 3.2e10), and dates written as
    20200131 lie below all of them, so at most one reading fits.
    """
    valid = pc.is_valid(column).to_numpy()
    if pa.types.is_floating(column.type):
        counts = column.to_numpy().astype(np.float64)
        valid &= np.isfinite(counts)
    else:
        counts = pc.fill_null(column, 0).to_numpy()
    fitting, what = counts[valid], raw.headers["time"]
    if not valid.any():
        return Times(np.full(len(counts), NOT_A_TIME), ())
    low, high = fitting.min(), fitting.max()
    if time_unit is None and low >= 19_000_101 and high <= 21_001_231:
        text = pd.Series(np.where(valid, counts, 0).astype(np.int64).astype(str)).where(valid)
        dates = pd.to_datetime(text, format="%Y%m%d", errors="coerce").astype("datetime64[ns]")
        return Times(dates.to_numpy().astype(np.int64), (f"column {what!r} is read as YYYYMMDD", _zone_note(None)))
    if time_unit is None:
        inside = {
            unit: _FIRST_SECOND * (10**9 // scale) <= low and high < _LAST_SECOND * (10**9 // scale)
            for unit, scale in TIME_UNITS.items()
        }
        units = [unit for unit, fits in inside.items() if fits]
        if not units:
            raise DataError(
                f"{raw.name}: column {what!r} counts from {low} to {high}; in no single unit (s, ms, us, ns) do all "
                "values lie between 1971 and 2100. Fix the column, or say the unit with --time-unit s|ms|us|ns."
            )
        (time_unit,) = units
        how = "because in it all values lie between 1971 and 2100"
    else:
        how = "as asked for"
    scale = TIME_UNITS[time_unit]
    valid &= np.abs(counts) < 9.2e18 / scale
    usable = np.where(valid, counts, 0)
    whole = np.floor(usable).astype(np.int64) if usable.dtype.kind == "f" else usable.astype(np.int64)
    rest = np.rint((usable - whole) * scale).astype(np.int64) if usable.dtype.kind == "f" else np.int64(0)
    values = np.where(valid, whole * scale + rest, NOT_A_TIME)
    return Times(values, (f"column {what!r} is read as a count of {time_unit} since 1970 UTC, {how}",))
