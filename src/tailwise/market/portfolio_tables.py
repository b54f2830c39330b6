"""Several assets on one clock. docs/portfolio.md tells what happens where an asset has no bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.bars.frequency import DAY, HOUR, describe_step
from tailwise.core.errors import DataError
from tailwise.market.costs import CostConfig
from tailwise.market.records import ASSET_BAR, BAR
from tailwise.market.tables import MarketTable, SymbolTable

Times = npt.NDArray[np.datetime64]
Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_MONTH = 31 * DAY  # what frequency.py calls the bar of monthly data
NO_PRICE = 1.0  # stands where an asset has not begun; nothing is ever held or shown at it


@dataclass(frozen=True, eq=False)
class PortfolioTable:
    """A assets on the union of their times, T in all: bars [T, A] ASSET_BAR, features float32 [T, A x F].

    Where an asset has no bar, its prices are its last close and its features those of its last bar; features are 0
    where it is not available. `first_rows` and `last_rows` [1] are the first possible start and the end of the clock,
    `bar_ns` [1] the length of all bars.
    """

    symbols: tuple[str, ...]
    feature_names: tuple[str, ...]
    time: Times
    bars: npt.NDArray[Any]
    features: npt.NDArray[np.float32]
    periods_per_year: float
    first_rows: npt.NDArray[np.int64]
    last_rows: npt.NDArray[np.int64]
    bar_ns: npt.NDArray[np.int64]
    sentence: str

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """[1]: rows are counted from the begin of the clock."""
        return np.zeros(1, dtype=np.int64)

    def name_row(self, symbol: int, row: int) -> str:
        """A row in words."""
        return f"time {row} of the clock"

    @classmethod
    def build(cls, assets: Sequence[SymbolTable], costs: CostConfig) -> PortfolioTable:
        flat = MarketTable.build(assets, costs)  # checks every asset and computes funding and year fractions
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
        for a, asset in enumerate(assets):
            own = flat.bars[flat.offsets[a] : flat.last_rows[a] + 1]
            _place(bars[:, a], features[:, a], asset, rows[a], own)
        _check_overlaps(flat, time, bars["present"] == 1)
        available = (bars["available"] == 1).any(axis=1)
        start = int(np.argmax(available))
        if start >= len(time) - 1:
            raise DataError("The portfolio has no two times left after the warm-up of its features; give more bars.")
        return cls(
            symbols=flat.symbols,
            feature_names=flat.feature_names,
            time=time.astype("datetime64[ns]"),
            bars=bars,
            features=np.ascontiguousarray(features.reshape(len(time), -1)),
            periods_per_year=_periods_per_year(assets, rows, time),
            first_rows=np.array([start], dtype=np.int64),
            last_rows=np.array([len(time) - 1], dtype=np.int64),
            bar_ns=flat.bar_ns[:1],
            sentence=_told(assets, time),
        )


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
        told = ", ".join(f"{symbol} {describe_step(step)}" for step, symbol in steps.items())
        raise DataError(
            f"The bars of the portfolio differ in length ({told}); resample them to one length, so that they close "
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


def _periods_per_year(assets: Sequence[SymbolTable], rows: Sequence[Integers], time: Integers) -> float:
    """Clock times per year: bars per year of the asset with the longest span x clock times per bar within that span."""
    spans = [int(time[own[-1]] - time[own[0]]) for own in rows]
    return max(
        asset.periods_per_year * float(own[-1] - own[0]) / (len(own) - 1)
        for asset, own, span in zip(assets, rows, spans, strict=True)
        if span == max(spans)
    )


def _told(assets: Sequence[SymbolTable], time: Integers) -> str:
    shares = ", ".join(f"{asset.symbol} {len(asset.close) / len(time):.1%}" for asset in assets)
    return f"Clock of {len(time)} times from {_moment(time[0])} to {_moment(time[-1])}; bars at: {shares}."


def _moment(time: np.int64) -> str:
    return f"{np.datetime_as_string(time.astype('datetime64[ns]'), unit='m')} UTC"
