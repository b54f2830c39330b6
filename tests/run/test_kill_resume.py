"""kill -9 at any moment, resume: the same run, bit for bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tailwise.core.config import dump_yaml
from tailwise.core.metrics import compared_part, is_compared
from tailwise.run.checkpoint import checkpoint_path, checkpoints_in, read_policy, read_training, verify
from tailwise.run.metric_store import differences_without_time
from tailwise.run.run_folder import read_alerts
from tests.support import BACKENDS, bits, small_run

TRAIN = """
import sys
from pathlib import Path
from tailwise.core.config import load_yaml
from tailwise.run.agent import PPO
from tailwise.run.config import parse_config
folder, source = Path(sys.argv[1]), Path(sys.argv[2])
if (folder / "config.yaml").exists():
    agent, notes = PPO.resume(folder)
    print(notes)
else:
    config = parse_config(load_yaml(source), source=str(source))
    agent = PPO(config.env.id, config, run_dir=folder)
agent.learn()
"""


def settings(core: str, backend: str = "torch") -> dict[str, Any]:
    """40 updates, a checkpoint after each third, evaluations, controllers that move, gradients that raise alerts."""
    return {
        "backend": backend,
        "env": {"id": "CartPole-v1", "hide": [1, 3] if core != "none" else []},
        "model": {"core": {"kind": core, **({} if core == "none" else {"hidden": 8})}},
        "learner": {
            "kl_factor": {"kind": "on"},
            "learning_rate": 3e-3,
            "target_kl": 2e-3,
            "value_weight": 50.0,
            "entropy": {"kind": "plateau", "window": 5, "tolerance": 1.0, "decay": 10},
        },
        "run": {"total_steps": 40 * 32, "checkpoint_every": 3, "tensorboard": False},
        "health": {"gradients_every": 4},
        "evaluate": {"every": 7, "episodes": 2},
    }


def start(folder: Path, source: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(["src", *sys.path])}
    return subprocess.Popen(
        [sys.executable, "-c", TRAIN, str(folder), str(source)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=250)
    assert process.returncode == 0, err
    return out


def kill_after(process: subprocess.Popen[str], folder: Path, seconds: float) -> bool:
    """SIGKILL `seconds` after the first line of metrics; whether the process was still running."""
    while not (folder / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.002)
    time.sleep(seconds)
    running = process.poll() is None
    process.kill()
    process.communicate(timeout=60)
    if running:
        assert process.returncode == -signal.SIGKILL
    return running


def assert_same_run(first: Path, second: Path) -> None:
    """All checkpoints' tensors and state, metrics without time, and alerts."""
    assert differences_without_time(first / "metrics.jsonl", second / "metrics.jsonl") == []
    alerts = [
        [alert for alert in read_alerts(folder) if alert["signal"] is None or is_compared(alert["signal"])]
        for folder in (first, second)
    ]
    assert alerts[0] == alerts[1] != []
    names = [path.name for path in checkpoints_in(first)]
    assert names == ["update-000040", "update-000039", "update-000036", "best"]
    # A kill between writing the last checkpoint and deleting the oldest leaves one more; nothing may be missing.
    assert set(names) <= {path.name for path in checkpoints_in(second)}
    for name in names:
        for read in (read_policy, read_training):
            a, b = (read(folder / "checkpoints" / name) for folder in (first, second))
            assert a.tensors.keys() == b.tensors.keys()
            different = [key for key in a.tensors if bits(a.tensors[key]) != bits(b.tensors[key])]
            assert different == [] and a.json == b.json


def whole_run(folder: Path, core: str, backend: str) -> tuple[Path, float]:
    """An uninterrupted run, and how long it took from its first line of metrics on."""
    source = folder / "config.yaml"
    source.write_text(dump_yaml(small_run(**settings(core, backend))))
    process = start(folder / "whole", source)
    while not (folder / "whole" / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.002)
    began = time.monotonic()
    finish(process)
    return folder / "whole", time.monotonic() - began


def killed_run(folder: Path, name: str, delays: list[float]) -> tuple[Path, int]:
    """A run that is killed after each delay and then finished; how many kills hit it."""
    target, hits = folder / name, 0
    for delay in delays:
        hits += kill_after(start(target, folder / "config.yaml"), target, delay)
        for path in checkpoints_in(target):
            verify(path)  # whatever was being written, what is there is whole
    finish(start(target, folder / "config.yaml"))
    return target, hits


@pytest.mark.parametrize(("backend", "core"), [("torch", "none"), ("torch", "lstm"), ("fused", "lstm")])
def test_killed_and_resumed_run_equals_an_uninterrupted_one(backend: str, core: str, tmp_path: Path) -> None:
    """One kill at a random moment. Rejects a resume that forgets a controller, a random stream or an episode."""
    whole, seconds = whole_run(tmp_path, core, backend)
    killed, hits = killed_run(tmp_path, "killed", [random.uniform(0.1, 0.6) * seconds])
    assert hits == 1
    assert_same_run(whole, killed)


def test_state_that_is_not_restored_would_be_noticed(tmp_path: Path) -> None:
    """The wrong version: a resumed run whose optimiser starts afresh ends with other weights."""
    from tailwise.run.agent import PPO

    config = small_run(**settings("none"))
    whole = PPO("CartPole-v1", config, run_dir=tmp_path / "whole")
    whole.learn()
    PPO("CartPole-v1", config.model_copy(update={"run": config.run}), run_dir=tmp_path / "part").learn(18 * 32)
    resumed, _ = PPO.resume(tmp_path / "part")
    resumed.trainer.backend.optimiser.load({})
    resumed.learn()
    a, b = (read_policy(checkpoint_path(tmp_path / name, 40)).tensors for name in ("whole", "part"))
    assert any(bits(a[key]) != bits(b[key]) for key in a)
    rows = [compared_part(row) for row in ({"time/a": 1, "loss/b": 2},)]
    assert rows == [{"loss/b": 2}]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_ten_runs_killed_at_random_moments(core: str, backend: str, tmp_path: Path) -> None:
    whole, seconds = whole_run(tmp_path, core, backend)
    hits = 0
    for number in range(10):
        killed, hit = killed_run(tmp_path, f"killed-{number}", [random.uniform(0.0, 0.9) * seconds])
        hits += hit
        assert_same_run(whole, killed)
    assert hits >= 7


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", BACKENDS)
def test_run_killed_many_times_in_a_row(backend: str, tmp_path: Path) -> None:
    """Thirty kills within one run, many of them while a checkpoint is being written: every folder stays whole."""
    whole, seconds = whole_run(tmp_path, "lstm", backend)
    delays = [random.uniform(0.0, 0.2) * seconds for _ in range(30)]
    killed, hits = killed_run(tmp_path, "killed", delays)
    assert hits >= 5
    assert_same_run(whole, killed)
