"""Which runs there are: a table from short ids to folders. An address is looked up here and never joined to a path."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tailwise.core.errors import DataError
from tailwise.watch.names import CONFIG, EVALUATIONS, METRICS
from tailwise.watch.safe_files import inside

DEPTH = 3  # folders below a folder of runs that are searched: runs/frontier-1/limit/seed
MOST_RUNS = 500
MOST_FOLDERS = 5000  # looked into in one search
_NOT_RUNS = {"checkpoints", EVALUATIONS, "tensorboard"}


@dataclass(frozen=True)
class RunEntry:
    """One run: its id in addresses, its name for people, its resolved folder."""

    id: str
    name: str
    folder: Path


def is_run(folder: Path) -> bool:
    """Whether a (resolved) folder is that of a run."""
    return inside(folder, CONFIG) is not None or inside(folder, METRICS) is not None


def check_roots(paths: Sequence[Path]) -> list[Path]:
    """The folders to watch, resolved; a sentence for one that is not there."""
    roots = []
    for path in paths:
        if not path.is_dir():
            raise DataError(
                f"{path}: there is no such folder; give a run, or a folder that holds runs (default: runs)."
            )
        roots.append(path.resolve())
    return roots


def find_runs(roots: Sequence[Path]) -> dict[str, RunEntry]:
    """The runs in (resolved) roots by id, by name; links that lead out of a root are not followed."""
    found: dict[str, RunEntry] = {}
    looked = 0
    for root in roots:
        # Level by level: what lies deep in one folder does not use up the search of the others.
        pending = deque([(root, 0)])
        while pending and len(found) < MOST_RUNS and looked < MOST_FOLDERS:
            folder, depth = pending.popleft()
            looked += 1
            if is_run(folder):
                entry = RunEntry(_id(folder), _name(folder, root), folder)
                found[entry.id] = entry
                continue
            if depth < DEPTH:
                pending += [(child, depth + 1) for child in _folders(folder, root)]
    return dict(sorted(found.items(), key=lambda item: item[1].name))


def _folders(folder: Path, root: Path) -> list[Path]:
    """Folders inside, resolved, by name; entries that cannot be looked at are left out, and only they."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    wanted = [name for name in names if not name.startswith(".") and name not in _NOT_RUNS]
    paths = [path for name in wanted if (path := inside(root, os.fspath(folder / name))) is not None]
    return [path for path in paths if path.is_dir()]


def _name(folder: Path, root: Path) -> str:
    return folder.name if folder == root else str(folder.relative_to(root))


def _id(folder: Path) -> str:
    return hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest()
