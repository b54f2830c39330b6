"""The newest evaluation of a run: equity and drawdown of its paths, or the numbers of its episodes."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import numpy as np

from tailwise.core.errors import DataError
from tailwise.core.parsing import parse_json
from tailwise.run.run_files import ATTACKED
from tailwise.watch.files import (
    EQUITY,
    EVALUATIONS,
    SUMMARY,
    Stamp,
    finite,
    inside,
    open_inside,
    read_inside,
    short_text,
    stamp_inside,
)
from tailwise.watch.runs import RunEntry

MOST_POINTS = 800  # of one curve
MOST_PATHS = 8
MOST_EVALUATIONS = 2000  # considered
MOST_BARS = 2_000_000  # of all paths; a file of any size can claim to hold billions
LARGEST_SUMMARY, LARGEST_EQUITY = 8 * 2**20, 200 * 2**20  # bytes
STATISTICS = ("total_return", "sharpe", "max_drawdown", "cvar_return", "cvar_bar", "horizon")


class EvaluationReader:
    """Finds the newest evaluation and reads it once."""

    def __init__(self, entry: RunEntry) -> None:
        self.entry = entry
        self._read: tuple[str, Stamp] | None = None

    def poll(self) -> dict[str, Any] | None:
        """Return the newest evaluation if it was not returned before."""
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
            files = [path.name for path in islice(folder.iterdir(), MOST_EVALUATIONS)]
            names = [name for name in files if not name.startswith((".", ATTACKED))]
        except OSError:
            return None
        evaluations = []
        for name in names:
            parts = (EVALUATIONS, name) if name.endswith(".json") else (EVALUATIONS, name, EQUITY)
            stamp = stamp_inside(self.entry.folder, *parts)
            if stamp is not None and stamp.size <= LARGEST_EQUITY:
                evaluations.append((name, stamp))
        return max(evaluations, key=lambda item: (item[1].changed, item[0]), default=None)

    def _episodes(self, name: str) -> dict[str, Any] | None:
        summary = self._json(EVALUATIONS, name)
        if summary is None:
            return None
        numbers = ("episodes", "mean_return", "standard_error", "std_return", "min_return", "max_return", "mean_length")
        return {
            "kind": "episodes",
            "name": name.removesuffix(".json"),
            **{key: finite(summary.get(key)) for key in numbers},
        }

    def _market(self, name: str) -> dict[str, Any] | None:
        import pyarrow
        import pyarrow.parquet as parquet

        columns = ["time", "symbol", "policy", "equity_before", "equity"]
        file = open_inside(self.entry.folder, EVALUATIONS, name, EQUITY)
        if file is None:
            return None
        with file:
            try:
                # Names as dictionaries: a name of a megabyte, written once, would fill the memory row by row.
                stored = parquet.ParquetFile(file, read_dictionary=["symbol", "policy"])
                if not _is_ours(stored.schema_arrow) or stored.metadata.num_rows > MOST_BARS:
                    return None
                frame = stored.read(columns).to_pandas().reset_index()
                frame["time"] = frame["time"].astype("datetime64[ns, UTC]")
            except (pyarrow.ArrowException, OSError, KeyError, ValueError):
                return None  # not whole, or not ours: the page shows the curves without it
        groups = frame.groupby(["symbol", "policy"], sort=False, observed=True)
        paths = [
            {"symbol": short_text(symbol), "policy": short_text(policy), **_path(part)}
            for (symbol, policy), part in islice(groups, MOST_PATHS)
            if part["equity_before"].iloc[0] > 0
        ]
        return {"kind": "market", "name": name, "paths": paths, "statistics": self._statistics(name)}

    def _statistics(self, name: str) -> list[dict[str, Any]]:
        summary = self._json(EVALUATIONS, name, SUMMARY) or {}
        symbols = summary.get("symbols")
        rows = []
        for judged in symbols if isinstance(symbols, list) else []:
            known = judged.get("statistics") if isinstance(judged, dict) else None
            for policy, numbers in known.items() if isinstance(known, dict) else ():
                if not isinstance(numbers, dict):
                    continue
                chosen = {key: finite(numbers.get(key)) for key in STATISTICS}
                rows.append({"symbol": short_text(judged.get("symbol")), "policy": short_text(policy), **chosen})
        return rows[: 2 * MOST_PATHS]

    def _json(self, *parts: str) -> dict[str, Any] | None:
        data = read_inside(self.entry.folder, *parts, limit=LARGEST_SUMMARY)
        try:
            value = None if data is None else parse_json(data, what=parts[-1], max_bytes=LARGEST_SUMMARY)
        except DataError:
            return None
        return value if isinstance(value, dict) else None


def _is_ours(schema: Any) -> bool:
    """Whether a table has the columns that are drawn, with their types."""
    from pyarrow import types

    wanted = {
        "time": types.is_timestamp,
        "symbol": _is_text,
        "policy": _is_text,
        "equity_before": types.is_floating,
        "equity": types.is_floating,
    }
    # A name that occurs twice has the index -1.
    return all(schema.get_field_index(name) >= 0 and fits(schema.field(name).type) for name, fits in wanted.items())


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    values = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(values) or types.is_large_string(values))


def _path(part: Any) -> dict[str, Any]:
    """Wealth as a multiple of the start and drawdown, thinned so that the deepest drawdowns stay."""
    from tailwise.evaluate.statistics import drawdowns  # scipy comes with it: only when there is a path to show

    equity = np.concatenate([part["equity_before"].to_numpy()[:1], part["equity"].to_numpy()]).astype(float)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite has no place on the page
        wealth = equity / equity[0]
        depth = drawdowns(np.maximum(wealth, 1e-12))
    keep = _thin(depth)
    time = part["time"].dt.strftime("%Y-%m-%dT%H:%M:%S").tolist()
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
