"""What leak-checks share: where they cut a series of bars, the futures that they put after a cut, and what they find.

A cut c splits the bars into the past [0, c) and the future [c, T). A changed future leaves the past bit for bit as it
was and consists of valid bars at the same times, so that nothing but knowledge of the future can tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import COLUMNS, Bars
from tailwise.bars.frequency import DAY, WEEK
from tailwise.core.errors import ConfigError, DataError, TailwiseError

# ---------------------------------------------------------------------- cuts and futures
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
    cuts = list(ordered)[: max(most, 1)]
    return tuple(sorted(cuts)), len(ordered) - len(cuts)


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
        odd_rows = np.flatnonzero(odd)
        if 0 < len(odd_rows) < len(bars) // 2:  # where every bar is like that, it is not unusual
            rows += [int(row) for row in odd_rows[np.argsort(np.abs(odd_rows - middle), kind="stable")[:_EVENTS]]]
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


# ---------------------------------------------------------------------- findings
_WORDS = {"truncate": "removed", "shuffle": "shuffled", "scale": f"multiplied by {SCALE:g} or 1/{SCALE:g}"}


class Rows(Protocol):
    """Rows that have times: the bars of a symbol, or the clock of a portfolio."""

    @property
    def symbol(self) -> str: ...
    @property
    def time(self) -> npt.NDArray[np.datetime64]: ...


@dataclass(frozen=True)
class Finding:
    """The worst change of one feature (observation entry, number of a spec) in the past when only the future changed.

    bar, time    row in the bars of `symbol` and its open time, of the value that changed
    before       the value with the real future; after: with the changed one; None for NaN
    change       |after - before|; None when one of them is not a number
    deviations   change / standard deviation of this value over the series; None when undefined
    probe, cut   what was done to the bars from row `cut` on
    values       how many values of this name changed, over all probes and cuts
    probes       all probes that changed it
    reach        at least so many bars ahead the value looks: the largest cut - bar that was seen
    """

    name: str
    symbol: str
    bar: int
    time: str
    before: float | str | None
    after: float | str | None
    change: float | None
    deviations: float | None
    probe: Probe
    cut: int
    values: int
    probes: tuple[Probe, ...]
    reach: int

    def sentence(self) -> str:
        size = "" if self.deviations is None else f" ({self.deviations:.2g} standard deviations)"
        return (
            f"{self.name} at bar {self.bar} of {self.symbol} ({self.time}): {_number(self.before)} becomes "
            f"{_number(self.after)} when the bars from {self.cut} on are {_WORDS[self.probe]}{size}; it looks at least "
            f"{self.reach} bar{'s' if self.reach != 1 else ''} ahead ({self.values} "
            f"value{'s' if self.values != 1 else ''} changed; seen by {', '.join(self.probes)})"
        )


@dataclass(frozen=True)
class LeakReport:
    """The outcome of one check.

    subject      "features", "fit" or "environment"
    findings     one per leaking name, the largest change in standard deviations first
    unjudged     names that vary but are not computed from the bars, so that no change of bars can tell anything
    comparisons  number of (probe, cut) pairs that were compared; values: numbers compared in them
    bars, bars_given   rows that were used, and rows there are
    cuts_left_out      cuts that were planned and given up to bound the work
    """

    subject: str
    findings: tuple[Finding, ...]
    unjudged: tuple[str, ...]
    probes: tuple[Probe, ...]
    cuts: tuple[int, ...]
    comparisons: int
    values: int
    bars: int
    bars_given: int
    cuts_left_out: int = 0
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.findings and not self.unjudged

    @property
    def faults(self) -> list[str]:
        """One line per finding and per name that cannot be judged; empty when the check passed."""
        unjudged = [
            f"{name} varies but does not depend on the bars: where it comes from cannot be checked; compute it from "
            "the bars, or leave it out"
            for name in self.unjudged
        ]
        return [*(finding.sentence() for finding in self.findings), *unjudged]

    def sentences(self) -> list[str]:
        """One line per finding, then what was done, then the verdict."""
        lines = [*self.faults, *self.notes]
        share = "" if self.bars == self.bars_given else f"; only the first {self.bars} of {self.bars_given} bars used"
        left = f"; {self.cuts_left_out} planned cuts left out to bound the work" if self.cuts_left_out else ""
        lines.append(
            f"{self.values:,} past values compared in {self.comparisons:,} runs ({len(self.cuts):,} "
            f"cut{'' if len(self.cuts) == 1 else 's'}; "
            f"{', '.join(self.probes)}){share}{left}"
        )
        wrong = len(self.findings) + len(self.unjudged)
        lines.append(
            f"{self.subject}: no leak found" if self.passed else f"{self.subject}: {wrong} of the values fail the check"
        )
        return lines

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


@dataclass(frozen=True)
class _Change:
    rank: tuple[bool, float]  # whether both values are numbers, and how far they are apart
    bars: Rows
    bar: int
    before: float | str
    after: float | str
    probe: Probe
    cut: int


@dataclass
class _Tally:
    """What is known of one name so far."""

    worst: _Change | None = None
    values: int = 0
    reach: int = 0
    probes: dict[Probe, None] = field(default_factory=dict)


class Changes:
    """Collects changed values and keeps the worst of each name: a change in numbers before one from or to NaN."""

    def __init__(self) -> None:
        self._tallies: dict[str, _Tally] = {}

    def add(
        self,
        name: str,
        bars: Rows,
        rows: npt.NDArray[np.int64],
        before: npt.NDArray[Any],
        after: npt.NDArray[Any],
        probe: Probe,
        cut: int,
    ) -> None:
        """With another future from `cut` on, values at `rows` [M] of `bars` are `after` [M] and not `before` [M]."""
        if before.dtype.kind in "fiub" and after.dtype.kind in "fiub":
            with np.errstate(invalid="ignore"):
                sizes = np.abs(after.astype(np.float64) - before.astype(np.float64))
        else:
            sizes = np.full(len(rows), np.nan)
        finite = np.isfinite(sizes)
        at = int(np.argmax(np.where(finite, sizes, -1.0)))
        rank = (bool(finite[at]), float(sizes[at]) if finite[at] else 0.0)
        tally = self._tallies.setdefault(name, _Tally())
        tally.values += len(rows)
        tally.reach = max(tally.reach, cut - int(rows.min()))
        tally.probes[probe] = None
        if tally.worst is None or rank > tally.worst.rank:
            tally.worst = _Change(rank, bars, int(rows[at]), _item(before[at]), _item(after[at]), probe, cut)

    def add_refusal(self, name: str, bars: Rows, error: TailwiseError, probe: Probe, cut: int) -> None:
        """What exists with the real future cannot be computed with another one: the past alone does not suffice."""
        texts = np.array(["as it is"], dtype=object), np.array([f"an error: {error}"], dtype=object)
        self.add(name, bars, np.array([cut - 1]), *texts, probe, cut)

    def findings(self, deviation: dict[str, float]) -> tuple[Finding, ...]:
        """Sorted by size; `deviation` has the standard deviation of each name where it is defined."""
        findings = []
        for name, tally in self._tallies.items():
            worst, spread = tally.worst, deviation.get(name, math.nan)
            assert worst is not None  # `add` sets it
            change = worst.rank[1] if worst.rank[0] else None
            findings.append(
                Finding(
                    name=name,
                    symbol=worst.bars.symbol,
                    bar=worst.bar,
                    time=_moment(worst.bars.time[worst.bar]),
                    before=_plain(worst.before),
                    after=_plain(worst.after),
                    change=change,
                    deviations=change / spread if change is not None and spread > 0 else None,
                    probe=worst.probe,
                    cut=worst.cut,
                    values=tally.values,
                    probes=tuple(tally.probes),
                    reach=tally.reach,
                )
            )
        # What turns into NaN has no size and is the more alarming: it comes first.
        return tuple(sorted(findings, key=lambda one: (one.deviations is not None, -(one.deviations or 0.0), one.name)))


def deviation_of(values: npt.NDArray[Any]) -> float:
    """Standard deviation of the finite entries; NaN when there are fewer than two."""
    numbers = values.astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    return float(numbers.std()) if len(numbers) > 1 else math.nan


def _item(value: Any) -> float | str:
    return value if isinstance(value, str) else float(value)


def _plain(value: float | str) -> float | str | None:
    """JSON has no NaN and no infinity."""
    if isinstance(value, str):
        return value
    return float(value) if math.isfinite(value) else None


def _number(value: float | str | None) -> str:
    return "NaN" if value is None else value if isinstance(value, str) else f"{value:.6g}"


def _moment(time: np.datetime64) -> str:
    text = str(time.astype("datetime64[m]"))
    return text.removesuffix("T00:00")
