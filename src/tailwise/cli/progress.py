"""Progress of a run on standard output: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from tailwise.cli.output import note, reader_left
from tailwise.core.errors import duration, number
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.config import Config
from tailwise.run.jobs import Line
from tailwise.run.progress import Labels, PlainProgress, Recorder, Watcher, alert_sentence, figures, labels_of


def make_display(config: Config, *, silent: bool) -> list[Callback]:
    """Choose the display: live on a terminal, plain lines elsewhere, none when silent."""
    if silent:
        return []
    labels = labels_of(config)
    return [LiveProgress(labels, Console()) if sys.stdout.isatty() else PlainProgress(labels, LinePrinter())]


@contextlib.contextmanager
def stop_after_update(recorder: Recorder) -> Iterator[None]:
    """Ctrl-C ends the run after the update it is in, with a checkpoint; a second Ctrl-C ends it at once."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        if recorder.stop:
            raise KeyboardInterrupt
        recorder.stop = True
        note("stopping after this update; press Ctrl-C again to stop at once")

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class LinePrinter:
    """Print one line at a time; note once on standard error if the reader has left."""

    def __init__(self) -> None:
        self._alone = False

    def __call__(self, text: str) -> None:
        print(text, flush=True)
        if not self._alone and reader_left():
            self._alone = True
            note("note: nobody reads the output any more; the run goes on and writes its files as before")


class LiveProgress(Watcher):
    """A bar over the steps with the time that is left, and the newest figures below it."""

    def __init__(self, labels: Labels, console: Console) -> None:
        super().__init__(labels)
        self._bar = Bar(
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

    def on_update(self, progress: Progress) -> bool | None:
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
        newest = figures(progress.metrics, self.labels)
        table.add_row(*(Text(label, style="dim") for label, _ in newest))
        table.add_row(*(Text(value, style="bold") for _, value in newest))
        parts: list[Any] = [self._bar, table]
        if self.alert is not None:
            style = "red" if self.alert.severity == "error" else "yellow"
            parts.append(Text(f"update {self.alert.update}: {alert_sentence(self.alert)}", style=style))
        self._live.update(Group(*parts))
        return None

    def on_end(self, reason: str) -> None:
        self.stop()

    def stop(self) -> None:
        """Restore the terminal, also when the run was interrupted."""
        self._live.stop()


class SeedLines:
    """Progress of several seeds: on a terminal the newest line of each, elsewhere their lines as they come."""

    def __init__(self, *, silent: bool) -> None:
        self._print = LinePrinter()
        self._silent = silent
        self._newest: dict[str, str] = {}
        live = not silent and sys.stdout.isatty()
        self._live = Live(console=Console(), refresh_per_second=4) if live else None

    def __enter__(self) -> SeedLines:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, line: Line) -> None:
        if line.kind == "note":
            note(f"note: {line.label}: {line.text}")
        elif self._live is not None:
            self._newest[line.label] = line.text
            table = Table.grid(padding=(0, 2))
            for label, text in sorted(self._newest.items()):
                table.add_row(Text(label, style="bold"), Text(text))
            self._live.update(table)
        elif not self._silent:
            self._print(f"{line.label}: {line.text}")
