"""Dormant units, effective rank, size and way of the weights: their definitions on small cases, and in runs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tailwise.run.agent import PPO
from tailwise.run.health import probes
from tailwise.run.health.engine import Health
from tailwise.run.health.plasticity import Weights, dormant_units, effective_rank
from tailwise.run.health.rules_learning import LEARNING_RULES
from tests.support import knobs, play, random_world, small_backend, small_run

NAMES = (
    "model/dormant_units", "model/effective_rank", "model/weight_norm", "model/weight_growth", "model/weight_distance",
)  # fmt: skip


def test_dormant_units_are_those_below_a_share_of_their_own_layer() -> None:
    """Activities 1, 1, .02 have the mean .673, of which .025 is .0168: .02 is awake, .01 is not. A layer that is a
    million times smaller counts by its own mean.

    Rejects a threshold in absolute units and a signed mean (+1, -1 is active)."""
    rows = torch.tensor([[1.0, 1.0, 0.02], [-1.0, 1.0, 0.02]])
    assert dormant_units([rows]) == 0.0
    rows[:, 2] = 0.01
    assert dormant_units([rows]) == pytest.approx(1 / 3)
    assert dormant_units([rows, 1e-6 * torch.ones(2, 1)]) == pytest.approx(1 / 4)
    assert dormant_units([torch.zeros(5, 4)]) == 1.0


def test_effective_rank_of_known_matrices() -> None:
    """Singular values all equal: their number; (3, 1): exp of the entropy of (3/4, 1/4); one direction: 1. Rejects
    squared singular values (.9, .1)."""
    assert effective_rank(5 * torch.eye(7)) == pytest.approx(7.0)
    assert effective_rank(torch.diag(torch.tensor([3.0, 1.0]))) == pytest.approx(
        math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    )
    assert effective_rank(torch.outer(torch.arange(1.0, 9.0), torch.ones(6))) == pytest.approx(1.0, abs=1e-5)
    assert effective_rank(torch.zeros(4, 3)) == 0.0


def test_weights_are_compared_with_those_of_the_start() -> None:
    """Doubled weights: norm and distance; heads of the return scale count for nothing."""
    backend = small_backend()
    weights = Weights(backend.model)
    start = weights.metrics()
    assert start["model/weight_growth"] == 1.0 and start["model/weight_distance"] == 0.0
    with torch.no_grad():
        for critic in backend.model.critic_heads():
            assert critic.mean_head is not None
            critic.mean_head.weight.mul_(100.0)
    assert weights.metrics() == start
    with torch.no_grad():
        for p in backend.model.parameters():
            p.mul_(2.0)
    doubled = weights.metrics()
    assert doubled["model/weight_norm"] == pytest.approx(2 * start["model/weight_norm"])
    assert doubled["model/weight_growth"] == pytest.approx(2.0)
    assert doubled["model/weight_distance"] == pytest.approx(1.0)
    with torch.no_grad():
        for p in backend.model.parameters():
            p.neg_()
    assert weights.metrics()["model/weight_distance"] == pytest.approx(3.0)


@pytest.mark.parametrize("backend", ["torch", "fused"])
def test_a_run_reports_them_at_their_interval(backend: str) -> None:
    agent = PPO("CartPole-v1", small_run(backend=backend, health={"signals_every": 2}))
    agent.learn()
    for name in NAMES:
        assert [row["update"] for row in agent.history if name in row] == [1, 3], name
    last = agent.history[2]
    assert last["model/dormant_units"] < 0.5 and last["model/effective_rank"] > 1.0
    assert 0 < last["model/weight_distance"] < 1


def test_an_update_moves_the_distance() -> None:
    backend = small_backend()
    weights = Weights(backend.model)
    distances = []
    for update in range(3):
        assert backend.update(play(backend, random_world(seed=update), update=update), knobs(0.01)).committed
        distances.append(weights.metrics()["model/weight_distance"])
    assert 0 < distances[0] < distances[1] < distances[2]


@pytest.mark.parametrize(
    ("rule", "sound", "sick"),
    [
        ("dormant_units", [{"model/dormant_units": 0.4}], [{"model/dormant_units": 0.6}]),
        ("weights_grown", [{"model/weight_growth": 9.0}], [{"model/weight_growth": 11.0}]),
        ("weights_far", [{"model/weight_distance": 9.0}], [{"model/weight_distance": 11.0}]),
        (
            "rank_collapse",
            [{"model/effective_rank": 20.0}] * 9 + [{"model/effective_rank": 3.0}] * 3,
            [{"model/effective_rank": 20.0}] * 9 + [{"model/effective_rank": 1.5}] * 3,
        ),
    ],
)
def test_each_rule_fires_on_a_sick_series_and_not_on_a_sound_one(
    rule: str, sound: list[dict[str, float]], sick: list[dict[str, float]]
) -> None:
    for series, expected in ((sound, False), (sick, True)):
        engine = Health(tuple(r for r in LEARNING_RULES if r.name == rule))
        raised = fired(engine, series)
        assert (rule in raised) == expected, (series, raised)


def fired(engine: Health, series: list[dict[str, float]]) -> set[str]:
    names: set[str] = set()
    for update, metrics in enumerate(series, start=1):
        names |= {alert.rule for alert in engine.judge_row(update, metrics) if alert.event == "raised"}
    return names


def test_silenced_units_are_dormant_in_a_real_network() -> None:
    """Half of the encoder's units with weights of 0: four of all hidden units."""
    backend = small_backend()
    first = next(module for module in backend.model.encoder.modules() if isinstance(module, nn.Linear))
    with torch.no_grad():
        first.weight[:4] = 0.0
        first.bias[:4] = 0.0
    hidden = probes.hidden_units(backend.model, play(backend, random_world()))
    assert hidden is not None
    units = sum(layer.shape[-1] for layer in hidden.layers)
    assert dormant_units(hidden.layers) == pytest.approx(4 / units)
