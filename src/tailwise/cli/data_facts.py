"""What is worth knowing about bars before one trusts them: span, rhythm, gaps, empty volume, largest moves."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailwise.market.bars import Bars
from tailwise.market.frequency import DAY, HOUR, WEEK, describe_step
from tailwise.market.validation import show_time

SHOWN = 5  # largest gaps and largest moves
LONG_WEEKEND = 5 * DAY  # from Thursday to Tuesday at Easter: an exchange closes that long and nothing is missing


def facts(bars: Bars) -> dict[str, Any]:
    """Everything `tailwise data check` says of one series, ready for JSON."""
    gaps = find_gaps(bars)
    steps = np.diff(bars.time).astype(np.int64)
    largest = gaps[np.argsort(-steps[gaps], kind="stable")[:SHOWN]]
    repairs = [note for note in bars.notes if note.startswith("repair ")]
    return {
        "symbol": bars.symbol,
        "bars": len(bars),
        "first": _show(bars.time[0]),
        "last": _show(bars.time[-1]),
        "bar": describe_step(int(bars.frequency.bar.astype(np.int64))),
        "periods_per_year": bars.frequency.periods_per_year,
        "calendar": bars.frequency.calendar,
        "frequency": bars.frequency.sentence,
        "label": bars.label,
        "notes": [note for note in bars.notes if note not in repairs],
        "repairs": repairs,
        "gaps": len(gaps),
        "largest_gaps": [_gap(bars, int(at)) for at in largest],
        "zero_volume": int(np.sum(bars.volume == 0)),
        "dividends": None if bars.dividends is None else int(np.sum(bars.dividends > 0)),
        "largest_moves": largest_moves(bars),
        "data_hash": bars.data_hash(),
    }


def find_gaps(bars: Bars) -> NDArray[np.int64]:
    """Index of each bar after which bars are missing, int64 [G].

    24/7: any step longer than the bar. Exchange: a step of more than five days; or, within a UTC day, one longer than
    the bar, unless its length recurs on half of the days (and at least three times) as a daily pause does. Nights,
    weekends and holidays of an exchange are no gaps. Weeks and months: a step of more than one and a half bars.
    """
    stamps = bars.time.astype(np.int64)
    steps, bar = np.diff(stamps), int(bars.frequency.bar.astype(np.int64))
    if bar >= WEEK:
        return np.flatnonzero(steps > 1.5 * bar)
    slack = HOUR if bar >= DAY else 0  # days of 25 hours
    if bars.frequency.calendar == "24/7":
        return np.flatnonzero(steps > bar + slack)
    day = stamps // DAY
    inside = (day[1:] == day[:-1]) & (steps > bar)
    lengths, counts = np.unique(steps[inside], return_counts=True)
    pauses = lengths[counts >= max(3, 0.5 * len(np.unique(day)))]
    return np.flatnonzero((inside & ~np.isin(steps, pauses)) | (steps > max(LONG_WEEKEND, bar) + slack))


def _gap(bars: Bars, at: int) -> dict[str, Any]:
    length = int((bars.time[at + 1] - bars.time[at]).astype(np.int64))
    whole = int(bars.frequency.bar.astype(np.int64))
    missing = round(length / whole) - 1 if bars.frequency.calendar == "24/7" and whole < WEEK else None
    return {
        "after": _show(bars.time[at]),
        "before": _show(bars.time[at + 1]),
        "hours": length / HOUR,
        "missing": missing,  # None where the calendar does not say how many there should be
    }


def largest_moves(bars: Bars) -> list[dict[str, Any]]:
    """The largest changes from close to close, by the size of their logarithm."""
    changes = bars.close[1:] / bars.close[:-1]
    order = np.argsort(-np.abs(np.log(changes)), kind="stable")[:SHOWN]
    return [{"time": _show(bars.time[at + 1]), "change": float(changes[at] - 1)} for at in order if changes[at] != 1]


def _show(moment: np.datetime64) -> str:
    return show_time(int(moment.astype(np.int64)))


def print_facts(told: dict[str, Any]) -> None:
    """The facts of one series for people."""
    gaps = f"{told['gaps']}"
    if told["gaps"]:
        gaps += "; largest: " + ", ".join(_say_gap(gap) for gap in told["largest_gaps"])
    moves = ", ".join(f"{move['change']:+.2%} on {move['time']}" for move in told["largest_moves"])
    lines = [
        ("symbol", told["symbol"]),
        ("label", told["label"]),
        ("bars", f"{told['bars']:,} from {told['first']} to {told['last']} (open times, UTC)"),
        ("frequency", told["frequency"]),
        ("per year", f"{told['periods_per_year']:g} bars, calendar {told['calendar']}"),
        ("gaps", gaps),
        ("zero volume", f"{told['zero_volume']:,} of {told['bars']:,} bars"),
        *([] if told["dividends"] is None else [("dividends", f"in {told['dividends']:,} bars")]),
        ("moves", f"largest: {moves}" if moves else "none: all closes are equal"),
        *(("understood", note) for note in told["notes"]),
        *(("repaired", note) for note in told["repairs"]),
        ("data hash", told["data_hash"]),
    ]
    if "saved" in told:
        saved = told["saved"]
        lines.append(
            ("saved", f"{saved['file']}, read as symbol {saved['symbol']} with data hash {saved['data_hash']}")
        )
    for name, text in lines:
        print(f"{name:<12} {text}")


def _say_gap(gap: dict[str, Any]) -> str:
    days = gap["hours"] / 24
    size = f"{days:.4g} days" if days >= 2 else f"{gap['hours']:.4g} h"
    missing = "" if gap["missing"] is None else f", {gap['missing']} missing"
    return f"{size} after {gap['after']}{missing}"
