"""The paper session of a run, from RUN/paper: its status, and equity and targets from its journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailwise.core.errors import DataError
from tailwise.core.parsing import parse_json
from tailwise.live.journal import JOURNAL
from tailwise.live.status import LARGEST_STATUS, STATUS, SessionStatus, read_status
from tailwise.watch.files import LONGEST_LINE, Stamp, Tail, finite, read_inside, short_text, stamp_inside

FOLDER = "paper"
MOST_POINTS = 800  # of a curve; a longer session keeps every second, fourth, ... tick
MOST_ACCOUNTS, MOST_SYMBOLS, MOST_REASONS = 8, 8, 20
MOST_LEVELS = 512
LONGEST_REASON = 1000  # characters
_MS = 1_000_000  # ns
_DAY_2262 = 2**63 - 1


class PaperReader:
    """Follows the session in a (resolved) run folder; `poll` reads what is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ticks = Tail(folder, f"{FOLDER}/{JOURNAL}", tick_row)
        self._stamp: Stamp | None = None
        self._status: dict[str, Any] | None = None
        self._points: list[dict[str, Any]] = []
        self._stride, self._count = 1, 0
        self.behind = False  # whether there is more to read at once

    def poll(self) -> dict[str, Any] | None:
        """The session if anything of it is new, else None."""
        news = self._ticks.poll()
        if news.reset:
            self._points, self._stride, self._count = [], 1, 0
        for row in news.rows:
            if row:
                self._add(row)
        self.behind = news.more
        stamp = stamp_inside(self._folder, FOLDER, STATUS)
        if stamp != self._stamp:
            self._stamp, self._status = stamp, self._read()
        elif not news.rows and not news.reset:
            return None
        if self._status is None:
            return None
        return {**self._status, **self._curves(len(self._status["accounts"])), "bad_lines": self._ticks.bad_lines}

    def _read(self) -> dict[str, Any] | None:
        data = read_inside(self._folder, FOLDER, STATUS, limit=LARGEST_STATUS)
        try:
            return None if data is None else shown(read_status(data, source=STATUS))
        except DataError:
            return None  # nothing that a session writes: the page goes on without it

    def _add(self, row: dict[str, Any]) -> None:
        if self._count % self._stride == 0:
            self._points.append(row)
        self._count += 1
        if len(self._points) > MOST_POINTS:
            self._points, self._stride = self._points[::2], self._stride * 2

    def _curves(self, accounts: int) -> dict[str, Any]:
        """times in ms [T]; of each account equity [T] and a target [T] for each symbol, null where it had no bar."""
        curves = []
        for k in range(accounts):
            desks = [point["desks"][k] if k < len(point["desks"]) else None for point in self._points]
            width = max((len(desk["target"]) for desk in desks if desk is not None), default=0)
            curves.append(
                {
                    "equity": [None if desk is None else desk["equity"] for desk in desks],
                    "target": [
                        [desk["target"][a] if desk is not None and a < len(desk["target"]) else None for desk in desks]
                        for a in range(width)
                    ],
                }
            )
        return {"times": [point["time"] for point in self._points], "curves": curves}


def tick_row(line: bytes) -> dict[str, Any] | None:
    """Time in ms and equity and targets of each account in a line of a journal; {} for its other lines, None for what
    is none."""
    try:
        row = parse_json(line, what="line", max_bytes=LONGEST_LINE)
    except DataError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str):
        return None
    if row["kind"] != "tick":
        return {}
    time, desks = row.get("time"), row.get("desks")
    if type(time) is not int or abs(time) > _DAY_2262 or not isinstance(desks, list):
        return None
    return {"time": time // _MS, "desks": [_desk(one) for one in desks[:MOST_ACCOUNTS]]}


def _desk(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    target = value.get("target")
    numbers = target[:MOST_SYMBOLS] if isinstance(target, list) else []
    return {"equity": finite(value.get("equity")), "target": [finite(one) for one in numbers]}


def shown(status: SessionStatus) -> dict[str, Any]:
    """A status as the page takes it: bounded in length, times in ms."""
    accounts = []
    for one in status.accounts[:MOST_ACCOUNTS]:
        law = one.forecast
        accounts.append(
            {
                "symbols": [short_text(name, 40) for name in one.symbols[:MOST_SYMBOLS]],
                "equity": one.equity,
                "exposure": one.exposure[:MOST_SYMBOLS],
                "wanted": None if one.wanted is None else one.wanted[:MOST_SYMBOLS],
                "target": None if one.target is None else one.target[:MOST_SYMBOLS],
                "guards": [short_text(name, 40) for name in one.guards[:MOST_REASONS]],
                "forecast": None
                if law is None
                else {
                    "time": law.time // _MS,
                    "mean": law.mean,
                    "horizon": law.horizon,
                    "alpha": law.alpha,
                    "cvar": law.cvar,
                    "limit": law.limit,
                    "levels": None if law.levels is None else law.levels[:MOST_LEVELS],
                    "quantiles": None if law.quantiles is None else law.quantiles[:MOST_LEVELS],
                },
            }
        )
    return {
        "state": status.state,
        "reasons": [short_text(text, LONGEST_REASON) for text in status.reasons[:MOST_REASONS]],
        "ticks": status.ticks,
        "time": status.time // _MS,
        "bar_seconds": status.bar_ns / 1e9,
        "wall": status.wall,
        "open": status.open,
        "accounts": accounts,
    }
