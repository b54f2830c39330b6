"""The runs on the page: a table from short ids to folders, and a summary of each (status, progress, alerts).

An id from a request is looked up in the table and never joined to a path.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailwise.core.errors import ConfigError, DataError
from tailwise.core.parsing import parse_yaml
from tailwise.watch.files import (
    ALERTS,
    CONFIG,
    EVALUATIONS,
    METRICS,
    METRICS_TABLE,
    SEVERITIES,
    Stamp,
    Tail,
    finite,
    inside,
    last_row,
    read_inside,
    short_text,
    stamp_inside,
    whole,
)

DEPTH = 3  # folders below a folder of runs that are searched: runs/frontier-1/limit/seed
MOST_RUNS = 500
MOST_FOLDERS = 5000  # looked into in one search
_NOT_RUNS = {"checkpoints", EVALUATIONS, "tensorboard"}
_SEED = re.compile(r"seed_\d{1,19}")
LARGEST_CONFIG = 2**18  # bytes
STALLED_AFTER = 60.0  # seconds without a line, or
STALLED_UPDATES = 20  # this many times the usual time of an update, whichever is longer
UNREADABLE = "unreadable"


@dataclass(frozen=True)
class RunEntry:
    """One run: its id in addresses, its name for people, its resolved folder.

    members: folders of the runs of its seeds, where it has several
    """

    id: str
    name: str
    folder: Path
    members: tuple[Path, ...] = ()


def is_run(folder: Path) -> bool:
    """Whether a (resolved) folder is that of a run."""
    return inside(folder, CONFIG) is not None or inside(folder, METRICS) is not None


def check_roots(paths: Sequence[Path]) -> list[Path]:
    """Resolve the folders to watch; DataError for one that does not exist."""
    roots = []
    for path in paths:
        if not path.is_dir():
            raise DataError(
                f"{path}: there is no such folder; give a run, or a folder that holds runs (default: runs)."
            )
        roots.append(path.resolve())
    return roots


def find_runs(roots: Sequence[Path]) -> dict[str, RunEntry]:
    """Find the runs in (resolved) roots, by id, sorted by name; links that lead out of a root are not followed."""
    runs: dict[str, RunEntry] = {}
    searched = 0
    for root in roots:
        # Level by level: what lies deep in one folder does not use up the search of the others.
        pending = deque([(root, 0)])
        while pending and len(runs) < MOST_RUNS and searched < MOST_FOLDERS:
            folder, depth = pending.popleft()
            searched += 1
            if is_run(folder):
                members = _seeds_of(folder, root)
                for one, inner in ((folder, members), *((member, ()) for member in members)):
                    entry = RunEntry(_id(one), _name(one, root), one, inner)
                    runs[entry.id] = entry
                continue
            if depth < DEPTH:
                pending += [(child, depth + 1) for child in _folders(folder, root)]
    return dict(sorted(runs.items(), key=lambda item: item[1].name))


def _seeds_of(folder: Path, root: Path) -> tuple[Path, ...]:
    """The runs of the seeds inside a run that has several."""
    return tuple(one for one in _folders(folder, root) if _SEED.fullmatch(one.name) and is_run(one))


def _folders(folder: Path, root: Path) -> list[Path]:
    """List the folders inside, resolved, by name, without entries that cannot be read."""
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


class Summary:
    """Summary of one run; reads again only the files that changed."""

    def __init__(self, entry: RunEntry) -> None:
        self.entry = entry
        self._metrics: Stamp | None = None
        self._row: dict[str, Any] = {}
        self._config: tuple[Stamp | None, dict[str, Any]] | None = None
        self._alerts = Tail(entry.folder, ALERTS)
        self._counts: dict[str, int] = {}

    def read(self, now: float | None = None) -> dict[str, Any]:
        """Summarise the run for the list of runs; `now` is seconds since 1970."""
        now = time.time() if now is None else now
        folder = self.entry.folder
        metrics = stamp_inside(folder, METRICS)
        if metrics != self._metrics:
            self._metrics, self._row = metrics, last_row(folder, METRICS) or {}
        self._count_alerts()
        config = self._read_config()
        total = whole(_dig(config, "run", "total_steps"))
        written = metrics or stamp_inside(folder, CONFIG)
        age = max(0.0, now - written.changed) if written is not None else None
        steps = whole(self._row.get("steps"))
        return {
            "id": self.entry.id,
            "name": self.entry.name,
            "status": self._status(age, steps, total, stamp_inside(folder, METRICS_TABLE)),
            "update": self._row.get("update", 0),
            "steps": steps or 0,
            "total_steps": total,
            "changed": None if written is None else round(written.changed),
            "return": finite(self._row.get("episode/return")),
            "steps_per_second": finite(self._row.get("time/steps_per_second")),
            "alerts": dict(self._counts),
            "bad_lines": self._alerts.bad_lines,
            **facts_of(config),
        }

    def _status(self, age: float | None, steps: int | None, total: int | None, table: Stamp | None) -> str:
        if age is None:
            return UNREADABLE
        if steps is not None and total is not None and steps >= total:
            return "finished"
        # The table is written once, at the end; a resumed run goes on writing lines after it.
        if table is not None and self._metrics is not None and table.changed >= self._metrics.changed:
            return "stopped"
        usual = _usual_update_seconds(self._row)
        return "stalled" if age > max(STALLED_AFTER, STALLED_UPDATES * usual) else "running"

    def _count_alerts(self) -> None:
        news = self._alerts.poll()
        if news.reset:
            self._counts = {}
        for alert in news.rows:
            if alert.get("event", "raised") == "raised":
                severity = known_severity(alert.get("severity"))
                self._counts[severity] = self._counts.get(severity, 0) + 1

    def _read_config(self) -> dict[str, Any]:
        stamp = stamp_inside(self.entry.folder, CONFIG)
        if self._config is None or self._config[0] != stamp:
            self._config = (stamp, read_config_loosely(self.entry))
        return self._config[1]


class TogetherSummary(Summary):
    """Summary of a run with several seeds: their steps, alerts and speeds together, the mean of their returns."""

    def __init__(self, entry: RunEntry) -> None:
        super().__init__(entry)
        self._parts = [Summary(RunEntry(_id(one), one.name, one)) for one in entry.members]

    def read(self, now: float | None = None) -> dict[str, Any]:
        now = time.time() if now is None else now
        parts = [one.read(now) for one in self._parts]
        config = self._read_config()
        total, seeds = whole(_dig(config, "run", "total_steps")), whole(_dig(config, "run", "seeds")) or len(parts)
        returns = [part["return"] for part in parts if part["return"] is not None]
        alerts: dict[str, int] = {}
        for part in parts:
            for severity, count in part["alerts"].items():
                alerts[severity] = alerts.get(severity, 0) + count
        return {
            "id": self.entry.id,
            "name": self.entry.name,
            "status": _status_together([part["status"] for part in parts], seeds),
            "update": max(part["update"] for part in parts),
            "steps": sum(part["steps"] for part in parts),
            "total_steps": None if total is None else total * seeds,
            "changed": max((part["changed"] for part in parts if part["changed"] is not None), default=None),
            "return": sum(returns) / len(returns) if returns else None,
            "steps_per_second": sum(part["steps_per_second"] or 0.0 for part in parts if part["status"] == "running"),
            "alerts": alerts,
            "bad_lines": sum(part["bad_lines"] for part in parts),
            **facts_of(config),
        }


def _status_together(statuses: list[str], seeds: int) -> str:
    """The status of a run by those of its seeds that have begun."""
    for status in ("running", UNREADABLE, "stalled"):
        if status in statuses:
            return status
    return "finished" if len(statuses) == seeds and set(statuses) == {"finished"} else "stopped"


def summary_of(entry: RunEntry) -> Summary:
    """The summary of a run with one or several seeds."""
    return TogetherSummary(entry) if entry.members else Summary(entry)


def unread(entry: RunEntry, reason: str) -> dict[str, Any]:
    """Entry of the list for a run that could not be read."""
    return {
        "id": entry.id,
        "name": entry.name,
        "status": UNREADABLE,
        "reason": reason,
        "update": 0,
        "steps": 0,
        "total_steps": None,
        "changed": None,
        "return": None,
        "steps_per_second": None,
        "alerts": {},
        "bad_lines": 0,
        **facts_of({}),
    }


def known_severity(value: Any) -> str:
    """The severity of an alert; warn for a word that no rule has."""
    return value if value in SEVERITIES else "warn"


def read_config_loosely(entry: RunEntry) -> dict[str, Any]:
    """Read config.yaml as plain values; {} if it cannot be read."""
    data = read_inside(entry.folder, CONFIG, limit=LARGEST_CONFIG)
    try:
        tree = parse_yaml(data, what=CONFIG) if data is not None else None
    except ConfigError:
        return {}
    return tree if isinstance(tree, dict) else {}


def facts_of(config: dict[str, Any]) -> dict[str, Any]:
    """Facts of a configuration that distinguish runs: symbols or environment, seed, limit, tail probability."""
    symbols = _dig(config, "data", "names") or _dig(config, "data", "paths") or [_dig(config, "env", "id")]
    names = [name.rsplit("/", 1)[-1] for name in symbols if isinstance(name, str)] if isinstance(symbols, list) else []
    core, seed = _dig(config, "model", "core", "kind"), _dig(config, "seed")
    alpha, limit = _dig(config, "risk", "alpha"), _dig(config, "risk", "limit")
    return {
        "world": ", ".join(names)[:80] or None,
        "core": short_text(core, 40) if isinstance(core, str) else None,
        "seed": whole(seed),
        "alpha": finite(alpha),
        "limit": finite(limit),
    }


def _usual_update_seconds(row: dict[str, Any]) -> float:
    return (finite(row.get("time/rollout")) or 0.0) + (finite(row.get("time/update")) or 0.0)


def _dig(tree: Any, *keys: str) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree
