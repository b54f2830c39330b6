"""How a run is watched: a live display on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from tailwise.cli.output import duration, note, number
from tailwise.cli.standard_streams import reader_left
from tailwise.run.callbacks import Callback
from tailwise.run.callbacks import Progress as Update
from tailwise.run.health import Alert

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


def figures(metrics: Mapping[str, float], alpha: float | None, limited: str | None = None) -> list[tuple[str, str]]:
    """The numbers worth watching, with their labels; what the update did not measure is left out.

    limited: name of the measure that a limit speaks of, if that is not CVaR.
    """
    cvar = "" if alpha is None else f"CVaR {alpha:.3g}"
    wanted = [
        ("return", "episode/return"),
        *([(cvar, "risk/cvar_return")] if limited or "risk/limit" not in metrics else []),
        ("KL", "policy/kl"),
        ("entropy", "policy/entropy"),
        ("explained variance", "critic/explained_variance"),
        ("evaluation", "evaluate/return"),
    ]
    found = [(label, number(metrics[name])) for label, name in wanted if name in metrics]
    at = 1 if found and found[0][0] == "return" else 0
    return [*found[:at], *_against_limit(metrics, limited or cvar), *found[at:]]


def _against_limit(metrics: Mapping[str, float], label: str) -> list[tuple[str, str]]:
    """The measure beside its limit and the multiplier, where there is a limit."""
    if "risk/limit" not in metrics:
        return []
    measured = f"{number(metrics.get('risk/measure'), 3)} / {number(metrics['risk/limit'], 3)}"
    multiplier = number(metrics["risk/multiplier"], 2) if metrics["risk/active"] == 1.0 else "warm-up"
    return [(label, measured), ("multiplier", multiplier)]


class Watcher(Callback):
    """What both displays share: the last update, the newest alert, the speed."""

    def __init__(self, alpha: float | None, limited: str | None = None) -> None:
        self.alpha = alpha
        self.limited = limited
        self.speed = Speed()
        self.alert: Alert | None = None

    def on_start(self, update: int, steps: int, total_steps: int) -> None:
        self.speed.mark(time.perf_counter(), steps)

    def on_update(self, progress: Update) -> bool | None:
        self.speed.mark(time.perf_counter(), progress.steps)
        if progress.alerts:
            self.alert = progress.alerts[-1]
        return None


class PlainProgress(Watcher):
    """One line every few seconds, and one per kind of alert: readable in a file and in the log of a job."""

    def __init__(self, alpha: float | None, limited: str | None = None) -> None:
        super().__init__(alpha, limited)
        self._next_line = 0.0
        self._alone = False  # whether it was said that nobody reads
        self._told: set[tuple[str, str]] = (
            set()
        )  # rules whose alert was printed; the others of the same rule are counted at the end

    def on_note(self, sentence: str) -> None:
        self.say(sentence)

    def on_update(self, progress: Update) -> bool | None:
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
            *(f"{label} {value}" for label, value in figures(progress.metrics, self.alpha, self.limited)),
            *([] if left is None else [f"{duration(left)} left"]),
        ]
        self.say(", ".join(parts))
        return None

    def say(self, text: str) -> None:
        """Print one line; say once, to whom it may still concern, that nobody reads them any more."""
        print(text, flush=True)
        if not self._alone and reader_left():
            self._alone = True
            note("note: nobody reads the output any more; the run goes on and writes its files as before")


class LiveProgress(Watcher):
    """A bar over the steps with the time that is left, and the newest figures below it."""

    def __init__(self, alpha: float | None, console: Console, limited: str | None = None) -> None:
        super().__init__(alpha, limited)
        self._bar = Progress(
            TextColumn("update {task.fields[update]}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("steps  {task.fields[speed]} steps/s  {task.fields[left]} left"),
            console=console,
            expand=True,
        )
        self._task: Any = None
        self._live = Live(self._bar, console=console, refresh_per_second=4)

    def on_start(self, update: int, steps: int, total_steps: int) -> None:
        super().on_start(update, steps, total_steps)
        self._task = self._bar.add_task("", total=total_steps, completed=steps, update=update, speed="-", left="-")
        self._live.start()

    def on_note(self, sentence: str) -> None:
        self._live.console.print(sentence, highlight=False)

    def on_update(self, progress: Update) -> bool | None:
        super().on_update(progress)
        left = self.speed.remaining(progress.total_steps)
        self._bar.update(
            self._task,
            # The last update may go past the total, which ends with a whole rollout.
            completed=min(progress.steps, progress.total_steps),
            update=progress.update,
            speed=number(self.speed.steps_per_second),
            left="-" if left is None else duration(left),
        )
        table = Table.grid(padding=(0, 3))
        found = figures(progress.metrics, self.alpha, self.limited)
        table.add_row(*(Text(label, style="dim") for label, _ in found))
        table.add_row(*(Text(value, style="bold") for _, value in found))
        parts: list[Any] = [self._bar, table]
        if self.alert is not None:
            style = "red" if self.alert.severity == "error" else "yellow"
            parts.append(Text(f"update {self.alert.update}: {alert_sentence(self.alert)}", style=style))
        self._live.update(Group(*parts))
        return None

    def on_end(self, reason: str) -> None:
        self.stop()

    def stop(self) -> None:
        """Give the terminal back; also when the run was interrupted."""
        self._live.stop()


def alert_sentence(alert: Alert) -> str:
    """Rule, evidence and advice in one line."""
    return f"{alert.severity} {alert.rule}: {alert.evidence}; {alert.advice}"
