"""The metrics of a run: one JSON line per update in `metrics.jsonl`, readable while the run is going on.

A line is {"update": 12, "steps": 98304, "group/name": value, ...}. A value that is undefined (NaN or infinite) is null
in the file and NaN in the table that `read` returns. A resumed run first cuts the file back to its checkpoint, so that
the file of a killed and resumed run equals that of an uninterrupted one, except for the names under `time/`.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tailwise.core.atomic import write_bytes
from tailwise.core.errors import DataError
from tailwise.core.metrics import METRICS, MetricSpec, check_declared, compared_part
from tailwise.core.parsing import parse_json
from tailwise.run.run_files import LARGE, LARGEST_COUNT, SMALL, read_file, read_parquet

if TYPE_CHECKING:
    import pandas
    from torch.utils.tensorboard import FileWriter

FILE, TABLE, TENSORBOARD = "metrics.jsonl", "metrics.parquet", "tensorboard"
_AXES = ("update", "steps")
Row = dict[str, Any]


class MetricStore:
    """Appends to the metrics of one run; `declared` are the names that it accepts."""

    def __init__(
        self, run_dir: str | Path, *, tensorboard: bool = False, declared: Mapping[str, MetricSpec] = METRICS
    ) -> None:
        self.run_dir = Path(run_dir)
        self.path = self.run_dir / FILE
        self._declared = declared
        self._accepted: set[str] = set()  # names that were checked before: the check is too slow for every line
        self._tensorboard = tensorboard
        self._file: BinaryIO | None = None
        self._writer: FileWriter | None = None
        self._last: tuple[int, int] | None = None

    def append(self, update: int, steps: int, metrics: Mapping[str, float]) -> None:
        """Write one line and hand it to the system at once: it survives `kill -9` of this process."""
        new = [name for name in metrics if name not in self._accepted]
        check_declared(new, self._declared)
        self._accepted.update(new)
        file = self._open()
        if self._last is not None and update <= self._last[0]:
            raise DataError(
                f"{self.path}: update {update} was to be appended after update {self._last[0]}; "
                "cut the file back to the checkpoint with cut_back before a run is resumed."
            )
        row: dict[str, Any] = {"update": int(update), "steps": int(steps)}
        row.update({name: _finite_or_none(value) for name, value in metrics.items()})
        file.write(_line(row))
        file.flush()
        self._last = (int(update), int(steps))
        if self._tensorboard:
            self._show({name: value for name, value in row.items() if name not in _AXES and value is not None}, steps)

    def cut_back(self, update: int) -> int:
        """Drop all lines after `update`, and a torn last line; returns how many lines were dropped.

        The kept lines stay as they are, byte for byte; the file is replaced atomically.
        """
        self.close()
        if not self.path.exists():
            return 0
        kept, dropped = [], 0
        for line, row in _lines(self.path):
            if row is not None and row["update"] <= update:
                kept.append(line)
            else:
                dropped += 1
        if dropped:
            write_bytes(self.path, b"".join(kept))
        return dropped

    def replace(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write these rows instead of all lines; the file is replaced atomically."""
        self.close()
        write_bytes(self.path, b"".join(_line(row) for row in rows))

    def compact(self) -> Path:
        """Write the whole file as `metrics.parquet` for fast reading; the lines stay."""
        self.sync()
        buffer = io.BytesIO()
        _table(self.path).to_parquet(buffer, index=False)
        target = self.run_dir / TABLE
        write_bytes(target, buffer.getvalue())
        return target

    def sync(self) -> None:
        """Make sure that all lines are on the disk, as a checkpoint that relies on them needs it."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._last = None

    def _open(self) -> BinaryIO:
        if self._file is None:
            if self.path.exists():
                rows = [row for _, row in _lines(self.path)]
                if rows and rows[-1] is None:
                    raise DataError(f"{self.path}: the last line is torn; call cut_back before appending.")
                if rows and rows[-1] is not None:
                    self._last = (rows[-1]["update"], rows[-1]["steps"])
            self._file = open(self.path, "ab")  # noqa: SIM115  (stays open from line to line; close() closes it)
        return self._file

    def _show(self, values: Mapping[str, float], steps: int) -> None:
        """Hand one update to TensorBoard: one record of all values takes a tenth of the time of a record each."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        entries = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._open_writer(steps).add_summary(Summary(value=entries), steps)

    def _open_writer(self, steps: int) -> FileWriter:
        if self._writer is None:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from torch.utils.tensorboard import FileWriter

            self._writer = FileWriter(str(self.run_dir / TENSORBOARD))
            # What an earlier process wrote from this step on was cut back in our file and is hidden there as well.
            self._writer.add_event(Event(step=steps, file_version="brain.Event:2"))
            self._writer.add_event(Event(step=steps, session_log=SessionLog(status=SessionLog.START)))
        return self._writer


