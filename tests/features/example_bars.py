"""Bars for the tests of features: random, flat, without volume, with jumps, with gaps in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.bars.frequency import Calendar, parse_rule, with_calendar
from tailwise.features.config import FeaturesConfig
from tailwise.features.contract import Column, Feature
from tailwise.features.registry import BUILTIN, Registry
from tailwise.features.spec import FeatureSpec
from tailwise.features.table import FeatureTable, as_matrix, run

Floats = npt.NDArray[np.float64]

# Everything but garch, which needs fitted numbers, with windows short enough for short bars.
PLAIN = tuple(
    feature.name + {0: "", 1: "_7", 2: "_3_7"}[len(feature.parameters)]
    for feature in BUILTIN.values()
    if feature.fit is None
)
# Those that never forget a bar completely, and weigh it less and less.
FADING = frozenset({"rsi", "macd", "ewma_volatility", "garch"})


def bars_from(
    open_: Any, high: Any, low: Any, close: Any, volume: Any, *, step: str = "1h", keep: Any = None, **more: Any
) -> Bars:
    """Bars on a grid from Monday 2020-01-06 00:00 UTC on; `keep` leaves rows out, so that there are gaps in time."""
    size = parse_rule(step)
    stamps = np.datetime64("2020-01-06", "ns").astype(np.int64) + size * np.arange(len(close), dtype=np.int64)
    kept = np.ones(len(close), bool) if keep is None else np.asarray(keep, bool)
    time = stamps[kept].astype("datetime64[ns]")
    calendar: Calendar = more.pop("calendar", "24/7")
    columns = {
        name: np.asarray(values, dtype=np.float64)[kept]
        for name, values in zip(
            ("open", "high", "low", "close", "volume"), (open_, high, low, close, volume), strict=True
        )
    }
    return Bars(
        symbol=more.pop("symbol", "TEST"),
        time=time,
        **columns,  # type: ignore[arg-type]
        label="synthetic: test",
        source="test",
        frequency=with_calendar(time, np.timedelta64(size, "ns"), calendar, "test"),
    )


def random_bars(
    rows: int, seed: int, *, kind: str = "walk", gaps: bool = False, sigma: float = 0.01, **more: Any
) -> Bars:
    """kind: walk, flat (price never moves), silent (no volume), quiet (long stretches of flat price and no volume),
    jumps (prices between 1e-6 and 1e6)."""
    rng = np.random.default_rng(seed)
    log_close = np.cumsum(sigma * rng.standard_normal(rows))
    if kind == "jumps":
        log_close = np.log(10.0) * rng.uniform(-6, 6, rows)
    if kind == "quiet":
        log_close = log_close[np.arange(rows) // 20 * 20]
    if kind == "flat":
        log_close[:] = 0.0
    close = 100.0 * np.exp(log_close)
    inside = 0.0 if kind == "flat" else 0.3 * sigma
    open_ = np.concatenate((close[:1], close[:-1])) * np.exp(inside * rng.standard_normal(rows))
    if kind == "quiet":
        still = np.arange(rows) % 40 < 30
        open_ = np.where(still, close, open_)
        inside = np.where(still, 0.0, inside)
    high = np.maximum(open_, close) * np.exp(inside * np.abs(rng.standard_normal(rows)))
    low = np.minimum(open_, close) * np.exp(-inside * np.abs(rng.standard_normal(rows)))
    volume = np.exp(rng.standard_normal(rows)) * 1e4
    if kind in ("silent", "flat"):
        volume[:] = 0.0
    if kind == "quiet":
        volume[np.arange(rows) % 40 < 25] = 0.0
    if gaps:
        more["keep"] = rng.random(rows) < 0.7
    return bars_from(open_, high, low, close, volume, **more)


KINDS = ("walk", "flat", "silent", "quiet", "jumps")


def scaled(bars: Bars, price: float = 1.0, volume: float = 1.0) -> Bars:
    prices = {name: getattr(bars, name) * price for name in ("open", "high", "low", "close")}
    return replace(bars, **prices, volume=bars.volume * volume)


def changed_after(bars: Bars, row: int, seed: int = 99) -> Bars:
    """The same bars up to `row`, and another future from there on."""
    rng = np.random.default_rng(seed)
    factor = np.exp(0.3 * rng.standard_normal(len(bars)))
    factor[:row] = 1.0
    prices = {name: getattr(bars, name) * factor for name in ("open", "high", "low", "close")}
    return replace(bars, **prices, volume=bars.volume * factor**3 + np.where(factor == 1.0, 0.0, 5.0))


def column(name: str) -> Column:
    return Registry().column(name)


def raw(name: str, bars: Bars) -> Floats:
    """A built-in's own answers, float64 [T], as `update` returned them: also during the warm-up."""
    one = column(name)
    return run(one.feature, one.feature.new_state(one.parameters), as_matrix(bars)[0])


def by_hand(feature: Feature, parameters: tuple[int, ...], bars: Bars) -> Floats:
    """`update` called from Python, bar by bar."""
    state, matrix = feature.new_state(parameters), as_matrix(bars)[0]
    return np.array([feature.compile()(state, bar) for bar in matrix])


def streamed(spec: FeatureSpec, bars: Bars, rows: Iterable[int] | None = None, stream: Any = None) -> list[Any]:
    """What a stream returns for each row."""
    source = spec.stream(bars.symbol, bars.frequency) if stream is None else stream
    return [
        source.update(bars.time[k], bars.open[k], bars.high[k], bars.low[k], bars.close[k], bars.volume[k])
        for k in (range(len(bars)) if rows is None else rows)
    ]


def assert_stream_equals_table(spec: FeatureSpec, bars: Bars) -> FeatureTable:
    table = spec.table(bars)
    answers = streamed(spec, bars)
    assert all(answer is None for answer in answers[: table.first_valid])
    rows = np.stack(answers[table.first_valid :])
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, table.values[table.first_valid :])
    return table


def is_causal(values: Callable[[Bars], Floats], bars: Bars, cuts: Iterable[int]) -> bool:
    """No value before a cut changes when the bars from the cut on change, or are not there."""
    whole = values(bars)
    for cut in cuts:
        for other in (changed_after(bars, cut), bars.slice(0, cut)):
            if not np.array_equal(values(other)[:cut], whole[:cut], equal_nan=True):
                return False
    return True


def config(*include: str, **more: Any) -> FeaturesConfig:
    return FeaturesConfig(include=include, **more)
