"""Jobs: a training as a description, continued, begun from a checkpoint, ended early; executors on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tailwise.core.errors import DataError
from tailwise.run import checkpoint as ckpt
from tailwise.run.config import Config, parse_config
from tailwise.run.jobs import Executor, Line, LocalProcesses, OneByOne, local_executor
from tailwise.run.training_job import TrainingJob
from tests.run.sleepers import Sleeper

pytestmark = pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")


def config(**changes: Any) -> Config:
    """Four updates of CartPole."""
    run = {"environments": 4, "rollout_steps": 16, "total_steps": 256, "checkpoint_every": 1, "tensorboard": False}
    tree = {"env": {"id": "CartPole-v1"}, "model": {"encoder": {"hidden": [8]}}, "learner": {"epochs": 1}, "run": run}
    return parse_config({**tree, **changes}, source="test")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The policy of the newest checkpoint."""
    newest, _ = ckpt.latest_good(folder)
    assert newest is not None
    return dict(ckpt.read_policy(newest).tensors)


def same(one: Path, other: Path) -> bool:
    mine, theirs = weights(one), weights(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_a_job_that_is_stopped_goes_on_when_it_is_run_again(tmp_path: Path) -> None:
    """Rejects a job that starts over, that goes on from another state, and one that is stopped and says it is done."""
    whole, parted = (TrainingJob(name, config(), tmp_path / name) for name in ("whole", "parted"))
    assert whole.run() == tmp_path / "whole"
    lines: list[Line] = []
    assert parted.run(lambda: True, lines.append) is None
    assert names(parted.folder) == ["update-000001"]
    assert parted.run(say=lines.append) == parted.folder
    assert Line("parted", "goes on after update 1") in lines
    assert same(whole.folder, parted.folder) and names(parted.folder)[-1] == "update-000004"
    before = (parted.folder / "metrics.jsonl").read_bytes()
    assert parted.run() == parted.folder and (parted.folder / "metrics.jsonl").read_bytes() == before


def test_a_job_begins_from_a_checkpoint_and_ends_at_a_step(tmp_path: Path) -> None:
    """Half a run, and the other half of it in another folder, stopped once more between: the weights of a whole one.
    Rejects steps that are counted from the checkpoint, and a continuation that forgets where it began."""
    TrainingJob("whole", config(), tmp_path / "whole").run()
    half = TrainingJob("half", config(), tmp_path / "half", steps=128)
    half.run()
    assert names(half.folder)[-1] == "update-000002"
    checkpoint = half.folder / "checkpoints" / "update-000002"
    rest = TrainingJob("rest", config(), tmp_path / "rest", checkpoint=checkpoint)
    assert rest.run(lambda: True) is None and names(rest.folder) == ["update-000003"]
    assert rest.run() == rest.folder
    assert names(rest.folder)[-1] == "update-000004" and same(rest.folder, tmp_path / "whole")
    assert not same(rest.folder, half.folder)


@pytest.mark.parametrize("executor", [OneByOne(), LocalProcesses(2)], ids=["one by one", "processes"])
def test_results_come_in_the_order_of_the_jobs(executor: Executor) -> None:
    lines: list[Line] = []
    jobs = [Sleeper(0, 0.5), Sleeper(1), Sleeper(2)]
    assert executor.run(jobs, say=lines.append) == [0, 1, 2]
    assert sorted(line.label for line in lines) == ["job 0", "job 1", "job 2"]
    processes = {line.text for line in lines}
    assert len(processes) == (1 if isinstance(executor, OneByOne) else 3)
    assert (f"process {os.getpid()}" in processes) == isinstance(executor, OneByOne)


@pytest.mark.parametrize("executor", [OneByOne(), LocalProcesses(2)], ids=["one by one", "processes"])
def test_stop_ends_running_jobs_and_begins_no_more(executor: Executor) -> None:
    lines: list[Line] = []
    jobs = [Sleeper(0, 60.0), Sleeper(1, 60.0), Sleeper(2)]
    assert executor.run(jobs, stop=lambda: bool(lines), say=lines.append) is None
    assert "job 2" not in {line.label for line in lines}


def test_an_error_of_a_process_is_raised_here_and_stops_the_others() -> None:
    """Rejects an error that is lost, one that waits for jobs of an hour, and a process that dies without a word."""
    with pytest.raises(DataError, match=r"^the bars are torn$"):
        LocalProcesses(2).run([Sleeper(0, error="the bars are torn"), Sleeper(1, 3600.0)])
    with pytest.raises(DataError, match=r"job 0: its process ended without a result \(exit code 3\)"):
        LocalProcesses(2).run([Sleeper(0, error="die"), Sleeper(1, 3600.0)])


def test_one_job_at_a_time_needs_no_process() -> None:
    assert isinstance(local_executor(1), OneByOne) and local_executor(3) == LocalProcesses(3)
