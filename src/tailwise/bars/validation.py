"""Check every row of a table: a bad one is an error with file, row, value and fix; repairs are explicit and noted.

Nothing is filled in, smoothed or sorted here. `repair="drop"` leaves bad rows out, `repair="clip"` widens high and low
until they cover open and close; both say which rows they touched, and both stop at a file with many bad rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailwise.bars.dialects import PRICES, RawTable
from tailwise.bars.times import NOT_A_TIME
from tailwise.core.errors import DataError

Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]
Repair: TypeAlias = Literal["none", "drop", "clip"]

RANGE_TOLERANCE = 1e-9  # relative: prices that went through an adjustment differ in the last digits
MIN_ROWS = 2
MOST_REPAIRED = 0.01  # share of the rows; a file with more bad rows is wrong as a whole
# Squares of prices and price times volume stay finite; all that anybody trades lies far inside.
SMALLEST_PRICE, LARGEST_NUMBER = 1e-100, 1e100
_MOST_LISTED = 5
_NUMBER = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"


@dataclass(frozen=True)
class Finding:
    """One kind of problem: the rows that have it, and its message for a row."""

    rows: Flags  # [T]
    say: Callable[[int], str]  # takes an index into the raw table
    unreadable: str | None = None  # the column whose values could not be parsed, if that is the problem


@dataclass(frozen=True)
class Table:
    """Parsed columns in the order of the source or, after `chronological`, in that of time."""

    raw: RawTable  # for names and line numbers only
    row: NDArray[np.int64]  # [T] index into the raw table
    time: NDArray[np.int64]  # [T] ns, NOT_A_TIME where missing
    values: dict[str, Floats]  # open, high, low, close, volume and, where present, adj close and dividends: [T]
    findings: tuple[Finding, ...] = ()  # problems found while parsing
    notes: tuple[str, ...] = field(default=())

    def take(self, order: NDArray[np.int64] | Flags | slice) -> Table:
        """Select the rows `order`, with their findings."""
        return replace(
            self,
            row=self.row[order],
            time=self.time[order],
            values={name: values[order] for name, values in self.values.items()},
            findings=tuple(replace(f, rows=f.rows[order]) for f in self.findings),
        )


def parse_numbers(raw: RawTable, part: str) -> tuple[Floats, Flags | None]:
    """Parse a column to float64 [T], NaN where missing; also return flags [T] of values that are no numbers, if any."""
    column, kind = raw.columns[part], raw.columns[part].type
    if pa.types.is_string(kind):
        try:
            return column.cast(pa.float64()).to_numpy(), None
        except pa.ArrowInvalid:
            text = pc.utf8_trim_whitespace(column)
        wanted = pc.match_substring_regex(text, _NUMBER)
        special = pc.match_substring_regex(text, r"^[+-]?(nan|inf|infinity)$", ignore_case=True)
        good = pc.or_(wanted, special)
        numbers = pc.if_else(good, text, pa.scalar(None, pa.string())).cast(pa.float64())
        unreadable = ~pc.fill_null(good, True).to_numpy()
        return numbers.to_numpy(), unreadable if unreadable.any() else None
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        # Volumes beyond 2**53 lose their last digits, as every float does.
        return column.cast(pa.float64(), safe=False).to_numpy(), None
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan), None
    raise DataError(f"{raw.name}: column {raw.headers[part]!r} is of type {kind}; {part} must hold numbers.")


def unreadable_finding(raw: RawTable, part: str, rows: Flags) -> Finding:
    """Describe values that could not be parsed as numbers or times."""
    column = raw.columns[part]
    kind = "time in the format of the others" if part == "time" else "number"
    return Finding(rows, lambda i: f"{part} {_shorten(column[i].as_py())} is not a {kind}", part)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def chronological(table: Table) -> Table:
    """Sort by ascending time: a descending source is reversed and noted, any other order is an error."""
    known = np.flatnonzero(table.time != NOT_A_TIME)
    steps = np.diff(table.time[known])
    back, forth = int(np.sum(steps < 0)), int(np.sum(steps > 0))
    duplicate = np.zeros(len(table.time), dtype=bool)
    duplicate[known[1:][steps == 0]] = True
    raw = table.raw
    time = table.time  # still in the order of the source, so that raw rows index it

    def say_duplicate(i: int) -> str:
        return f"time {show_time(time[i])} stands in the row before as well"

    table = replace(table, findings=(*table.findings, Finding(duplicate, say_duplicate)))
    if back and forth:
        wrong = steps < 0 if forth >= back else steps > 0
        at = int(np.argmax(wrong))
        row, before = int(known[at + 1]), int(known[at])
        raise DataError(
            f"{raw.name} {raw.where(row)}: time {show_time(table.time[row])} does not follow "
            f"{show_time(table.time[before])} of the row before in the order of the other rows ({int(wrong.sum())} "
            f"such row(s)); sort the file by time, oldest first."
        )
    if back:
        note = "rows were in descending order of time and have been turned"
        table = replace(table.take(slice(None, None, -1)), notes=(*table.notes, note))
    return table


def show_time(stamp: np.int64 | int) -> str:
    """2020-01-31 or 2020-01-31T09:30:00 (UTC) for nanoseconds since 1970."""
    moment = np.int64(stamp).astype("datetime64[ns]")
    unit: Literal["D", "s", "ns"] = "D" if stamp % (86_400 * 10**9) == 0 else "s" if stamp % 10**9 == 0 else "ns"
    return str(np.datetime_as_string(moment, unit=unit))


def find_problems(table: Table) -> list[Finding]:
    """List all problems of all rows, in the present order of rows; `say` takes an index into the raw table."""
    problems = list(table.findings)
    at = _raw_lookup(table)
    unreadable = {finding.unreadable: finding.rows for finding in table.findings if finding.unreadable}
    none = np.zeros(len(table.time), dtype=bool)
    problems.append(Finding((table.time == NOT_A_TIME) & ~unreadable.get("time", none), lambda _: "time is missing"))
    for name, values in table.values.items():
        problems += _number_findings(name, values, unreadable.get(name, none), at)
    high, low = table.values["high"], table.values["low"]
    sane = np.logical_and.reduce([np.isfinite(table.values[p]) & (table.values[p] > 0) for p in PRICES])
    crossed = sane & (high < low * (1 - RANGE_TOLERANCE))

    def say_crossed(i: int) -> str:
        return f"high {high[at(i)]} < low {low[at(i)]}"

    problems.append(Finding(crossed, say_crossed))
    for name in ("open", "close"):
        problems.append(_outside_finding(name, table.values[name], high, low, sane & ~crossed, at))
    return [finding for finding in problems if finding.rows.any()]


def _raw_lookup(table: Table) -> Callable[[int], int]:
    """Function from an index into the raw table to the present row; slow, for the few rows in a message."""
    return lambda raw_row: int(np.flatnonzero(table.row == raw_row)[0])


def _number_findings(name: str, values: Floats, already: Flags, at: Callable[[int], int]) -> list[Finding]:
    positive = name in (*PRICES, "adj close")
    missing = np.isnan(values) & ~already
    wrong = (values <= 0) if positive else (values < 0)
    fault = "is not positive" if positive else "is negative"
    extreme = (values > LARGEST_NUMBER) | ((values > 0) & (values < SMALLEST_PRICE) & positive)
    limits = f"{SMALLEST_PRICE:g} to {LARGEST_NUMBER:g}" if positive else f"{LARGEST_NUMBER:g}"
    return [
        Finding(missing, lambda _: f"{name} is missing (empty or NaN)"),
        Finding(np.isinf(values), lambda i: f"{name} is infinite ({values[at(i)]})"),
        Finding(wrong & np.isfinite(values), lambda i: f"{name} {values[at(i)]} {fault}"),
        Finding(extreme & np.isfinite(values), lambda i: f"{name} {values[at(i)]} is beyond {limits}"),
    ]


def _outside_finding(
    name: str, values: Floats, high: Floats, low: Floats, where: Flags, at: Callable[[int], int]
) -> Finding:
    outside = (values > high * (1 + RANGE_TOLERANCE)) | (values < low * (1 - RANGE_TOLERANCE))

    def say(i: int) -> str:
        return f"{name} {values[at(i)]} is outside low {low[at(i)]} to high {high[at(i)]}"

    return Finding(where & outside, say)


def validate(table: Table, repair: Repair) -> Table:
    """Return the table without problems, or raise a DataError with the first five and the count of all."""
    if repair not in get_args(Repair):
        raise DataError(f"repair is {repair!r}; it must be one of {', '.join(get_args(Repair))}.")
    name = table.raw.name
    if not len(table.time):
        raise DataError(f"{name}: there are no rows; bars need at least {MIN_ROWS}.")
    with np.errstate(all="ignore"):  # comparisons with NaN and products of huge numbers are findings, not warnings
        if repair == "clip":
            table = _clip(table)
        problems = find_problems(table)
    if problems and repair == "drop":
        bad = np.logical_or.reduce([finding.rows for finding in problems])
        rows = np.sort(table.raw.row[table.row[bad]])
        _check_share(table, len(rows), "drop would leave out", problems)
        note = f"repair drop: {len(rows)} of {len(bad)} rows dropped (rows {_ranges(rows)})"
        table = replace(table.take(~bad), notes=(*table.notes, note))
    elif problems:
        raise DataError(_report(table, problems, repair))
    if len(table.time) < MIN_ROWS:
        raise DataError(f"{name}: {len(table.time)} usable row(s) left; bars need at least {MIN_ROWS}.")
    return table


def _clip(table: Table) -> Table:
    prices = {name: table.values[name] for name in PRICES}
    sane = np.logical_and.reduce([np.isfinite(values) & (values > 0) for values in prices.values()])
    body_high, body_low = np.maximum(prices["open"], prices["close"]), np.minimum(prices["open"], prices["close"])
    # Only rows that would be an error are touched: differences within the tolerance stay as they are.
    short = (body_high > prices["high"] * (1 + RANGE_TOLERANCE)) | (body_low < prices["low"] * (1 - RANGE_TOLERANCE))
    touched = sane & (short | (prices["high"] < prices["low"] * (1 - RANGE_TOLERANCE)))
    if not touched.any():
        return table
    high = np.where(touched, np.maximum(prices["high"], body_high), prices["high"])
    low = np.where(touched, np.minimum(prices["low"], body_low), prices["low"])
    rows = np.sort(table.raw.row[table.row[touched]])
    _check_share(table, len(rows), "clip would change", find_problems(table))
    note = f"repair clip: high and low of {len(rows)} of {len(touched)} rows widened to cover open and close"
    notes = (*table.notes, f"{note} (rows {_ranges(rows)})")
    return replace(table, values={**table.values, "high": high, "low": low}, notes=notes)


def _check_share(table: Table, rows: int, action: str, problems: list[Finding]) -> None:
    """Raise when a repair touches more than MOST_REPAIRED of the rows; one bad row may be repaired in any file."""
    total = len(table.time)
    if rows <= max(1, MOST_REPAIRED * total):
        return
    first = "".join(f"\n  {line}" for line in _first_lines(table, problems))
    raise DataError(
        f"{table.raw.name}: --repair {action} {rows} of {total} rows ({rows / total:.1%}), more than "
        f"{MOST_REPAIRED:.0%}: not a few rows but the file is wrong. Fix it at its source; the first problems:{first}"
    )


def _ranges(rows: NDArray[np.int64]) -> str:
    """'3, 5-9' for sorted row numbers."""
    runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _report(table: Table, problems: list[Finding], repair: Repair) -> str:
    total = sum(int(finding.rows.sum()) for finding in problems)
    bad_rows = int(np.logical_or.reduce([finding.rows for finding in problems]).sum())
    lines = _first_lines(table, problems)
    hint = "--repair clip cannot mend this: fix" if repair == "clip" else "fix"
    name = table.raw.name
    if total == 1:
        return f"{name} {lines[0]}; {hint} the row or pass --repair drop."
    more = f"\n  and {total - len(lines)} more" if total > len(lines) else ""
    listed = "".join(f"\n  {line}" for line in lines)
    return f"{name}: {total} problems in {bad_rows} rows:{listed}{more}\n{hint} the rows or pass --repair drop."


def _first_lines(table: Table, problems: list[Finding]) -> list[str]:
    """'row 7 (line 8): high 8 < low 9' for the first few problems in the order of the source."""
    first = [
        (int(table.row[i]), finding.say) for finding in problems for i in _first_in_source(table.row, finding.rows)
    ]
    return [f"{table.raw.where(i)}: {say(i)}" for i, say in sorted(first, key=lambda pair: pair[0])[:_MOST_LISTED]]


def _first_in_source(row: NDArray[np.int64], flags: Flags) -> NDArray[np.int64]:
    """The table rows of the first few problems in the order of the source."""
    hits = np.flatnonzero(flags)
    return hits[np.argsort(row[hits], kind="stable")][:_MOST_LISTED]
