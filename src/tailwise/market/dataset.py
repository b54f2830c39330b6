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

from tailwise.bars.bars import Bars, data_hash_of, load_bars
from tailwise.bars.data_config import (
    BuiltinData,
    DataConfig,
    Purpose,
    SyntheticData,
)
from tailwise.core.errors import ConfigError, DataError, NotBuiltError
from tailwise.features.config import FeaturesConfig
from tailwise.features.spec import FeatureSpec
from tailwise.features.table import FeatureTable
from tailwise.market.base import base_exposures
from tailwise.market.env_config import Base
from tailwise.market.split import (
    PURPOSES,
    Window,
    helping_windows,
    slices,
    split_ranges,
    split_windows,
)
from tailwise.market.tables import SymbolTable

Floats = npt.NDArray[np.float64]
Times = tuple[np.datetime64, np.datetime64]
Columns = dict[str, npt.NDArray[np.float64]]
SHORTEST_WINDOW = 2  # bars; one to decide at and one to live through


@dataclass(frozen=True)
class Loaded:
    """Bars of one symbol and extra columns that come with them (the synthetic market `leak` has one)."""

    bars: Bars
    columns: Columns


@dataclass(frozen=True)
class Dataset:
    """All symbols, what was fitted on their train rows, and the rows of each purpose.

    loaded    bars of each symbol
    spec      what was fitted on the train rows
    features  of all rows, one table per symbol
    windows   one window per symbol; a purpose that was not asked for, or that has ranges, is missing
    ranges    of data.split.kind ranges: for each symbol its ranges, in the order of time
    bases     exposures [T] of env.base, of all rows of each symbol; empty without such a rule
    helpers   symbols of data.pool.train_only: they have train bars alone, and share the spec
    """

    loaded: tuple[Loaded, ...]
    spec: FeatureSpec
    features: tuple[FeatureTable, ...]
    windows: dict[Purpose, tuple[Window, ...]]
    ranges: dict[Purpose, tuple[tuple[Window, ...], ...]] = field(default_factory=dict)
    bases: tuple[Floats, ...] = ()
    helpers: Dataset | None = None

    @property
    def bars(self) -> tuple[Bars, ...]:
        """Of the symbols that are judged."""
        return tuple(item.bars for item in self.loaded)

    @property
    def parts(self) -> tuple[Dataset, ...]:
        """The symbols that are judged, and those that only train, where there are any: all that training sees."""
        return (self,) if self.helpers is None else (self, self.helpers)

    @property
    def label(self) -> str:
        """ "real", or what the synthetic bars are; every artefact shows it."""
        return "; ".join(dict.fromkeys(bars.label for part in self.parts for bars in part.bars))

    def hashes(self) -> dict[Purpose, dict[str, str]]:
        """Purpose -> symbol -> sha256 of the bars of its window or ranges."""
        hashes: dict[Purpose, dict[str, str]] = {}
        for part in self.parts:
            for purpose, ranges in part.all_ranges().items():
                own = {b.symbol: data_hash_of(slices(b, r)) for b, r in zip(part.bars, ranges, strict=True)}
                hashes[purpose] = {**hashes.get(purpose, {}), **own}
        return hashes

    def data_hash(self) -> str:
        """sha256 (hex) of all bars of all symbols, whatever windows they are cut into."""
        each = sorted(f"{bars.symbol}:{bars.data_hash()}" for part in self.parts for bars in part.bars)
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

    def with_base(self, base: Base | None, scales: Mapping[str, float] | None = None) -> Dataset:
        """The same with the exposures of another rule; scales: a factor for each symbol, 1 where none is named."""
        own = {} if scales is None else scales
        bases = () if base is None else tuple(scaled_exposures(base, bars, own) for bars in self.bars)
        helpers = None if self.helpers is None else self.helpers.with_base(base, own)
        return replace(self, bases=bases, helpers=helpers)

    def train_tables(self, *, together: bool = False) -> list[SymbolTable]:
        """All real tables that training sees: those of `tables("train")`, then of the symbols that only train."""
        return [table for part in self.parts for table in part.tables("train", together=together)]

    def check_train_bars(self, spec: FeatureSpec) -> None:
        """Raise unless the train windows hold exactly the bars that `spec` was fitted on.

        Otherwise the windows may have moved (shares of another number of bars), and a test could lie in what the
        policy was trained on.
        """
        if self.helpers is not None:
            self.helpers.check_train_bars(spec)
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
        if self.helpers is not None:
            sentences += [f"only trains: {sentence}" for sentence in self.helpers.describe()]
        return sentences


