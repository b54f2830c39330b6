"""What a continued run must know, and what a checkpoint that does not fit must leave alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from benchmarks.toy_envs import MASKED_BANDIT
from tailwise.core.errors import CheckpointError, ConfigError, DataError, ShapeError
from tailwise.run.agent import PPO, load
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.checkpoint import Training, latest_good, least_trained, training_behind
from tailwise.run.metric_store import differences_without_time, read
from tailwise.run.play import play_episodes
from tests.support import BACKENDS, SMALL_RUN, Scripted, bits, merged, small_trainer


def small_agent(run_dir: Path | None = None, **changes: Any) -> PPO:
    return PPO("CartPole-v1", merged(SMALL_RUN, changes), run_dir=run_dir)


def weights(agent: PPO) -> dict[str, bytes]:
    return {name: bits(tensor) for name, tensor in agent.model.state_dict().items()}


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_learn_with_its_own_length_resumes_exactly(tmp_path: Path, backend: str, core: str) -> None:
    """Rejects a schedule and an end that fall back to run.total_steps (96) after a resume of learn(256)."""
    options: dict[str, Any] = {"backend": backend, "model": {"core": {"kind": core}}}
    whole = small_agent(tmp_path / "whole", **options)
    whole.learn(256)
    part = small_agent(tmp_path / "part", run={"checkpoint_every": 1}, **options)

    class Stop(Exception):
        pass

    class Killer(Callback):
        def on_update(self, progress: Any) -> None:
            if progress.update == 5:
                raise Stop

    part.trainer.callbacks.append(Killer())
    with pytest.raises(Stop):
        part.learn(256)
    resumed, notes = PPO.resume(tmp_path / "part")
    assert notes == [] and resumed.trainer.steps == 160 and resumed.trainer.total_steps == 256
    resumed.learn()
    assert resumed.trainer.steps == 256
    assert weights(resumed) == weights(whole)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_constraint_resumes_bit_for_bit(tmp_path: Path, backend: str) -> None:
    """Multiplier, PID, threshold and calibration windows: every metric of the continued run is the same number.

    Rejects a resume that starts the controller or the windows afresh. The limit is broken at once and the run is cut in
    the middle of the constraint.
    """
    options: dict[str, Any] = {
        "backend": backend,
        "risk": {"mode": "constraint", "alpha": 0.25, "limit": 20.0, "warmup": {"updates": 2, "longest": 3}},
        "learner": {"gamma": 0.8},
        "run": {"total_steps": 32 * 24, "checkpoint_every": 1},
    }
    whole = small_agent(tmp_path / "whole", **options)
    whole.learn()
    part = small_agent(tmp_path / "part", **options)
    part.trainer.callbacks.append(StopAt(14))
    part.learn()
    resumed, notes = PPO.resume(tmp_path / "part")
    assert notes == [] and resumed.trainer.update == 14
    resumed.learn()
    assert differences_without_time(tmp_path / "whole" / "metrics.jsonl", tmp_path / "part" / "metrics.jsonl") == []
    rows = read(tmp_path / "part")
    assert rows["risk/multiplier"].iloc[-1] > 0 and rows["calibration/windows"].iloc[-1] > 50
    assert resumed.trainer.risk.state()[1] == whole.trainer.risk.state()[1]
    assert resumed.trainer.controllers.to_json() == whole.trainer.controllers.to_json()
    assert weights(resumed) == weights(whole)


def test_rewards_of_running_episodes_are_in_the_checkpoint() -> None:
    """Credit reads them. Rejects a resume that begins without them: its next update differs. A checkpoint from before
    they were kept is continued, and the sentence says what is missing."""
    options: dict[str, Any] = {"risk": CONSTRAINT, "learner": {"gamma": 0.8}, "run": {"total_steps": 32 * 24}}
    agent = small_agent(**options)
    agent.learn(32 * 6)
    tensors, data = agent.trainer.training_state()
    past = agent.trainer.collector.past
    assert past is not None and int(past.age.max()) > 0 and bool((past.reward != 0).any())
    weights_now = agent.model.state_dict()
    after = []
    for kept in (True, True, False):
        other = small_agent(**options)
        other.model.load_state_dict(weights_now)
        known = {
            name: t for name, t in tensors.items() if kept or name not in ("collector/past_reward", "collector/age")
        }
        note = other.trainer.load_training_state({name: t.clone() for name, t in known.items()}, data)
        assert (note is None) is kept
        if not kept:
            assert note is not None and "kept no rewards of running episodes" in note
        other.learn(32)
        after.append(weights(other))
    assert after[0] == after[1] != after[2]


CONSTRAINT = {"mode": "constraint", "alpha": 0.25, "limit": 50.0, "warmup": {"updates": 1, "longest": 1}}


def test_a_checkpoint_tells_the_training_behind_it(tmp_path: Path) -> None:
    """Rejects a limit that counts as enforced from the update on whose end begins it, and a penalty taken for one."""
    limited = {"mode": "constraint", "alpha": 0.25, "limit": -100.0, "warmup": {"updates": 2, "longest": 2}}
    for name, risk, updates, expected in (
        ("early", limited, 1, False),
        ("begun", limited, 2, False),  # it begins at the end of update 2 and would act in update 3
        ("acted", limited, 3, True),
        ("penalty", {"mode": "penalty", "alpha": 0.25, "weight": 1.0}, 1, None),
        ("report", {"mode": "report", "alpha": 0.25}, 1, None),
    ):
        agent = small_agent(tmp_path / name, risk=risk)
        agent.learn(updates * agent.config.run.environments * agent.config.run.rollout_steps)
        newest, _ = latest_good(tmp_path / name)
        assert newest is not None
        assert training_behind(newest) == Training(updates, expected), name
    assert least_trained([Training(9, True), Training(5, False)]) == Training(5, False)
    assert least_trained([Training(9, None), Training(5, None)]) == Training(5, None)


def test_the_next_update_gets_the_moving_average_of_the_threshold() -> None:
    """Rejects a threshold that is measured and never handed on."""
    trainer = small_agent(risk=CONSTRAINT).trainer
    given: list[float | None] = []
    update = trainer.backend.update

    def watched(rollout: Any, knobs: Any) -> Any:
        given.append(knobs.threshold)
        return update(rollout, knobs)

    trainer.backend.update = watched  # type: ignore[method-assign]
    trainer.train()
    seen = [row["risk/threshold"] for row in trainer.history]
    assert given == [None, seen[0], pytest.approx(0.8 * seen[0] + 0.2 * seen[1])]


@pytest.mark.parametrize(
    ("stored", "own", "words"),
    [
        ({}, {"risk": CONSTRAINT}, r"risk\.mode 'report', here 'constraint'"),
        ({"risk": CONSTRAINT}, {"risk": CONSTRAINT | {"limit": 60.0}}, r"risk\.limit 50\.0, here 60\.0"),
        ({"learner": {"gamma": 0.9}}, {"learner": {"gamma": 0.5}}, r"learner\.gamma 0\.9, here 0\.5"),
    ],
)
def test_another_risk_or_horizon_is_refused_before_anything_is_touched(
    tmp_path: Path, stored: dict[str, Any], own: dict[str, Any], words: str
) -> None:
    other = small_agent(**stored)
    other.learn(32)
    other.save(tmp_path / "saved")
    mine = small_agent(**own)
    before = weights(mine)
    with pytest.raises(CheckpointError, match=words):
        mine.restore(tmp_path / "saved")
    assert mine.trainer.update == 0 and weights(mine) == before


class StopAt(Callback):
    """Ends the run after an update."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_update(self, progress: Progress) -> bool | None:
        return False if progress.update == self.update else None


