"""One small search in a process of its own, `python -m benchmarks.scale_work FOLDER PLACE`, and how it is watched.

PLACE is one (in this process), local (two processes), ray (Ray inside) or cluster (two raylets of `cluster_utils`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.sources import ROOT

MARK = "TAILWISE_BENCHMARK"  # in the environment of everything that a search starts
PLACES = ("one", "local", "ray", "cluster")
CHECKPOINT_EVERY = 2
LAST_WORDS = 600  # characters of stderr that are shown
CARTPOLE: dict[str, Any] = {
    "env": {"id": "CartPole-v1", "hide": [1, 3]},
    "model": {"core": {"kind": "lstm", "hidden": 8}},
    "evaluate": {"episodes": 4, "deterministic": False},
    "run": {
        "environments": 8,
        "rollout_steps": 32,
        "total_steps": 9 * 256,
        "checkpoint_every": CHECKPOINT_EVERY,
        "tensorboard": False,
    },
}
SPACE = {
    "learner.learning_rate": {"low": 1e-5, "high": 1e-2, "scale": "log"},
    "learner.entropy.weight": {"low": 1e-4, "high": 0.1, "scale": "log"},
}
SETTINGS = {"population": 3, "generations": 3}


@dataclass(frozen=True)
class Started:
    """A search at work. mark: in the environment of its processes; errors: what it writes to stderr."""

    process: subprocess.Popen[str]
    mark: str
    errors: IO[str]

    def family(self) -> dict[int, str]:
        """All living processes that it started, and itself, with their command lines."""
        found = {}
        wanted = f"{MARK}={self.mark}".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0") and _lives(entry):
                    found[int(entry.name)] = (
                        (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    )
            except OSError:  # it ended meanwhile
                continue
        return found


def _lives(entry: Path) -> bool:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"


def start(*arguments: str) -> Started:
    """Start `python -m benchmarks.scale_work` with these arguments."""
    mark = uuid.uuid4().hex
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", MARK: mark, "PYTHONPATH": path}
    errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (it is read when the search has ended)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.scale_work", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=errors,  # a pipe that nobody reads would fill up
        text=True,
    )
    return Started(process, mark, errors)


def finish(started: Started) -> str:
    """Wait for its end; what it printed. Raises where it failed."""
    out, _ = started.process.communicate(timeout=1800)
    refuse_failure(started)
    return out


def refuse_failure(started: Started) -> None:
    """Raise where it ended with an error, with its last words."""
    if started.process.returncode != 0:
        started.errors.seek(0)
        last = " | ".join(line.strip() for line in started.errors if line.strip())[-LAST_WORDS:]
        raise SystemExit(f"benchmarks.scale_work ended with {started.process.returncode}: ... {last}")


def updates_in(folder: Path) -> int:
    """Updates that all trainings of a search have written down; folders below theirs come and go."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("*/metrics.jsonl"))


def wait_for(started: Started, folder: Path, *, updates: int, then: float) -> bool:
    """Wait until a search has written down so many updates, and so many seconds more; whether it still goes on."""
    while started.process.poll() is None and updates_in(folder) < updates:
        time.sleep(0.02)
    until = time.monotonic() + then
    while started.process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    return started.process.poll() is None


def lineage_of(folder: Path) -> Any:
    """Every member of every generation: parent, values, scores, hash of its weights."""
    return json.loads((folder / "tune.json").read_text())["steps"]


def search(folder: Path, place: str) -> None:
    """The small search, begun or continued."""
    import tailwise
    from tailwise.run.jobs import local_executor
    from tailwise.run.ray_jobs import RayTasks

    with _cluster() if place == "cluster" else nullcontext() as address, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        local = {"one": 1, "local": 2}
        executor = local_executor(local[place]) if place in local else RayTasks(2, address=address)
        tailwise.tune(CARTPOLE, SPACE, settings=SETTINGS, out=folder, executor=executor)


class _cluster:
    """Two nodes of Ray on this machine; gives their address."""

    def __enter__(self) -> str:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
        self.cluster.add_node(num_cpus=2)
        self.cluster.wait_for_nodes()
        return str(self.cluster.address)

    def __exit__(self, *_: object) -> None:
        self.cluster.shutdown()


if __name__ == "__main__":
    if sys.argv[1] == "overhead":
        from benchmarks.scale_overhead import work

        work(Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
    else:
        search(Path(sys.argv[1]), sys.argv[2])