def build_dataset(data: DataConfig, features: FeaturesConfig, *, spec: FeatureSpec | None = None) -> Dataset:
    """Read the bars, cut the windows, fit the features on the train rows (unless `spec` was fitted before)."""
    judged, helping = judged_and_helping(data, load_data(data))
    bars = [item.bars for item in judged]
    windows, ranges = split_windows(bars, data.split), split_ranges(bars, data.split)
    train = _train_ranges(windows, ranges)
    others = [item.bars for item in helping]
    helper_windows, helper_ranges = helping_windows(others, bars, data.split)
    helper_train = _train_ranges(helper_windows, helper_ranges) if others else ()
    if spec is None:
        spec = fit_on_train(features, [*bars, *others], train_times([*bars, *others], [*train, *helper_train]))
    helpers = None
    if others:
        tables = _feature_tables(spec, helping, helper_train)
        helpers = Dataset(helping, spec, tables, helper_windows, helper_ranges)
    return Dataset(judged, spec, _feature_tables(spec, judged, train), windows, ranges, helpers=helpers)


def judged_and_helping(data: DataConfig, loaded: Sequence[Loaded]) -> tuple[tuple[Loaded, ...], tuple[Loaded, ...]]:
    """The symbols that are judged, and those of data.pool.train_only."""
    named = () if data.pool is None else data.pool.train_only
    symbols = [item.bars.symbol for item in loaded]
    unknown = [name for name in named if name not in symbols]
    if unknown:
        raise ConfigError(
            f"data.pool.train_only names {unknown[0]}, which is none of the symbols {', '.join(symbols)}; correct it."
        )
    if set(symbols) <= set(named):
        raise ConfigError("data.pool.train_only names every symbol, so none would be judged; leave one out.")
    judged = tuple(item for item in loaded if item.bars.symbol not in named)
    return judged, tuple(item for item in loaded if item.bars.symbol in named)


def _train_ranges(
    windows: Mapping[Purpose, tuple[Window, ...]], ranges: Mapping[Purpose, tuple[tuple[Window, ...], ...]]
) -> tuple[tuple[Window, ...], ...]:
    return ranges["train"] if "train" in ranges else tuple((one,) for one in windows["train"])


def _feature_tables(
    spec: FeatureSpec, loaded: Sequence[Loaded], train: Sequence[Sequence[Window]]
) -> tuple[FeatureTable, ...]:
    return tuple(
        with_columns(spec.table(item.bars), item.columns, own) for item, own in zip(loaded, train, strict=True)
    )


def scaled_exposures(base: Base, bars: Bars, scales: Mapping[str, float]) -> Floats:
    """Exposures float64 [T] of the rule times the factor of the symbol; see `base_exposures`."""
    return base_exposures(scaled_base(base, bars.symbol, scales), bars)


def scaled_base(base: Base, symbol: str, scales: Mapping[str, float]) -> Base:
    """The rule with the factor of the symbol in its own."""
    own = scales.get(symbol, 1.0)
    return base if own == 1.0 else base.model_copy(update={"scale": base.factor * own})


def refuse_twice(symbols: Sequence[str]) -> None:
    """Raise DataError where a symbol is named more than once."""
    twice = sorted({symbol for symbol in symbols if symbols.count(symbol) > 1})
    if twice:
        raise DataError(f"the symbol {twice[0]} occurs more than once in the data; give each symbol once.")


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
                    close_only=data.close_only,
                ),
                {},
            )
            for path, name in zip(data.paths, names, strict=True)
        )
    refuse_twice([item.bars.symbol for item in loaded])
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
