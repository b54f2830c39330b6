"""The audit of a run: every check, in the order in which one would look."""

from __future__ import annotations

from pathlib import Path

from tailwise.core.errors import DataError
from tailwise.doctor import run_course as course
from tailwise.doctor import run_files as files
from tailwise.doctor.check import Check
from tailwise.run.metric_store import FILE
from tailwise.run.run_folder import CONFIG


def audit_run(run: str | Path, *, trust: bool = False) -> list[Check]:
    """Everything that can be said about a run from its files, without changing any of them.

    trust: compute its features again, also if that executes code that somebody else may have written.
    """
    folder = Path(run)
    if not (folder / CONFIG).exists() and not (folder / FILE).exists():
        raise DataError(f"{folder} is not the folder of a run: it has no {CONFIG}; give the folder that train made.")
    configured, config = files.check_config(folder)
    made, manifest = files.check_manifest(folder, config)
    metrics, rows = files.check_metrics_file(folder)
    saved, newest = files.check_checkpoints(folder, config, rows)
    return [
        configured,
        made,
        files.check_code(folder, config),
        files.check_bars(folder, config, manifest, trust=trust),
        metrics,
        saved,
        files.check_weights(folder),
        files.check_resume(newest, rows, manifest),
        course.check_progress(folder, rows, config),
        *course.check_alerts(folder, rows),
        course.check_finite(rows),
        *course.check_bands(rows),
        course.check_calibration(rows),
        course.check_limit(rows, config),
        course.check_evaluation(folder),
        course.check_speed(rows),
        course.check_memory(rows),
    ]
