"""Bars and features of several symbols, checked once and laid one after the other for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import DataError, ShapeError
from tailwise.market.costs import CostConfig
from tailwise.market.records import BAR

Floats = npt.NDArray[np.float64]


class FrequencyLike(Protocol):
    @property
    def bar(self) -> np.timedelta64: ...
    @property
    def periods_per_year(self) -> float: ...


class BarsLike(Protocol):
    """What is read of `market.bars.Bars`."""

    @property
    def symbol(self) -> str: ...
    @property
    def time(self) -> npt.NDArray[np.datetime64]: ...
    @property
    def open(self) -> Floats: ...
    @property
    def high(self) -> Floats: ...
    @property
    def low(self) -> Floats: ...
    @property
    def close(self) -> Floats: ...
    @property
    def volume(self) -> Floats: ...
    @property
    def dividends(self) -> Floats | None: ...
    @property
    def frequency(self) -> FrequencyLike: ...


class FeaturesLike(Protocol):
    """What is read of a feature table."""

    @property
    def values(self) -> npt.NDArray[np.float32]: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def first_valid(self) -> int: ...


@dataclass(frozen=True)
class SymbolTable:
    """One symbol. Prices and volume float64 [T], features float32 [T, F]; rows before `first_valid` are warm-up.

    dividends   per unit, paid at the open of the bar, [T] or None
    funding     fraction of the notional that longs pay to shorts in the bar, [T] or None
    time, bar   UTC open times datetime64[ns] [T] and the length of a bar; None: guards that need them refuse
    """

    symbol: str
    open: Floats
    high: Floats
    low: Floats
    close: Floats
    volume: Floats
    features: npt.NDArray[np.float32]
    feature_names: tuple[str, ...]
    periods_per_year: float
    first_valid: int = 0
    dividends: Floats | None = None
    funding: Floats | None = None
    time: npt.NDArray[np.datetime64] | None = None
    bar: np.timedelta64 | None = None

    @classmethod
    def from_bars(cls, bars: BarsLike, features: FeaturesLike, *, funding: Floats | None = None) -> SymbolTable:
        return cls(
            symbol=bars.symbol,
            open=bars.open,
            high=bars.high,
            low=bars.low,
            close=bars.close,
            volume=bars.volume,
            features=features.values,
            feature_names=tuple(features.names),
            periods_per_year=bars.frequency.periods_per_year,
            first_valid=features.first_valid,
            dividends=bars.dividends,
            funding=funding,
            time=bars.time,
            bar=bars.frequency.bar,
        )

    def check(self) -> None:
        """Refuse what the simulator cannot live through, with symbol, row and value."""
        rows = len(self.close)
        optional = {"dividends": self.dividends, "funding": self.funding}
        series = {name: getattr(self, name) for name in ("open", "high", "low", "close", "volume")}
        series |= {name: values for name, values in optional.items() if values is not None}
        for name, values in series.items():
            if np.shape(values) != (rows,):
                raise ShapeError(f"{self.symbol}: {name} has shape {np.shape(values)}, expected ({rows},).")
            bad = ~np.isfinite(values)
            if name in ("open", "high", "low", "close"):
                bad |= np.asarray(values) <= 0
            if name == "volume":
                bad |= np.asarray(values) < 0
            if bad.any():
                row = int(np.argmax(bad))
                raise DataError(
                    f"{self.symbol} row {row}: {name} is {values[row]}; prices must be positive, volume at least 0 "
                    "and all numbers finite: repair the bars first."
                )
        inside = (self.high >= np.maximum(self.open, self.close)) & (self.low <= np.minimum(self.open, self.close))
        if not inside.all():
            row = int(np.argmin(inside))
            raise DataError(
                f"{self.symbol} row {row}: open {self.open[row]} and close {self.close[row]} do not lie within low "
                f"{self.low[row]} and high {self.high[row]}: repair the bars first."
            )
        if self.features.ndim != 2 or self.features.shape != (rows, len(self.feature_names)):
            raise ShapeError(
                f"{self.symbol}: features have shape {self.features.shape}, expected ({rows}, "
                f"{len(self.feature_names)}), one column per name."
            )
        if not 0 <= self.first_valid <= rows - 2:
            raise DataError(
                f"{self.symbol}: {rows} bars of which {self.first_valid} are warm-up; at least two bars must follow."
            )
        finite = np.isfinite(self.features[self.first_valid :])
        if not finite.all():
            row, column = (int(index) for index in np.argwhere(~finite)[0])
            raise DataError(
                f"{self.symbol} row {row + self.first_valid}: feature '{self.feature_names[column]}' is "
                f"{self.features[row + self.first_valid, column]}; raise first_valid or repair the feature."
            )
        if not self.periods_per_year > 0:
            raise DataError(f"{self.symbol}: periods_per_year is {self.periods_per_year}; it must be positive.")
        self._check_time(rows)

    def _check_time(self, rows: int) -> None:
        if (self.time is None) != (self.bar is None):
            given, missing = ("bar", "time") if self.time is None else ("time", "bar")
            raise DataError(f"{self.symbol}: {given} was given without {missing}; give both or neither.")
        if self.time is None or self.bar is None:
            return
        if np.shape(self.time) != (rows,):
            raise ShapeError(f"{self.symbol}: time has shape {np.shape(self.time)}, expected ({rows},).")
        if not self.bar > np.timedelta64(0, "ns"):
            raise DataError(f"{self.symbol}: the length of a bar is {self.bar}; it must be positive.")
        later = np.diff(self.time) > np.timedelta64(0, "ns")  # False at a missing time as well
        if not later.all():
            row = int(np.argmin(later)) + 1
            raise DataError(
                f"{self.symbol} row {row}: opens at {self.time[row]}, the bar before at {self.time[row - 1]}; sort the "
                "bars by time and remove duplicates."
            )


@dataclass(frozen=True, eq=False)
class MarketTable:
    """All symbols: bars [R] BAR, features float32 [R, F]; symbol s owns rows first_rows[s] .. last_rows[s], the first
    of them the first that an episode may start at; offsets[s] is the row of its bar 0. time int64 [R] holds the open
    times in ns since 1970 and bar_ns int64 [S] the lengths of a bar, both 0 for symbols that came without times."""

    symbols: tuple[str, ...]
    feature_names: tuple[str, ...]
    bars: npt.NDArray[Any]
    features: npt.NDArray[np.float32]
    offsets: npt.NDArray[np.int64]
    first_rows: npt.NDArray[np.int64]
    last_rows: npt.NDArray[np.int64]
    time: npt.NDArray[np.int64]
    bar_ns: npt.NDArray[np.int64]

    def name_row(self, symbol: int, row: int) -> str:
        """A row of a symbol, counted from its bar 0, in words."""
        return f"bar {row} of {self.symbols[symbol]}"

    @classmethod
    def build(cls, tables: Sequence[SymbolTable], costs: CostConfig) -> MarketTable:
        if not tables:
            raise DataError("The market has no symbols; give at least one table of bars and features.")
        names = tables[0].feature_names
        for table in tables:
            table.check()
            if table.feature_names != names:
                raise DataError(
                    f"{table.symbol} has the features {list(table.feature_names)}, {tables[0].symbol} has "
                    f"{list(names)}; all symbols of one environment need the same features."
                )
            if costs.impact_bps > 0 and not np.any(table.volume > 0):
                raise DataError(
                    f"{table.symbol} has no volume, so costs.impact_bps {costs.impact_bps} has nothing to be measured "
                    "against; set costs.impact_bps to 0 or give volumes."
                )
        lengths = np.array([len(table.close) for table in tables], dtype=np.int64)
        offsets = np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64)
        bars = np.zeros(int(lengths.sum()), dtype=BAR)
        time = np.zeros(len(bars), dtype=np.int64)
        for table, offset, length in zip(tables, offsets, lengths, strict=True):
            part = bars[offset : offset + length]
            for name in ("open", "high", "low", "close", "volume"):
                part[name] = getattr(table, name)
            part["dividend"] = 0.0 if table.dividends is None else table.dividends
            part["funding"] = costs.funding_bps * 1e-4 + (0.0 if table.funding is None else table.funding)
            part["year_fraction"] = 1.0 / table.periods_per_year
            if table.time is not None:
                time[offset : offset + length] = table.time.astype("datetime64[ns]").astype(np.int64)
        features = np.ascontiguousarray(np.concatenate([table.features for table in tables]), dtype=np.float32)
        first_rows = offsets + np.array([table.first_valid for table in tables], dtype=np.int64)
        return cls(
            symbols=tuple(table.symbol for table in tables),
            feature_names=names,
            bars=bars,
            features=features,
            offsets=offsets,
            first_rows=first_rows,
            last_rows=offsets + lengths - 1,
            time=time,
            bar_ns=np.array([_nanoseconds(table.bar) for table in tables], dtype=np.int64),
        )


def _nanoseconds(bar: np.timedelta64 | None) -> int:
    return 0 if bar is None else int(bar.astype("timedelta64[ns]").astype(np.int64))
