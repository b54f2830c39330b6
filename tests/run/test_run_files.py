"""One reader for all files of a run: inside of it, regular, within a limit, typed."""

from __future__ import annotations

import json
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tailwise.cli.main import main
from tailwise.core.errors import CheckpointError, DataError
from tailwise.core.parsing import Stored, as_stored
from tailwise.run.agent import PPO, load
from tailwise.run.checkpoint import join_state, json_bytes, split_state
from tailwise.run.run_files import NotOpenedError, check_links, open_file, read_end, read_file, read_json
from tailwise.run.run_folder import read_alerts
from tests.run.crafted import SPEC, change_json
from tests.support import SMALL_RUN, Scripted, merged


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files") / "run"
    agent = PPO("CartPole-v1", merged(SMALL_RUN, {"run": {"checkpoint_every": 1, "total_steps": 128}}), run_dir=folder)
    agent.learn(96)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_a_file_is_measured_before_it_is_read(tmp_path: Path) -> None:
    """A hole of 32 GiB: rejects reading first and comparing afterwards, which ends in the memory."""
    path = tmp_path / "a"
    path.write_bytes(b"x" * 10)
    assert read_file(path, root=tmp_path, limit=10) == b"x" * 10
    assert read_end(path, root=tmp_path, count=3) == b"xxx"
    os.truncate(path, 2**35)
    with pytest.raises(DataError, match="has 34,359,738,368 bytes; at most 1,000 are read"):
        read_file(path, root=tmp_path, limit=1000)
    assert read_end(path, root=tmp_path, count=4) == b"\0" * 4


def test_a_link_inside_is_followed_and_one_that_leads_out_is_not(tmp_path: Path) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    run.mkdir()
    outside.mkdir()
    (outside / "secret.json").write_text("1")
    (run / "own.json").write_text("2")
    (run / "alias.json").symlink_to("own.json")
    assert read_json(run / "alias.json", root=run) == 2
    check_links(run)
    (run / "folder").symlink_to(outside)
    for path in (run / "folder" / "secret.json", run / ".." / "outside" / "secret.json"):
        with pytest.raises(DataError, match=r"leads out of .*run, to .*secret\.json"):
            read_json(path, root=run)
    with pytest.raises(DataError, match="folder is a link that leads out of"):
        check_links(run)


def test_a_run_that_is_reached_through_a_link_opens(run: Path, tmp_path: Path) -> None:
    """Somebody whose `runs` lies on another disk."""
    (tmp_path / "alias").symlink_to(run)
    assert main(["evaluate", str(tmp_path / "alias"), "--episodes", "1"]) == 0


def test_what_is_not_a_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, words in (("pipe", "a folder, a pipe or a device"), (".", "a folder"), ("loop", "cannot be read")):
        with pytest.raises(DataError, match=words):
            read_file(tmp_path / name, root=tmp_path, limit=10)


def test_a_file_that_cannot_be_opened_now_is_not_called_broken(tmp_path: Path) -> None:
    """Too many open files. Rejects a DataError: a checkpoint would be passed over, and the run go back to an older."""
    file = tmp_path / "file"
    file.write_text("whole")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # no number is left for another one
    try:
        with pytest.raises(NotOpenedError, match="Too many open files"):
            open_file(file, root=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert open_file(file, root=tmp_path).read() == b"whole"


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/update-000003", "metrics.jsonl", "alerts.jsonl"])
def test_resume_writes_nothing_outside_of_the_run(
    run: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rejects a resume that follows the link: it appended, wrote and deleted there."""
    outside = tmp_path / "outside"
    (run / "alerts.jsonl").touch()
    shutil.move(run / name, outside)
    (run / name).symlink_to(outside)
    before = sorted(outside.rglob("*")), outside.stat().st_mtime_ns
    assert main(["resume", str(run)]) == 2
    assert "is a link that leads out of" in capsys.readouterr().err
    assert (sorted(outside.rglob("*")), outside.stat().st_mtime_ns) == before


def test_lines_that_are_no_alerts_do_not_stop_a_run(run: Path) -> None:
    """Rejects a resume that ends in KeyError or in a refusal, and one that throws such lines away."""
    alert = {"update": 1, "rule": "r", "severity": "warn", "evidence": "e", "advice": "a"}
    lines = [json.dumps(alert), "garbage", "[1]", '{"update": 1}', "[" * 10_000, json.dumps({**alert, "update": "x"})]
    text = "".join(line + "\n" for line in lines)
    (run / "alerts.jsonl").write_text(text)
    agent, notes = PPO.resume(run)
    assert len(notes) == 1 and notes[0].startswith("5 lines of alerts.jsonl are no alerts and were left out")
    assert (run / "alerts.damaged.jsonl").read_text() == text
    assert [one["rule"] for one in read_alerts(run)] == ["r"]
    agent.learn()
    _, notes = PPO.resume(run)
    assert notes == []


def test_a_specification_cannot_ask_for_more_memory_than_the_weights_take(run: Path) -> None:
    """Rejects building first and comparing shapes afterwards: 31 times 4096 x 4096 weights are 2 GB."""
    newest = run / "checkpoints" / "update-000003"

    def widen(spec: dict[str, Any]) -> None:
        spec["model"]["encoder"]["hidden"] = [4096] * 32

    change_json(newest, SPEC, widen)
    with pytest.raises(CheckpointError, match=r"network of at least 520,\d{3},\d{3} weights"):
        load(newest)


class WithRandomState(Scripted):
    """Keeps its generator in its state: whole numbers of 128 bits."""

    def get_state(self) -> dict[str, Any]:
        return {"random": self.np_random.bit_generator.state, "steps": self.steps, "seen": self.seen}

    def set_state(self, state: dict[str, Any]) -> np.ndarray:
        self.np_random.bit_generator.state = state["random"]
        self.steps, self.seen = state["steps"], state["seen"]
        return self.seen


def test_whole_numbers_of_random_generators_come_back(tmp_path: Path) -> None:
    """Rejects a limit of 64 bits in the training state."""
    state = np.random.PCG64(7).state
    tensors, data = split_state({"random": state})
    assert data["random"]["state"]["state"] > 2**64
    gym.register("tailwise/WithRandomState-v0", entry_point=lambda: WithRandomState(length=8))
    agent = PPO("tailwise/WithRandomState-v0", SMALL_RUN, run_dir=tmp_path / "run")
    agent.learn()
    _, notes = PPO.resume(tmp_path / "run")
    assert notes == [] and join_state(tensors, data)["random"] == state
    with pytest.raises(CheckpointError, match="more than 256 bits"):
        json_bytes({"a": 2**300}, "state.json")


class Shape(Stored):
    count: int
    pair: tuple[float, float]


def test_stored_values_are_not_converted() -> None:
    assert as_stored(Shape, {"count": 1, "pair": [1, 2.5], "more": None}, source="f").pair == (1.0, 2.5)
    wrong: list[tuple[Any, str]] = [
        ({"count": "1", "pair": [1, 2]}, "f: key 'count' is '1'"),
        ({"count": True, "pair": [1, 2]}, "f: key 'count' is True"),
        ({"count": 1.0, "pair": [1, 2, 3]}, "f: key 'pair'"),
        ({"pair": [1, 2]}, "f: key 'count' is required"),
        ([1], "f: a mapping of keys to values is needed"),
        ({"count": "9" * 9000, "pair": [1, 2]}, r"9\.\.\. \(9,002 characters\)"),
    ]
    for data, words in wrong:
        with pytest.raises(DataError, match=words):
            as_stored(Shape, data, source="f")
