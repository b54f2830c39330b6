"""Resampled worlds: the train bars of all symbols in random blocks, as further histories to train on.

Stationary bootstrap (Politis & Romano 1994): blocks of consecutive bars begin at random rows, and their lengths are
geometric. A drawn bar keeps its own shape and its gap: it is multiplied by one number, which puts the close before it
at the newest close of the world. All symbols have the same blocks, so what moved together still does. Which row stands
where is a function of the seed and the number of the world; features and base rules are computed anew from the bars of
the world, causally, with what was fitted on the train bars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.bars.data_config import ResampleConfig
from tailwise.core.errors import DataError, NotBuiltError
from tailwise.core.streams import Streams
from tailwise.features.table import FeatureTable
from tailwise.market.dataset import SHORTEST_WINDOW, Dataset, scaled_exposures
from tailwise.market.env_config import Base
from tailwise.market.split import Window
from tailwise.market.tables import SymbolTable

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
STREAM = "data/resample"


def block_rows(length: int, *, block: float, seed: int, world: int) -> Integers:
    """Rows int64 [length] out of `length` rows in blocks of the mean length `block`, which go on from the last row to
    the first one, so that every row is equally likely everywhere."""
    draws = Streams(seed).uniforms(STREAM, update=0, environments=np.array([world]), steps=length, draws=2)[:, 0]
    begins = draws[:, 0] < 1 / block
    begins[0] = True
    place = np.arange(length)
    begun = np.maximum.accumulate(np.where(begins, place, 0))
    starts = np.floor(draws[:, 1] * length).astype(np.int64)
    return (starts[begun] + place - begun) % length


@dataclass(frozen=True)
class Source:
    """The train bars of one symbol that blocks are drawn from.

    rows    int64 [N] of `bars`; each has the train bar before it, whose close its own prices are measured against
    drift   mean log-return of these rows where it is removed, else 0
    """

    bars: Bars
    rows: Integers
    drift: float

    @classmethod
    def of(cls, bars: Bars, ranges: Sequence[Window], *, remove_drift: bool) -> Source:
        rows = np.concatenate([np.arange(one.first + 1, one.end) for one in ranges])
        if not len(rows):
            raise DataError(f"{bars.symbol} has no two train bars in a row to resample; widen the train window.")
        drift = float(np.log(bars.close[rows] / bars.close[rows - 1]).mean()) if remove_drift else 0.0
        return cls(bars, rows, drift)

    def rebuild(self, rows: Integers, time: npt.NDArray[np.datetime64]) -> Bars:
        """Bars that open at `time` [M] and have the shapes, gaps and volumes of `rows` [M]."""
        bars = self.bars
        before = bars.close[rows - 1]
        log_returns = np.log(bars.close[rows] / before) - self.drift
        closes = bars.close[self.rows[0] - 1] * np.exp(np.cumsum(log_returns))
        factor = np.concatenate([bars.close[self.rows[:1] - 1], closes[:-1]]) / before * np.exp(-self.drift)
        # One factor for the whole bar: rounding is monotone, so high and low stay around open and close.
        prices = {name: getattr(bars, name)[rows] * factor for name in ("open", "high", "low", "close")}
        dividends = None if bars.dividends is None else bars.dividends[rows] * factor
        return replace(
            bars, time=time, **prices, volume=bars.volume[rows], dividends=dividends, label=f"{bars.label}, resampled"
        )


@dataclass(frozen=True)
class ResampledSymbol:
    """One symbol in one world: its bars, and the rows of the real ones that they were made of."""

    bars: Bars
    rows: Integers


class Resampler:
    """Draws worlds from the train bars of a dataset, those of symbols that only train included."""

    def __init__(self, dataset: Dataset, settings: ResampleConfig, *, seed: int) -> None:
        self.dataset, self.settings, self.seed = dataset, settings, seed
        self.sources = [
            Source.of(bars, ranges, remove_drift=settings.drift == "remove")
            for part in dataset.parts
            for bars, ranges in zip(part.bars, part.all_ranges()["train"], strict=True)
        ]
        self.clock = np.unique(np.concatenate([one.bars.time[one.rows] for one in self.sources]))

    def world(self, number: int) -> list[ResampledSymbol]:
        """All symbols of one world. A symbol has a bar where the drawn time has one, as in the real history."""
        drawn = block_rows(len(self.clock), block=self.settings.block, seed=self.seed, world=number)
        symbols = []
        for source in self.sources:
            row_at = np.full(len(self.clock), -1)
            row_at[np.searchsorted(self.clock, source.bars.time[source.rows])] = source.rows
            rows = row_at[drawn]
            traded = np.flatnonzero(rows >= 0)
            if len(traded) < SHORTEST_WINDOW:
                raise DataError(
                    f"{source.bars.symbol} has {len(traded)} bars in the resampled world {number} (data.resample): its "
                    "train bars are too few; use shorter blocks, or leave the symbol out."
                )
            symbols.append(ResampledSymbol(source.rebuild(rows[traded], self.clock[traded]), rows[traded]))
        return symbols

    def tables(self, *, base: Base | None, scales: dict[str, float], together: bool = False) -> list[SymbolTable]:
        """Tables to train on, world by world; base: rule whose exposures actions multiply, times those of a symbol."""
        if together:
            raise NotBuiltError(
                "data.resample makes worlds for accounts with one symbol, and env.action gives weights of all symbols "
                "in one account; leave one of them out."
            )
        spec, tables = self.dataset.spec, []
        real = [table for part in self.dataset.parts for table in part.features]
        for number in range(self.settings.worlds):
            for one, features in zip(self.world(number), real, strict=True):
                own = spec.table(one.bars)
                given = features.values[one.rows, len(own.names) :]  # columns that came with the bars
                table = FeatureTable(np.concatenate([own.values, given], axis=1), features.names, own.first_valid)
                exposures = None if base is None else scaled_exposures(base, one.bars, scales)
                tables.append(replace(SymbolTable.from_bars(one.bars, table, base=exposures), resampled=True))
        return tables
