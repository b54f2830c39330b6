"""What a trainer writes down after an update: metrics, alerts, and the checkpoints that are due."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tailwise.run import checkpoint as ckpt
from tailwise.run.health.rule import Alert
from tailwise.run.metric_store import MetricStore
from tailwise.run.run_folder import append_alerts

if TYPE_CHECKING:
    from tailwise.run.trainer import Trainer


def record_update(trainer: Trainer, metrics: dict[str, float], alerts: list[Alert], *, last: bool) -> str | None:
    """Write an update down; a sentence when the run cannot go on because its files cannot be written."""
    trainer.alerts.extend(alert for alert in alerts if alert.event == "raised")
    if trainer.run_dir is None or trainer.store is None:
        trainer.history.append({"update": trainer.update, "steps": trainer.steps, **metrics})
        return None
    try:
        if trainer.lock is not None:
            trainer.lock.check()
        append_alerts(trainer.run_dir, alerts)
        trainer.store.append(trainer.update, trainer.steps, metrics)
        if "evaluate/return" in metrics and trainer.risk.selectable and trainer.evaluations_without_gain == 0:
            # After the line of this update: a run may be resumed from its best checkpoint, and the line must be there.
            try_to_save(trainer, None, alerts)
        # Who resumes after a roll-back must not continue from the states that it left.
        went_back = any(alert.event == "acted" and alert.action == "rollback" for alert in alerts)
        due = trainer.update % trainer.config.run.checkpoint_every == 0
        if last or due or went_back or not trainer.saved:
            try_to_save(trainer, trainer.update, alerts)
    except OSError as error:
        trainer.saved = False
        return f"the files of the run cannot be written ({error}); free the disk, then resume the run"
    return None


def try_to_save(trainer: Trainer, update: int | None, alerts: list[Alert]) -> None:
    """A checkpoint; a disk that does not take it is an alert, and the next update tries again."""
    if trainer.run_dir is None or trainer.store is None:
        return
    try:
        _write_checkpoint(trainer, trainer.run_dir, trainer.store, update)
        trainer.saved = True
    except OSError as error:
        if trainer.saved:
            told = f"the checkpoint was not written ({error}); the ones before it are untouched"
            advice = "free the disk; writing is tried again after every update"
            alert = Alert(trainer.update, "checkpoint_failed", "error", told, advice)
            trainer.alerts.append(alert)
            alerts.append(alert)
            append_alerts(trainer.run_dir, [alert])
        trainer.saved = False


def _write_checkpoint(trainer: Trainer, run_dir: Path, store: MetricStore, update: int | None) -> None:
    """The checkpoint of an update (None: the best one), after the lines that it relies on."""
    store.sync()
    trainer.write_checkpoint(ckpt.checkpoint_path(run_dir, update))
    if update is not None:
        ckpt.prune(run_dir, trainer.config.run.keep)
