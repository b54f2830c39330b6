"""The same jobs on Ray: the same results, stopped, failing, with a worker that dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import tailwise
from tailwise.cli.main import main
from tailwise.core.config import dump_yaml
from tailwise.core.errors import ConfigError, DataError
from tailwise.run.checkpoint import latest_good
from tailwise.run.config import parse_config
from tailwise.run.jobs import Line
from tailwise.run.placement import Placement
from tailwise.run.ray_jobs import RayTasks
from tailwise.scale.member_job import digest_of
from tests.run.sleepers import Sleeper
from tests.scale.far_jobs import Stumbler
from tests.scale.test_tune import CARTPOLE, SPACE, lineage

ray = pytest.importorskip("ray", reason="the extra tune is not installed")

pytestmark = [
    pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
SETTINGS = {"population": 2, "generations": 2}


def test_a_population_on_ray_is_that_of_local_processes(tmp_path: Path) -> None:
    """Rejects a search that depends on the order in which tasks end, lines that are lost, and threads that are not
    those of the configuration."""
    lines: list[Line] = []
    local = tailwise.tune(CARTPOLE, SPACE, settings=SETTINGS, out=tmp_path / "local")
    far = tailwise.tune(
        CARTPOLE, SPACE, settings=SETTINGS, out=tmp_path / "ray", executor=RayTasks(2), say=lines.append
    )
    assert lineage(far) == lineage(local) and far.trainings == 4
    assert {line.label for line in lines} >= {"generation 0, member 0", "generation 1, member 1", "search"}
    assert not ray.is_initialized()


@pytest.mark.slow
def test_jobs_are_stopped_retried_and_errors_are_raised_here(tmp_path: Path) -> None:
    """One Ray for all of it. Rejects results in another order than the jobs', an error that is lost, a worker that dies
    without a word, and one whose job is not begun again."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        tasks = RayTasks(2, retries=1)
        assert tasks.run([Sleeper(0, 1.0), Sleeper(1), Sleeper(2)]) == [0, 1, 2]
        started = time.monotonic()
        lines: list[Line] = []
        assert (
            tasks.run([Sleeper(0, 60.0), Sleeper(1, 60.0), Sleeper(2)], stop=lambda: bool(lines), say=lines.append)
            is None
        )
        assert "job 2" not in {line.label for line in lines} and time.monotonic() - started < 50
        with pytest.raises(DataError, match=r"^the bars are torn$"):
            tasks.run([Sleeper(0, error="the bars are torn"), Sleeper(1, 60.0)])
        with pytest.raises(DataError, match=r"job 0: its worker died 2 times"):
            tasks.run([Sleeper(0, error="die")])
        assert tasks.run([Stumbler(tmp_path / "first")]) == ["half done"]
        assert ray.is_initialized()
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_a_cluster_is_used_by_its_address_and_may_lose_a_node() -> None:
    """Two nodes, one of which is killed while it works. Rejects a search that ends with it, and one that takes the
    cluster down when it is over."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        doomed, lines = cluster.add_node(num_cpus=1), list[Line]()
        cluster.wait_for_nodes()

        def kill_when_both_work(line: Line) -> None:
            lines.append(line)
            if len(lines) == 2:
                cluster.remove_node(doomed, allow_graceful=False)

        jobs = [Sleeper(0, 8.0), Sleeper(1, 8.0)]
        assert RayTasks(2, address=cluster.address).run(jobs, say=kill_when_both_work) == [0, 1]
        assert len(lines) >= 3  # the job of the killed node was begun again
        assert RayTasks(1, address=cluster.address).run([Sleeper(5)]) == [5]
    finally:
        cluster.shutdown()


THREADS = """
import sys
from dataclasses import dataclass
from tailwise.run.ray_jobs import RayTasks
from tests.scale.far_jobs import Threads
print(RayTasks(1, threads=int(sys.argv[1])).run([Threads()])[0])
"""


@pytest.mark.slow
def test_threads_are_set_in_every_task_and_no_process_is_left() -> None:
    """A driver of its own, which ends. Rejects numba's threads, which Ray leaves at the number of cores."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", ".", *sys.path])}
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        environment.pop(name, None)
    before = processes()
    ended = subprocess.run(
        [sys.executable, "-c", THREADS, "1"], env=environment, capture_output=True, text=True, timeout=200
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["numba", "1", "torch", "1", "OMP", "1"]
    deadline = time.monotonic() + 20
    while processes() - before and time.monotonic() < deadline:
        time.sleep(0.2)
    assert processes() - before == set()


def processes() -> set[int]:
    """Processes of Ray that belong to this user."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"/ray/" in words or words.startswith(b"ray::"):
                found.add(int(entry.name))
    return found


def test_places_are_named() -> None:
    with pytest.raises(ConfigError, match="--on is 'moon'; choose local or ray"):
        Placement("moon")
    with pytest.raises(ConfigError, match="--address is 'head:6379', which is of a Ray cluster; add --on ray"):
        Placement("local", address="head:6379")
    for address, sentence in (("127.0.0.1:1", "nobody answers"), ("head", "is not HOST:PORT"), ("a:9999999", "nobody")):
        with pytest.raises(ConfigError, match=sentence):  # at once, where Ray itself tries for minutes
            RayTasks(1, address=address).run([Sleeper(5)])
    assert Placement("ray", 3).executor(jobs=1, threads=2) == RayTasks(3, None, 2)


WALK = {
    "data": {"kind": "synthetic", "market": "sine", "parameters": {"length": 900, "noise": 0.002}},
    "features": {"include": ["return_1", "return_5"]},
    "env": {"kind": "market", "episode_length": 32},
    "costs": {"impact_bps": 0},
    "model": {"encoder": {"hidden": [8]}},
    "learner": {"gamma": 0.9, "epochs": 1},
    "run": {"environments": 4, "rollout_steps": 16, "total_steps": 128, "tensorboard": False},
}


@pytest.mark.slow
def test_commands_place_studies_and_seeds_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a walk-forward and the weights of seeds are those of local processes, and no process is left.

    Rejects a command that takes --on and trains in local processes all the same: Ray's worker writes the run then."""
    (tmp_path / "walk.yaml").write_text(dump_yaml(parse_config(WALK, source="test")))
    before, writers = processes(), {}
    for home, place in (("ray", ["--on", "ray"]), ("local", [])):
        (tmp_path / home).mkdir()
        monkeypatch.chdir(tmp_path / home)
        watched = Ray(before)
        walk = [
            "walk-forward",
            "../walk.yaml",
            "--folds",
            "2",
            "--seeds",
            "2",
            "--jobs",
            "2",
            "--json",
            "--out",
            "walk",
        ]
        with watched:
            assert main([*walk, *place]) == 0
            assert main(["train", "../walk.yaml", "-s", "run.seeds=2", "--out", "seeds", "--quiet", *place]) == 0
        writers[home] = watched.seen
    assert writers["ray"] and not writers["local"]
    monkeypatch.chdir(tmp_path)
    ours, theirs = (json.loads(Path(home, "walk/walk_forward.json").read_text()) for home in ("ray", "local"))
    assert ours == theirs
    for seed in ("seed_0", "seed_1"):
        one, other = (latest_good(Path(home) / "seeds" / seed)[0] for home in ("ray", "local"))
        assert one is not None and other is not None and digest_of(one) == digest_of(other)
    deadline = time.monotonic() + 20
    while processes() - before and time.monotonic() < deadline:
        time.sleep(0.2)
    assert processes() - before == set()


class Ray(threading.Thread):
    """Watches which processes of Ray appear while a command runs."""

    def __init__(self, before: set[int]) -> None:
        super().__init__()
        self.before, self.seen, self.over = before, set[int](), threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.1):
            self.seen |= processes() - self.before

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()


def test_one_policy_is_not_placed_on_ray(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "cartpole", "--on", "ray", "--out", str(tmp_path / "run")]) == 2
    assert "--on ray places the seeds of a run, and run.seeds is 1" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
