"""Rules as data (signal, condition over a window, severity, action) and the alerts that they raise."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tailwise.core.errors import ConfigError
from tailwise.core.metrics import find_spec

Severity = Literal["info", "warn", "error"]
Action = Literal["warn", "shrink", "skip", "rollback", "stop"]
ACTIONS: tuple[Action, ...] = ("warn", "shrink", "skip", "rollback", "stop")  # from the mildest to the strongest
#: How the newest `window` values of a signal become the number that is compared.
#: last: the newest; mean, min, max: of the window; slope: least squares, per update; growth: newest minus smallest;
#: drop: largest minus newest; of_median, of_peak: newest over the median or the largest of the window, itself left out.
Statistic = Literal["last", "mean", "min", "max", "slope", "growth", "drop", "of_median", "of_peak"]
_FIELD = re.compile(r"\{([^{}:]+)(?::([^{}]+))?\}")


@dataclass(frozen=True)
class Alert:
    """One finding: which rule, how bad, the evidence in a sentence, and what to do.

    event: "raised" when the rule begins to fire, "cleared" when it has been quiet long enough, "acted" when something
    was done about it (the evidence then says what). signal and value: the number that the rule looked at.
    """

    update: int
    rule: str
    severity: str
    evidence: str
    advice: str
    event: str = "raised"
    action: str = "warn"
    signal: str | None = None
    value: float | None = None

    def to_json(self) -> dict[str, Any]:
        """A flat dictionary."""
        return asdict(self)


@dataclass(frozen=True)
class Condition:
    """Holds when the statistic lies above `above` or below `below`.

    It cannot hold before the window is full; `growth` and `drop` need two values only.
    """

    above: float | None = None
    below: float | None = None
    statistic: Statistic = "last"
    window: int = 1

    def __post_init__(self) -> None:
        if self.above is None and self.below is None:
            raise ConfigError("a condition needs a limit: give above, below or both")
        if self.window < 2 and self.statistic not in ("last", "mean", "min", "max"):
            raise ConfigError(f"the statistic {self.statistic} needs a window of at least 2 updates, not {self.window}")

    def measure(self, values: Sequence[float]) -> float | None:
        """The statistic of the newest values (oldest first), None while there are too few or it is undefined."""
        if len(values) < (2 if self.statistic in ("growth", "drop") else self.window):
            return None
        newest = values[-self.window :]
        return _STATISTICS[self.statistic](newest)

    def holds(self, measured: float) -> bool:
        """Whether a statistic lies outside."""
        return (self.above is not None and measured > self.above) or (self.below is not None and measured < self.below)

    def words(self, measured: float) -> str:
        """Which limit it passed, e.g. "above 50"."""
        if self.above is not None and measured > self.above:
            return f"above {self.above:g}"
        return f"below {self.below:g}"


def _slope(values: Sequence[float]) -> float:
    middle = (len(values) - 1) / 2
    spread = sum((i - middle) ** 2 for i in range(len(values)))
    return sum((i - middle) * value for i, value in enumerate(values)) / spread


def _over(value: float, base: float) -> float | None:
    return value / base if base > 0 else None


_STATISTICS: Mapping[str, Callable[[Sequence[float]], float | None]] = {
    "last": lambda v: v[-1],
    "mean": lambda v: math.fsum(v) / len(v),
    "min": min,
    "max": max,
    "slope": _slope,
    "growth": lambda v: v[-1] - min(v),
    "drop": lambda v: max(v) - v[-1],
    "of_median": lambda v: _over(v[-1], statistics.median(v[:-1])),
    "of_peak": lambda v: _over(v[-1], max(v[:-1])),
}

_WORDS: dict[str, str] = {
    "last": "{signal} is {value}",
    "mean": "{signal} is {value} on average over {window} updates",
    "min": "{signal} was at least {value} for {window} updates",
    "max": "{signal} was at most {value} for {window} updates",
    "slope": "{signal} changes by {value} per update over {window} updates",
    "growth": "{signal} grew by {value} within {window} updates",
    "drop": "{signal} fell by {value} within {window} updates",
    "of_median": "{signal} is {value} times its median of the last {window} updates",
    "of_peak": "{signal} is {value} times its largest of the last {window} updates",
}


@dataclass(frozen=True)
class Rule:
    """One rule. It fires after its condition held `raise_after` times in a row, and clears after `clear_after` times
    without. An update in which the signal was not measured counts for neither.

    when: further (signal, condition) pairs that must hold in the same update.
    not_before: updates of a run in which the rule is silent, because nothing is learnt yet.
    evidence: a sentence with {metric:format} for any metric of the update; None: made from signal and condition.
    reason: where the threshold comes from.
    """

    name: str
    signal: str
    condition: Condition
    severity: Severity
    advice: str
    reason: str
    action: Action = "warn"
    evidence: str | None = None
    raise_after: int = 1
    clear_after: int = 1
    when: tuple[tuple[str, Condition], ...] = ()
    not_before: int = 0

    @property
    def reads(self) -> tuple[tuple[str, Condition], ...]:
        """All (signal, condition) pairs."""
        return ((self.signal, self.condition), *self.when)

    def describe(self, measured: float, signals: Mapping[str, float], notes: Mapping[str, str]) -> str:
        """The evidence."""
        if self.evidence is not None:
            return fill(self.evidence, signals)
        if self.signal in notes:
            return notes[self.signal]
        spec = find_spec(self.signal)
        unit = "" if spec is None or spec.unit in ("1", "0/1", "share", "count") else f" {spec.unit}"
        if self.condition.statistic in ("of_median", "of_peak"):
            unit = ""
        words = _WORDS[self.condition.statistic].format(
            signal=self.signal, value=f"{measured:.4g}{unit}", window=self.condition.window
        )
        return f"{words}, {self.condition.words(measured)}{unit}"


def fill(template: str, signals: Mapping[str, float]) -> str:
    """A sentence with its {metric:format} filled in; a metric that is not there is told as unknown."""

    def value(match: re.Match[str]) -> str:
        metric = signals.get(match[1])
        return "unknown" if metric is None else format(metric, match[2] or ".4g")

    return _FIELD.sub(value, template)
