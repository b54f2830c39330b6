"""Evaluation during training: the best checkpoint and patience."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailwise.run.agent import PPO, load
from tailwise.run.checkpoint import checkpoint_path, read_training
from tests.support import Scripted, merged, small_run

EVALUATED: dict[str, Any] = {
    "evaluate": {"every": 2, "episodes": 2},
    "run": {"total_steps": 32 * 40, "checkpoint_every": 100},
}


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_patience_stops_the_run_and_the_best_checkpoint_is_of_the_best_update(tmp_path: Path) -> None:
    """A gain that nothing reaches: the first evaluation (update 2) stays the best; three more, then it stops."""
    config = small_run(**{**EVALUATED, "evaluate": {"every": 2, "episodes": 2, "patience": 3, "min_delta": 1e6}})
    agent = PPO("CartPole-v1", config, run_dir=tmp_path / "run")
    reason = agent.learn()
    assert reason.startswith("the evaluation did not improve 3 times in a row")
    assert agent.trainer.update == 2 * 4
    assert read_training(checkpoint_path(tmp_path / "run", None)).json["update"] == 2
    assert [row["update"] for row in rows(tmp_path / "run") if "evaluate/return" in row] == [2, 4, 6, 8]
    # The best weights are what load gives, not the last ones.
    best = load(tmp_path / "run").model.state_dict()
    assert not all(tensor.equal(best[name]) for name, tensor in agent.model.state_dict().items())


def test_improvement_resets_the_patience() -> None:
    """Rejects a counter of all evaluations without gain, instead of those in a row."""
    agent = PPO("CartPole-v1", small_run(**EVALUATED))
    trainer = agent.trainer
    trainer.driver.reset()
    trainer.evaluations_without_gain = 5
    trainer.best_return = -1e9
    trainer.update = 2
    found = trainer._evaluate([])
    assert trainer.evaluations_without_gain == 0 and trainer.best_return == found["evaluate/return"]
    assert found["evaluate/best"] == found["evaluate/return"]
    trainer._evaluate([])
    assert trainer.evaluations_without_gain == 1  # the same policy is no gain
    trainer.update = 3
    assert trainer._evaluate([]) == {}


def test_without_patience_nothing_stops() -> None:
    agent = PPO("CartPole-v1", small_run(**{**EVALUATED, "run": {"total_steps": 32 * 8}}))
    assert agent.learn() == "all 256 steps are done"
    assert sum("evaluate/return" in row for row in agent.history) == 4


def test_line_of_the_best_update_is_written_before_its_checkpoint(tmp_path: Path) -> None:
    """A run killed right after its first best checkpoint, before any other, is resumed from it and lacks no line.

    Rejects writing the checkpoint during the evaluation: the metrics of that update would be missing for ever.
    """
    folder = tmp_path / "run"
    agent = PPO("CartPole-v1", small_run(**merged(EVALUATED, {"run": {"total_steps": 64}})), run_dir=folder)
    trainer = agent.trainer
    original = trainer.write_checkpoint
    seen: list[list[int]] = []

    def write(path: Path) -> None:
        seen.append([row["update"] for row in rows(folder)])
        original(path)

    trainer.write_checkpoint = write  # type: ignore[method-assign]  # only looks, then writes
    agent.learn()
    assert seen[0] == [1, 2]


def test_evaluation_needs_an_environment_that_can_be_rebuilt() -> None:
    """Rejects an assertion in the middle of training: the sentence comes before the first step."""
    import gymnasium as gym

    with pytest.raises(Exception, match=r"evaluate\.every needs environments of its own"):
        PPO(Scripted(), small_run(**EVALUATED))
    with pytest.raises(Exception, match=r"env\.id is 'Acrobot-v1' and an environment was passed"):
        PPO(lambda: gym.make("CartPole-v1"), small_run(env={"id": "Acrobot-v1"}))


@pytest.mark.parametrize(("limit", "counted"), [(-1e6, [False, False, True, True, True]), (1e6, [False] * 5)])
def test_a_policy_that_has_not_kept_its_limit_is_never_the_best(
    limit: float, counted: list[bool], tmp_path: Path
) -> None:
    """Warm-up of 3 updates, then a limit that every policy keeps, or none. Rejects a choice by return alone."""
    risk = {"mode": "constraint", "alpha": 0.25, "limit": limit, "warmup": {"updates": 3, "longest": 3}}
    config = small_run(risk=risk, evaluate={"every": 1, "episodes": 2}, run={"total_steps": 32 * 5})
    PPO("CartPole-v1", config, run_dir=tmp_path / "run").learn()
    assert ["evaluate/best" in row for row in rows(tmp_path / "run")] == counted
    assert checkpoint_path(tmp_path / "run", None).is_dir() == any(counted)
