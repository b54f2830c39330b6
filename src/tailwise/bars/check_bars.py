"""Summarise bars before they are used: time span, frequency, gaps, bars without volume, largest moves."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tailwise.bars.bars import Bars, CloseOnly, load_bars
from tailwise.bars.frequency import HOUR, WEEK, describe_gap, describe_step, find_gaps
from tailwise.bars.validation import Adjust, Repair, show_time

if TYPE_CHECKING:
    import pandas as pd

MOST_LISTED = 5  # largest gaps and largest moves


@dataclass(frozen=True)
class Gap:
    """A pause between two bars. missing: bars that should be in it; None where the calendar does not tell."""

    after: str  # open time, UTC
    before: str
    hours: float
    missing: int | None


@dataclass(frozen=True)
class Move:
    """A change from close to close, as a fraction; time: when the bar opens that it ends in."""

    time: str
    change: float


@dataclass(frozen=True)
class BarFacts:
    """One series of bars, as training would read it. Times are open times, UTC.

    symbol             name of the series
    bars               how many
    first, last        of the first and the last bar
    bar                length of a bar, in words
    periods_per_year   bars per year
    calendar           when there are bars: "24/7" and the like
    frequency          the same in a sentence, with where it comes from
    label              "real", or what synthetic bars are
    notes              sentences: what was understood of the file
    repairs            sentences: what was repaired
    gaps               how many; largest_gaps: the largest of them
    zero_volume        bars without volume
    dividends          bars with one; None where the data have none
    largest_moves      by the size of their logarithm, the largest first
    data_hash          of all bars
    """

    symbol: str
    bars: int
    first: str
    last: str
    bar: str
    periods_per_year: float
    calendar: str
    frequency: str
    label: str
    notes: tuple[str, ...]
    repairs: tuple[str, ...]
    gaps: int
    largest_gaps: tuple[Gap, ...]
    zero_volume: int
    dividends: int | None
    largest_moves: tuple[Move, ...]
    data_hash: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[tuple[str, str]]:
        """(name, text) of each fact, for people."""
        gaps = f"{self.gaps}"
        if self.gaps:
            gaps += "; largest: " + ", ".join(_gap_words(gap) for gap in self.largest_gaps)
        moves = ", ".join(f"{move.change:+.2%} on {move.time}" for move in self.largest_moves)
        return [
            ("symbol", self.symbol),
            ("label", self.label),
            ("bars", f"{self.bars:,} from {self.first} to {self.last} (open times, UTC)"),
            ("frequency", self.frequency),
            ("per year", f"{self.periods_per_year:g} bars, calendar {self.calendar}"),
            ("gaps", gaps),
            ("zero volume", f"{self.zero_volume:,} of {self.bars:,} bars"),
            *([] if self.dividends is None else [("dividends", f"in {self.dividends:,} bars")]),
            ("moves", f"largest: {moves}" if moves else "none: all closes are equal"),
            *(("understood", note) for note in self.notes),
            *(("repaired", note) for note in self.repairs),
            ("data hash", self.data_hash),
        ]


@dataclass(frozen=True)
class Reading:
    """Options of `load_bars` as one record.

    repair             "none": a bad row is an error; "drop": it is left out; "clip": high and low are widened
    adjust             an Adj Close that differs: "refuse", "consistent", "ignore", "all"
    time_unit          of times that count since 1970: s, ms, us, ns; None: inferred
    periods_per_year   bars per year; None: inferred from the times
    symbol             name of the bars, or which symbol to take
    close_only         files without open, high and low: "refuse", "previous_close", "same_close"
    """

    repair: Repair = "none"
    adjust: Adjust = "refuse"
    time_unit: str | None = None
    periods_per_year: float | None = None
    symbol: str | None = None
    close_only: CloseOnly = "refuse"

    def load(self, source: str | Path | pd.DataFrame) -> Bars:
        """The bars of one file or frame."""
        return load_bars(
            source,
            symbol=self.symbol,
            repair=self.repair,
            adjust=self.adjust,
            time_unit=self.time_unit,
            periods_per_year=self.periods_per_year,
            close_only=self.close_only,
        )


def check_bars(
    source: str | Path | pd.DataFrame,
    *,
    symbol: str | None = None,
    repair: Repair = "none",
    adjust: Adjust = "refuse",
    time_unit: str | None = None,
    periods_per_year: float | None = None,
    close_only: CloseOnly = "refuse",
) -> BarFacts:
    """Read bars as training would, and say what was understood, repaired and looks odd; DataError if they are unusable.

    source: a CSV or Parquet file, or a DataFrame; the options are those of `Reading`.

        facts = tailwise.check_bars("btc.csv")
        print(facts.bars, facts.frequency, facts.gaps, facts.largest_moves)
    """
    return facts_of(Reading(repair, adjust, time_unit, periods_per_year, symbol, close_only).load(source))


def facts_of(bars: Bars) -> BarFacts:
    """Summarise loaded bars."""
    stamps = bars.time.astype(np.int64)
    gaps = find_gaps(stamps, bars.frequency.bar_ns, bars.frequency.calendar)
    steps = np.diff(stamps)
    largest = gaps[np.argsort(-steps[gaps], kind="stable")[:MOST_LISTED]]
    repairs = tuple(note for note in bars.notes if note.startswith("repair "))
    return BarFacts(
        symbol=bars.symbol,
        bars=len(bars),
        first=_show(bars.time[0]),
        last=_show(bars.time[-1]),
        bar=describe_step(bars.frequency.bar_ns),
        periods_per_year=bars.frequency.periods_per_year,
        calendar=bars.frequency.calendar,
        frequency=bars.frequency.sentence,
        label=bars.label,
        notes=tuple(note for note in bars.notes if note not in repairs),
        repairs=repairs,
        gaps=len(gaps),
        largest_gaps=tuple(_gap(bars, int(at)) for at in largest),
        zero_volume=int(np.sum(bars.volume == 0)),
        dividends=None if bars.dividends is None else int(np.sum(bars.dividends > 0)),
        largest_moves=_largest_moves(bars),
        data_hash=bars.data_hash(),
    )


def _gap(bars: Bars, at: int) -> Gap:
    length = int((bars.time[at + 1] - bars.time[at]).astype(np.int64))
    whole = bars.frequency.bar_ns
    missing = round(length / whole) - 1 if bars.frequency.calendar == "24/7" and whole < WEEK else None
    return Gap(_show(bars.time[at]), _show(bars.time[at + 1]), length / HOUR, missing)


def _largest_moves(bars: Bars) -> tuple[Move, ...]:
    changes = bars.close[1:] / bars.close[:-1]
    order = np.argsort(-np.abs(np.log(changes)), kind="stable")[:MOST_LISTED]
    return tuple(Move(_show(bars.time[at + 1]), float(changes[at] - 1)) for at in order if changes[at] != 1)


def _show(moment: np.datetime64) -> str:
    return show_time(int(moment.astype(np.int64)))


def _gap_words(gap: Gap) -> str:
    size = describe_gap(round(gap.hours * HOUR))
    missing = "" if gap.missing is None else f", {gap.missing} missing"
    return f"{size} after {gap.after}{missing}"
