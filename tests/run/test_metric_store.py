"""The metric store: append, cut back, compare."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tailwise.core.errors import ConfigError, DataError
from tailwise.core.metrics import MetricSpec, build
from tailwise.run.metric_store import MetricStore, differences_without_time, read

DECLARED = build(
    [MetricSpec("loss/policy", "1", "policy loss"), MetricSpec("time/update", "s", "time of the optimisation")]
)


def store(folder: Path, **kwargs: bool) -> MetricStore:
    return MetricStore(folder, declared=DECLARED, **kwargs)


def fill(folder: Path, updates: range, seconds: float = 1.0) -> MetricStore:
    target = store(folder)
    for update in updates:
        target.append(update, update * 100, {"loss/policy": update / 3, "time/update": seconds})
    return target


def test_lines_are_on_file_at_once_and_floats_are_exact(tmp_path: Path) -> None:
    target = fill(tmp_path, range(1, 3))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows[1] == {"update": 2, "steps": 200, "loss/policy": 2 / 3, "time/update": 1.0}
    target.close()


def test_undefined_is_null_in_the_file_and_nan_in_the_table(tmp_path: Path) -> None:
    target = store(tmp_path)
    target.append(1, 10, {"loss/policy": float("nan"), "time/update": float("inf")})
    target.append(2, 20, {"loss/policy": np.float32(0.5)})
    assert '"loss/policy": null, "time/update": null' in (tmp_path / "metrics.jsonl").read_text()
    table = read(tmp_path)
    assert table["update"].tolist() == [1, 2] and table["update"].dtype == np.int64
    assert table["loss/policy"].isna().tolist() == [True, False] and table["loss/policy"].dtype == np.float64
    assert table["time/update"].isna().all()


def test_undeclared_names_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    target = store(tmp_path)
    with pytest.raises(ConfigError, match="loss/polcy"):
        target.append(1, 10, {"loss/polcy": 1.0})
    assert not (tmp_path / "metrics.jsonl").exists()
    with pytest.raises(ConfigError, match="loss/policy"):
        MetricStore(tmp_path, declared=build([])).append(1, 10, {"loss/policy": 1.0})


def test_cut_back_drops_later_lines_and_a_torn_one_and_keeps_bytes(tmp_path: Path) -> None:
    """Rejects: appending after a kill without cutting, which doubles updates or glues two lines together."""
    fill(tmp_path, range(1, 8)).close()
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"update": 8, "ste')
    resumed = store(tmp_path)
    with pytest.raises(DataError, match="torn"):
        resumed.append(8, 800, {})
    assert len(read(tmp_path)) == 7
    assert resumed.cut_back(5) == 3
    assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:5])
    assert resumed.cut_back(5) == 0
    with pytest.raises(DataError, match="update 5 was to be appended after update 5"):
        resumed.append(5, 500, {})
    resumed.append(6, 600, {"loss/policy": 2.0})
    assert read(tmp_path)["update"].tolist() == [1, 2, 3, 4, 5, 6]
    assert store(tmp_path / "new").cut_back(3) == 0


def test_a_killed_and_resumed_file_equals_an_uninterrupted_one_except_for_time(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    fill(tmp_path / "a", range(1, 11), seconds=1.0).close()
    fill(tmp_path / "b", range(1, 9), seconds=2.0).close()
    resumed = store(tmp_path / "b")
    resumed.cut_back(6)
    resumed.close()
    fill(tmp_path / "b", range(7, 11), seconds=3.0).close()
    a, b = tmp_path / "a" / "metrics.jsonl", tmp_path / "b" / "metrics.jsonl"
    assert a.read_bytes() != b.read_bytes()
    assert differences_without_time(a, b) == []
    other = fill(tmp_path / "c", range(1, 10))
    other.append(10, 1000, {"loss/policy": np.nextafter(10 / 3, 4), "time/update": 1.0})
    c = tmp_path / "c" / "metrics.jsonl"
    assert differences_without_time(a, c) == [f"line 10: loss/policy is {10 / 3} and {np.nextafter(10 / 3, 4)}"]
    b.write_bytes(b"".join(b.read_bytes().splitlines(keepends=True)[:-1]))
    assert "has 10 lines" in differences_without_time(a, b)[0]


def test_bad_lines_and_absent_files_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no metrics"):
        read(tmp_path)
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 1, "steps": 2}\nnonsense\n{"update": 2, "steps": 3}\n')
    with pytest.raises(DataError, match=r"line 2: this is not valid JSON.*delete that line"):
        read(tmp_path)
    path.write_text('{"steps": 2}\n')
    with pytest.raises(DataError, match="line 1: has no count under 'update'"):
        store(tmp_path).cut_back(1)


def test_compact_writes_the_same_table_as_parquet(tmp_path: Path) -> None:
    target = fill(tmp_path, range(1, 4))
    path = target.compact()
    before = read(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    assert path.name == "metrics.parquet"
    assert before.equals(read(tmp_path)) and before["loss/policy"].tolist() == [1 / 3, 2 / 3, 1.0]


def test_tensorboard_receives_the_values_and_a_resumed_run_hides_what_was_cut(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def scalars() -> list[tuple[int, float]]:
        events = EventAccumulator(str(tmp_path / "tensorboard"))
        events.Reload()
        return [(event.step, event.value) for event in events.Scalars("loss/policy")]

    first = store(tmp_path, tensorboard=True)
    for update in (1, 2, 3):
        first.append(update, update * 100, {"loss/policy": float(update)})
    first.append(4, 400, {"loss/policy": float("nan")})
    first.close()
    assert scalars() == [(100, 1.0), (200, 2.0), (300, 3.0)]
    resumed = store(tmp_path, tensorboard=True)
    resumed.cut_back(1)
    resumed.append(2, 200, {"loss/policy": 20.0})
    resumed.close()
    assert scalars() == [(100, 1.0), (200, 20.0)]
    assert not (tmp_path / "other").exists()
