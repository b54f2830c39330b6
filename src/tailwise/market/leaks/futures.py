"""Where the leak-check cuts a series of bars, and the other futures that it puts behind a cut.

A cut c splits the bars into the past [0, c) and the future [c, T). A changed future leaves the past bit for bit as it
was and consists of valid bars at the same times, so that nothing but knowledge of the future can tell them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import COLUMNS, Bars
from tailwise.bars.frequency import DAY, WEEK
from tailwise.core.errors import ConfigError, DataError

Probe: TypeAlias = Literal["truncate", "shuffle", "scale"]
PROBES: tuple[Probe, ...] = get_args(Probe)

SCALE = (
    10.0  # factor of the scaled future, and 1 / SCALE at every second cut: some leaks see only rises, some only falls
)
RUN = 10  # consecutive cuts around a border of weeks: two weeks of daily bars, so that every weekday is a cut
_EARLY = (0, 1, 3, 7, 15, 31, 63)  # bars after the first possible cut
_LATE = (1, 2, 5)  # bars before the end
_EVENTS = 2  # of each kind
_PAUSE_EVERY = 50  # steps from one of the pauses that `everything_changed` puts in to the next
_MONDAY = 4 * DAY  # 1970-01-05


def check_probes(probes: tuple[Probe, ...], allowed: tuple[Probe, ...] = PROBES) -> None:
    unknown = [probe for probe in probes if probe not in allowed]
    if unknown or not probes:
        wrong = f"{unknown[0]!r} is not one of them" if unknown else "none is given"
        raise ConfigError(f"leak-check: the probes are chosen from {', '.join(allowed)}; {wrong}.")


def cut_points(bars: Bars, *, first: int, count: int, seed: int, most: int) -> tuple[tuple[int, ...], int]:
    """At most `most` cuts c, first <= c < T, in rising order, and how many more were planned.

    `count` of them are spread over the series with a random shift. Added are cuts close behind `first` and close to the
    end, RUN consecutive ones around a border of weeks (or days), and cuts before and after unusual bars: the largest
    moves, the longest pause, bars without range or volume. When there are too many, each kind gives up the same number.
    """
    last = len(bars) - 1
    if count < 1:
        raise ConfigError(f"leak-check: cuts is {count}; at least 1 is needed.")
    if first > last:
        raise DataError(
            f"leak-check of {bars.symbol}: behind the warm-up the first cut is possible at bar {first}, and there are "
            f"only {len(bars)} bars, so that no value can be compared; use more bars."
        )
    rng = np.random.default_rng([seed, 0])
    width = (last + 1 - first) / count
    spread = [int(first + (k + u) * width) for k, u in enumerate(rng.random(count))]
    border = _border(bars.time.astype(np.int64), (first + last) // 2)
    kinds = [
        [int(cut) for cut in rng.permutation(spread)],
        [border + shift for shift in sorted(range(-(RUN // 2) + 1, RUN // 2 + 1), key=abs)],
        [first + shift for shift in _EARLY],
        [last + 1 - shift for shift in _LATE],
        [row + shift for row in _unusual(bars) for shift in (0, 1)],
    ]
    ordered: dict[int, None] = {}
    for turn in range(max(map(len, kinds))):
        for kind in kinds:
            if turn < len(kind) and first <= kind[turn] <= last:
                ordered[kind[turn]] = None
    chosen = list(ordered)[: max(most, 1)]
    return tuple(sorted(chosen)), len(ordered) - len(chosen)


def _border(stamps: npt.NDArray[np.int64], near: int) -> int:
    """The first bar of a week (else of a day) that lies nearest to bar `near`; `near` itself when there is none."""
    for size in (WEEK, DAY):
        borders = np.flatnonzero(np.diff((stamps - _MONDAY) // size)) + 1
        if len(borders):
            return int(borders[np.abs(borders - near).argmin()])
    return near


def _unusual(bars: Bars) -> list[int]:
    """Rows in which rare branches of a feature are likely to be taken."""
    rows = []
    if len(bars) > 2:
        moves = np.abs(np.diff(np.log(bars.close)))
        rows += [int(row) + 1 for row in np.argsort(-moves, kind="stable")[:_EVENTS]]
        rows.append(int(np.argmax(np.diff(bars.time))) + 1)
    middle = len(bars) // 2
    for odd in (bars.high == bars.low, bars.volume == 0):
        found = np.flatnonzero(odd)
        if 0 < len(found) < len(bars) // 2:  # where every bar is like that, it is not unusual
            rows += [int(row) for row in found[np.argsort(np.abs(found - middle), kind="stable")[:_EVENTS]]]
    return rows


def changed_future(bars: Bars, cut: int, probe: Probe, *, seed: int) -> Bars:
    """The bars with another future from row `cut` on (`cut` = 0: all of them).

    truncate   no future at all
    shuffle    the future bars in random order, each either as it was or mirrored (rises become falls); a market
               without gaps between bars stays one
    scale      prices and volumes of the future x SCALE or / SCALE, which depends on cut and seed
    """
    if probe == "truncate":
        return bars.slice(0, cut)
    if cut >= len(bars):
        return bars
    if probe == "scale":
        factor = SCALE if np.random.default_rng([seed, cut, 2]).random() < 0.5 else 1 / SCALE
        return replace(
            bars,
            open=_scaled(bars.open, cut, factor),
            high=_scaled(bars.high, cut, factor),
            low=_scaled(bars.low, cut, factor),
            close=_scaled(bars.close, cut, factor),
            volume=_scaled(bars.volume, cut, factor),
            dividends=None if bars.dividends is None else _scaled(bars.dividends, cut, factor),
        )
    return _shuffled(bars, cut, np.random.default_rng([seed, cut, 1]))


def everything_changed(bars: Sequence[Bars], *, seed: int) -> list[Bars]:
    """Other prices, volumes and times from the first bar on, an earlier end, and for all symbols but the first a later
    beginning: whatever is computed from the bars, from their times or from which of them there are must notice it."""
    # Whole steps keep bars aligned with longer ones, and the same rule for all symbols keeps them aligned with each
    # other. 29 steps move the weekday of daily bars and the hour of hourly ones; new pauses move the distances.
    step = max(one.frequency.bar for one in bars)
    every = _PAUSE_EVERY * int(step.astype(np.int64))
    first = min(int(one.time[0].astype(np.int64)) for one in bars) // every
    changed = []
    for index, one in enumerate(bars):
        begin = min(7 * index, len(one) // 4)
        kept = one.slice(begin, max(len(one) - 1 - len(one) // 10, begin + 1))
        other = changed_future(changed_future(kept, 0, "shuffle", seed=seed), 0, "scale", seed=seed)
        pauses = kept.time.astype(np.int64) // every
        changed.append(replace(other, time=kept.time + (29 + 2 * (pauses - first)) * step))
    return changed


def _shuffled(bars: Bars, cut: int, rng: np.random.Generator) -> Bars:
    prices = (bars.open[cut:], bars.high[cut:], bars.low[cut:], bars.close[cut:])
    if min(float(values.min()) for values in prices) <= 0:
        raise DataError(f"leak-check of {bars.symbol}: a price is not positive; run `tailwise data check` on the bars.")
    opens, highs, lows, closes = prices
    before = bars.close[cut - 1 : -1] if cut else np.concatenate([bars.open[:1], bars.close[:-1]])
    count = len(opens)
    order = rng.permutation(count)
    # A single bar has one order only, so it is mirrored for certain.
    mirrored = rng.random(count) < 0.5 if count > 1 else np.ones(1, dtype=np.bool_)
    sign = np.where(mirrored, -1.0, 1.0)
    gap, body = sign * np.log(opens / before)[order], sign * np.log(closes / opens)[order]
    above = np.log(highs / np.maximum(opens, closes))[order]
    below = np.log(np.minimum(opens, closes) / lows)[order]
    above, below = np.where(mirrored, below, above), np.where(mirrored, above, below)
    # Paths start at 0 and a gap of 0 adds nothing, so that an open that equalled the close before it still does.
    path = np.cumsum(gap + body)
    level = float(before[0])
    new_open = level * np.exp(np.concatenate([[0.0], path[:-1]]) + gap)
    new_close = level * np.exp(path)
    return replace(
        bars,
        open=_joined(bars.open, cut, new_open),
        high=_joined(bars.high, cut, np.maximum(new_open, new_close) * np.exp(above)),
        low=_joined(bars.low, cut, np.minimum(new_open, new_close) * np.exp(-below)),
        close=_joined(bars.close, cut, new_close),
        volume=_joined(bars.volume, cut, bars.volume[cut:][order]),
        dividends=None if bars.dividends is None else _joined(bars.dividends, cut, bars.dividends[cut:][order]),
    )


def _joined(values: npt.NDArray[np.float64], cut: int, future: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.concatenate([values[:cut], future])


def _scaled(values: npt.NDArray[np.float64], cut: int, factor: float) -> npt.NDArray[np.float64]:
    return _joined(values, cut, values[cut:] * factor)


def same_bars(one: Bars, other: Bars) -> bool:
    """Whether all numbers agree: then a probe has changed nothing, and its silence means nothing."""
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("time", *COLUMNS))
