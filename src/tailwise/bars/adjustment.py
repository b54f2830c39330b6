"""Detect and repair closes that are adjusted for dividends and splits beside an open, high and low that are not.

Two kinds of files have them. Some carry the adjusted close in a column of its own, and the factor is exact: adjusted
close / close. Others carry it in place of the close. Then the factor has to be recovered: close / factor must lie
between low and high in every row, and a factor changes on ex-dates alone. `adjustment_steps` finds the fewest steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tailwise.bars.dialects import PRICES
from tailwise.bars.times import NOT_A_TIME
from tailwise.bars.validation import MOST_REPAIRED, Table, show_time
from tailwise.core.errors import DataError

Floats: TypeAlias = NDArray[np.float64]
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
        sane = np.logical_and.reduce([np.isfinite(table.values[p]) & (table.values[p] > 0) for p in PRICES])
        sane &= (table.values["high"] >= table.values["low"]) & (table.time != NOT_A_TIME)
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
