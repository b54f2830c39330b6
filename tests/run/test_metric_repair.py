"""A resumed run says what is missing: lines of metrics, the versions it was made with, its number of threads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailwise.cli.main import main
from tailwise.core.metrics import compared_part
from tailwise.doctor.audit import audit_run
from tailwise.run.agent import PPO
from tailwise.run.metric_store import read
from tailwise.run.run_folder import read_alerts, read_manifest
from tests.support import SMALL_RUN, bits, merged

UPDATES = 6
OPTIONS: dict[str, Any] = {
    "risk": {"mode": "constraint", "alpha": 0.25, "limit": 0.5, "warmup": {"updates": 1, "longest": 1}},
    "learner": {"gamma": 0.8},
    "run": {"total_steps": 32 * UPDATES, "rollout_steps": 8, "checkpoint_every": 1, "keep": 10},
    "evaluate": {"every": 1, "episodes": 2},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("metrics") / "run"
    PPO("CartPole-v1", merged(SMALL_RUN, OPTIONS), run_dir=folder).learn()
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def without_null(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def cut_end(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))


def cut_beginning(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[4:]))


def truncate(path: Path) -> None:
    path.write_text("")


@pytest.mark.parametrize(
    ("damage", "missing"),
    [
        (Path.unlink, "6 of 6 lines were missing (update 1 to 6)"),
        (truncate, "6 of 6 lines were missing (update 1 to 6)"),
        (cut_end, "4 of 6 lines were missing (update 3 to 6)"),
        (cut_beginning, "4 of 6 lines were missing (update 1 to 4)"),
    ],
)
def test_lost_lines_come_back_from_the_table(run: Path, damage: Callable[[Path], None], missing: str) -> None:
    """Rejects a resume that goes on in silence, and one whose end overwrites the table, the last copy, with less."""
    before = lines(run)
    damage(run / "metrics.jsonl")
    agent, notes = PPO.resume(run)
    assert len(notes) == 1 and missing in notes[0] and "0 are lost" in notes[0]
    assert lines(run) == [without_null(row) for row in before]
    agent.learn(32)
    assert list(read(run)["update"]) == [1, 2, 3, 4, 5, 6, 7]
    assert [alert["rule"] for alert in read_alerts(run)].count("metrics_lost") == 1
    _, notes = PPO.resume(run)
    assert notes == []


def test_without_a_table_the_checkpoint_gives_what_it_knows(run: Path) -> None:
    """Each number equals the one that was logged; what the checkpoint does not know is absent, not invented."""
    before = lines(run)[-1]
    (run / "metrics.jsonl").unlink()
    (run / "metrics.parquet").unlink()
    _, notes = PPO.resume(run)
    assert "that of update 6 from the checkpoint, as far as it knows; 5 are lost" in notes[0]
    (row,) = lines(run)
    assert row.items() <= before.items()
    for name in ("steps", "episode/return", "episode/length", "evaluate/best", "risk/multiplier", "risk/integral"):
        assert name in row, name
    assert {one.name: one.verdict for one in audit_run(run)}["metrics"] == "fail"


def test_lost_lines_after_the_checkpoint_stay_lost(run: Path) -> None:
    """Resumed from update 4 with a table of 6. Rejects lines of updates that this run is about to make again."""
    before = lines(run)
    for update in (5, 6):
        shutil.rmtree(run / "checkpoints" / f"update-{update:06d}")
    shutil.rmtree(run / "checkpoints" / "best", ignore_errors=True)
    (run / "metrics.jsonl").unlink()
    _, notes = PPO.resume(run)
    assert "4 of 4 lines were missing" in notes[0] and "0 are lost" in notes[0]
    assert lines(run) == [without_null(row) for row in before[:4]]


def test_a_whole_file_is_left_alone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "metrics.jsonl").read_bytes()
    assert main(["resume", str(run)]) == 0
    assert "note:" not in capsys.readouterr().err
    assert (run / "metrics.jsonl").read_bytes() == before


def test_metrics_that_were_lost_do_not_change_the_training(run: Path, tmp_path: Path) -> None:
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    (run / "metrics.jsonl").unlink()
    (run / "metrics.parquet").unlink()
    agents = [PPO.resume(folder)[0] for folder in (run, whole)]
    for agent in agents:
        agent.learn(64)
    first, second = (agent.model.state_dict() for agent in agents)
    assert all(bits(first[name]) == bits(second[name]) for name in first)
    assert [compared_part(row) for row in lines(run)[1:]] == [compared_part(row) for row in lines(whole)[-2:]]


def test_resume_under_other_versions_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rejects a continuation that is called exact although nobody could know."""
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["versions"] |= {"numpy": "1.0.0", "vanished": "3.1"}
    manifest["python"] = "3.1.4"
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert main(["resume", str(run)]) == 0
    told = capsys.readouterr().err
    for part in ("numpy 1.0.0 (installed: ", "vanished 3.1 (installed: none)", "Python 3.1.4 (this is ", "last digits"):
        assert part in told
    assert read_alerts(run)[-1]["rule"] == "made_otherwise"
    checks = {one.name: one for one in audit_run(run)}
    assert checks["versions"].verdict == "warn" and "vanished 3.1" in checks["versions"].evidence


def test_threads_are_part_of_the_result(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the manifest, in what resume says, in the doctor's and in the statement that two runs are equal."""
    assert read_manifest(run)["threads"] == 1
    assert main(["doctor", str(run), "--json"]) in (0, 1)
    versions = next(one for one in json.loads(capsys.readouterr().out)["checks"] if one["name"] == "versions")
    assert versions["evidence"] == "those of this installation, run.threads 1"
    tree = yaml.safe_load((run / "config.yaml").read_text())
    tree["run"]["threads"] = 2
    (run / "config.yaml").write_text(yaml.safe_dump(tree))
    _, notes = PPO.resume(run)
    assert notes == ["the continuation is not exact: run.threads 1, here 2"]
    checks = {one.name: one for one in audit_run(run)}
    assert "run.threads 1 (it is 2 now)" in checks["versions"].evidence


def test_the_statement_of_equality_names_the_threads(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "reproduce", str(run)]) == 0
    assert "the same bit for bit, with run.threads 1: all metrics" in capsys.readouterr().out
