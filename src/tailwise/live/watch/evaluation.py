"""The newest evaluation of a run: equity and drawdown of its paths, or the numbers of its episodes."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np

from tailwise.live.watch.names import EQUITY, EVALUATIONS, SUMMARY
from tailwise.live.watch.run_table import RunEntry
from tailwise.live.watch.safe_files import Stamp, inside, open_inside, read_inside, stamp_inside
from tailwise.live.watch.status import finite

MOST_POINTS = 800  # of one curve
MOST_PATHS = 8
LARGEST_SUMMARY, LARGEST_EQUITY = 8 * 2**20, 200 * 2**20  # bytes
SHOWN = ("total_return", "sharpe", "max_drawdown", "cvar_return", "cvar_bar", "horizon")


class EvaluationReader:
    """Finds the newest evaluation and reads it once."""

    def __init__(self, entry: RunEntry) -> None:
        self.entry = entry
        self._read: tuple[str, Stamp] | None = None

    def poll(self) -> dict[str, Any] | None:
        """The newest evaluation if it was not given out before."""
        newest = self._newest()
        if newest is None or newest == self._read:
            return None
        self._read = newest
        name = newest[0]
        return self._episodes(name) if name.endswith(".json") else self._market(name)

    def _newest(self) -> tuple[str, Stamp] | None:
        folder = inside(self.entry.folder, EVALUATIONS)
        if folder is None or not folder.is_dir():
            return None
        try:
            names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
        except OSError:
            return None
        found = []
        for name in names:
            parts = (EVALUATIONS, name) if name.endswith(".json") else (EVALUATIONS, name, EQUITY)
            stamp = stamp_inside(self.entry.folder, *parts)
            if stamp is not None and stamp.size <= LARGEST_EQUITY:
                found.append((name, stamp))
        return max(found, key=lambda item: (item[1].changed, item[0]), default=None)

    def _episodes(self, name: str) -> dict[str, Any] | None:
        told = self._json(EVALUATIONS, name)
        if told is None:
            return None
        numbers = ("episodes", "mean_return", "standard_error", "std_return", "min_return", "max_return", "mean_length")
        return {
            "kind": "episodes",
            "name": name.removesuffix(".json"),
            **{key: finite(told.get(key)) for key in numbers},
        }

    def _market(self, name: str) -> dict[str, Any] | None:
        import pyarrow
        import pyarrow.parquet as parquet

        file = open_inside(self.entry.folder, EVALUATIONS, name, EQUITY)
        if file is None:
            return None
        with file:
            try:
                table = parquet.ParquetFile(file).read(["time", "symbol", "policy", "equity_before", "equity"])
            except (pyarrow.ArrowException, OSError, KeyError, ValueError):
                return None  # not whole, or not ours: the page shows the curves without it
        if not _is_ours(table.schema):
            return None
        frame = table.to_pandas().reset_index()
        paths = [
            {"symbol": str(symbol), "policy": str(policy), **_path(part)}
            for (symbol, policy), part in frame.groupby(["symbol", "policy"], sort=False)
            if part["equity_before"].iloc[0] > 0
        ]
        return {"kind": "market", "name": name, "paths": paths[:MOST_PATHS], "statistics": self._statistics(name)}

    def _statistics(self, name: str) -> list[dict[str, Any]]:
        told = self._json(EVALUATIONS, name, SUMMARY) or {}
        symbols = told.get("symbols")
        rows = []
        for judged in symbols if isinstance(symbols, list) else []:
            known = judged.get("statistics") if isinstance(judged, dict) else None
            for policy, numbers in known.items() if isinstance(known, dict) else ():
                if not isinstance(numbers, dict):
                    continue
                shown = {key: finite(numbers.get(key)) for key in SHOWN}
                rows.append({"symbol": judged.get("symbol"), "policy": policy, **shown})
        return rows[: 2 * MOST_PATHS]

    def _json(self, *parts: str) -> dict[str, Any] | None:
        data = read_inside(self.entry.folder, *parts, limit=LARGEST_SUMMARY)
        try:
            told = json.loads(data) if data is not None else None
        except (ValueError, RecursionError):
            return None
        return told if isinstance(told, dict) else None


def _is_ours(schema: Any) -> bool:
    """Whether a table has the columns that are drawn, with their types."""
    from pyarrow import types

    wanted = {"time": types.is_timestamp, "equity_before": types.is_floating, "equity": types.is_floating}
    names = set(schema.names)
    typed = all(name in names and fits(schema.field(name).type) for name, fits in wanted.items())
    return typed and {"symbol", "policy"} <= names


def _path(part: Any) -> dict[str, Any]:
    """Wealth as a multiple of the start and drawdown, thinned so that the deepest drawdowns stay."""
    from tailwise.evaluate.drawdowns import drawdowns  # scipy comes with it: only when there is a path to show

    equity = np.concatenate([part["equity_before"].to_numpy()[:1], part["equity"].to_numpy()]).astype(float)
    wealth = equity / equity[0]
    depth = drawdowns(np.maximum(wealth, 1e-12))
    keep = _thin(depth)
    time = part["time"].astype("datetime64[ns, UTC]").dt.strftime("%Y-%m-%dT%H:%M:%S").tolist()
    return {
        "time": [time[max(0, k - 1)] for k in keep],
        "wealth": [finite(round(float(wealth[k]), 6)) for k in keep],
        "drawdown": [finite(round(-float(depth[k]), 6)) for k in keep],
    }


def _thin(depth: np.ndarray) -> list[int]:
    """Indices of at most MOST_POINTS entries: the deepest of each stretch, and both ends."""
    count = len(depth)
    if count <= MOST_POINTS:
        return list(range(count))
    edges = np.linspace(0, count, MOST_POINTS - 1, dtype=int)
    deepest = [int(low + np.argmax(depth[low:high])) for low, high in pairwise(edges) if high > low]
    return sorted({0, count - 1, *deepest})