def test_learning_nothing_is_no_error(tmp_path: Path) -> None:
    agent = small_agent(tmp_path / "run")
    assert agent.learn(0) == "all 0 steps are done"


@pytest.mark.parametrize("half", ["policy/weights.safetensors", "training/tensors.safetensors", "training/state.json"])
def test_broken_checkpoint_leaves_the_agent_as_it_was(tmp_path: Path, half: str) -> None:
    """Rejects loading the policy half before the training half was verified."""
    other = small_agent()
    other.learn()
    other.save(tmp_path / "saved")
    path = tmp_path / "saved" / half
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    agent = small_agent()
    before = weights(agent)
    with pytest.raises(CheckpointError, match=path.name):
        agent.restore(tmp_path / "saved")
    assert weights(agent) == before and agent.trainer.update == 0


def test_checkpoint_of_another_seed_or_model_is_refused(tmp_path: Path) -> None:
    small_agent().save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="seed 0, here 1"):
        small_agent(seed=1).restore(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"model\.critic\.quantiles 8, here 16"):
        small_agent(model={"critic": {"quantiles": 16}}).restore(tmp_path / "saved")


def test_optimiser_state_must_be_complete() -> None:
    """Rejects a silent restart of Adam."""
    trainer = small_trainer()
    trainer.train(32)
    tensors = trainer.backend.optimiser.tensors()
    trainer.backend.optimiser.check(tensors, fresh=False)
    with pytest.raises(CheckpointError, match="missing"):
        trainer.backend.optimiser.check({}, fresh=False)
    without = {name: tensor for name, tensor in tensors.items() if not name.endswith("exp_avg")}
    with pytest.raises(CheckpointError, match="exp_avg"):
        trainer.backend.optimiser.check(without, fresh=True)


