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
    def periods_per_year(self) -> float: ...


class BarsLike(Protocol):
    """What is read of `market.bars.Bars`."""

    @property
    def symbol(self) -> str: ...
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


@dataclass(frozen=True, eq=False)
class MarketTable:
    """All symbols: bars [R] BAR, features float32 [R, F]; symbol s owns rows first_rows[s] .. last_rows[s], the first
    of them the first that an episode may start at; offsets[s] is the row of its bar 0."""

    symbols: tuple[str, ...]
    feature_names: tuple[str, ...]
    bars: npt.NDArray[Any]
    features: npt.NDArray[np.float32]
    offsets: npt.NDArray[np.int64]
    first_rows: npt.NDArray[np.int64]
    last_rows: npt.NDArray[np.int64]

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
        for table, offset, length in zip(tables, offsets, lengths, strict=True):
            part = bars[offset : offset + length]
            for name in ("open", "high", "low", "close", "volume"):
                part[name] = getattr(table, name)
            part["dividend"] = 0.0 if table.dividends is None else table.dividends
            part["funding"] = costs.funding_bps * 1e-4 + (0.0 if table.funding is None else table.funding)
            part["year_fraction"] = 1.0 / table.periods_per_year
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
        )
