"""Runs as a stranger would send them: each names code that leaves a mark when it is executed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym

from tailwise.run.agent import PPO
from tailwise.run.config import Config
from tests.support import merged, small_run

MARKET: dict[str, Any] = {
    "data": {"kind": "synthetic", "market": "sine", "parameters": {"length": 500, "noise": 0.002}},
    "features": {"include": ["return_1"]},
    "env": {"kind": "market", "action": {"kind": "positions", "positions": [-1, 0, 1]}, "episode_length": 32},
    "run": {"environments": 4, "rollout_steps": 16, "total_steps": 128, "checkpoint_every": 1},
}
FEATURES = """
from pathlib import Path
Path({mark!r}).touch()
from tailwise.features.contract import batch_feature
@batch_feature('mine', meaning='the bar itself', unit='fraction', warm_up=0)
def mine(frame):
    return frame['close'] / frame['open'] - 1
"""
ENVIRONMENT = """
from pathlib import Path
Path({mark!r}).touch()
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv
gym.register("Stranger-v0", entry_point=CartPoleEnv, max_episode_steps=20)
"""


@dataclass(frozen=True)
class Stranger:
    """A run, and the mark that its code leaves."""

    run: Path
    mark: Path


@contextmanager
def another_user(folder: Path) -> Iterator[None]:
    """Whatever is signed here is signed with another key."""
    before = os.environ["XDG_CONFIG_HOME"]
    os.environ["XDG_CONFIG_HOME"] = str(folder / "config-of-another")
    try:
        yield
    finally:
        os.environ["XDG_CONFIG_HOME"] = before


def train(run: Path, config: Config) -> Path:
    """A short run, as this user."""
    agent = PPO(config=config, run_dir=run)
    agent.learn()
    agent.trainer.driver.close()
    return run


def forget(mark: Path) -> None:
    """Undo the training: no mark, and no module in memory that would not be executed a second time."""
    mark.unlink(missing_ok=True)
    for name in [name for name in sys.modules if name.startswith("tailwise_own_") or name == "stranger_env"]:
        del sys.modules[name]
    gym.registry.pop("Stranger-v0", None)


def with_features(folder: Path, run: str = "run", **changes: Any) -> Stranger:
    """A market run with features of its own."""
    mark, module = folder / "executed", folder / "mine.py"
    module.write_text(FEATURES.format(mark=str(mark)))
    features = {"features": {"include": ["return_1", "mine"], "modules": [str(module)]}}
    train(folder / run, small_run(**merged(merged(MARKET, features), changes)))
    assert mark.exists()
    forget(mark)
    return Stranger(folder / run, mark)


def with_environment(folder: Path) -> Stranger:
    """A run on an environment that a module registers; the folder must be on sys.path."""
    mark = folder / "executed"
    (folder / "stranger_env.py").write_text(ENVIRONMENT.format(mark=str(mark)))
    train(folder / "run", small_run(env={"id": "stranger_env:Stranger-v0"}, run={"checkpoint_every": 1}))
    assert mark.exists()
    forget(mark)
    return Stranger(folder / "run", mark)


def with_command(folder: Path) -> Stranger:
    """A run that calls a program about an alert that it will raise; it has steps left."""
    mark = folder / "executed"
    config = small_run(
        env={"id": "CartPole-v1"},
        learner={"value_weight": 50.0, "learning_rate": 3e-3, "target_kl": 2e-3},  # gradients that raise alerts
        notify={"commands": [{"argv": ["touch", str(mark)], "severity": "info"}]},
        run={"checkpoint_every": 1},
    )
    agent = PPO(config=config, run_dir=folder / "run")
    agent.learn(32)
    agent.trainer.driver.close()
    forget(mark)
    return Stranger(folder / "run", mark)