def test_run_on_a_python_environment_continues_in_its_folder(tmp_path: Path) -> None:
    agent = PPO(lambda: Scripted(length=8), SMALL_RUN, run_dir=tmp_path / "run")
    agent.learn(64)
    with pytest.raises(CheckpointError, match=r"env=\.\.\."):
        PPO.resume(tmp_path / "run")
    resumed, notes = PPO.resume(tmp_path / "run", env=lambda: Scripted(length=8))
    assert notes == [] and resumed.trainer.steps == 64
    resumed.learn(32)
    assert resumed.trainer.steps == 96


@pytest.mark.parametrize("backend", BACKENDS)
def test_kl_factor_recovers_from_updates_that_were_rolled_back(backend: str) -> None:
    """Rejects a controller that only sees committed updates: a step that is too large would be repeated for ever."""
    trainer = small_trainer(
        backend=backend,
        learner={"learning_rate": 1.0, "max_kl": 0.05, "kl_factor": {"kind": "on", "ratio": 4.0}},
        run={"total_steps": 32 * 5, "max_refused": 50},
    )
    trainer.train()
    factors = [row["step/kl_factor"] for row in trainer.history]
    committed = [row["update/committed"] for row in trainer.history]
    assert committed[0] == 0.0
    assert factors[1:3] == [0.25, 0.0625]
    assert max(committed) == 1.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rollback_shrinks_the_step_where_nothing_was_stopped(backend: str) -> None:
    """Without early stopping KL is far below its target, and still too large for max_kl. Rejects a controller that
    looks at early stops alone: it would even grow the step."""
    trainer = small_trainer(
        backend=backend,
        learner={"target_kl": 10.0, "max_kl": 1e-9, "kl_factor": {"kind": "on", "ratio": 2.0}},
        run={"total_steps": 32 * 3, "max_refused": 50},
    )
    trainer.train()
    assert [row["update/committed"] for row in trainer.history] == [0.0, 0.0, 0.0]
    assert [row["policy/stopped_early"] for row in trainer.history] == [0.0, 0.0, 0.0]
    assert [row["step/kl_factor"] for row in trainer.history] == [1.0, 0.5, 0.25]


