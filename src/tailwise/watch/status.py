"""One line about a run, from the times and the last lines of its files: is it running, how far, what was alerted."""

from __future__ import annotations

import time
from typing import Any

from tailwise.core.errors import ConfigError
from tailwise.core.limited_yaml import parse_yaml
from tailwise.watch.names import ALERTS, CONFIG, METRICS, METRICS_TABLE, SEVERITIES
from tailwise.watch.run_table import RunEntry
from tailwise.watch.safe_files import Stamp, read_inside, stamp_inside
from tailwise.watch.tail import Tail, last_row
from tailwise.watch.values import finite, short_text, whole

LARGEST_CONFIG = 2**18  # bytes
STALLED_AFTER = 60.0  # seconds without a line, or
STALLED_UPDATES = 20  # this many times the usual time of an update, whichever is longer
UNREADABLE = "unreadable"


class Summary:
    """Keeps what was read of one run, and reads again only files that changed."""

    def __init__(self, entry: RunEntry) -> None:
        self.entry = entry
        self._metrics: Stamp | None = None
        self._row: dict[str, Any] = {}
        self._config: tuple[Stamp | None, dict[str, Any]] | None = None
        self._alerts = Tail(entry.folder, ALERTS)
        self._counts: dict[str, int] = {}

    def read(self, now: float | None = None) -> dict[str, Any]:
        """What the list of runs shows; `now` is seconds since 1970."""
        now = time.time() if now is None else now
        folder = self.entry.folder
        found = stamp_inside(folder, METRICS)
        if found != self._metrics:
            self._metrics, self._row = found, last_row(folder, METRICS) or {}
        self._count_alerts()
        config = self._read_config()
        total = whole(_dig(config, "run", "total_steps"))
        written = found or stamp_inside(folder, CONFIG)
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


def unread(entry: RunEntry, reason: str) -> dict[str, Any]:
    """What the list shows of a run that could not be read."""
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
    """config.yaml as plain values; {} when it cannot be read: the page shows what there is."""
    data = read_inside(entry.folder, CONFIG, limit=LARGEST_CONFIG)
    try:
        tree = parse_yaml(data, what=CONFIG) if data is not None else None
    except ConfigError:
        return {}
    return tree if isinstance(tree, dict) else {}


def facts_of(config: dict[str, Any]) -> dict[str, Any]:
    """A few facts of a configuration that tell runs apart: what is traded or played, seed, limit, tail probability."""
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
