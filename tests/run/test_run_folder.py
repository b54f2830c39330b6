"""What killed writers leave behind is gone after the next start, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailwise.run import checkpoint as ckpt
from tailwise.run.agent import PPO
from tailwise.run.run_folder import remove_unfinished
from tailwise.run.run_list import remove_spare
from tests.support import small_run

HALF = (
    "checkpoints/.update-000004.tmp-0123456789ab/policy/weights.safetensors",
    "checkpoints/.best.tmp-0123456789ab/checkpoint.json",
    "checkpoints/.deleted-update-000001/policy/spec.json",
    "dumps/.update-000002.tmp-0123456789ab/metrics.json",
    ".metrics.jsonl.tmp-0123456789ab",
    ".metrics.parquet.tmp-0123456789ab",
    ".config.yaml.tmp-0123456789ab",
    ".signature.json.tmp-0123456789ab",
)
OTHERS = (
    ".report.html.tmp-0123456789ab",  # `report` may be writing it at this moment
    "evaluations/.best-1.json.tmp-0123456789ab",
    "evaluations/best-1.json",
    "checkpoints/notes.tmp-1",
    ".gitignore",
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    config = small_run(env={"id": "CartPole-v1"}, run={"checkpoint_every": 1}, evaluate={"every": 1, "episodes": 1})
    PPO(config=config, run_dir=tmp_path / "run").learn()
    for name in (*HALF, *OTHERS):
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_text("half")
    return tmp_path / "run"


def hidden(run: Path) -> set[str]:
    return {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()} & {*HALF, *OTHERS}


def test_leftovers_are_removed_when_a_run_is_resumed(run: Path) -> None:
    names = [path.name for path in ckpt.checkpoints_in(run)]
    PPO.resume(run)
    assert hidden(run) == set(OTHERS)
    assert [path.name for path in ckpt.checkpoints_in(run)] == names
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == sorted([*names, "notes.tmp-1"])


def test_leftovers_are_removed_when_checkpoints_are_pruned(run: Path) -> None:
    assert [one.path.name for one in remove_spare(run)] == ["update-000002", "update-000001"]
    assert hidden(run) == set(OTHERS)


def test_a_replacement_that_was_cut_short_is_undone(run: Path) -> None:
    """Rejects looking for `best` alone: a checkpoint that was being written again would be lost with its temporary."""
    for name in ("best", "update-000003"):
        (run / "checkpoints" / name).rename(run / "checkpoints" / f".{name}.replaced")
    (run / "checkpoints" / ".update-000002.replaced").mkdir()  # the new one had arrived
    agent, notes = PPO.resume(run)
    assert notes == [] and agent.trainer.update == 3
    assert [path.name for path in ckpt.checkpoints_in(run)] == [
        "update-000003",
        "update-000002",
        "update-000001",
        "best",
    ]
    assert not list((run / "checkpoints").glob(".*"))


def test_nothing_is_removed_behind_a_link(run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (run / "checkpoints").rename(outside)
    (run / "checkpoints").symlink_to(outside)
    remove_unfinished(run)
    assert (outside / ".best.tmp-0123456789ab").is_dir() and (outside / ".deleted-update-000001").is_dir()
    (run / "checkpoints").unlink()
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / ".best.tmp-1").symlink_to(outside)
    remove_unfinished(run)
    assert not (run / "checkpoints" / ".best.tmp-1").is_symlink() and (outside / "best").is_dir()
