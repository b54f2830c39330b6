"""FeatureSpec: everything needed to compute the same features again, fitted on the train rows alone.

It is saved with the policy. Whoever decides with that policy, in training, backtest or paper trading, computes its
features by this spec; bars or features that do not fit it are an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tailwise.bars.bars import Bars, data_hash_of
from tailwise.bars.frequency import Calendar, Frequency, describe_step, parse_rule
from tailwise.core.config import parse
from tailwise.core.errors import CheckpointError, DataError
from tailwise.core.parsing import Stored, as_stored
from tailwise.features.config import FeaturesConfig
from tailwise.features.contract import CLOSE, OPEN, Column
from tailwise.features.registry import load_registry
from tailwise.features.stream import FeatureStream
from tailwise.features.table import FeatureTable, Fitted, Views

FORMAT = 1
# A column whose standard deviation is below this share of its mean is constant up to rounding.
_CONSTANT = 1e-12
_GROUP, _BLOCK = 8, 1024  # columns and rows written to a table together: faster in the cache than row by row


@dataclass(frozen=True)
class Scale:
    """How a column is scaled, (value - mean) / scale; in the unit of the column."""

    mean: float
    scale: float
    note: str  # empty, or "constant in the train rows"


@dataclass(frozen=True)
class TrainWindow:
    """The bars of one symbol that the spec was fitted on; of several ranges the outer times and all rows."""

    first: str  # open time of the first bar, UTC
    last: str  # open time of the last bar, UTC
    rows: int
    calendar: Calendar
    data_hash: str


class _StoredColumn(Stored):
    name: str
    identity: str
    mean: float
    scale: Annotated[float, Field(gt=0)]
    note: str


class _StoredScale(Stored):
    mean: float
    scale: Annotated[float, Field(gt=0)]
    note: str


class _StoredSpec(Stored):
    """What `to_json` writes."""

    config: dict[str, Any]
    bar_ns: Annotated[int, Field(gt=0, lt=2**63)]
    columns: list[_StoredColumn]
    fitted: dict[str, dict[str, dict[str, float]]]
    windows: dict[str, TrainWindow]
    symbol_scales: dict[str, list[_StoredScale]] = Field(default_factory=dict)  # not in policies of older versions


@dataclass(frozen=True)
class FeatureSpec:
    """Columns with their scales, fitted numbers by column and symbol, and the bars that they were fitted on.

    scales          of each column over the rows of all symbols
    symbol_scales   with features.scales symbol: those of each symbol, which take their place
    """

    config: FeaturesConfig
    bar: int  # step of the bars, ns
    columns: tuple[Column, ...]
    scales: tuple[Scale, ...]
    fitted: Mapping[str, Mapping[str, Fitted]]
    windows: Mapping[str, TrainWindow]
    symbol_scales: Mapping[str, tuple[Scale, ...]] = field(default_factory=dict)

    @classmethod
    def fit(cls, config: FeaturesConfig, bars: Sequence[Bars], *, folder: str | Path | None = None) -> FeatureSpec:
        """Fit on the TRAIN rows of all symbols: `bars` must hold nothing else. `folder` is where the paths of
        config.modules start (default: the working directory)."""
        return cls.fit_ranges(config, [(one,) for one in bars], folder=folder)

    @classmethod
    def fit_ranges(
        cls, config: FeaturesConfig, ranges: Sequence[Sequence[Bars]], *, folder: str | Path | None = None
    ) -> FeatureSpec:
        """Fit on several ranges of TRAIN rows per symbol, in the order of time: ranges[symbol][range].

        Columns are computed range by range, each after a warm-up of its own, so that no value spans a gap; means and
        deviations are those of all rows together. What a feature fits itself (GARCH) sees the ranges joined without a
        jump (`_joined`).
        """
        bars = [one for parts in ranges for one in parts]
        if not bars or not all(ranges):
            raise DataError("features cannot be fitted on no bars; give the train bars of at least one symbol.")
        symbols = [parts[0].symbol for parts in ranges]
        if len(set(symbols)) < len(symbols):
            raise DataError(f"features are fitted on {', '.join(symbols)}: one symbol occurs twice; give each once.")
        step = bars[0].frequency.bar_ns
        for one in bars:
            if one.frequency.bar_ns != step:
                raise DataError(
                    f"bars of {one.symbol} have a step of {describe_step(one.frequency.bar_ns)}, those of "
                    f"{bars[0].symbol} one of {describe_step(step)}; features need one step for all symbols: resample."
                )
        columns = columns_of(config, folder)
        by_symbol = [[Views.of(one, columns) for one in parts] for parts in ranges]
        views = [view for parts in by_symbol for view in parts]
        first = [view.first_valid(columns) for view in views]
        fitted = {
            column.name: {
                symbol: column.feature.fit(
                    _joined([view.by_timeframe[column.timeframe].bars for view in parts]), _place(symbol, column)
                )
                for symbol, parts in zip(symbols, by_symbol, strict=True)
            }
            for column in columns
            if column.feature.fit is not None
        }
        scales: list[Scale] = []
        by_own: dict[str, list[Scale]] = {symbol: [] for symbol in symbols} if config.scales == "symbol" else {}
        for column in columns:
            raw = [
                view.raw(column, fitted.get(column.name, {}).get(view.symbol))[start:]
                for view, start in zip(views, first, strict=True)
            ]
            scales.append(_scale_of(raw, config.standardise))
            for symbol, own in by_own.items():
                rows = [values for values, view in zip(raw, views, strict=True) if view.symbol == symbol]
                own.append(_scale_of(rows, config.standardise))
        windows = {
            parts[0].symbol: TrainWindow(
                f"{parts[0].time[0]}Z",
                f"{parts[-1].time[-1]}Z",
                sum(len(one) for one in parts),
                parts[0].frequency.calendar,
                data_hash_of(parts),
            )
            for parts in ranges
        }
        own_scales = {symbol: tuple(own) for symbol, own in by_own.items()}
        return cls(config, step, columns, tuple(scales), fitted, windows, own_scales)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns, then of the train symbols where features.instrument is on."""
        return (*self.column_names, *self.instruments)

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def instruments(self) -> tuple[str, ...]:
        """Names of the columns that tell the train symbols apart."""
        return tuple(f"instrument.{symbol}" for symbol in self.windows) if self.config.instrument else ()

    def instrument_of(self, symbol: str) -> NDArray[np.float32]:
        """The values of `instruments` for a symbol, float32 [I]; one that was not trained on has no place in them."""
        if self.config.instrument and symbol not in self.windows:
            raise DataError(
                f"'{symbol}' was not among the train symbols ({', '.join(self.windows)}), and features.instrument "
                "tells the policy which of them it trades; add it to the train data, or leave features.instrument out."
            )
        return np.array([one == symbol for one in self.windows if self.config.instrument], dtype=np.float32)

    def scales_for(self, symbol: str) -> tuple[Scale, ...]:
        """Scales of the columns for a symbol."""
        if self.config.scales == "shared":
            return self.scales
        if symbol not in self.symbol_scales:
            raise DataError(
                f"features.scales is symbol, and '{symbol}' was not among the train symbols "
                f"({', '.join(self.symbol_scales)}); add it to the train data, or use features.scales shared."
            )
        return self.symbol_scales[symbol]

    @property
    def warm_up(self) -> int:
        """Bars before the first complete row: exact without timeframes, and with them at most this many (how many given
        bars make a longer one depends on the calendar; FeatureTable.first_valid is exact)."""
        return longest_warm_up(self.columns, self.bar)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks of the fit, as sentences."""
        scaled = zip(self.column_names, self.scales, strict=True)
        return tuple(
            f"feature '{name}' is {scale.note.partition(',')[0]}: a policy can learn nothing from it; leave it out."
            for name, scale in scaled
            if scale.note
        )

    @property
    def constant(self) -> tuple[str, ...]:
        """Columns that have one value in all train rows, so that a policy can learn nothing from them."""
        return tuple(name for name, scale in zip(self.column_names, self.scales, strict=True) if scale.note)

    def own(self) -> FeatureSpec | None:
        """The same with the user's own columns alone; None when all are built in."""
        places = [place for place, column in enumerate(self.columns) if column.own]
        if not places:
            return None
        return replace(
            self,
            config=self.config.model_copy(update={"instrument": False}),
            columns=tuple(self.columns[place] for place in places),
            scales=tuple(self.scales[place] for place in places),
            symbol_scales={
                symbol: tuple(scales[place] for place in places) for symbol, scales in self.symbol_scales.items()
            },
        )

    def table(self, bars: Bars) -> FeatureTable:
        """The features of any bars of the fitted step: float32 [T, F], scaled and clipped."""
        self.check_frequency(bars.symbol, bars.frequency)
        views = Views.of(bars, self.columns)
        first = views.first_valid(self.columns)
        scales, instrument = self.scales_for(bars.symbol), self.instrument_of(bars.symbol)
        values = np.empty((len(bars), len(self.columns) + len(instrument)), dtype=np.float32)
        values[:, len(self.columns) :] = instrument
        scratch, group = np.empty(len(bars)), np.empty((_GROUP, len(bars)), dtype=np.float32)
        for place, column in enumerate(self.columns):
            raw, scale = views.raw(column, self.fitted_for(column, bars.symbol), scratch), scales[place]
            raw -= scale.mean
            raw /= scale.scale
            if self.config.standardise:
                np.clip(raw, -self.config.clip, self.config.clip, out=raw)
            group[place % _GROUP] = raw
            if (place + 1) % _GROUP == 0 or place + 1 == len(self.columns):
                _transpose(group, values, place - place % _GROUP, end=len(self.columns))
        values[:first] = np.nan
        return FeatureTable(values, self.names, first)

    def stream(self, symbol: str, frequency: Frequency | None = None) -> FeatureStream:
        """Features bar by bar, equal to `table` bit for bit; a symbol that was not trained on needs `frequency`."""
        if frequency is not None:
            self.check_frequency(symbol, frequency)
            calendar = frequency.calendar
        elif symbol in self.windows:
            calendar = self.windows[symbol].calendar
        else:
            raise DataError(
                f"symbol '{symbol}' was not among the train symbols ({', '.join(self.windows)}); pass frequency= of "
                "its bars, so that their calendar is known."
            )
        fitted = {column.name: self.fitted_for(column, symbol) for column in self.columns}
        scales = np.array([[scale.mean, scale.scale] for scale in self.scales_for(symbol)])
        clip = self.config.clip if self.config.standardise else np.inf
        instrument = (self.instruments, self.instrument_of(symbol))
        return FeatureStream(symbol, self.columns, fitted, scales, clip, self.bar, calendar, instrument)

    def fitted_for(self, column: Column, symbol: str) -> Fitted | None:
        """The fitted numbers of a column for a symbol; None for a column that has none."""
        if column.feature.fit is None:
            return None
        by_symbol = self.fitted[column.name]
        if symbol not in by_symbol:
            raise DataError(
                f"feature '{column.name}' was fitted for {', '.join(by_symbol)}, not for '{symbol}'; add the symbol to "
                "the train data, or leave the feature out."
            )
        return by_symbol[symbol]

    def check_frequency(self, symbol: str, frequency: Frequency) -> None:
        """Refuse bars of another step than the train bars'."""
        if frequency.bar_ns != self.bar:
            raise DataError(
                f"bars of {symbol} have a step of {describe_step(frequency.bar_ns)}, but the features were fitted on "
                f"bars of {describe_step(self.bar)}; resample the bars or fit the features anew."
            )

    def check_same(self, other: FeatureSpec) -> None:
        """Raise CheckpointError, which names what differs, unless both specs make the same features."""
        mine, theirs = self.to_json(), other.to_json()
        for key, value in mine.items():
            if value != theirs[key]:
                where, one, two = _difference(key, value, theirs[key])
                raise CheckpointError(
                    f"the feature specs differ in {where}: {one!r} here, {two!r} there; use the features that the "
                    "policy was trained with."
                )

    def to_json(self) -> dict[str, Any]:
        """Plain values; Python's json writes each float so that it reads back exactly."""
        return {
            "format": FORMAT,
            "config": self.config.model_dump(mode="json"),
            "bar_ns": self.bar,
            "columns": [
                {"name": column.name, "identity": column.identity, **vars(scale)}
                for column, scale in zip(self.columns, self.scales, strict=True)
            ],
            "fitted": {
                name: {symbol: dict(numbers) for symbol, numbers in by_symbol.items()}
                for name, by_symbol in self.fitted.items()
            },
            "windows": {symbol: dict(vars(window)) for symbol, window in self.windows.items()},
            "symbol_scales": {
                symbol: [dict(vars(scale)) for scale in scales] for symbol, scales in self.symbol_scales.items()
            },
        }

    @staticmethod
    def modules_of(data: Mapping[str, Any]) -> tuple[str, ...]:
        """The modules that `from_json` would execute, without executing them."""
        config = data.get("config") if isinstance(data, Mapping) else None
        if not isinstance(config, dict):
            raise CheckpointError("the feature spec is damaged: it has no configuration; restore the file.")
        return parse(FeaturesConfig, config, source="feature spec").modules

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, folder: str | Path | None = None) -> FeatureSpec:
        """The spec that `to_json` wrote. `folder` is where the paths of config.modules start."""
        version = data.get("format")  # before its shape: another format may have another one
        if version != FORMAT:
            raise CheckpointError(
                f"the feature spec has format {version!r}; this version of Tailwise reads format {FORMAT}. Use the "
                "version that wrote it, or train again."
            )
        try:
            stored = as_stored(_StoredSpec, data, source="feature spec")
        except DataError as error:
            raise CheckpointError(f"{error}\nThe feature spec is damaged; restore the file or train again.") from error
        config = parse(FeaturesConfig, stored.config, source="feature spec")
        scales = tuple(Scale(one.mean, one.scale, one.note) for one in stored.columns)
        identities = {one.name: one.identity for one in stored.columns}
        columns = columns_of(config, folder)
        if tuple(identities) != tuple(column.name for column in columns):
            raise CheckpointError("the feature spec is damaged: its columns are not those of its configuration.")
        for column in columns:
            if identities[column.name] != column.identity:
                raise CheckpointError(
                    f"feature '{column.name}' is no longer the one that the spec was fitted with ({column.identity}, "
                    f"was {identities[column.name]}); restore it, or train again."
                )
        missing = [
            column.name for column in columns if column.feature.fit is not None and not stored.fitted.get(column.name)
        ]
        if missing:
            raise CheckpointError(f"the feature spec is damaged: it has no fitted numbers of '{missing[0]}'.")
        own = {
            symbol: tuple(Scale(one.mean, one.scale, one.note) for one in scales)
            for symbol, scales in stored.symbol_scales.items()
        }
        wanted = set(stored.windows) if config.scales == "symbol" else set()
        if set(own) != wanted or any(len(scales_of) != len(columns) for scales_of in own.values()):
            raise CheckpointError("the feature spec is damaged: the scales of its symbols are not all there.")
        return cls(config, stored.bar_ns, columns, scales, stored.fitted, stored.windows, own)


