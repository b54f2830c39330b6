"""Which rows of each symbol train, select and test: the windows and ranges of `data.split`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tailwise.bars.bars import Bars, Moment
from tailwise.bars.data_config import Moments, Purpose, RangesSplit, SharesSplit, Split
from tailwise.core.errors import ConfigError, DataError

PURPOSES: tuple[Purpose, ...] = ("train", "select", "test")


@dataclass(frozen=True)
class Window:
    """Rows [first, end) of one symbol."""

    first: int
    end: int


def split_windows(bars: Sequence[Bars], split: Split) -> dict[Purpose, tuple[Window, ...]]:
    """Rows of every purpose that the split has one window for, per symbol.

    Windows are cut by time for all symbols together, also those by shares: cut by each symbol's own rows, one symbol
    would train on the days that another is tested on.
    """
    limits = window_limits(bars, split)
    return {purpose: tuple(_window(one, purpose, *limit) for one in bars) for purpose, limit in limits.items()}


def helping_windows(
    helping: Sequence[Bars], judged: Sequence[Bars], split: Split
) -> tuple[dict[Purpose, tuple[Window, ...]], dict[Purpose, tuple[tuple[Window, ...], ...]]]:
    """Train windows and ranges of symbols that only train: those of the judged symbols, whose shares they do not move.

    By shares, also what such a symbol has before the first bar of the others trains.
    """
    if not helping:
        return {}, {}
    if isinstance(split, RangesSplit):
        return {}, {"train": split_ranges(helping, split)["train"]}
    first, end = window_limits(judged, split)["train"]
    if isinstance(split, SharesSplit):
        first = None
    return {"train": tuple(_window(one, "train", first, end) for one in helping)}, {}


def ended_before(bars: Sequence[Bars], split: Split) -> list[Bars]:
    """Symbols without bars in the select or the test window, which the others alone decide: they can only train."""
    judged: list[Bars] = list(bars)
    ended: list[Bars] = []
    while True:
        limits = window_limits(judged, split)
        without = [
            one
            for one in judged
            for purpose in ("select", "test")
            if purpose in limits and not _has_bars(one, *limits[purpose])
        ]
        gone = [one for one in judged if any(one is other for other in without)]
        if not gone:
            return ended
        ended += gone
        judged = [one for one in judged if not any(one is other for other in gone)]


def began_late(bars: Sequence[Bars], split: SharesSplit, fewest: int) -> dict[str, int]:
    """Symbols with fewer than `fewest` bars to train on, and how many they have; never all of them.

    The one with the fewest goes first: without its bars the windows of the others may begin earlier or later.
    """
    kept: list[Bars] = list(bars)
    late: dict[str, int] = {}
    while len(kept) > 1:
        helping = ended_before(kept, split)
        judged = [one for one in kept if not any(one is other for other in helping)]
        _, end = window_limits(judged, split)["train"]
        rows = [_bars_between(one, None, end) for one in kept]
        least = int(np.argmin(rows))
        if rows[least] >= fewest:
            break
        late[kept.pop(least).symbol] = rows[least]
    return late


def _has_bars(bars: Bars, first: Moment | None, end: Moment | None) -> bool:
    return _bars_between(bars, first, end) > 0


def _bars_between(bars: Bars, first: Moment | None, end: Moment | None) -> int:
    try:
        return len(bars.between(first, end))
    except DataError:
        return 0


def window_limits(bars: Sequence[Bars], split: Split) -> dict[Purpose, tuple[Moment | None, Moment | None]]:
    """[first, end) of every purpose that the split has one window for."""
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
    return limits


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
            "symbol out, choose other windows, or name it under data.pool.train_only if it has train bars alone."
        ) from error
    row = int(np.searchsorted(bars.time, part.time[0]))
    return Window(row, row + len(part))