@pytest.mark.parametrize("backend", BACKENDS)
def test_updates_that_are_rolled_back_leave_the_multiplier_alone(backend: str) -> None:
    """The limit is broken in every rollout, but no update is committed: the constraint has seen nothing."""
    trainer = small_trainer(
        backend=backend,
        risk=CONSTRAINT,
        learner={"max_kl": 1e-9, "target_kl": None},
        run={"total_steps": 32 * 4, "max_refused": 50},
    )
    trainer.train()
    constraint = trainer.risk.constraint
    assert [row["update/committed"] for row in trainer.history] == [0.0] * 4
    assert all(row["risk/measure"] < CONSTRAINT["limit"] for row in trainer.history)  # type: ignore[operator]
    assert constraint is not None and (constraint.seen, constraint.multiplier, constraint.threshold) == (0, 0.0, None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_whose_updates_were_all_refused_so_far_resumes(tmp_path: Path, backend: str) -> None:
    """torch's Adam has no moments before its first step. Rejects a checkpoint that is refused for lacking them."""
    options = {"backend": backend, "learner": {"max_kl": 1e-9, "target_kl": None}}
    agent = small_agent(tmp_path, run={"total_steps": 64, "checkpoint_every": 1, "max_refused": 50}, **options)
    agent.learn()
    assert agent.trainer.update == 2
    resumed, notes = PPO.resume(tmp_path)
    assert notes == [] and resumed.trainer.update == 2
    resumed.learn(32)
    assert resumed.trainer.update == 3


def test_broken_reward_in_an_evaluation_is_named_and_does_not_end_training() -> None:
    """Rejects a best return of NaN, with which the next checkpoint could not be written."""

    def pay(step: int, obs: Any, action: Any) -> float:
        return np.nan if step == 3 else 1.0

    trainer = small_trainer()
    from tailwise.core.streams import Streams
    from tailwise.run.make_env import make_driver

    broken = make_driver(lambda: Scripted(pay, length=8), num_envs=2, streams=Streams(0), purpose="test")
    scripted = small_trainer(lambda: Scripted(length=8))
    with pytest.raises(DataError, match="paid the reward nan in step 4"):
        play_episodes(scripted.model, broken, episodes=2, deterministic=True, seed=0)
    gym.register("tailwise/BrokenPay-v0", entry_point=lambda: Scripted(pay, length=8))
    trainer = small_trainer("tailwise/BrokenPay-v0", evaluate={"every": 1, "episodes": 2}, run={"max_refused": 2})
    assert "refused" in trainer.train()
    assert trainer.best_return is None
    assert "evaluation_broken" in {alert.rule for alert in trainer.alerts}


def test_predict_demands_and_checks_masks(tmp_path: Path) -> None:
    """Rejects a policy that was trained with masks and plays forbidden actions because none was passed."""
    agent = PPO(MASKED_BANDIT, SMALL_RUN)
    agent.learn(32)
    agent.save(tmp_path / "saved")
    choices = agent.model.action.logits
    for policy in (agent, load(tmp_path / "saved")):
        with pytest.raises(ShapeError, match="trained with action masks"):
            policy.predict(0)
        with pytest.raises(Exception, match="forbids every choice"):
            policy.predict(0, mask=np.zeros(choices, dtype=bool))
        only = np.zeros(choices, dtype=bool)
        only[1] = True
        assert policy.predict(0, mask=only)[0] == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_standard_deviation_can_leave_its_bound_again(backend: str) -> None:
    """Rejects a clamp inside forward, which has no gradient beyond the bound."""
    trainer = small_trainer("Pendulum-v1", backend=backend, model={"actor": {"log_std": 2.0}}, run={"rollout_steps": 8})
    log_std = trainer.model.actor.log_std
    assert log_std is not None
    with torch.no_grad():
        log_std.fill_(2.5)
    trainer.train(32)
    assert float(log_std.detach().max()) <= 2.0
    params = trainer.model.policy(torch.zeros(1, 8), None)
    (gradient,) = torch.autograd.grad(trainer.model.law.entropy(params).sum(), log_std)
    assert gradient.tolist() == [1.0]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"learner": {"kl_factor": {"kind": "on"}, "target_kl": None}}, "kl_factor follows learner.target_kl"),
        ({"model": {"critic": {"twin": False, "combine": "average"}}}, "remove combine"),
        (
            {"model": {"critic": {"target": "scalar", "lambda": 0.5}}, "risk": {"mode": "off"}},
            "lambda would do nothing",
        ),
        ({"model": {"actor": {"log_std": -1.0}}}, "log_std is -1.0 but the action space is discrete"),
        ({"run": {"environments": 65536, "rollout_steps": 65536}}, "would not fit into memory"),
        ({"env": {"id": "Pendulum-v1"}}, "remove one of them"),
    ],
)
def test_option_that_would_do_nothing_is_refused(changes: dict[str, Any], sentence: str) -> None:
    base = {key: value for key, value in SMALL_RUN.items() if key != "model"} if "model" in changes else SMALL_RUN
    with pytest.raises(ConfigError, match=sentence):
        PPO("CartPole-v1", merged(base, changes))


def test_coarse_tail_warns_in_python_too() -> None:
    with pytest.warns(UserWarning, match="quantiles"):
        small_agent(risk={"alpha": 0.13})
