"""Bars and features of several symbols, checked once and laid out for the kernels: one after the other for accounts
with one asset, side by side on one clock for accounts with several (docs/portfolio.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.bars.frequency import DAY, HOUR, describe_step
from tailwise.core.errors import DataError, ShapeError
from tailwise.market.costs import BPS, CostConfig
from tailwise.market.records import ASSET_BAR, BAR

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_MONTH = 31 * DAY  # what frequency.py calls the bar of monthly data
NO_PRICE = 1.0  # stands where an asset has not begun; nothing is ever held or shown at it


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
    base        exposure of `env.base` at each close, [T]; None without such a rule
    unit        what its rewards are divided by in training: its own tail, relative to that of the other symbols
    resampled   its bars are drawn from those of the symbol
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
    base: Floats | None = None
    unit: float = 1.0
    resampled: bool = False

    @classmethod
    def from_bars(
        cls, bars: Bars, features: FeaturesLike, *, funding: Floats | None = None, base: Floats | None = None
    ) -> SymbolTable:
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
            base=base,
        )

    def check(self) -> None:
        """Refuse what the simulator cannot live through, with symbol, row and value."""
        rows = len(self.close)
        optional = {"dividends": self.dividends, "funding": self.funding, "base": self.base}
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
        if not 0 < self.unit < np.inf:
            raise DataError(f"{self.symbol}: the unit of its rewards is {self.unit}; it must be positive and finite.")
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
    """Bars and features of all symbols as the kernels read them.

    symbols, feature_names   S (or A) and F names
    bars             [R] BAR, the S symbols one after the other
    features         float32 [R, F]
    time             datetime64[ns] [R], open times; 1970 for symbols that came without times
    offsets          int64 [S], row of bar 0 of each symbol
    first_rows       int64 [S], first row at which an episode may start
    last_rows        int64 [S]
    bar_ns           int64 [S], length of a bar; 0 for symbols that came without times
    clock_per_year   times of the clock per year; 0 without a clock
    base             float64 [R], exposure of `env.base` at each close, which actions multiply; [0] without such a rule
    units            float64 [S], what the rewards of each symbol are divided by
    resampled        bool [S], symbols whose bars are drawn from those of others

    For accounts with several assets (`on_one_clock`) the A assets stand side by side on the union of their times, T in
    all, and the clock takes the place of a symbol (S = 1): bars [T, A] ASSET_BAR, features float32 [T, A x F], base
    [T, A], of which each asset has an equal share. Where an asset has no bar, its prices are its last close and its
    features and base those of its last bar; both are 0 where it is not available.
    """

    symbols: tuple[str, ...]
    feature_names: tuple[str, ...]
    bars: npt.NDArray[Any]
    features: npt.NDArray[np.float32]
    time: npt.NDArray[np.datetime64]
    offsets: Integers
    first_rows: Integers
    last_rows: Integers
    bar_ns: Integers
    clock_per_year: float = 0.0
    base: Floats = field(default_factory=lambda: np.zeros(0))
    units: Floats = field(default_factory=lambda: np.ones(1))
    resampled: Bools = field(default_factory=lambda: np.zeros(1, dtype=np.bool_))

    @property
    def has_clock(self) -> bool:
        """Whether the assets of an account stand side by side on one clock."""
        return self.bars.ndim == 2

    def name_row(self, symbol: int, row: int) -> str:
        """A row of a symbol, counted from its bar 0, or a row of the clock, in words."""
        return f"time {row} of the clock" if self.has_clock else f"bar {row} of {self.symbols[symbol]}"

    @classmethod
    def build(cls, tables: Sequence[SymbolTable], costs: CostConfig) -> MarketTable:
        """One symbol after the other; refuses symbols that do not fit together or to the costs."""
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
        time = np.zeros(len(bars), dtype="datetime64[ns]")
        for table, offset, length in zip(tables, offsets, lengths, strict=True):
            part = bars[offset : offset + length]
            for name in ("open", "high", "low", "close", "volume"):
                part[name] = getattr(table, name)
            part["dividend"] = 0.0 if table.dividends is None else table.dividends
            part["funding"] = costs.funding_bps * BPS + (0.0 if table.funding is None else table.funding)
            part["year_fraction"] = 1.0 / table.periods_per_year
            if table.time is not None:
                time[offset : offset + length] = table.time
        features = np.ascontiguousarray(np.concatenate([table.features for table in tables]), dtype=np.float32)
        first_rows = offsets + np.array([table.first_valid for table in tables], dtype=np.int64)
        return cls(
            symbols=tuple(table.symbol for table in tables),
            feature_names=names,
            bars=bars,
            features=features,
            time=time,
            offsets=offsets,
            first_rows=first_rows,
            last_rows=offsets + lengths - 1,
            bar_ns=np.array([_nanoseconds(table.bar) for table in tables], dtype=np.int64),
            base=_joined_base(tables),
            units=np.array([table.unit for table in tables]),
            resampled=np.array([table.resampled for table in tables]),
        )

    @classmethod
    def on_one_clock(cls, assets: Sequence[SymbolTable], costs: CostConfig) -> MarketTable:
        """All assets side by side; docs/portfolio.md tells what happens where an asset has no bar."""
        flat = cls.build(assets, costs)  # checks every asset and computes funding and year fractions
        if len(set(flat.symbols)) != len(flat.symbols):
            raise DataError(f"The portfolio holds {list(flat.symbols)}; each asset may occur once.")
        untimed = [asset.symbol for asset in assets if asset.time is None]
        if untimed:
            raise DataError(f"{untimed[0]} has no times; an account with several assets needs them for its clock.")
        time = np.unique(flat.time)
        rows = [
            np.searchsorted(time, flat.time[first : last + 1])
            for first, last in zip(flat.offsets, flat.last_rows, strict=True)
        ]
        bars = np.zeros((len(time), len(assets)), dtype=ASSET_BAR)
        features = np.zeros((len(time), len(assets), len(flat.feature_names)), dtype=np.float32)
        base = np.zeros((len(time) if flat.base.size else 0, len(assets)))
        for a, asset in enumerate(assets):
            own = flat.bars[flat.offsets[a] : flat.last_rows[a] + 1]
            _place(bars[:, a], features[:, a], asset, rows[a], own)
            if asset.base is not None:
                last = np.searchsorted(rows[a], np.arange(len(time)), side="right") - 1
                base[:, a] = np.where(bars["available"][:, a] == 1, asset.base[np.maximum(last, 0)], 0.0) / len(assets)
        _check_overlaps(flat, time.astype(np.int64), bars["present"] == 1)
        available = (bars["available"] == 1).any(axis=1)
        start = int(np.argmax(available))
        if start >= len(time) - 1:
            raise DataError("The portfolio has no two times left after the warm-up of its features; give more bars.")
        return cls(
            symbols=flat.symbols,
            feature_names=flat.feature_names,
            bars=bars,
            features=np.ascontiguousarray(features.reshape(len(time), -1)),
            time=time,
            offsets=np.zeros(1, dtype=np.int64),
            first_rows=np.array([start], dtype=np.int64),
            last_rows=np.array([len(time) - 1], dtype=np.int64),
            bar_ns=flat.bar_ns[:1],
            clock_per_year=_clock_per_year(assets, rows, time),
            base=base,
        )


def _joined_base(tables: Sequence[SymbolTable]) -> Floats:
    """The base of all symbols, one after the other; [0] where none has one."""
    given = [table.base for table in tables if table.base is not None]
    if given and len(given) < len(tables):
        missing = next(table.symbol for table in tables if table.base is None)
        raise DataError(f"{missing} has no base exposure and other symbols have one; give it for all or for none.")
    return np.concatenate(given) if given else np.zeros(0)


def _nanoseconds(bar: np.timedelta64 | None) -> int:
    return 0 if bar is None else int(bar.astype("timedelta64[ns]").astype(np.int64))


def _place(
    bars: npt.NDArray[Any],
    features: npt.NDArray[np.float32],
    asset: SymbolTable,
    rows: Integers,
    own: npt.NDArray[Any],
) -> None:
    """Write one asset, whose bars `own` [T_a] BAR stand at `rows` [T_a] of the clock, into its column [T]."""
    clock = np.arange(len(bars))
    last = np.searchsorted(rows, clock, side="right") - 1  # its bar at this time, or the last one before; -1: none yet
    begun = last >= 0
    close = np.where(begun, asset.close[np.maximum(last, 0)], NO_PRICE)
    for name in ("open", "high", "low", "close"):
        bars[name] = close
    for name in BAR.names or ():
        bars[name][rows] = own[name]
    bars["present"][rows] = 1
    bars["ends"][rows[-1]] = int(rows[-1] < len(bars) - 1)
    # At the close of the last bar of an asset that ends, its position has been settled and cannot be wanted again.
    over = clock >= rows[-1] if rows[-1] < len(bars) - 1 else np.zeros(len(bars), dtype=np.bool_)
    available = (last >= asset.first_valid) & ~over
    bars["available"] = available
    features[available] = asset.features[last[available]]


def _check_overlaps(flat: MarketTable, time: Integers, present: Bools) -> None:
    """Refuse a clock on which one asset's bar opens before another's earlier bar has closed; time int64 [T] in ns.

    A decision is made at the close of a time of the clock and filled at the open of the next one, so every bar of the
    one must be closed when a bar of the next opens; else the decision knows prices from after its fill.
    """
    steps = dict(zip(flat.bar_ns.tolist(), flat.symbols, strict=True))
    if len(steps) > 1:
        lengths = ", ".join(f"{symbol} {describe_step(step)}" for step, symbol in steps.items())
        raise DataError(
            f"The bars of the portfolio differ in length ({lengths}); resample them to one length, so that they close "
            "together."
        )
    step = next(iter(steps))
    shortest = 28 * DAY - HOUR if step == _MONTH else step - HOUR if step >= DAY else step
    near = np.flatnonzero(np.diff(time) < shortest)
    bad = present[near] & ~present[near + 1]  # still open when the next bar of the clock opens
    if bad.any():
        row, a = (int(index) for index in np.argwhere(bad)[0])
        row = int(near[row])
        other = int(np.argmax(present[row + 1]))
        raise DataError(
            f"{flat.symbols[other]} opens a bar at {_moment(time[row + 1])} while the bar of {flat.symbols[a]} that "
            f"opened at {_moment(time[row])} ({describe_step(step)}) is still open; stamp both with the same open "
            "times, for instance by resampling them to the same grid."
        )


def _clock_per_year(assets: Sequence[SymbolTable], rows: Sequence[Integers], time: npt.NDArray[np.datetime64]) -> float:
    """Clock times per year: bars per year of the asset with the longest span x clock times per bar within that span."""
    spans = [time[own[-1]] - time[own[0]] for own in rows]
    return max(
        asset.periods_per_year * float(own[-1] - own[0]) / (len(own) - 1)
        for asset, own, span in zip(assets, rows, spans, strict=True)
        if span == max(spans)
    )


def _moment(time: np.int64) -> str:
    return f"{np.datetime_as_string(time.astype('datetime64[ns]'), unit='m')} UTC"
