"""The loop: what it counts, writes, and survives."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from benchmarks.toy_envs import DICT_REACH, RECALL_MASKED
from tailwise.core.metrics import check_declared
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.trainer import Trainer
from tests.support import BACKENDS, Scripted, knobs, same, small_trainer, snapshot, started


def test_metrics_of_every_kind_of_run_are_declared() -> None:
    """Rejects a metric that the store would refuse in the middle of a run."""
    for env, changes in (
        ("CartPole-v1", {"evaluate": {"every": 1, "episodes": 1}}),
        (DICT_REACH, {"model": {"core": {"kind": "lstm", "layers": 2}, "actor": {"box": "squashed"}}}),
        (
            RECALL_MASKED,
            {
                "model": {"critic": {"kind": "categorical", "atoms": 11, "particles": 8, "minibatch_particles": 4}},
                "learner": {"awr": {"kind": "on"}},
            },
        ),
    ):
        trainer = small_trainer(env, **changes)  # type: ignore[arg-type]
        trainer.train()
        for row in trainer.history:
            check_declared(name for name in row if name not in ("update", "steps"))
            assert all(math.isfinite(value) for value in row.values())


def test_steps_count_valid_transitions() -> None:
    same_step = small_trainer("CartPole-v1")
    same_step.train()
    assert same_step.steps == 96 and same_step.update == 3
    venv = SyncVectorEnv([lambda: Scripted(length=3)] * 4, autoreset_mode=AutoresetMode.NEXT_STEP)
    next_step = small_trainer(venv)
    next_step.train()
    for row in next_step.history:
        assert row["env/reset_rows"] > 0
    assert next_step.steps == sum(32 - row["env/reset_rows"] for row in next_step.history)


def test_episode_statistics_are_those_of_the_environment() -> None:
    trainer = small_trainer(lambda: Scripted(lambda step, obs, action: 2.0, length=4))
    trainer.train()
    assert trainer.history[-1]["episode/return"] == 8.0 and trainer.history[-1]["episode/length"] == 4.0


def test_callbacks_are_told_and_can_stop() -> None:
    class Watch(Callback):
        def __init__(self) -> None:
            self.log: list[Any] = []

        def on_start(self, update: int, steps: int, total_steps: int) -> None:
            self.log.append(("start", update, steps, total_steps))

        def on_update(self, progress: Progress) -> bool | None:
            self.log.append((progress.update, progress.steps, progress.metrics["update/committed"]))
            return False if progress.update == 2 else None

        def on_end(self, reason: str) -> None:
            self.log.append(reason)

    watch, trainer = Watch(), small_trainer()
    trainer.callbacks.append(watch)
    assert trainer.train() == "a callback ended the run"
    assert watch.log == [("start", 0, 0, 96), (1, 32, 1.0), (2, 64, 1.0), "a callback ended the run"]


# ------------------------------------------------------------------ broken environments


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_broken_rewards_stop_the_run_and_leave_the_model_alone(value: float, core: str, backend: str) -> None:
    """001-6: refused, alerted once, stopped after run.max_refused in a row; nothing of the model moved."""
    trainer = small_trainer(
        lambda: Scripted(lambda step, obs, action: value),
        backend=backend,
        model={"core": {"kind": core}},
        run={"max_refused": 3, "total_steps": 10_000},
    )
    before = snapshot(trainer.backend)
    assert trainer.train() == "3 updates in a row were refused or rolled back; see the alerts"
    assert trainer.update == 3 and same(snapshot(trainer.backend), before)
    assert {alert.rule for alert in trainer.alerts} == {"update_refused", "environment_anomaly", "refused_repeatedly"}
    assert len(trainer.alerts) == 3  # once, not once per update
    assert [row["update/committed"] for row in trainer.history] == [0.0, 0.0, 0.0]
    assert trainer.history[0]["env/anomalies"] == 32.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_single_broken_reward_costs_one_update_and_the_run_goes_on(backend: str) -> None:
    """Rejects a counter that never returns to zero."""
    count = 0

    def pay(step: int, obs: Any, action: Any) -> float:
        nonlocal count
        count += 1
        return float("nan") if count == 40 else 1.0

    trainer = small_trainer(lambda: Scripted(pay), backend=backend, run={"max_refused": 2, "total_steps": 128})
    assert trainer.train() == "all 128 steps are done"
    assert [row["update/committed"] for row in trainer.history] == [1.0, 0.0, 1.0, 1.0]
    assert trainer.health.rules.refused_in_a_row == 0
    assert [alert.update for alert in trainer.alerts if alert.rule == "update_refused"] == [2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_controllers_do_not_move_on_a_refused_update(backend: str) -> None:
    trainer = small_trainer(
        lambda: Scripted(lambda step, obs, action: float("nan")),
        backend=backend,
        learner={"kl_factor": {"kind": "on"}, "entropy": {"kind": "plateau", "window": 3}},
    )
    trainer.train()
    assert trainer.controllers.kl_factor == 1.0 and trainer.controllers.entropies == []


# ------------------------------------------------------------------ KL factor in a run


@pytest.mark.parametrize("backend", BACKENDS)
def test_kl_factor_shrinks_and_grows_back_in_a_run(backend: str) -> None:
    """000-6: a rate that is far too large shrinks; a tiny one grows to the bound."""
    wild = small_trainer(
        backend=backend,
        model={"actor": {"gain": 1.0}},
        learner={
            "learning_rate": 0.05,
            "target_kl": 1e-4,
            "kl_factor": {"kind": "on"},
            "schedule": {"kind": "constant"},
        },
    )
    wild.train()
    factors = [row["step/kl_factor"] for row in wild.history]
    assert factors[0] == 1.0 and factors[1] == pytest.approx(1 / 1.5) and wild.controllers.kl_factor < factors[1]
    assert wild.history[1]["step/learning_rate"] == pytest.approx(0.05 / 1.5)
    wild.config = wild.config.model_copy(
        update={"learner": wild.config.learner.model_copy(update={"learning_rate": 1e-7, "target_kl": 1.0})}
    )
    low = wild.controllers.kl_factor
    wild.backend.config = wild.config.learner
    wild.train(wild.steps + 96)
    assert wild.controllers.kl_factor == pytest.approx(low * 1.5**3)


# ------------------------------------------------------------------ crashes and regimes


def crash_trainer(**changes: Any) -> Trainer:
    """Returns of about .1% a step, as minute bars have, and one bar of -30% in update 4."""
    count = 0

    def pay(step: int, obs: Any, action: Any) -> float:
        nonlocal count
        count += 1
        return -0.3 if count == 4 * 512 + 100 else 1e-3 * float(obs[0])

    return small_trainer(
        lambda: Scripted(pay, length=50),
        run={"environments": 8, "rollout_steps": 64, "total_steps": 512 * 6},
        **changes,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_crash_bar_in_mid_rollout_is_bounded_and_noticed(core: str, backend: str) -> None:
    """004-C1: the loss stays O(1), weights stay finite, the policy moves within max_kl, an alert names the outlier.

    Rejects unbounded importance ratios and raw returns: the old systems reached a loss of 1e8.
    """
    trainer = crash_trainer(backend=backend, model={"core": {"kind": core}})
    trainer.train()
    crash = trainer.history[4]
    assert crash["advantage/min"] < -0.2
    assert all(row["update/committed"] == 1.0 for row in trainer.history)
    assert crash["critic/loss"] < 100 and abs(crash["loss/policy"]) < 10
    assert all(row["policy/kl_after"] < trainer.config.learner.max_kl for row in trainer.history)
    assert all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())
    assert any(alert.update == 5 and "outlier" in alert.rule for alert in trainer.alerts)


@pytest.mark.parametrize("backend", BACKENDS)
def test_crash_bar_with_stale_log_probs_is_rolled_back_when_the_policy_jumps(backend: str) -> None:
    """004-C1: the same crash, log-probs of another policy, and steps far too large: everything returns bit for bit."""
    trainer = started(crash_trainer(backend=backend, learner={"target_kl": None, "max_kl": 0.01}))
    for update in range(4):
        trainer.backend.update(trainer.collector.collect(update)[0], knobs(1e-4))
    rollout, _ = trainer.collector.collect(4)
    assert float(rollout.reward.min()) < -0.2
    stale = dataclasses.replace(rollout, log_prob=rollout.log_prob - 30 * torch.rand(rollout.log_prob.shape))
    before = snapshot(trainer.backend)
    report = trainer.backend.update(stale, knobs(0.1))
    assert not report.committed and report.reason is not None and "rolled back" in report.reason
    assert same(snapshot(trainer.backend), before)
    assert abs(report.metrics["loss/policy"]) < 1e3


def test_regime_flip_is_recovered() -> None:
    """004-C2, 004-6: the best of four actions changes in mid-training, with entropy down to .04; the new one is found.

    Rejects a policy that cannot come back from certainty: the reward drops at the flip and must return.
    """
    best = {"action": 1}
    trainer = small_trainer(
        lambda: Scripted(lambda step, obs, action: float(int(action) == best["action"]), length=8),
        learner={"learning_rate": 0.003, "schedule": {"kind": "constant"}, "gamma": 0.5, "epochs": 4},
        run={"environments": 8, "rollout_steps": 16, "total_steps": 10**6},
    )

    def shares(updates: int) -> list[float]:
        trainer.train(trainer.steps + 128 * updates)
        return [row["return/mean"] for row in trainer.history[-updates:]]

    first = shares(25)
    assert np.mean(first[-3:]) > 1.7 > 0.8 > first[0]  # optimum 2 = 1/(1 - gamma)
    certain = trainer.history[-1]["policy/entropy"]
    assert certain < 0.1
    best["action"] = 3
    after = shares(110)  # of 20 seeds the slowest had found the new action after 67
    assert min(after) < 0.3
    assert np.mean(after[-3:]) > 1.7, after


@pytest.mark.slow
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_long_run_stays_finite_and_quiet(core: str) -> None:
    """004-T3: 200,000 steps without a refused update, a NaN, or an error alert."""
    trainer = small_trainer(
        "CartPole-v1",
        model={"core": {"kind": core}},
        run={"environments": 16, "rollout_steps": 64, "total_steps": 200_000},
    )
    assert trainer.train() == "all 200,000 steps are done"
    assert all(row["update/committed"] == 1.0 for row in trainer.history)
    assert all(row["policy/log_ratio_clamp_fraction"] < 1e-3 for row in trainer.history)
    assert [alert for alert in trainer.alerts if alert.severity == "error"] == []
    assert all(math.isfinite(value) for row in trainer.history for value in row.values())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_mark_is_visible() -> None:
    """004-T3: the mark exists and is skipped, visibly, where there is no GPU; there, moving a model must work."""
    model = small_trainer().model.cuda()
    assert next(model.parameters()).is_cuda
