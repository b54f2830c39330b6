"""Each action end to end on a real run: what it does, that it is bounded, written down and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tailwise.core.errors import CheckpointError
from tailwise.run import checkpoint as ckpt
from tailwise.run.agent import PPO
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.run_folder import read_alerts, read_health_events
from tailwise.run.trainer import Trainer
from tests.support import BACKENDS, merged, same, small_run, small_trainer, snapshot

QUIET = ["no_advantage_signal", "reward_without_information", "critic_disagreement"]


def acting(action: str, after: int = 3, **more: Any) -> dict[str, Any]:
    """A rule that holds in every update after `after`."""
    rule = {"name": "planted", "signal": "policy/epochs", "above": 0.0, "not_before": after, "action": action}
    return {"health": {"rules": [rule], "disable": QUIET, **more}, "run": {"total_steps": 8 * 32}}


class Keeper(Callback):
    """Keeps what an update left of the learner: weights, normaliser, return scale, moments."""

    def __init__(self) -> None:
        self.states: dict[int, dict[str, torch.Tensor]] = {}
        self.trainer: Trainer | None = None

    def on_update(self, progress: Progress) -> bool | None:
        assert self.trainer is not None
        self.states[progress.update] = snapshot(self.trainer.backend)
        return None


def kept(trainer: Trainer) -> Keeper:
    keeper = Keeper()
    keeper.trainer = trainer
    trainer.callbacks.append(keeper)
    return keeper


def agent_in(folder: Path, **changes: Any) -> PPO:
    return PPO("CartPole-v1", small_run(**merged({"run": {"checkpoint_every": 2, "keep": 5}}, changes)), run_dir=folder)


def test_warn_does_nothing_but_tell() -> None:
    plain, told = small_trainer(run={"total_steps": 8 * 32}), small_trainer(**acting("warn"))
    plain.train()
    told.train()
    assert same(snapshot(plain.backend), snapshot(told.backend))
    assert [alert.rule for alert in told.alerts if alert.rule == "planted"] == ["planted"]


@pytest.mark.parametrize("kind", BACKENDS)
def test_shrink_makes_the_next_steps_smaller_within_its_budget(kind: str) -> None:
    """After updates 4 and 6 (a cooldown of 2), twice at most. Rejects a factor that is set and not used."""
    config = acting("shrink", cooldown=2, max_shrinks=2)
    trainer = small_trainer(backend=kind, learner={"schedule": {"kind": "constant"}}, **config)
    trainer.train()
    base = trainer.config.learner.learning_rate
    rates = [row["step/learning_rate"] / base for row in trainer.history]
    assert rates == pytest.approx([1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25])
    assert trainer.health.actions.counts["shrink"] == 2 and trainer.controllers.health_factor == 0.25


@pytest.mark.parametrize("kind", BACKENDS)
def test_skip_puts_everything_back(kind: str) -> None:
    """Updates 4 and 5 are undone bit for bit, then the budget is spent and 6 is kept."""
    trainer = small_trainer(backend=kind, **acting("skip", max_skips=2))
    keeper = kept(trainer)
    trainer.train()
    assert same(keeper.states[4], keeper.states[3]) and same(keeper.states[5], keeper.states[3])
    assert not same(keeper.states[6], keeper.states[5])
    assert [row["update/committed"] for row in trainer.history] == [1, 1, 1, 0, 0, 1, 1, 1]
    assert trainer.health.actions.counts["skip"] == 2 and not trainer.failed


def test_skipping_for_good_stops_the_run() -> None:
    """run.max_refused in a row. Rejects a run that collects for ever and learns nothing."""
    trainer = small_trainer(**merged(acting("skip"), {"run": {"max_refused": 3, "total_steps": 32 * 50}}))
    assert trainer.train() == "3 updates in a row were refused or rolled back; see the alerts"
    assert trainer.update == 6 and trainer.failed


@pytest.mark.parametrize("kind", BACKENDS)
def test_rollback_goes_to_the_checkpoint_before_the_trouble(kind: str, tmp_path: Path) -> None:
    """It holds since update 6, so the checkpoint of 4 is the newest good one; time goes on, with half the step."""
    agent = agent_in(tmp_path / "run", backend=kind, **acting("rollback", after=5, max_rollbacks=1, cooldown=50))
    keeper = kept(agent.trainer)
    agent.learn()
    assert same(keeper.states[6], keeper.states[4]) and not same(keeper.states[7], keeper.states[6])
    assert agent.trainer.update == 8 and agent.trainer.controllers.health_factor == 0.5
    acted = [event for event in read_health_events(tmp_path / "run").events if event["event"] == "acted"]
    assert [(event["update"], event["action"]) for event in acted] == [(6, "rollback")]
    assert "checkpoint update-000004" in acted[0]["evidence"]
    # Who resumes now must not continue from the states that were left.
    stored = ckpt.read_policy(ckpt.checkpoint_path(tmp_path / "run", 6)).tensors
    assert all(torch.equal(stored[name], keeper.states[4][name]) for name in stored)


def test_rollback_without_a_folder_uses_copies_in_memory() -> None:
    config = merged(acting("rollback", after=5, max_rollbacks=1, cooldown=50), {"run": {"checkpoint_every": 2}})
    trainer = small_trainer(**config)
    keeper = kept(trainer)
    trainer.train()
    assert same(keeper.states[6], keeper.states[4]) and trainer.controllers.health_factor == 0.5


@pytest.mark.parametrize("kind", BACKENDS)
def test_copies_in_memory_stay_what_they_were(kind: str) -> None:
    """Update 5 is undone with the copy that is kept of update 4, 6 learns on, 7 goes back to 4, 8 learns, 9 goes back
    to 4 again. Rejects a copy whose moments the optimiser took over, which every step then changes."""
    undo = {"name": "undo", "signal": "policy/epochs", "above": 0.0, "not_before": 4, "action": "skip"}
    back = {"name": "back", "signal": "policy/epochs", "above": 0.0, "not_before": 6, "action": "rollback"}
    health = {"rules": [undo, back], "disable": QUIET, "max_skips": 1, "max_rollbacks": 2, "cooldown": 2}
    trainer = small_trainer(backend=kind, health=health, run={"total_steps": 9 * 32, "checkpoint_every": 4})
    keeper = kept(trainer)
    trainer.train()
    assert trainer.health.actions.counts == {"shrink": 0, "skip": 1, "rollback": 2, "stop": 0}
    assert not same(keeper.states[6], keeper.states[4]) and not same(keeper.states[8], keeper.states[4])
    assert all(same(keeper.states[update], keeper.states[4]) for update in (5, 7, 9))


class Tearing(Callback):
    """Breaks the checkpoint of update 4 after update 5."""

    def __init__(self, run_dir: Path) -> None:
        self.file = ckpt.checkpoint_path(run_dir, 4) / ckpt.TRAINING_TENSORS

    def on_update(self, progress: Progress) -> bool | None:
        if progress.update == 5:
            self.file.write_bytes(b"torn")
        return None


def test_rollback_takes_the_one_before_when_a_checkpoint_is_broken(tmp_path: Path) -> None:
    agent = agent_in(tmp_path / "run", **acting("rollback", after=5, max_rollbacks=1, cooldown=50))
    keeper = kept(agent.trainer)
    agent.trainer.callbacks.append(Tearing(tmp_path / "run"))
    agent.learn()
    assert same(keeper.states[6], keeper.states[2])


def test_rollbacks_that_do_not_help_end_in_a_stop(tmp_path: Path) -> None:
    agent = agent_in(tmp_path / "run", **acting("rollback", after=3, max_rollbacks=1, cooldown=2))
    reason = agent.learn()
    assert "the rule planted stopped the run: 1 roll-backs did not help" in reason
    assert agent.trainer.update == 6 and agent.trainer.failed


def test_stop_leaves_a_full_dump(tmp_path: Path) -> None:
    """The rollout, the metrics, the alerts and a checkpoint that can be restored."""
    agent = agent_in(tmp_path / "run", **acting("stop"))
    reason = agent.learn()
    folder = tmp_path / "run" / "dumps" / "update-000004"
    assert agent.trainer.update == 4 and agent.trainer.failed and str(folder) in reason
    rollout = load_file(folder / "rollout.safetensors")
    assert rollout["reward"].shape == (8, 4) and "critic.mean" in rollout
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["policy/epochs"] == 2.0
    assert [alert["rule"] for alert in json.loads((folder / "alerts.json").read_text())] == ["planted"]
    ckpt.verify(folder / "checkpoint")
    again = PPO("CartPole-v1", agent.config)
    again.restore(folder / "checkpoint")
    assert same(snapshot(again.trainer.backend), snapshot(agent.trainer.backend))


def test_a_stopped_run_can_be_resumed(tmp_path: Path) -> None:
    """The rule fires already and does not stop it again; who resumes wants the run to go on."""
    agent_in(tmp_path / "run", **acting("stop")).learn()
    agent, _ = PPO.resume(tmp_path / "run")
    assert agent.learn() == "all 256 steps are done" and agent.trainer.update == 8


@pytest.mark.parametrize("action", ["shrink", "skip"])
def test_budgets_and_factors_survive_a_resume(action: str, tmp_path: Path) -> None:
    """Interrupted after 5 updates and continued: the same as without. Rejects counts that begin anew."""
    config = acting(action, cooldown=2, max_shrinks=2, max_skips=2)
    config["learner"] = {"schedule": {"kind": "constant"}}  # a schedule depends on the total, which `learn` sets
    whole = agent_in(tmp_path / "whole", **config)
    whole.learn()
    agent_in(tmp_path / "run", **config).learn(5 * 32)
    resumed, _ = PPO.resume(tmp_path / "run")
    resumed.learn(3 * 32)
    assert same(snapshot(resumed.trainer.backend), snapshot(whole.trainer.backend))
    assert resumed.trainer.health.actions.state() == whole.trainer.health.actions.state()
    assert resumed.trainer.controllers.health_factor == whole.trainer.controllers.health_factor
    assert read_alerts(tmp_path / "run") == read_alerts(tmp_path / "whole")


def test_a_checkpoint_without_health_state_is_a_sentence() -> None:
    trainer = small_trainer()
    with pytest.raises(CheckpointError, match="the health state lacks actions, evaluated, rules, signals"):
        trainer.health.load({}, {})
