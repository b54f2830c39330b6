"""Check every row of a table: a bad one is an error with file, row, value and fix; repairs are explicit and noted.

Nothing is filled in, smoothed or sorted here. `repair="drop"` leaves bad rows out, `repair="clip"` widens high and low
until they cover open and close; both say which rows they touched, and both stop at a file with many bad rows.

Closes that are adjusted for dividends and splits beside an open, high and low that are not come in two kinds of files.
Some carry the adjusted close in a column of its own, and the factor is exact: adjusted close / close. Others carry it
in place of the close. Then the factor has to be recovered: close / factor must lie between low and high in every row,
and a factor changes on ex-dates alone. `adjustment_steps` finds the fewest steps.
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
    timed = np.flatnonzero(table.time != NOT_A_TIME)
    steps = np.diff(table.time[timed])
    back, forth = int(np.sum(steps < 0)), int(np.sum(steps > 0))
    duplicate = np.zeros(len(table.time), dtype=bool)
    duplicate[timed[1:][steps == 0]] = True
    raw = table.raw
    time = table.time  # still in the order of the source, so that raw rows index it

    def say_duplicate(i: int) -> str:
        return f"time {show_time(time[i])} stands in the row before as well"

    table = replace(table, findings=(*table.findings, Finding(duplicate, say_duplicate)))
    if back and forth:
        wrong = steps < 0 if forth >= back else steps > 0
        at = int(np.argmax(wrong))
        row, before = int(timed[at + 1]), int(timed[at])
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
    sane = _valid_prices(table)
    crossed = sane & (high < low * (1 - RANGE_TOLERANCE))

    def say_crossed(i: int) -> str:
        return f"high {high[at(i)]} < low {low[at(i)]}"

    problems.append(Finding(crossed, say_crossed))
    for name in ("open", "close"):
        problems.append(_outside_finding(name, table.values[name], high, low, sane & ~crossed, at))
    return [finding for finding in problems if finding.rows.any()]


def _valid_prices(table: Table) -> Flags:
    """Rows [T] whose four prices are all finite and positive."""
    return np.logical_and.reduce([np.isfinite(table.values[p]) & (table.values[p] > 0) for p in PRICES])


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
    sane = _valid_prices(table)
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


# ---------------------------------------------------------------------- adjusted closes
Adjust: TypeAlias = Literal["refuse", "consistent", "ignore", "all"]

# Adj Close equal to Close up to this relative difference is the same price, written with other digits.
ADJUSTMENT_TOLERANCE = 1e-9
LEAST_ROWS = 3  # closes outside their bar; fewer are single bad rows
ROWS_PER_STEP = 3  # closes outside per step of the factor: a bad row takes two steps, into the error and out of it
SPLIT = 0.1  # log; a larger step is a split or a wrong unit, a smaller one a dividend
FLOAT32 = 2e-7  # relative: prices that went through float32, as those of many vendors do, twice
MOST_DECIMALS = 8  # that a price is taken to be rounded to; with more digits it is not rounded
SHORT = 2  # rows; a piece this short beside a wrong step is the bad row itself
ROUNDS = 20  # of excluding bad rows and fitting the steps again


@dataclass(frozen=True)
class Steps:
    """The adjustment factor of the closes as a step function of time, over N rows.

    factor     float64 [N], close / close as traded
    starts     int64 [K], index into the N rows at which each of the K pieces begins
    wrong      bool [K - 1], steps (between pieces k and k + 1) that neither a dividend nor a split explains
    precision  largest relative error that a factor may have without moving a close out of its bar
    outside    closes outside low to high by more than rounding, of the N
    """

    factor: Floats
    starts: NDArray[np.int64]
    wrong: NDArray[np.bool_]
    precision: float
    outside: int

    @property
    def explains(self) -> bool:
        """Whether the closes are adjusted and open, high and low are not; else they are single bad rows."""
        few = ROWS_PER_STEP * len(self.wrong) <= self.outside
        return self.outside >= LEAST_ROWS and few and not self.wrong.any()

    def suspects(self) -> NDArray[np.int64]:
        """One or two rows at each wrong step, by index into the N: a short piece is wrong itself, else the row at
        which the older piece begins to differ."""
        ends = np.append(self.starts[1:], len(self.factor))
        rows: list[int] = []
        for k in np.flatnonzero(self.wrong):
            begin, end = int(self.starts[k + 1]), int(ends[k + 1])
            rows += range(begin, end) if end - begin <= SHORT else [begin - 1]
        return np.unique(np.array(rows, dtype=np.int64))


def adjust_by_column(table: Table, adjust: Adjust) -> Table:
    """Scale all prices by adjusted close / close where a column of adjusted closes differs; refuse unless asked to."""
    if "adj close" not in table.values:
        if "adj close" not in table.raw.columns:
            return table
        return replace(table, notes=(*table.notes, "column of adjusted closes ignored: prices are as traded"))
    adjusted, close = table.values["adj close"], table.values["close"]
    with np.errstate(all="ignore"):
        comparable = np.isfinite(adjusted) & np.isfinite(close) & (adjusted > 0) & (close > 0)
        differs = comparable & (np.abs(adjusted - close) > ADJUSTMENT_TOLERANCE * np.abs(close))
        factor = adjusted / close
    if not differs.any():
        return replace(table, notes=(*table.notes, "adjusted closes equal the closes: nothing to adjust"))
    if adjust == "refuse":
        at = int(np.argmax(differs))
        raise DataError(
            f"{table.raw.name} {table.raw.where(at)}: adjusted close {adjusted[at]} differs from close {close[at]} "
            f"({int(differs.sum())} rows do); pass --adjust consistent to scale open, high, low and close alike, or "
            "--adjust ignore to use the prices as traded."
        )
    # A row whose adjusted close is unusable keeps its prices; the validation reports it.
    values = {name: np.where(comparable, table.values[name] * factor, table.values[name]) for name in PRICES}
    values["close"] = np.where(comparable, adjusted, close)
    note = f"open, high, low and close scaled by adjusted close / close in {int(differs.sum())} rows; volume unchanged"
    return _with_adjusted(table, values, note)


def adjust_by_close(table: Table, adjust: Adjust) -> Table:
    """Recognise closes that are adjusted in place; refuse them, or scale open, high and low by the same factor.

    `table` is in ascending order of time. Rows whose prices are not all valid, and single rows that do not follow the
    factor, are left to the validation.
    """
    with np.errstate(all="ignore"):
        sane = _valid_prices(table) & (table.values["high"] >= table.values["low"]) & (table.time != NOT_A_TIME)
    rows = np.flatnonzero(sane)
    if not len(rows):
        return table
    high, low, close = (table.values[name][rows] for name in ("high", "low", "close"))
    kept, steps = _exclude_bad_rows(high, low, close)
    if steps is None or not steps.explains:
        return table
    # A row that was set aside gets the factor of the row after it.
    name, factor = table.raw.name, steps.factor[np.minimum(np.searchsorted(kept, np.arange(len(rows))), len(kept) - 1)]
    span = (
        f"from {factor[0]:.4g} ({_day(table, rows[0])}) to {factor[-1]:.4g} ({_day(table, rows[-1])}) "
        f"in {len(steps.wrong)} steps"
    )
    mixed = (
        f"{name}: the closes are adjusted for dividends or splits, and open, high and low are not: "
        f"{steps.outside} of {len(table.time)} closes lie outside low to high, by a factor that goes {span}"
    )
    if adjust != "all":
        raise DataError(
            f"{mixed}. No row is wrong by itself, so no --repair is made; pass --adjust-all (data.adjust: all) to "
            "scale open, high and low by the factor of the close, or take prices that are all adjusted or all as "
            "traded from the source."
        )
    values = {price: table.values[price].copy() for price in ("open", "high", "low")}
    for price in values.values():
        price[rows] *= factor
    # The factor keeps every close inside up to rounding; what is left of that is the range's, not an error.
    values["high"][rows[kept]] = np.maximum(values["high"][rows[kept]], close[kept])
    values["low"][rows[kept]] = np.minimum(values["low"][rows[kept]], close[kept])
    note = (
        f"open, high and low scaled by the factor of the adjusted closes, {span}, recovered to within "
        f"{steps.precision:.2g} of the price (the bars next to a step may belong to the other side of it); close and "
        "volume unchanged"
    )
    return _with_adjusted(table, values, note)


def _exclude_bad_rows(high: Floats, low: Floats, close: Floats) -> tuple[NDArray[np.int64], Steps | None]:
    """Indices of the rows that are kept, and their steps: a bad row takes two steps, one of which is wrong.

    At most MOST_REPAIRED of the rows are set aside; more of them are no single bad rows.
    """
    kept = np.arange(len(close))
    steps = adjustment_steps(high, low, close)
    for _ in range(ROUNDS):
        if steps is None or not steps.wrong.any():
            break
        fewer = np.delete(kept, steps.suspects())
        if len(close) - len(fewer) > max(1, MOST_REPAIRED * len(close)):
            break
        kept = fewer
        steps = adjustment_steps(high[kept], low[kept], close[kept])
    return kept, steps


def adjustment_steps(high: Floats, low: Floats, close: Floats) -> Steps | None:
    """The step function with the fewest steps that puts close / factor between low and high in all N rows.

    None when all closes are inside already, or prices are too far apart for a factor. A row allows the factors
    [close / high, close / low], widened by the rounding of the prices; going back from the newest row, a piece lasts as
    long as its rows have a factor in common, which is the fewest pieces there can be.
    """
    with np.errstate(over="ignore", under="ignore"):
        slack = FLOAT32 + _rounding(close) / close
        least = close / high * (1 - slack - _rounding(high) / high)
        most = close / low * (1 + slack + _rounding(low) / low)
    outside = int(np.sum((least > 1) | (most < 1)))
    if not outside or not np.isfinite(most).all() or least.min() <= 0:
        return None
    starts: list[int] = []
    ranges: list[tuple[float, float]] = []
    lower, upper = -np.inf, np.inf
    for row in range(len(close) - 1, -1, -1):
        a, b = float(least[row]), float(most[row])
        if max(lower, a) > min(upper, b):
            starts.append(row + 1)
            ranges.append((lower, upper))
            lower, upper = a, b
        else:
            lower, upper = max(lower, a), min(upper, b)
    starts.append(0)
    ranges.append((lower, upper))
    first = np.array(starts[::-1])
    bounds = np.array(ranges[::-1])  # [K, 2]
    level = np.exp(np.log(bounds).mean(axis=1))
    if bounds[-1, 0] <= 1 <= bounds[-1, 1]:
        level[-1] = 1.0  # adjusted prices end in prices as traded
    precision = float(np.max(bounds[:, 1] / bounds[:, 0]) - 1) / 2
    factor = np.repeat(level, np.diff(np.append(first, len(close))))
    return Steps(factor, first, _wrong_steps(close, level, bounds, first), precision, outside)


def _rounding(prices: Floats) -> float:
    """Half a unit of the last decimal to which all prices are rounded; 0 when they have more than MOST_DECIMALS."""
    for decimals in range(MOST_DECIMALS + 1):
        if np.array_equal(np.round(prices, decimals), prices):
            return float(0.5 * 10.0**-decimals)
    return 0.0


def _wrong_steps(close: Floats, level: Floats, bounds: Floats, first: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [K - 1]: steps against the direction of dividends, or splits at which it is the close that jumps.

    A dividend lowers the prices before it, so the factor grows with time. Across a split of either direction adjusted
    closes go on as if nothing had happened; where the close jumps along, it is in another unit.
    """
    size = np.diff(np.log(level))
    change = np.log(close[first[1:]] / close[first[1:] - 1])
    falls = bounds[1:, 1] < bounds[:-1, 0]
    return np.where(np.abs(size) > SPLIT, np.abs(change) > np.abs(size) / 2, falls)


def _with_adjusted(table: Table, values: dict[str, Floats], note: str) -> Table:
    notes = [*table.notes, note]
    kept = {**table.values, **values}
    if kept.pop("dividends", None) is not None:
        notes.append("dividends left out: the adjusted prices contain them")
    return replace(table, values=kept, notes=tuple(notes))


def _day(table: Table, row: int | np.int64) -> str:
    return show_time(int(table.time[int(row)]))[:10]
