"""What the list says about a run, from the times of its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailwise.watch.runs import STALLED_AFTER, RunEntry, Summary
from tests.watch.watched_runs import alert, line, write_run

# Ten lists of ten references each: a few bytes that would be 10^10 entries when written out.
NESTED = "l0: &l0 [x, x]\n" + "".join(f"l{k}: &l{k} [{', '.join([f'*l{k - 1}'] * 10)}]\n" for k in range(1, 11))
NESTED += "seed: *l10\nenv: {id: *l10}\ndata: {names: [*l10]}\nmodel: {core: {kind: *l10}}\n"


def summary_of(folder: Path) -> Summary:
    return Summary(RunEntry("id", folder.name, folder.resolve()))


@pytest.mark.parametrize(("age", "expected"), [(5.0, "running"), (STALLED_AFTER + 5, "stalled")])
def test_a_run_that_writes_no_lines_is_stalled(tmp_path: Path, age: float, expected: str) -> None:
    run = write_run(tmp_path / "a")
    written = (run / "metrics.jsonl").stat().st_mtime
    assert summary_of(run).read(written + age)["status"] == expected


def test_slow_updates_are_given_their_time(tmp_path: Path) -> None:
    """Rejects a fixed patience: an update of a minute is not a stall after two."""
    run = write_run(tmp_path / "a")
    (run / "metrics.jsonl").write_text(line(1, time__rollout=40.0, time__update=20.0))
    written = (run / "metrics.jsonl").stat().st_mtime
    assert summary_of(run).read(written + 120)["status"] == "running"
    assert summary_of(run).read(written + 60 * 21)["status"] == "stalled"


def test_finished_and_stopped_runs(tmp_path: Path) -> None:
    done = summary_of(write_run(tmp_path / "done", 3, total_steps=192)).read()
    assert (done["status"], done["steps"], done["total_steps"], done["return"]) == ("finished", 192, 192, 30.0)
    stopped = write_run(tmp_path / "stopped")
    (stopped / "metrics.parquet").write_bytes(b"")
    assert summary_of(stopped).read()["status"] == "stopped"
    # A resumed run goes on writing after the table of its first end.
    table = (stopped / "metrics.parquet").stat().st_mtime
    os.utime(stopped / "metrics.jsonl", (table + 5, table + 5))
    assert summary_of(stopped).read(table + 6)["status"] == "running"


def test_alerts_are_counted_once_and_cleared_ones_are_not_new(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    (run / "alerts.jsonl").write_text(alert(1) + alert(2, event="cleared") + alert(3, severity="warn"))
    summary = summary_of(run)
    assert summary.read()["alerts"] == {"error": 1, "warn": 1}
    assert summary.read()["alerts"] == {"error": 1, "warn": 1}


@pytest.mark.parametrize("config", ["{", "- 1\n- 2", "run: 3\nenv: [1]\n", "\x00", "a: &a [*a]", NESTED])
def test_a_configuration_that_cannot_be_read_leaves_the_rest(tmp_path: Path, config: str) -> None:
    run = write_run(tmp_path / "a")
    (run / "config.yaml").write_text(config)
    told = summary_of(run).read()
    assert (told["update"], told["total_steps"]) == (3, None)