def read(run_dir: str | Path) -> pandas.DataFrame:
    """The metrics of a run, one row per update: `update` and `steps` (int64), the metrics (float64, NaN for undefined).

    Works while the run is going on; a line that is just being written is left out.
    """
    path = Path(run_dir) / FILE
    if path.exists():
        return _table(path)
    if (path.parent / TABLE).exists():
        return read_table(path.parent)
    raise DataError(f"{path}: there are no metrics; is {run_dir} the folder of a run?")


def read_table(run_dir: Path) -> pandas.DataFrame:
    """metrics.parquet, with the same types as `read`."""
    path = run_dir / TABLE
    table, _ = read_parquet(path, root=run_dir)
    wrong = [
        name
        for name, kind in table.dtypes.items()
        if kind != ("int64" if name in _AXES else "float64") or not isinstance(name, str)
    ]
    if wrong or not set(_AXES) <= set(table.columns):
        raise DataError(f"{path}: has no column of counts '{(wrong or _AXES)[0]}'; delete it, {FILE} has the rows.")
    return table


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics file as rows; none when there is no file."""
    return [row for _, row in _lines(path) if row is not None] if path.exists() else []


def differences_without_time(first: str | Path, second: str | Path) -> list[str]:
    """What two metric files tell differently, a sentence per line and name; names under `time/` are left out."""
    rows = [read_rows(Path(path)) for path in (first, second)]
    differences = []
    if len(rows[0]) != len(rows[1]):
        differences.append(f"{first} has {len(rows[0])} lines, {second} has {len(rows[1])}")
    for number, (left, right) in enumerate(zip(*rows, strict=False), start=1):
        left, right = compared_part(left), compared_part(right)
        for name in sorted(left.keys() | right.keys()):
            a, b = left.get(name, "absent"), right.get(name, "absent")
            if a != b:
                differences.append(f"line {number}: {name} is {a} and {b}")
    return differences


def _lines(path: Path) -> list[tuple[bytes, dict[str, Any] | None]]:
    """(line with its newline, parsed row); the row of a torn last line is None. Any other bad line is an error."""
    lines = read_file(path, root=path.parent, limit=LARGE).splitlines(keepends=True)
    parsed: list[tuple[bytes, dict[str, Any] | None]] = []
    for number, line in enumerate(lines, start=1):
        whole = number < len(lines) or line.endswith(b"\n")
        parsed.append((line, parse_row(line, what=f"{path} line {number}") if whole else None))
    return parsed


def parse_row(line: bytes, *, what: str) -> dict[str, Any]:
    """A line of metrics: counts under `update` and `steps`, finite numbers or None under all other names."""
    try:
        row = parse_json(line, what=what, max_bytes=SMALL, max_depth=1)
    except DataError as error:
        raise DataError(f"{error} Restore the file or delete that line.") from error
    if not isinstance(row, dict) or not all(type(row.get(a)) is int and 0 <= row[a] <= LARGEST_COUNT for a in _AXES):
        raise DataError(f"{what}: has no count under 'update' and 'steps'; restore the file or delete that line.")
    wrong = [name for name, value in row.items() if value is not None and type(value) not in (int, float)]
    if wrong:
        raise DataError(f"{what}: '{wrong[0][:80]}' is no number; restore the file or delete that line.")
    return row


def _table(path: Path) -> pandas.DataFrame:
    import pandas

    rows = read_rows(path)
    names = list(dict.fromkeys([*_AXES, *(name for row in rows for name in row)]))
    table = pandas.DataFrame(rows, columns=names)
    return table.astype({name: "int64" if name in _AXES else "float64" for name in names})


def _line(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(row, allow_nan=False) + "\n").encode()


def _finite_or_none(value: float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def restore_metrics(store: MetricStore, *, update: int, steps: int, known: Mapping[str, float]) -> str | None:
    """Give metrics.jsonl a line for every update up to `update` that can still be known; say what was missing, if so.

    Lines come back from metrics.parquet, which a training writes at its end (undefined values are left out, the table
    does not tell them from absent ones), and that of the checkpoint from its training state.
    steps, known: of the checkpoint that a run is resumed from, known being its metrics.
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
        f"{FILE} was deleted or cut: {lost} of {update} lines were missing ({_describe_gaps(gaps)}). "
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


def _describe_gaps(gaps: Sequence[tuple[int, int]]) -> str:
    """'update 1 to 4 and 7', the first three stretches."""
    words = [str(first) if first == last else f"{first} to {last}" for first, last in gaps[:3]]
    return f"update {', '.join(words)}{' and more' if len(gaps) > 3 else ''}"
