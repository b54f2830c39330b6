"""Runs in MLflow and Weights & Biases; skipped, visibly, where the packages are not installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import tailwise
from tailwise.core.errors import ConfigError
from tailwise.run.tracking import FILE, MlflowTracker, WandbTracker, flattened, make_trackers

CONFIG: dict[str, Any] = {
    "run": {"environments": 4, "rollout_steps": 8, "total_steps": 64, "tensorboard": False, "checkpoint_every": 1},
    "model": {"encoder": {"hidden": [8]}},
}


def test_nested_keys_become_one_name() -> None:
    assert list(flattened({"a": {"b": 1, "c": [2]}, "d": None})) == [("a.b", 1), ("a.c", [2]), ("d", None)]


def test_a_tracker_that_is_unknown_or_not_installed_is_a_sentence(tmp_path: Path) -> None:
    config = tailwise.Config()
    with pytest.raises(ConfigError, match="choose mlflow or wandb"):
        make_trackers(["tensorflow"], config, tmp_path)
    missing = [name for name in ("mlflow", "wandb") if importlib.util.find_spec(name) is None]
    for name in missing:
        with pytest.raises(ConfigError, match=f"needs the package {name}, which is not installed; pip install"):
            make_trackers([name], config, tmp_path)
    assert make_trackers([], config, tmp_path) == []


def test_mlflow_has_the_configuration_and_every_metric_and_goes_on_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed (pip install 'tailwise[mlflow]')")
    run_dir, store = tmp_path / "run", f"file://{tmp_path}/mlruns"
    agent = tailwise.PPO("CartPole-v1", CONFIG, run_dir=run_dir)
    tracker = MlflowTracker(agent.config, run_dir, tracking_uri=store)
    agent.trainer.callbacks.append(tracker)
    agent.learn(32)
    agent, _ = tailwise.PPO.resume(run_dir)
    second = MlflowTracker(agent.config, run_dir, tracking_uri=store)
    agent.trainer.callbacks.append(second)
    agent.learn()
    found = second.client.get_run(json.loads((run_dir / FILE).read_text())["mlflow"])
    assert second.run_id == tracker.run_id and found.info.status == "FINISHED"
    assert found.data.params["learner.clip"] == "0.2" and found.data.params["env.id"] == "CartPole-v1"
    history = second.client.get_metric_history(found.info.run_id, "policy/entropy")
    table = tailwise.Run(run_dir).metrics
    assert [point.step for point in history] == list(table["steps"])
    assert [point.value for point in history] == pytest.approx(list(table["policy/entropy"]))


@pytest.mark.slow
def test_wandb_offline_keeps_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed (pip install 'tailwise[wandb]')")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run_dir = tmp_path / "run"
    agent = tailwise.PPO("CartPole-v1", CONFIG, run_dir=run_dir)
    agent.trainer.callbacks.append(WandbTracker(agent.config, run_dir, mode="offline"))
    agent.learn()
    kept = json.loads((run_dir / FILE).read_text())["wandb"]
    assert list(run_dir.glob(f"wandb/offline-run-*-{kept}/run-{kept}.wandb"))
