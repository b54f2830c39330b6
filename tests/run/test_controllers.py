"""What goes back with an undone update and with a roll-back, and hyperparameters that change on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.toy_risk import ExposureVector
from tailwise import PPO, load
from tailwise.core.errors import CheckpointError, ConfigError
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.controllers import Controllers, Hyperparameters
from tailwise.run.trainer import Trainer
from tests.support import BACKENDS, merged, same, small_trainer, snapshot

QUIET = ["no_advantage_signal", "reward_without_information", "critic_disagreement"]
LIMIT = {"mode": "constraint", "limit": -0.05, "alpha": 0.25, "warmup": {"updates": 0, "longest": 1}}
PLATEAU = {"kind": "plateau", "window": 6, "tolerance": 10.0}
KL_FACTOR = {"kind": "on", "high": 100.0, "low": 1e-3}


def limited(action: str, *, after: int, backend: str, run_dir: Path | None = None) -> PPO:
    """Eight updates under a broken limit, with an entropy that is flat at once; a rule acts after update `after`."""
    rule = {"name": "planted", "signal": "policy/epochs", "above": 0.0, "not_before": after, "action": action}
    return PPO(
        ExposureVector(8, mu=0.1, sigma=0.5),
        {
            "backend": backend,
            "model": {"encoder": {"hidden": [8]}, "actor": {"hidden": [8]}, "critic": {"hidden": [8]}},
            "learner": {"entropy": PLATEAU, "kl_factor": KL_FACTOR},
            "risk": LIMIT,
            "health": {"rules": [rule], "disable": QUIET, "max_skips": 2, "max_rollbacks": 1, "cooldown": 50},
            "run": {"environments": 8, "rollout_steps": 16, "total_steps": 8 * 128, "checkpoint_every": 2},
        },
        run_dir=run_dir,
    )


class Keeper(Callback):
    """Keeps the controllers as every update leaves them."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.states = trainer, list[dict[str, Any]]()

    def on_update(self, progress: Progress) -> None:
        self.states.append(self.trainer.controllers.to_json())


def followed(agent: PPO) -> list[dict[str, Any]]:
    """The controllers after every update of a run."""
    keeper = Keeper(agent.trainer)
    agent.trainer.callbacks.append(keeper)
    agent.trainer.train()
    return keeper.states


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_undone_update_moves_no_controller(backend: str) -> None:
    """Updates 6 and 7 are undone; in 6 the plateau would begin. Rejects a multiplier, plateau, KL factor or width that
    stays moved, and metrics that tell of the multiplier that was put back."""
    agent = limited("skip", after=5, backend=backend)
    states, free = followed(agent), followed(limited("warn", after=5, backend=backend))
    assert states[:5] == free[:5] and states[5] == states[6] == states[4]
    moved = {name for name, value in free[5].items() if value != states[4][name]}
    assert moved == {"kl_factor", "narrowed", "entropies", "plateau_at", "constraint"}
    multipliers = [row["risk/multiplier"] for row in agent.history]
    assert multipliers[4] == multipliers[5] == multipliers[6] == states[4]["constraint"]["multiplier"] > 0.0


def test_a_roll_back_takes_all_controllers_along_but_the_health_factor(tmp_path: Path) -> None:
    """Update 6, in which the plateau begins, goes back to the checkpoint of update 4. Rejects a plateau, a multiplier
    or entropies that stay behind."""
    states = followed(limited("rollback", after=5, backend="torch", run_dir=tmp_path / "run"))
    back, good = states[5], states[3]
    assert {**back, "health_factor": 1.0} == good and back["health_factor"] == 0.5
    free = followed(limited("warn", after=5, backend="torch"))
    assert free[3] == good and free[5]["plateau_at"] == 6 and free[5]["constraint"] != good["constraint"]


