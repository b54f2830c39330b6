"""Which runs there are, how far they have come, and which of their checkpoints are no longer needed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailwise.core.errors import CheckpointError, DataError, TailwiseError
from tailwise.run import checkpoint as ckpt
from tailwise.run.config import Config
from tailwise.run.lock import RunLock
from tailwise.run.metric_store import FILE as METRICS
from tailwise.run.metric_store import parse_row
from tailwise.run.run_files import read_end
from tailwise.run.run_folder import CONFIG, read_alerts, read_config, remove_unfinished
from tailwise.run.seeds import members_of

FINISHED, UNFINISHED, NOT_STARTED, BROKEN = "finished", "unfinished", "not started", "broken"
_DEEPEST = 3  # runs of a walk-forward lie in its folder, which lies in runs/
_SCORES = ("evaluate/best", "evaluate/return", "episode/return")  # the first that a run has is its score
_LAST_BYTES = 65_536  # of metrics.jsonl, more than one line is long


@dataclass(frozen=True)
class Listed:
    """One run. score: newest value of the metric `measured`; changed: seconds since the epoch."""

    folder: str
    status: str
    note: str  # why it is broken, or why it ended; else empty
    seed: int | None
    updates: int
    steps: int
    total_steps: int | None
    score: float | None
    measured: str | None
    alerts: int
    bytes: int
    changed: float


@dataclass(frozen=True)
class Spare:
    """A checkpoint that a finished or continued run no longer needs."""

    path: Path
    bytes: int


def find_runs(root: Path) -> list[Path]:
    """All run folders in and below `root`, which may be one itself, by name."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; give the folder that holds the runs.")
    return sorted(_below(root, _DEEPEST))


def _below(folder: Path, deeper: int) -> Iterator[Path]:
    if (folder / CONFIG).exists():
        yield folder
        return
    if deeper:
        for one in folder.iterdir():
            if one.is_dir() and not one.is_symlink() and not one.name.startswith("."):
                yield from _below(one, deeper - 1)


def describe(folder: Path) -> Listed:
    """Read what a run says about itself; a run that cannot be read is listed as broken, with the reason."""
    try:
        members = members_of(folder, read_config(folder))
    except (TailwiseError, OSError):
        members = [folder]  # the reason is told below
    if members != [folder]:
        return _together(folder, members)
    size, changed = _size(folder), max((one.lstat().st_mtime for one in folder.iterdir()), default=0.0)
    try:
        config = read_config(folder)
        last = last_metrics(folder)
        alerts = len(read_alerts(folder))
        status, note = _status(folder, config, last)
    except (TailwiseError, OSError) as error:
        return Listed(str(folder), BROKEN, str(error), None, 0, 0, None, None, None, 0, size, changed)
    measured = next((name for name in _SCORES if last.get(name) is not None), None)
    return Listed(
        folder=str(folder),
        status=status,
        note=note,
        seed=config.seed,
        updates=int(last.get("update", 0)),
        steps=int(last.get("steps", 0)),
        total_steps=config.run.total_steps,
        score=None if measured is None else float(last[measured]),
        measured=measured,
        alerts=alerts,
        bytes=size,
        changed=changed,
    )


def _together(folder: Path, members: list[Path]) -> Listed:
    """A run with several seeds: steps, alerts and bytes of all, the mean of their scores, the status of the last one
    to come."""
    config = read_config(folder)
    parts = [describe(one) for one in members if (one / CONFIG).exists()]
    broken = next((one for one in parts if one.status == BROKEN), None)
    if broken is not None:
        status, note = BROKEN, broken.note
    elif len(parts) == len(members) and all(one.status == FINISHED for one in parts):
        status, note = FINISHED, f"{len(members)} seeds are trained"
    else:
        begun = [one for one in parts if one.status != NOT_STARTED]
        done = sum(one.status == FINISHED for one in parts)
        status, note = UNFINISHED if begun else NOT_STARTED, f"{done} of {len(members)} seeds are trained"
    measured = next((name for name in _SCORES if parts and all(one.measured == name for one in parts)), None)
    scores = [one.score for one in parts if one.score is not None]
    return Listed(
        folder=str(folder),
        status=status,
        note=note,
        seed=config.seed,
        updates=sum(one.updates for one in parts),
        steps=sum(one.steps for one in parts),
        total_steps=config.run.total_steps * len(members),
        score=None if measured is None else sum(scores) / len(scores),
        measured=measured,
        alerts=sum(one.alerts for one in parts),
        bytes=_size(folder),
        changed=max((one.lstat().st_mtime for one in folder.iterdir()), default=0.0),
    )


