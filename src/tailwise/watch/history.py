"""History of one run for the page: bounded in memory, read as "everything since a position"."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from tailwise.watch.evaluation import EvaluationReader
from tailwise.watch.files import ALERTS, METRICS, Tail, finite, short_text, to_json, whole
from tailwise.watch.panels import CURVES, metric_rows
from tailwise.watch.paper import PaperReader
from tailwise.watch.runs import RunEntry, known_severity

MOST_POINTS = 2000  # of a curve; a longer history keeps every second, fourth, ... update
MOST_ALERTS = 300  # newest ones
MOST_CHUNKS = 4  # that one poll reads of a file; the next goes on, so that no file holds up the others
SIGNIFICANT = 6  # digits of a value on the page
LONGEST_TEXT = 2000  # characters of a field of an alert


@dataclass(frozen=True)
class Position:
    """How much of a run a listener has. era: a new one begins when old rows change."""

    era: int = -1
    rows: int = 0
    alerts: int = 0
    evaluation: int = 0
    paper: int = 0


class History:
    """Rows, alerts and the newest evaluation of one run; `poll` adds what is new."""

    def __init__(self, entry: RunEntry) -> None:
        self.entry = entry
        self.lock = asyncio.Lock()  # a worker thread polls while listeners want to read
        self._metrics = Tail(entry.folder, METRICS)
        self._alerts = Tail(entry.folder, ALERTS)
        self._evaluation = EvaluationReader(entry)
        self._paper = PaperReader(entry.folder)
        self.paper: dict[str, Any] | None = None
        self.papers = 0  # versions of it so far
        self.era = 0
        self._stride = 1
        self._count = 0  # rows since the era of the file began
        self.rows: list[dict[str, Any]] = []
        self.alerts: list[dict[str, Any]] = []
        self._dropped_alerts = 0
        self.latest: dict[str, Any] = {}
        self.evaluation: dict[str, Any] | None = None
        self.evaluations = 0  # evaluations read so far
        self.behind = False  # whether there is more to read at once
        self._texts: dict[Position, str | None] = {}  # listeners at the same position share one text

    def poll(self) -> bool:
        """Read what is new; return whether anything changed. Blocking: call it from a worker thread."""
        changed = self._poll_metrics() | self._poll_alerts()
        evaluation = self._evaluation.poll()
        if evaluation is not None:
            self.evaluation, self.evaluations, changed = evaluation, self.evaluations + 1, True
        paper = self._paper.poll()
        if paper is not None:
            self.paper, self.papers, changed = paper, self.papers + 1, True
        self.behind |= self._paper.behind
        if changed:
            self._texts = {}
        return changed

    def _poll_metrics(self) -> bool:
        changed = False
        for _ in range(MOST_CHUNKS):
            news = self._metrics.poll()
            if news.reset:
                self.rows, self._stride, self._count, self.latest = [], 1, 0, {}
                self.era += 1
                changed = True
            for row in news.rows:
                self._add(row)
            changed |= bool(news.rows)
            self.behind = news.more
            if not news.more:
                break
        return changed

    def _add(self, row: dict[str, Any]) -> None:
        self.latest = row
        if self._count % self._stride == 0:
            kept = {name: _short(row.get(name)) for name in CURVES if name in row}
            self.rows.append({"update": row["update"], "steps": whole(row.get("steps")), **kept})
        self._count += 1
        if len(self.rows) > MOST_POINTS:
            self.rows, self._stride = self.rows[::2], self._stride * 2
            self.era += 1

    def _poll_alerts(self) -> bool:
        news = self._alerts.poll()
        if news.reset:
            self.alerts, self._dropped_alerts = [], 0
            self.era += 1
        self.alerts += [_alert(row) for row in news.rows]
        surplus = max(0, len(self.alerts) - MOST_ALERTS)
        self.alerts, self._dropped_alerts = self.alerts[surplus:], self._dropped_alerts + surplus
        return news.reset or bool(news.rows)

    @property
    def position(self) -> Position:
        """Position of a listener that has everything."""
        return Position(
            self.era, len(self.rows), self._dropped_alerts + len(self.alerts), self.evaluations, self.papers
        )

    def since(self, position: Position) -> str | None:
        """What a listener at `position` does not have, as JSON; None when it has everything."""
        if position not in self._texts:
            self._texts[position] = self._text_since(position)
        return self._texts[position]

    def _text_since(self, position: Position) -> str | None:
        if position == self.position:
            return None
        reset = position.era != self.era
        first = 0 if reset else position.rows
        rows = self.rows[first:]
        names = [name for name in CURVES if any(name in row for row in rows)]
        news: dict[str, Any] = {
            "run": self.entry.id,
            "reset": reset,
            "update": [row["update"] for row in rows],
            "steps": [row["steps"] for row in rows],
            "curves": {name: [row.get(name) for row in rows] for name in names},
            "latest": metric_rows(self.latest),
            "bad_lines": self._metrics.bad_lines + self._alerts.bad_lines,
        }
        old = 0 if reset else max(0, position.alerts - self._dropped_alerts)
        news["alerts"] = self.alerts[old:]
        if (reset or position.evaluation != self.evaluations) and self.evaluation is not None:
            news["evaluation"] = self.evaluation
        if (reset or position.paper != self.papers) and self.paper is not None:
            news["paper"] = self.paper
        return to_json(news)


def _short(value: Any) -> float | None:
    number = finite(value)
    return None if number is None else float(f"{number:.{SIGNIFICANT}g}")


def _alert(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "update": row["update"],
        "event": short_text(row.get("event", "raised")),
        "action": short_text(row.get("action")),
        "severity": known_severity(row.get("severity")),
        **{key: short_text(row.get(key), LONGEST_TEXT) for key in ("rule", "evidence", "advice")},
    }