def test_controllers_are_copied_not_shared() -> None:
    controllers = Controllers(kl_factor=0.5, entropies=[1.0], plateau_at=3, narrowed=-0.2, health_factor=0.25)
    copy, other = controllers.to_json(), Controllers()
    controllers.entropies.append(2.0)
    other.load(copy)
    assert other == Controllers(0.5, 0.25, -0.2, [1.0], 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_adopted_values_are_those_that_train(backend: str) -> None:
    """Rejects a setter that changes the configuration and not the learner: every value must change the next update, as
    if the run had been configured with it. Entropy, clip and lambda act through losses, the rate through the step."""
    changes = {
        "learning_rate": Hyperparameters(learning_rate=1e-2),
        "gamma": Hyperparameters(gamma=0.5),
        "lambda": Hyperparameters(lam=0.1),
        "clip": Hyperparameters(clip=0.01),
        "entropy": Hyperparameters(entropy_weight=1.0),
        "value_weight": Hyperparameters(value_weight=50.0),
        "target_kl": Hyperparameters(target_kl=1e-9),
    }
    learner = {
        "learning_rate": {"learning_rate": 1e-2},
        "gamma": {"gamma": 0.5},
        "lambda": {"lambda": 0.1},
        "clip": {"clip": 0.01},
        "entropy": {"entropy": {"kind": "constant", "weight": 1.0}},
        "value_weight": {"value_weight": 50.0},
        "target_kl": {"target_kl": 1e-9},
    }
    loud = {"model": {"actor": {"gain": 1.0}}, "learner": {"learning_rate": 3e-3}}
    plain = small_trainer(backend=backend, **loud)
    plain.train(32)
    for name, change in changes.items():
        adopted = small_trainer(backend=backend, **loud)
        adopted.adopt(change)
        adopted.train(32)
        configured = small_trainer(backend=backend, **{**loud, "learner": {**loud["learner"], **learner[name]}})
        configured.train(32)
        assert same(snapshot(adopted.backend), snapshot(configured.backend)), name
        assert not same(snapshot(adopted.backend), snapshot(plain.backend)), name


def tiny(backend: str, **changes: Any) -> dict[str, Any]:
    """Pendulum with rollouts of 32 steps."""
    return {
        "backend": backend,
        "model": {"encoder": {"hidden": [8]}, "actor": {"hidden": [8]}, "critic": {"hidden": [8]}},
        "run": {"environments": 4, "rollout_steps": 8, "total_steps": 4 * 32, "tensorboard": False},
        **changes,
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_adopted_values_survive_a_resume(backend: str, tmp_path: Path) -> None:
    """Also in the policy's own file, whose gamma is the horizon of its tail. Rejects a resumed run that falls back to
    its configuration file."""
    agents = []
    for name in ("whole", "cut"):
        agent = PPO("Pendulum-v1", tiny(backend), run_dir=tmp_path / name)
        agent.learn(32)
        agent.trainer.adopt(Hyperparameters(learning_rate=5e-3, gamma=0.9, clip=0.1))
        agent.learn(32)
        agents.append(agent)
    whole, cut = agents
    resumed, _ = PPO.resume(tmp_path / "cut")
    assert resumed.trainer.config.learner.gamma == 0.9 and resumed.trainer.adopted == cut.trainer.adopted
    for agent in (whole, resumed):
        agent.learn(64)
    assert same(snapshot(resumed.trainer.backend), snapshot(whole.trainer.backend))
    resumed.save(tmp_path / "saved")
    assert load(tmp_path / "saved").config.learner.gamma == 0.9


def test_a_restored_checkpoint_brings_its_own_values(tmp_path: Path) -> None:
    """Rejects values that were adopted after it was written and stay."""
    agent = PPO("Pendulum-v1", tiny("torch"))
    agent.learn(32)
    agent.save(tmp_path / "before")
    agent.trainer.adopt(Hyperparameters(learning_rate=5e-3, gamma=0.9))
    agent.restore(tmp_path / "before")
    assert agent.trainer.adopted == Hyperparameters() and agent.trainer.config == agent.trainer.configured
    assert agent.trainer.backend.config == agent.trainer.configured.learner


def test_values_adopted_before_the_first_update_outlive_the_choice_of_a_geometry() -> None:
    """The first `learn` chooses rollouts by its budget. Rejects a run that begins again without what was adopted."""
    agent = PPO("CartPole-v1", {"backend": "torch", "model": {"encoder": {"hidden": [8]}}})
    agent.trainer.adopt(Hyperparameters(learning_rate=5e-3))
    agent.learn(256)
    assert agent.trainer.config.learner.learning_rate == 5e-3
    assert agent.history[0]["step/learning_rate"] == 5e-3


def test_another_gamma_begins_the_calibration_anew() -> None:
    """Windows predicted with one discount say nothing about another. Refused where risk acts on the policy."""
    agent = PPO("Pendulum-v1", tiny("torch", risk={"mode": "report", "alpha": 0.25}))
    agent.learn(64)
    before, signals = agent.trainer.risk.calibration, agent.trainer.health.signals
    assert before is not None and signals.returns == 2
    agent.trainer.adopt(Hyperparameters(clip=0.1))
    assert agent.trainer.risk.calibration is before
    agent.trainer.adopt(Hyperparameters(gamma=0.9))
    assert agent.trainer.risk.calibration is not before and signals.returns == 0
    limited = PPO("Pendulum-v1", tiny("torch", risk={"mode": "penalty", "weight": 1.0, "alpha": 0.25}))
    with pytest.raises(ConfigError, match=r"gamma cannot become 0\.9 while risk acts on the policy"):
        limited.trainer.adopt(Hyperparameters(gamma=0.9))


def test_the_calibration_goes_on_over_a_roll_back(tmp_path: Path) -> None:
    """The environments go on, so its open windows do. Rejects windows of the checkpoint, which would be continued with
    rewards of later steps."""
    kept, free = (limited(a, after=5, backend="torch", run_dir=tmp_path / a) for a in ("rollback", "warn"))
    for agent in (kept, free):
        agent.trainer.train(6 * 128)
    assert kept.trainer.health.actions.counts["rollback"] == 1
    (tensors, data), (others, same_data) = kept.trainer.risk.state(), free.trainer.risk.state()
    assert data == same_data and tensors.keys() == others.keys()
    assert all(bool((tensors[name] == others[name]).all()) for name in tensors)


def test_signals_and_checks_follow_what_was_adopted() -> None:
    """KL is compared with the target of now, and values must fit together. Rejects a health rule that shrinks the step
    of a run whose target was raised, and a dual clip below the clip."""
    trainer = small_trainer(learner={"target_kl": 0.02, "dual_clip": 1.25})
    trainer.adopt(Hyperparameters(target_kl=0.1))
    trainer.train(32)
    row = trainer.history[0]
    assert row["policy/kl_of_target"] == pytest.approx(row["policy/kl_after"] / 0.1)
    with pytest.raises(ConfigError, match=r"dual_clip 1\.25 must exceed 1 \+ learner\.clip = 1\.3"):
        trainer.adopt(Hyperparameters(clip=0.3))
    with pytest.raises(CheckpointError, match="other values of momentum"):
        Hyperparameters.from_json({"momentum": 0.5})


def test_values_out_of_range_are_refused_and_nothing_changes() -> None:
    trainer = small_trainer()
    before = trainer.config
    with pytest.raises(ConfigError, match=r"learner: key 'clip' is 1\.5"):
        trainer.adopt(Hyperparameters(clip=1.5, learning_rate=1e-2))
    assert trainer.config is before and trainer.backend.config is before.learner


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ({"learner": {"prior": {"kind": "uniform", "weight": 0.5}}}, Hyperparameters(prior_weight=0.5)),
        ({"risk": {"limit": -3.0}}, Hyperparameters(limit=-3.0)),
    ],
    ids=["prior", "limit"],
)
def test_the_prior_and_the_limit_change_like_the_rest(
    section: dict[str, Any], change: Hyperparameters, tmp_path: Path
) -> None:
    """A run that adopts a value is the one that was configured with it, and is resumed from a checkpoint that says so.
    Rejects a multiplier or a pull that follows the configuration file."""
    base = {
        "learner": {"prior": {"kind": "uniform", "weight": 0.01}},
        "risk": {"mode": "constraint", "limit": 50.0, "warmup": {"updates": 1, "longest": 1}},
    }

    def cartpole(name: str, changes: dict[str, Any]) -> PPO:
        settings = merged(merged(tiny("torch"), base), changes)
        return PPO("CartPole-v1", settings, run_dir=tmp_path / name)

    plain, adopted, configured = cartpole("plain", {}), cartpole("adopted", {}), cartpole("configured", section)
    adopted.trainer.adopt(change)
    for agent in (plain, adopted, configured):
        agent.learn(3 * 32)
    assert same(snapshot(adopted.trainer.backend), snapshot(configured.trainer.backend))
    assert not same(snapshot(adopted.trainer.backend), snapshot(plain.trainer.backend))
    resumed, notes = PPO.resume(tmp_path / "adopted")
    assert notes == [] and resumed.trainer.adopted == change
    resumed.learn(32)
    configured.learn(32)
    assert same(snapshot(resumed.trainer.backend), snapshot(configured.trainer.backend))


def test_a_prior_or_a_limit_that_is_not_there_cannot_change() -> None:
    trainer = small_trainer()
    for change, sentence in (
        (Hyperparameters(prior_weight=0.1), "this configuration has no prior"),
        (Hyperparameters(limit=-0.1), r"risk\.mode is \w+ and only constraint has a limit"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            trainer.adopt(change)
    with pytest.raises(ConfigError, match=r"model\.core\.hidden cannot change while a run goes on"):
        Hyperparameters.of_keys({"model.core.hidden": 3.0})
