"""What goes back with an undone update and with a roll-back, and hyperparameters that change on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.toy_risk import ExposureVector
from tailwise import PPO
from tailwise.core.errors import ConfigError
from tailwise.run.controllers import Controllers, Hyperparameters
from tests.support import BACKENDS, same, small_trainer, snapshot

QUIET = ["no_advantage_signal", "reward_without_information", "critic_disagreement"]
LIMIT = {"mode": "constraint", "limit": -0.05, "alpha": 0.25, "warmup": {"updates": 0, "longest": 1}}
PLATEAU = {"kind": "plateau", "window": 6, "tolerance": 10.0}


def limited(action: str, *, after: int, backend: str, run_dir: Path | None = None) -> PPO:
    """Eight updates under a broken limit, with an entropy that is flat at once; a rule acts after update `after`."""
    rule = {"name": "planted", "signal": "policy/epochs", "above": 0.0, "not_before": after, "action": action}
    return PPO(
        ExposureVector(8, mu=0.1, sigma=0.5),
        {
            "backend": backend,
            "model": {"encoder": {"hidden": [8]}, "actor": {"hidden": [8]}, "critic": {"hidden": [8]}},
            "learner": {"entropy": PLATEAU, "kl_factor": {"kind": "on"}},
            "risk": LIMIT,
            "health": {"rules": [rule], "disable": QUIET, "max_skips": 2, "max_rollbacks": 1, "cooldown": 50},
            "run": {"environments": 8, "rollout_steps": 16, "total_steps": 8 * 128, "checkpoint_every": 2},
        },
        run_dir=run_dir,
    )


def followed(agent: PPO) -> list[dict[str, Any]]:
    """The controllers after every update."""
    states: list[dict[str, Any]] = []
    trainer = agent.trainer
    for _ in range(8):
        trainer.train((trainer.update + 1) * 128)
        states.append(trainer.controllers.to_json())
    return states


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_undone_update_moves_no_controller(backend: str) -> None:
    """Updates 5 and 6 are undone. Rejects a multiplier, plateau, KL factor or width that stays moved."""
    states = followed(limited("skip", after=4, backend=backend))
    assert states[4] == states[5] == states[3] != states[6]
    assert states[3]["constraint"]["multiplier"] > 0.0 and states[6]["constraint"] != states[5]["constraint"]


def test_a_roll_back_takes_all_controllers_along_but_the_health_factor(tmp_path: Path) -> None:
    """Update 6, in which the plateau begins, goes back to the checkpoint of update 5. Rejects a plateau, a multiplier
    or entropies that stay behind."""
    states = followed(limited("rollback", after=5, backend="torch", run_dir=tmp_path / "run"))
    back, good = states[5], states[4]
    assert {**back, "health_factor": 1.0} == good and back["health_factor"] == 0.5
    free = followed(limited("warn", after=5, backend="torch"))
    assert free[4] == good and free[5]["plateau_at"] == 6 and free[5]["constraint"] != good["constraint"]


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


def test_adopted_values_survive_a_resume(tmp_path: Path) -> None:
    """Also a longer horizon of risk. Rejects a resumed run that falls back to its configuration file."""
    agents = []
    for name in ("whole", "cut"):
        agent = PPO(
            "Pendulum-v1",
            {
                "backend": "torch",
                "model": {"encoder": {"hidden": [8]}, "actor": {"hidden": [8]}, "critic": {"hidden": [8]}},
                "learner": {"gamma": 0.8},
                "risk": {"mode": "penalty", "weight": 1.0, "alpha": 0.25},
                "run": {"environments": 4, "rollout_steps": 8, "total_steps": 4 * 32, "tensorboard": False},
            },
            run_dir=tmp_path / name,
        )
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


def test_values_out_of_range_are_refused_and_nothing_changes() -> None:
    trainer = small_trainer()
    before = trainer.config
    with pytest.raises(ConfigError, match=r"learner: key 'clip' is 1\.5"):
        trainer.adopt(Hyperparameters(clip=1.5, learning_rate=1e-2))
    assert trainer.config is before and trainer.backend.config is before.learner