def newest_rows(folder: Path, count: int) -> list[dict[str, Any]]:
    """The newest `count` whole lines of metrics.jsonl, the newest last, without what is undefined."""
    path = folder / METRICS
    if not path.exists():
        return []
    limit = count * _LAST_BYTES
    data = read_end(path, root=folder, count=limit)
    lines = data.split(b"\n")[:-1]  # what follows the last newline is torn
    whole = lines[1:] if len(data) == limit else lines  # and so may be what was cut off at the beginning
    rows = [parse_row(line, what=f"{path}, one of its last lines") for line in whole[-count:]]
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def last_metrics(folder: Path) -> dict[str, Any]:
    """The newest whole line of metrics.jsonl; empty when there is none."""
    return next(iter(newest_rows(folder, 1)), {})


def _status(folder: Path, config: Config, last: dict[str, Any]) -> tuple[str, str]:
    if not last and not ckpt.checkpoints_in(folder):
        return NOT_STARTED, ""
    if int(last.get("steps", 0)) >= config.run.total_steps:
        return FINISHED, "all steps are done"
    state = _newest_state(folder)
    patience = config.evaluate.patience
    if state is not None and patience is not None and int(state.get("evaluations_without_gain", 0)) >= patience:
        return FINISHED, "the evaluation did not improve any more"
    return UNFINISHED, ""


def _newest_state(folder: Path) -> dict[str, Any] | None:
    """Plain numbers of the newest checkpoint; None when there is no good one."""
    newest, _ = ckpt.latest_good(folder)
    if newest is None:
        return None
    return ckpt.read_training(newest).json


def spare_checkpoints(folder: Path) -> list[Spare]:
    """Numbered checkpoints older than the newest good one. `best` and that one stay, and so do newer broken ones."""
    if (parts := _parts(folder)) is not None:
        return [spare for one in parts for spare in spare_checkpoints(one)]
    newest, _ = ckpt.latest_good(folder)
    if newest is None or newest.name == ckpt.BEST:
        return []  # none of the numbered ones is good: nothing is thrown away that somebody may still repair
    numbered = [path for path in ckpt.checkpoints_in(folder) if path.name != ckpt.BEST]
    older = numbered[numbered.index(newest) + 1 :]
    return [Spare(path, _size(path)) for path in older]


def remove_spare(folder: Path) -> list[Spare]:
    """Delete the checkpoints that a run no longer needs; LockedError while somebody writes there."""
    if (parts := _parts(folder)) is not None:
        return [spare for one in parts for spare in remove_spare(one)]
    try:
        if not spare_checkpoints(folder):
            return []  # a run in which nothing is to be deleted is not even locked
    except (CheckpointError, OSError, ValueError):
        pass  # checkpoints vanish while they are looked at: whoever trains holds the lock, any other cause fails below
    with RunLock(folder, visiting=True).held():
        remove_unfinished(folder)
        spare = spare_checkpoints(folder)
        for one in spare:
            _remove(one)
    return spare


def _parts(folder: Path) -> list[Path] | None:
    """The runs of the seeds that have begun; None for a run with one seed."""
    if (folder / "checkpoints").is_dir():
        return None
    members = members_of(folder, read_config(folder))
    return None if members == [folder] else [one for one in members if (one / CONFIG).exists()]


def _remove(spare: Spare) -> None:
    """Delete a checkpoint: renamed first, so that a kill never leaves half of it under a valid name."""
    hidden = spare.path.with_name(f"{ckpt.DELETED}{spare.path.name}")
    spare.path.rename(hidden)
    shutil.rmtree(hidden)


def _size(folder: Path) -> int:
    return sum(one.lstat().st_size for one in folder.rglob("*") if one.is_file() and not one.is_symlink())
