"""What a leak-check found: one finding per leaking value, in numbers, sentences and JSON."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import TailwiseError
from tailwise.market.leaks.futures import SCALE, Probe

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
        found = []
        for name, tally in self._tallies.items():
            worst, spread = tally.worst, deviation.get(name, math.nan)
            assert worst is not None  # `add` sets it
            change = worst.rank[1] if worst.rank[0] else None
            found.append(
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
        return tuple(sorted(found, key=lambda one: (one.deviations is not None, -(one.deviations or 0.0), one.name)))


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
