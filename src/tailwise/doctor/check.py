"""One check of an audit, with counts of verdicts and sparklines for tables and pages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["ok", "warn", "fail", "unknown"]
VERDICTS: tuple[Verdict, ...] = ("fail", "warn", "unknown", "ok")  # the worst first
BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Check:
    """One check of an audit.

    name       what was checked
    verdict    ok, warn, fail, or unknown where it could not be checked
    evidence   the numbers or the error behind the verdict
    meaning    why it matters
    advice     what to do; empty if nothing
    series     the numbers behind the evidence, oldest first, for a sparkline
    """

    name: str
    verdict: Verdict
    evidence: str
    meaning: str
    advice: str = ""
    series: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A flat dictionary; what is undefined in the series is None."""
        series = [value if math.isfinite(value) else None for value in self.series]
        return {**asdict(self), "series": series}


def failed(checks: Sequence[Check]) -> bool:
    """Whether anything failed."""
    return any(check.verdict == "fail" for check in checks)


def counts(checks: Sequence[Check]) -> dict[Verdict, int]:
    """Count the checks of each verdict."""
    return {verdict: sum(check.verdict == verdict for check in checks) for verdict in VERDICTS}


def counted(checks: Sequence[Check]) -> str:
    """'1 failed, 2 warnings, 9 ok'."""
    numbers = counts(checks)
    words = {
        "fail": "failed",
        "warn": "warnings" if numbers["warn"] != 1 else "warning",
        "unknown": "unknown",
        "ok": "ok",
    }
    return ", ".join(f"{number} {words[verdict]}" for verdict, number in numbers.items() if number)


def thin(series: Sequence[float], points: int) -> list[float]:
    """At most `points` numbers: the mean of each stretch, without what is not finite; NaN where nothing is left."""
    if len(series) <= points:
        return list(series)
    edges = [round(k * len(series) / points) for k in range(points + 1)]
    return [_mean(series[low:high]) for low, high in itertools.pairwise(edges)]


def sparkline(series: Sequence[float], width: int = 20) -> str:
    """The course of a series in one line of text; a blank where it is undefined."""
    values = thin(series, width)
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    if high == low:
        return "".join(BLOCKS[3] if math.isfinite(value) else " " for value in values)
    step = (high - low) / (len(BLOCKS) - 1)
    return "".join(BLOCKS[round((value - low) / step)] if math.isfinite(value) else " " for value in values)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan
