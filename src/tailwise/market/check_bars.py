"""What is worth knowing about bars before one trusts them: span, rhythm, gaps, empty volume, largest moves."""

from __future__ import annotations

from typing import Any

import numpy as np

from tailwise.market.bars import Bars
from tailwise.market.frequency import HOUR, WEEK, describe_gap, describe_step, find_gaps
from tailwise.market.validation import show_time

SHOWN = 5  # largest gaps and largest moves


def facts(bars: Bars) -> dict[str, Any]:
    """Everything `tailwise data check` says of one series, ready for JSON."""
    stamps = bars.time.astype(np.int64)
    gaps = find_gaps(stamps, int(bars.frequency.bar.astype(np.int64)), bars.frequency.calendar)
    steps = np.diff(stamps)
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
    size = describe_gap(round(gap["hours"] * HOUR))
    missing = "" if gap["missing"] is None else f", {gap['missing']} missing"
    return f"{size} after {gap['after']}{missing}"
