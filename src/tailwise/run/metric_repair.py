"""Metrics of a run that were deleted or cut off: what is missing, and what can still be known.

Lines come back from metrics.parquet, which a training writes at its end (undefined values are left out, the table does
not tell them from absent ones), and the line of the checkpoint from what its training state knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tailwise.run.metric_store import FILE, TABLE, MetricStore, read_rows, read_table

Row = dict[str, Any]


def restore_metrics(store: MetricStore, *, update: int, steps: int, known: Mapping[str, float]) -> str | None:
    """Give metrics.jsonl a line for every update up to `update` that can still be known.

    steps, known: of the checkpoint that a run is resumed from. Returns the sentence that says what was missing, None
    when nothing was.
    """
    rows: dict[int, Row] = {row["update"]: row for row in read_rows(store.path)}
    gaps = list(_gaps(sorted(rows), update))
    if not gaps:
        return None
    lost = sum(last - first + 1 for first, last in gaps)
    table = {row["update"]: row for row in _table_rows(store.run_dir) if 1 <= row["update"] <= update}
    restored = {number: row for number, row in table.items() if number not in rows}
    rows |= restored
    from_checkpoint = update not in rows
    if from_checkpoint:
        rows[update] = {"update": update, "steps": steps, **known}
    store.replace([rows[number] for number in sorted(rows)])
    sources = [f"{len(restored)} from {TABLE}"] if restored else []
    sources += [f"that of update {update} from the checkpoint, as far as it knows"] if from_checkpoint else []
    still = lost - len(restored) - from_checkpoint
    return (
        f"{FILE} was deleted or cut: {lost} of {update} lines were missing ({_told(gaps)}). "
        f"Restored: {' and '.join(sources) or 'none'}; {still} are lost."
    )


def _gaps(present: Sequence[int], update: int) -> Iterator[tuple[int, int]]:
    """(first, last) of every stretch of 1 .. `update` that is not in the sorted `present`."""
    inside = [number for number in present if 1 <= number <= update]
    for before, after in pairwise([0, *inside, update + 1]):
        if after > before + 1:
            yield before + 1, after - 1


def _table_rows(run_dir: Path) -> list[Row]:
    """The rows of metrics.parquet without what is undefined in them; none when there is no table."""
    if not (run_dir / TABLE).exists():
        return []
    table = read_table(run_dir)
    return [
        {
            name: int(value) if name in ("update", "steps") else float(value)
            for name, value in row.items()
            if math.isfinite(value)
        }
        for row in table.to_dict(orient="records")
    ]


def _told(gaps: Sequence[tuple[int, int]]) -> str:
    """'update 1 to 4 and 7', the first three stretches."""
    words = [str(first) if first == last else f"{first} to {last}" for first, last in gaps[:3]]
    return f"update {', '.join(words)}{' and more' if len(gaps) > 3 else ''}"
