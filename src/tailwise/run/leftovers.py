"""What a writer of a run that was killed left behind: half-written files and folders, half-deleted checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path

from tailwise.core.atomic import recover_folders, remove_leftovers
from tailwise.core.signature import FILE as SIGNATURE
from tailwise.run.checkpoint import DELETED
from tailwise.run.health.dump import FOLDER as DUMPS
from tailwise.run.metric_store import FILE as METRICS
from tailwise.run.metric_store import TABLE
from tailwise.run.run_folder import ALERTS, CONFIG, MANIFEST

# Of the files beside them, only the owner of the run's lock writes these: `report` writes its page while a run trains.
_FILES = (CONFIG, MANIFEST, SIGNATURE, ALERTS, METRICS, TABLE)


def remove_unfinished(run_dir: Path) -> list[Path]:
    """Finish or undo what was cut short and remove the rest; returns what was removed.

    Only for the owner of the run's lock: the unfinished work of a living writer looks the same.
    """
    removed = remove_leftovers(run_dir, of=_FILES)
    for folder in (run_dir / "checkpoints", run_dir / DUMPS):
        if folder.is_dir() and not folder.is_symlink():
            recover_folders(folder)
            removed += remove_leftovers(folder)
            for half in sorted(folder.glob(f"{DELETED}*")):
                shutil.rmtree(half)
                removed.append(half)
    return removed
