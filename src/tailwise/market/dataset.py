"""From the sections `data` and `features` to what the simulator trades on: one table per symbol and purpose.

Features of a window are computed from all bars before its end, so that a test window needs no warm-up of its own; what
is fitted (means, deviations, GARCH) saw the train window alone.

With `data.split.kind: ranges` a purpose has several ranges. A train range may follow a test range, so it is a table of
its own whose features see its own bars alone: no bar outside the train ranges reaches the training, and no episode
crosses from one range into another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars, Moment, data_hash_of, load_bars
from tailwise.bars.data_config import (
    BuiltinData,
    DataConfig,
    Moments,
    Purpose,
    RangesSplit,
    SharesSplit,
    Split,
    SyntheticData,
)
from tailwise.core.errors import ConfigError, DataError, NotBuiltError
from tailwise.features.config import FeaturesConfig
from tailwise.features.spec import FeatureSpec
from tailwise.features.table import FeatureTable
from tailwise.market.base import base_exposures
from tailwise.market.env_config import Base
from tailwise.market.tables import SymbolTable

Floats = npt.NDArray[np.float64]
Times = tuple[np.datetime64, np.datetime64]
Columns = dict[str, npt.NDArray[np.float64]]
PURPOSES: tuple[Purpose, ...] = ("train", "select", "test")
SHORTEST_WINDOW = 2  # bars; one to decide at and one to live through


@dataclass(frozen=True)
class Loaded:
    """Bars of one symbol and extra columns that come with them (the synthetic market `leak` has one)."""

    bars: Bars
    columns: Columns


@dataclass(frozen=True)
class Window:
    """Rows [first, end) of one symbol."""

    first: int
    end: int


@dataclass(frozen=True)
class Dataset:
    """All symbols, what was fitted on their train rows, and the rows of each purpose.

    loaded    bars of each symbol
    spec      what was fitted on the train rows
    features  of all rows, one table per symbol
    windows   one window per symbol; a purpose that was not asked for, or that has ranges, is missing
    ranges    of data.split.kind ranges: for each symbol its ranges, in the order of time
    bases     exposures [T] of env.base, of all rows of each symbol; empty without such a rule
    """

    loaded: tuple[Loaded, ...]
    spec: FeatureSpec
    features: tuple[FeatureTable, ...]
    windows: dict[Purpose, tuple[Window, ...]]
    ranges: dict[Purpose, tuple[tuple[Window, ...], ...]] = field(default_factory=dict)
    bases: tuple[Floats, ...] = ()

    @property
    def bars(self) -> tuple[Bars, ...]:
        return tuple(item.bars for item in self.loaded)

    @property
    def label(self) -> str:
        """ "real", or what the synthetic bars are; every artefact shows it."""
        return "; ".join(dict.fromkeys(bars.label for bars in self.bars))

    def hashes(self) -> dict[Purpose, dict[str, str]]:
        """Purpose -> symbol -> sha256 of the bars of its window or ranges."""
        return {
            purpose: {b.symbol: data_hash_of(slices(b, r)) for b, r in zip(self.bars, ranges, strict=True)}
            for purpose, ranges in self.all_ranges().items()
        }

    def data_hash(self) -> str:
        """sha256 (hex) of all bars of all symbols, whatever windows they are cut into."""
        each = sorted(f"{bars.symbol}:{bars.data_hash()}" for bars in self.bars)
        return hashlib.sha256("\n".join(each).encode()).hexdigest()

    def all_ranges(self) -> dict[Purpose, tuple[tuple[Window, ...], ...]]:
        """Purpose -> for each symbol its ranges; one where the purpose has a window."""
        whole = {purpose: tuple((one,) for one in windows) for purpose, windows in self.windows.items()}
        return {purpose: both[purpose] for both in [whole | self.ranges] for purpose in PURPOSES if purpose in both}

    def each_test_range(self) -> list[Dataset]:
        """The same data once for each test range, with that one as the test window."""
        if "test" not in self.ranges:
            return [self]
        others = {**self.ranges}
        del others["test"]
        return [
            replace(self, windows={**self.windows, "test": windows}, ranges=others)
            for windows in zip(*self.ranges["test"], strict=True)
        ]

    def window(self, purpose: Purpose) -> tuple[Window, ...]:
        """One window per symbol."""
        if purpose in self.ranges:
            raise DataError(
                f"data.split.kind is ranges and {purpose} has {len(self.ranges[purpose][0])} of them, not one window; "
                "the run belongs to combinatorial folds, whose folder has the tests of all ranges (tailwise report)."
            )
        if purpose not in self.windows:
            raise DataError(f"data.split has no {purpose} window; name one, so that there are bars for it.")
        return self.windows[purpose]

    def tables(self, purpose: Purpose, *, together: bool = False) -> list[SymbolTable]:
        """One table per symbol that ends with its window.

        The first decision is made at the close before the window, if its features are valid, so that the first bar
        traded is the first one of the window. `together`: in one account all symbols begin at the same time, the
        latest of those closes, because an asset with a gap before the window would begin long before the others.

        With train ranges, one table per symbol and range, with the bars of that range and nothing else.
        """
        if purpose == "train" and purpose in self.ranges:
            return self._range_tables(together)
        tables = []
        windows = self.window(purpose)
        begin = max(bars.time[max(w.first - 1, 0)] for bars, w in zip(self.bars, windows, strict=True))
        for i, (item, features, window) in enumerate(zip(self.loaded, self.features, windows, strict=True)):
            first = max(window.first - 1, features.first_valid)
            if together:
                first = max(first, int(np.searchsorted(item.bars.time, begin)))
            if window.end - first < SHORTEST_WINDOW:
                raise DataError(
                    f"{item.bars.symbol}: its {purpose} window has {window.end - window.first} bars, of which the "
                    f"features need {max(first - window.first, 0)} to warm up; widen the window or look back less."
                )
            until_end = FeatureTable(features.values[: window.end], features.names, first)
            base = self.bases[i][: window.end] if self.bases else None
            tables.append(SymbolTable.from_bars(item.bars.slice(0, window.end), until_end, base=base))
        return tables

    def _range_tables(self, together: bool) -> list[SymbolTable]:
        """One table per symbol and train range; features are computed from the bars of the range."""
        if together:
            raise NotBuiltError(
                "data.split.kind ranges trains accounts with one asset; accounts that hold several train on one window."
            )
        tables = []
        for i, (item, features, ranges) in enumerate(
            zip(self.loaded, self.features, self.ranges["train"], strict=True)
        ):
            for window, bars in zip(ranges, slices(item.bars, ranges), strict=True):
                own = self.spec.table(bars)
                given = features.values[window.first : window.end, len(own.names) :]  # columns that came with the bars
                if len(bars) - own.first_valid < SHORTEST_WINDOW:
                    raise DataError(
                        f"{bars.symbol}: a train range has {len(bars)} bars, of which the features need "
                        f"{own.first_valid} to warm up; widen it or look back less."
                    )
                table = FeatureTable(np.concatenate([own.values, given], axis=1), features.names, own.first_valid)
                base = self.bases[i][window.first : window.end] if self.bases else None
                tables.append(SymbolTable.from_bars(bars, table, base=base))
        return tables

    def in_pieces(self, purpose: Purpose, length: int) -> Dataset:
        """The window of `purpose` alone, cut into consecutive pieces of `length` bars (the last of a symbol may have
        fewer), each a symbol of its own: an account that trades one begins flat, as the episodes of training do.

        Features are those of the whole series, so no piece has a warm-up of its own; every bar belongs to one piece.
        """
        if length < 1:
            raise ConfigError(f"A window was to be cut into pieces of {length} bars; a piece needs at least 1.")
        loaded, tables, windows, bases = [], [], [], []
        for i, (item, features, window) in enumerate(
            zip(self.loaded, self.features, self.window(purpose), strict=True)
        ):
            begin = max(window.first, features.first_valid + 1)  # a decision needs a close with features before the bar
            for first in range(begin, window.end, length):
                end = min(first + length, window.end)
                loaded.append(Loaded(item.bars.slice(first - 1, end), {}))
                tables.append(FeatureTable(features.values[first - 1 : end], features.names, 0))
                windows.append(Window(1, end - first + 1))
                bases += [self.bases[i][first - 1 : end]] if self.bases else []
        if not loaded:
            raise DataError(f"The {purpose} window has no bar after the warm-up of the features; widen it.")
        return Dataset(tuple(loaded), self.spec, tuple(tables), {purpose: tuple(windows)}, bases=tuple(bases))

    def with_base(self, base: Base | None) -> Dataset:
        """The same with the exposures of another rule."""
        return replace(self, bases=() if base is None else tuple(base_exposures(base, bars) for bars in self.bars))

    def check_train_bars(self, spec: FeatureSpec) -> None:
        """Raise unless the train windows hold exactly the bars that `spec` was fitted on.

        Otherwise the windows may have moved (shares of another number of bars), and a test could lie in what the
        policy was trained on.
        """
        for bars, ranges in zip(self.bars, self.all_ranges()["train"], strict=True):
            trained = spec.windows.get(bars.symbol)
            if trained is None:
                raise DataError(
                    f"{bars.symbol} was not among the symbols that the policy was trained on "
                    f"({', '.join(spec.windows)}); give the bars it was trained on."
                )
            if data_hash_of(slices(bars, ranges)) != trained.data_hash:
                raise DataError(
                    f"{bars.symbol}: the train window now holds other bars than those that the policy was trained on "
                    f"({trained.rows} bars, {trained.first[:10]} to {trained.last[:10]}), so its other windows are not "
                    "to be trusted; restore the bars, or name the windows with data.split.kind dates and train again."
                )

    def describe(self) -> list[str]:
        """A sentence per symbol: what was read, and which bars serve what."""
        sentences = []
        for i, bars in enumerate(self.bars):
            spans = [_span(purpose, bars, one) for purpose, ranges in self.all_ranges().items() for one in ranges[i]]
            sentences.append(f"{bars.symbol} ({bars.label}): {', '.join(spans)} bars. {bars.frequency.sentence}")
        return sentences


def build_dataset(data: DataConfig, features: FeaturesConfig, *, spec: FeatureSpec | None = None) -> Dataset:
    """Read the bars, cut the windows, fit the features on the train rows (unless `spec` was fitted before)."""
    loaded = load_data(data)
    bars = [item.bars for item in loaded]
    windows, ranges = split_windows(bars, data.split), split_ranges(bars, data.split)
    train = ranges["train"] if "train" in ranges else tuple((one,) for one in windows["train"])
    if spec is None:
        spec = fit_on_train(features, bars, train_times(bars, train))
    tables = tuple(
        with_columns(spec.table(item.bars), item.columns, own) for item, own in zip(loaded, train, strict=True)
    )
    return Dataset(loaded, spec, tables, windows, ranges)


def load_data(data: DataConfig) -> tuple[Loaded, ...]:
    """The bars of the section `data`, one entry per symbol."""
    if isinstance(data, BuiltinData):
        from tailwise.bars.builtin import load

        loaded = tuple(Loaded(load(name), {}) for name in data.names)
    elif isinstance(data, SyntheticData):
        loaded = _draw(data)
    else:
        names = data.symbols or tuple(Path(path).stem for path in data.paths)
        loaded = tuple(
            Loaded(
                load_bars(
                    path,
                    symbol=name,
                    repair=data.repair,
                    adjust=data.adjust,
                    time_unit=data.time_unit,
                    periods_per_year=data.periods_per_year,
                ),
                {},
            )
            for path, name in zip(data.paths, names, strict=True)
        )
    symbols = [item.bars.symbol for item in loaded]
    twice = sorted({symbol for symbol in symbols if symbols.count(symbol) > 1})
    if twice:
        raise DataError(f"data: the symbol {twice[0]} occurs more than once; each symbol may be given once.")
    rates = sorted({item.bars.frequency.periods_per_year for item in loaded})
    if len(rates) > 1:
        raise DataError(
            f"data: the symbols have {' and '.join(f'{rate:g}' for rate in rates)} bars per year; an environment needs "
            "bars of one frequency: resample them or set data.periods_per_year."
        )
    return loaded


def _draw(data: SyntheticData) -> tuple[Loaded, ...]:
    from tailwise.bars.synthetic import make

    drawn = []
    for seed in data.seeds:
        if "seed" in data.parameters:
            raise ConfigError("data.parameters has a seed; write it under data.seeds, one symbol is drawn for each.")
        bars, columns = make(data.market, seed=seed, **data.parameters)
        if len(data.seeds) > 1:
            bars = replace(bars, symbol=f"{bars.symbol}-{seed}")
        drawn.append(Loaded(bars, columns))
    return tuple(drawn)


def split_windows(bars: Sequence[Bars], split: Split) -> dict[Purpose, tuple[Window, ...]]:
    """Rows of every purpose that the split has one window for, per symbol.

    Windows are cut by time for all symbols together, also those by shares: cut by each symbol's own rows, one symbol
    would train on the days that another is tested on.
    """
    limits: dict[Purpose, tuple[Moment | None, Moment | None]] = {}
    if isinstance(split, SharesSplit):
        times = np.unique(np.concatenate([one.time for one in bars]))
        ends = [round(len(times) * share) for share in (1 - split.select - split.test, 1 - split.test, 1.0)]
        begin = 0
        for purpose, end in zip(PURPOSES, ends, strict=True):
            if end > begin:
                kept = end if end == len(times) else end - split.purge
                if kept <= begin:
                    raise ConfigError(
                        f"data.split.purge {split.purge} leaves none of the {end - begin} bars of the {purpose} "
                        "window; lower it, or give that window more bars."
                    )
                limits[purpose] = (times[begin], times[kept] if kept < len(times) else None)
            begin = end
    elif isinstance(split, RangesSplit):
        limits = {} if split.select is None else {"select": split.select}
    else:
        limits = {purpose: dates for purpose in PURPOSES if (dates := getattr(split, purpose)) is not None}
    return {purpose: tuple(_window(one, purpose, *limit) for one in bars) for purpose, limit in limits.items()}


def split_ranges(bars: Sequence[Bars], split: Split) -> dict[Purpose, tuple[tuple[Window, ...], ...]]:
    """Rows of every purpose that the split has ranges for: for each symbol one window per range."""
    if not isinstance(split, RangesSplit):
        return {}
    limits: dict[Purpose, tuple[Moments, ...]] = {"train": split.train, "test": split.test}
    return {
        purpose: tuple(tuple(_window(one, purpose, *limit) for limit in given) for one in bars)
        for purpose, given in limits.items()
        if given
    }


def slices(bars: Bars, ranges: Sequence[Window]) -> list[Bars]:
    """The bars of each range."""
    return [bars.slice(one.first, one.end) for one in ranges]


def _window(bars: Bars, purpose: Purpose, first: Moment | None, end: Moment | None) -> Window:
    try:
        part = bars.between(first, end)
    except DataError as error:
        raise DataError(
            f"data.split: the {purpose} window is empty: {error} Every symbol needs bars in every window; leave the "
            "symbol out or choose other windows."
        ) from error
    row = int(np.searchsorted(bars.time, part.time[0]))
    return Window(row, row + len(part))


def train_times(bars: Sequence[Bars], ranges: Sequence[Sequence[Window]]) -> dict[str, tuple[Times, ...]]:
    """Symbol -> open times of the first and the last bar of each of its train ranges."""
    return {b.symbol: tuple((b.time[w.first], b.time[w.end - 1]) for w in r) for b, r in zip(bars, ranges, strict=True)}


def fit_on_train(features: FeaturesConfig, bars: Sequence[Bars], times: Mapping[str, Sequence[Times]]) -> FeatureSpec:
    """Fit the features on the bars of each symbol's train ranges, `times` of `train_times`, and on nothing else."""
    ranges = []
    for one in bars:
        parts = []
        for first, last in times[one.symbol]:
            rows = np.flatnonzero((one.time >= first) & (one.time <= last))
            parts.append(one.slice(int(rows[0]), int(rows[-1]) + 1))
        ranges.append(parts)
    return FeatureSpec.fit_ranges(features, ranges)


def with_columns(table: FeatureTable, columns: Columns, train: Sequence[Window]) -> FeatureTable:
    """Append columns that came with the bars, in units of their standard deviation over the train rows."""
    if not columns:
        return table
    scaled = [v / np.concatenate([v[one.first : one.end] for one in train]).std() for v in columns.values()]
    values = np.concatenate([table.values, np.stack(scaled, axis=1).astype(np.float32)], axis=1)
    return FeatureTable(values, (*table.names, *columns), table.first_valid)


def _span(purpose: Purpose, bars: Bars, window: Window) -> str:
    first, last = bars.time[window.first], bars.time[window.end - 1]
    return f"{purpose} {_day(first)} to {_day(last)} ({window.end - window.first:,})"


def _day(moment: np.datetime64) -> str:
    return str(moment.astype("datetime64[D]"))
