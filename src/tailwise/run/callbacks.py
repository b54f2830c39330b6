"""What is called while a run trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tailwise.run.health import Alert


@dataclass(frozen=True)
class Progress:
    """One finished update."""

    update: int
    steps: int
    total_steps: int
    metrics: Mapping[str, float]
    alerts: tuple[Alert, ...]


class Callback:
    """Override what you need. Return False from `on_update` to end the run after its checkpoint."""

    def on_start(self, update: int, steps: int, total_steps: int) -> None:
        """The run starts, or goes on, after `update` updates."""

    def on_note(self, sentence: str) -> None:
        """Something that takes long begins, or is done, before the run starts."""

    def on_update(self, progress: Progress) -> bool | None:
        """An update is done and its metrics are written."""
        return None

    def on_end(self, reason: str) -> None:
        """The run is over; `reason` is a sentence."""

    def on_failure(self, error: BaseException) -> None:
        """The run ends by an exception (Ctrl-C, an environment that raises), which goes on; let go of what is held."""


class StopWhen(Callback):
    """Ends a run, with a checkpoint, after the first update for which `condition` holds."""

    def __init__(self, condition: Callable[[Progress], bool]) -> None:
        self.condition = condition

    def on_update(self, progress: Progress) -> bool | None:
        return False if self.condition(progress) else None
