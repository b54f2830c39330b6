"""Each rule fires on a fixture, once until it clears, and not on a healthy run."""

from __future__ import annotations

from typing import Any

import pytest

from tailwise.learner.backend import UpdateReport
from tailwise.run.health import RULES, Health
from tailwise.run.trainer import Trainer
from tests.support import small_trainer

GOOD = UpdateReport(True, None, False, 0.0, {})

FIXTURES: dict[str, tuple[dict[str, float], UpdateReport]] = {
    "update_refused": ({}, UpdateReport(False, "the rollout has NaN", False, 0.0, {})),
    "loss_without_gradient": (
        {},
        UpdateReport(True, None, False, 0.0, {}, {"law_1": {"actor": 0.0, "critic_0": 0.0, "critic_1": 0.0}}),
    ),
    "environment_anomaly": ({"env/anomalies": 1.0}, GOOD),
    "return_scale": ({"return/sigma_over_first": 101.0}, GOOD),
    "log_ratio_clamped": ({"policy/log_ratio_clamp_fraction": 0.02}, GOOD),
    "first_log_ratio": ({"policy/first_log_ratio": 0.07}, GOOD),
    "log_ratio_outlier": ({"policy/log_ratio_max": 21.0}, GOOD),
    "no_advantage_signal": ({"advantage/no_signal_groups": 1.0}, GOOD),
    "advantage_outlier": ({"advantage/largest_normalised": 21.0}, GOOD),
    "return_outlier": ({"return/largest_normalised": 21.0}, GOOD),
    "gradient_norm": ({"grad/norm_before_max": 51.0}, GOOD),
    "critic_loss": ({"critic/loss": 1001.0}, GOOD),
    "critic_imbalance": ({"grad/norm/critic_0": 1.0, "grad/norm/critic_1": 0.009}, GOOD),
    "observation_outlier": ({"obs/outlier_fraction": 1e-4}, GOOD),
    "limit_out_of_reach": (
        {"risk/updates_at_cap": 10.0, "risk/multiplier": 10.0, "risk/limit": -1.0, "risk/best_measure": -2.0},
        GOOD,
    ),
    "constraint_uncalibrated": ({"risk/active": 1.0, "risk/began_calibrated": 0.0}, GOOD),
    "calibration_off": ({"risk/active": 1.0, "risk/began_calibrated": 1.0, "calibration/coverage_05": 0.2}, GOOD),
}

QUIET: dict[str, float] = {
    "env/anomalies": 0.0,
    "return/sigma_over_first": 99.0,
    "policy/log_ratio_clamp_fraction": 0.009,
    "policy/first_log_ratio": 1e-5,
    "policy/log_ratio_max": 5.0,
    "advantage/largest_normalised": 19.0,
    "advantage/no_signal_groups": 0.0,
    "return/largest_normalised": 19.0,
    "grad/norm_before_max": 49.0,
    "critic/loss": 999.0,
    "grad/norm/critic_0": 1.0,
    "grad/norm/critic_1": 0.011,
    "obs/outlier_fraction": 0.0,
    "risk/updates_at_cap": 9.0,
    "risk/active": 1.0,
    "risk/began_calibrated": 1.0,
    "calibration/coverage_05": 0.14,
}


def test_every_rule_has_a_fixture() -> None:
    assert {rule.name for rule in RULES} == FIXTURES.keys()


@pytest.mark.parametrize("name", list(FIXTURES))
def test_rule_fires_with_evidence_and_advice(name: str) -> None:
    """003-A: exactly that rule. Rejects a rule that cannot fire, or that fires along with another."""
    metrics, report = FIXTURES[name]
    (alert,) = Health().look(7, metrics, report)
    assert alert.rule == name and alert.update == 7 and alert.severity in ("warn", "error")
    assert len(alert.evidence) > 10 and len(alert.advice) > 10
    assert alert.to_json()["rule"] == name


def test_nothing_fires_just_below_the_limits() -> None:
    assert Health().look(1, QUIET, GOOD) == []


@pytest.mark.parametrize(("second", "fires"), [(0.5, False), (1e-9, True), (0.0, True), (200.0, True), (0.011, False)])
def test_critic_imbalance(second: float, fires: bool) -> None:
    """002-7: ratio above 100 or below .01, or a norm below 1e-8; a zero must not divide."""
    found = Health().look(1, {"grad/norm/critic_0": 1.0, "grad/norm/critic_1": second}, GOOD)
    assert bool(found) == fires


def test_alert_appears_once_until_it_clears() -> None:
    health = Health()
    bad = FIXTURES["gradient_norm"][0]
    assert len(health.look(1, bad, GOOD)) == 1
    assert health.look(2, bad, GOOD) == []
    assert health.look(3, {}, GOOD) == []
    assert len(health.look(4, bad, GOOD)) == 1


def test_unmeasured_gradients_neither_fire_nor_clear() -> None:
    """Gradients are measured every 20 updates: between, the rule must not clear and fire again."""
    health = Health()
    _, dead = FIXTURES["loss_without_gradient"]
    assert len(health.look(1, {}, dead)) == 1
    assert health.look(2, {}, GOOD) == []
    assert health.look(3, {}, dead) == []


