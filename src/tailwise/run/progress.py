"""How a run is told about while it trains: its figures with their units, its speed, a line every few seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tailwise.core.errors import duration, number
from tailwise.learner.risk_config import CvarMeasure, RiskConstraint, RiskOff
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.config import Config
from tailwise.run.health import Alert
from tailwise.run.risk_words import tail_name

PLAIN_LINE_EVERY = 5.0  # seconds
SPEED_WINDOW = 20  # updates over which steps/s are averaged


class Speed:
    """Steps per second over the newest updates, evaluations and checkpoints included, and the time that is left."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=SPEED_WINDOW + 1)

    def mark(self, now: float, steps: int) -> None:
        """`steps` were done at time `now` (seconds)."""
        self._marks.append((now, steps))

    @property
    def steps_per_second(self) -> float | None:
        """None before the second mark."""
        if len(self._marks) < 2 or self._marks[-1][0] <= self._marks[0][0]:
            return None
        return (self._marks[-1][1] - self._marks[0][1]) / (self._marks[-1][0] - self._marks[0][0])

    def remaining(self, total: int) -> float | None:
        """Seconds until `total` steps at this speed."""
        speed = self.steps_per_second
        if speed is None or speed <= 0:
            return None
        return max(0.0, (total - self._marks[-1][1]) / speed)


@dataclass(frozen=True)
class Labels:
    """How the numbers of a run are named while it trains: level, horizon and unit of its tail.

    cvar     "CVaR 5% over 100 bars"; None when risk is off
    limited  the same of the measure that a limit speaks of
    market   rewards are log-returns and shown in percent; elsewhere they have the unit of the environment's reward
    """

    cvar: str | None
    limited: str | None
    market: bool

    def amount(self, value: float | None, digits: int = 3) -> str:
        """A return or a tail with its unit."""
        if value is None:
            return number(None)
        return f"{number(100 * value, digits)}%" if self.market else f"{number(value, digits)} reward"

    def bare(self, value: float, digits: int = 3) -> str:
        """The same without the word for a reward, where another amount stands beside it."""
        return self.amount(value, digits).removesuffix(" reward")


def labels_of(config: Config) -> Labels:
    """The labels for the runs of a configuration."""
    market = config.env.words.percent
    risk = config.risk
    if isinstance(risk, RiskOff):
        return Labels(None, None, market)
    cvar = tail_name(CvarMeasure(), risk.alpha, config)
    limited = tail_name(risk.measure, risk.alpha, config) if isinstance(risk, RiskConstraint) else None
    return Labels(cvar, limited, market)


def figures(metrics: Mapping[str, float], labels: Labels) -> list[tuple[str, str]]:
    """The numbers worth watching, with their labels and units; what the update did not measure is left out."""
    found: list[tuple[str, str]] = []
    for name, market, elsewhere in (
        ("episode/return", "episode log-return", "episode return"),
        ("evaluate/return", "log-return of the select window", "evaluation"),
    ):
        if name in metrics:
            shown = labels.bare(metrics[name], 4)
            found.append((market if labels.market else elsewhere, shown))
    tail = _against_limit(metrics, labels)
    if labels.cvar is not None and "risk/cvar_return" in metrics and labels.cvar not in dict(tail):
        tail.append((labels.cvar, labels.amount(metrics["risk/cvar_return"])))
    others = (("KL", "policy/kl"), ("entropy", "policy/entropy"), ("explained variance", "critic/explained_variance"))
    return [*found, *tail, *((label, number(metrics[name])) for label, name in others if name in metrics)]


def _against_limit(metrics: Mapping[str, float], labels: Labels) -> list[tuple[str, str]]:
    """The measure beside its limit and the multiplier, where there is a limit."""
    if "risk/limit" not in metrics or labels.limited is None:
        return []
    measured = f"{labels.amount(metrics.get('risk/measure'))} (limit {labels.bare(metrics['risk/limit'])})"
    acts = metrics["risk/active"] == 1.0
    multiplier = number(metrics["risk/multiplier"], 2) if acts else "0 (warm-up: the limit does not act yet)"
    return [(labels.limited, measured), ("multiplier", multiplier)]


class Watcher(Callback):
    """What both displays share: the last update, the newest alert, the speed."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.speed = Speed()
        self.alert: Alert | None = None

    def on_start(self, update: int, steps: int, total_steps: int) -> None:
        self.speed.mark(time.perf_counter(), steps)

    def on_update(self, progress: Progress) -> bool | None:
        self.speed.mark(time.perf_counter(), progress.steps)
        if progress.alerts:
            self.alert = progress.alerts[-1]
        return None


class PlainProgress(Watcher):
    """One line every few seconds, and one per kind of alert: readable in a file and in the log of a job.

    say: where a line goes, standard output by default.
    """

    def __init__(self, labels: Labels, say: Callable[[str], None] = print) -> None:
        super().__init__(labels)
        self.say = say
        self._next_line = 0.0
        # Rules whose alert was printed; the others of the same rule are counted at the end.
        self._told: set[tuple[str, str]] = set()

    def on_note(self, sentence: str) -> None:
        self.say(sentence)

    def on_update(self, progress: Progress) -> bool | None:
        super().on_update(progress)
        for alert in progress.alerts:
            if (alert.rule, alert.event) in self._told:
                continue
            self._told.add((alert.rule, alert.event))
            self.say(f"update {alert.update}: {alert_sentence(alert)}")
        now = time.perf_counter()
        if now < self._next_line and progress.steps < progress.total_steps:
            return None
        self._next_line = now + PLAIN_LINE_EVERY
        left = self.speed.remaining(progress.total_steps)
        parts = [
            f"update {progress.update}",
            f"{progress.steps:,}/{progress.total_steps:,} steps",
            f"{number(self.speed.steps_per_second)} steps/s",
            *(f"{label} {value}" for label, value in figures(progress.metrics, self.labels)),
            *([] if left is None else [f"{duration(left)} left"]),
        ]
        self.say(", ".join(parts))
        return None


def alert_sentence(alert: Alert) -> str:
    """Rule, evidence and advice in one line."""
    return f"{alert.severity} {alert.rule}: {alert.evidence}; {alert.advice}"