def columns_of(config: FeaturesConfig, folder: str | Path | None = None) -> tuple[Column, ...]:
    """List the columns that the configuration names: those on the bars themselves, then those of each timeframe."""
    registry = load_registry(config.modules, folder)
    columns = [registry.column(name) for name in config.include]
    columns += [registry.column(name, rule) for rule, names in config.timeframes.items() for name in names]
    return tuple(columns)


def longest_warm_up(columns: Sequence[Column], bar: int) -> int:
    """`FeatureSpec.warm_up` of columns on bars of this step in ns: known before anything is fitted."""
    return max(
        column.warm_up if column.timeframe is None else (column.warm_up + 2) * (parse_rule(column.timeframe) // bar)
        for column in columns
    )


def _transpose(group: NDArray[np.float32], values: NDArray[np.float32], first: int, *, end: int) -> None:
    """Write columns group [_GROUP, T] into values[:, first:end], in blocks that fit into the processor's cache."""
    count = min(_GROUP, end - first)
    for row in range(0, len(values), _BLOCK):
        values[row : row + _BLOCK, first : first + count] = group[:count, row : row + _BLOCK].T


def _place(symbol: str, column: Column) -> str:
    return symbol if column.timeframe is None else f"{symbol} in bars of {column.timeframe}"


def _joined(ranges: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Bars [K, 6] of several ranges as one series, each range scaled to open at the close before it.

    The move of the price over a gap of many bars is no return of one bar; a fit would take it for a shock.
    """
    if len(ranges) == 1:
        return ranges[0]
    parts = [ranges[0]]
    for part in ranges[1:]:
        scaled = part.copy()
        scaled[:, OPEN : CLOSE + 1] *= parts[-1][-1, CLOSE] / part[0, OPEN]
        parts.append(scaled)
    return np.concatenate(parts)


def _scale_of(parts: list[NDArray[np.float64]], standardise: bool) -> Scale:
    """Mean and standard deviation of the rows of all symbols together."""
    rows = np.concatenate(parts)
    mean, deviation = float(rows.mean()), float(rows.std())
    constant = not deviation > _CONSTANT * abs(mean)
    note = "constant in the train rows, so it is not divided by anything" if constant else ""
    if not standardise:
        return Scale(0.0, 1.0, "constant in the train rows" if constant else "")
    return Scale(mean, 1.0 if constant else deviation, note)


def _difference(key: str, mine: Any, theirs: Any) -> tuple[str, Any, Any]:
    """The first place at which two JSON values differ: its path and both values."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for name in {**mine, **theirs}:
            if mine.get(name) != theirs.get(name):
                return _difference(f"{key}.{name}", mine.get(name), theirs.get(name))
    if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        for place, (one, two) in enumerate(zip(mine, theirs, strict=True)):
            if one != two:
                name = one.get("name", place) if isinstance(one, dict) else place
                return _difference(f"{key}[{name}]", one, two)
    return key, mine, theirs