def test_refusals_in_a_row_are_counted_and_survive_a_checkpoint() -> None:
    health = Health()
    _, refused = FIXTURES["update_refused"]
    for update in range(3):
        health.look(update, {}, refused)
    other = Health()
    other.load(health.state())
    assert other.refused_in_a_row == 3 and other.look(4, {}, refused) == []  # it is firing already
    assert other.refused_in_a_row == 4
    other.look(5, {}, GOOD)
    assert other.refused_in_a_row == 0


@pytest.mark.parametrize("core", ["none", "gru"])
def test_healthy_run_is_quiet(core: str) -> None:
    """No alert in 12 updates on CartPole, with gradients measured in each, and with the entropy bonus switched off."""
    trainer = small_trainer(
        model={"core": {"kind": core}},
        learner={"entropy": {"weight": 0.0}},
        run={"environments": 8, "rollout_steps": 32, "total_steps": 12 * 256},
        health={"gradients_every": 1},
    )
    trainer.train()
    assert trainer.alerts == []


def test_frozen_critic_is_noticed_in_a_real_run() -> None:
    """002-7, H1: no gradient reaches critic 1 (as if its values were detached): two rules say so."""
    trainer = small_trainer(health={"gradients_every": 1})
    for parameter in trainer.model.critic_heads()[1].parameters():
        parameter.register_hook(lambda gradient: gradient * 0)
    trainer.train()
    assert {alert.rule for alert in trainer.alerts} == {"critic_imbalance", "loss_without_gradient"}
    evidence = next(alert.evidence for alert in trainer.alerts if alert.rule == "loss_without_gradient")
    assert "mean_1 on critic_1" in evidence and "critic_0" not in evidence


def risky_trainer(**changes: Any) -> Trainer:
    """A penalty from the first update on, gradients measured in every update."""
    risk = {"mode": "penalty", "weight": 1.0, "alpha": 0.25}
    return small_trainer(**{"risk": risk, "health": {"gradients_every": 1}, **changes})


def test_a_risk_term_that_reaches_nobody_is_an_alert() -> None:
    """H2: a mixture that takes the risk advantages and drops them. A healthy run with the same settings is silent."""
    broken, healthy = risky_trainer(), risky_trainer()
    broken.backend.mix_advantages = lambda mean, risk, multiplier: mean
    for trainer in (broken, healthy):
        trainer.train()
    dead = [alert for alert in broken.alerts if alert.rule == "loss_without_gradient"]
    assert len(dead) == 1 and "risk on actor" in dead[0].evidence
    assert [alert.rule for alert in healthy.alerts if alert.rule == "loss_without_gradient"] == []
    assert all(row["grad/term/risk/actor"] > 0 for row in healthy.history)
    assert all(row["grad/term/risk/critic_0"] == 0 for row in healthy.history)


def test_risk_advantages_that_are_all_zero_are_an_alert() -> None:
    """Rejects a probe that shows the mean advantages where the risk is 0."""
    trainer = risky_trainer()
    mix = trainer.backend.mix_advantages
    trainer.backend.mix_advantages = lambda mean, risk, m: mix(mean, None if risk is None else 0 * risk, m)
    trainer.train()
    assert any("risk on actor" in a.evidence for a in trainer.alerts if a.rule == "loss_without_gradient")


def test_a_limit_that_fifty_updates_did_not_reach_is_told() -> None:
    """The multiplier may grow for hundreds of updates before its cap; nobody has to wait for that."""
    metrics = {"risk/multiplier": 2.0, "risk/limit": -1.0, "risk/best_measure": -1.2, "risk/updates_at_cap": 0.0}
    assert Health().look(1, metrics | {"risk/updates_broken": 49.0}, GOOD) == []
    (alert,) = Health().look(1, metrics | {"risk/updates_broken": 50.0}, GOOD)
    assert alert.rule == "limit_out_of_reach" and "best achieved: -1.2" in alert.evidence


def test_a_limit_out_of_reach_is_told_with_the_best_value() -> None:
    """CartPole cannot return 1,000 with gamma .99 (its largest is 100): the multiplier goes to its cap and stays."""
    risk = {"mode": "constraint", "alpha": 0.25, "limit": 1000.0, "max_multiplier": 1.0}
    trainer = small_trainer(risk=risk | {"warmup": {"updates": 0, "longest": 0}}, run={"total_steps": 32 * 15})
    trainer.train()
    (alert,) = [alert for alert in trainer.alerts if alert.rule == "limit_out_of_reach"]
    best = max(row["risk/measure"] for row in trainer.history[: alert.update])
    assert f"best achieved: {best:.4g}" in alert.evidence
    assert trainer.history[-1]["risk/multiplier"] == 1.0
    assert "constraint_uncalibrated" in {alert.rule for alert in trainer.alerts}


def test_no_risk_at_all_is_no_alert() -> None:
    """Without any spread of returns there is nothing to constrain, and nothing is broken."""
    report = UpdateReport(True, None, False, 0.0, {}, {"risk": {"actor": 0.0}})
    assert Health().look(1, {"risk/spread": 0.0}, report) == []
    assert [alert.rule for alert in Health().look(1, {"risk/spread": 0.1}, report)] == ["loss_without_gradient"]
