"""How the calibration tracker judges predicted laws, what it reports and what it keeps."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tailwise.core.errors import CheckpointError, ShapeError
from tailwise.core.metrics import check_declared
from tailwise.core.streams import Streams
from tailwise.learner.calibration import KEPT, Calibration
from tailwise.learner.calibration_laws import distribution_of_quantiles
from tailwise.learner.returns import inverse_cdf_quantiles
from tailwise.learner.risk import cvar_from_atoms
from tailwise.model.config import CategoricalCritic, QuantileCritic, quantile_midpoints
from tests.learner.calibration_reference import (
    SD,
    every,
    normal_law,
    normal_process,
    quantile_critic,
    random_history,
    reference,
    rollout_of,
    told,
)
from tests.support import bits, knobs, play, random_world, same, small_backend

CVAR_NORMAL = -2.0627  # 5% of N(0, 1)


# -------------------------------------------------------------------- judgement of known laws


def test_the_exact_law_is_found_calibrated() -> None:
    """Rejects quantiles read off by half a step, critics not averaged after sorting, and a pooled tail that is cut."""
    tracker = normal_process(law=normal_law(0.0, SD))
    report = told(tracker)
    assert report.windows == KEPT
    assert report.coverage == pytest.approx((0.05, 0.50, 0.95), abs=0.02)
    assert sum(report.pit) == pytest.approx(1.0)
    assert report.pit == pytest.approx([0.1] * 10, abs=0.025)
    assert report.pit_error < 0.04
    # The prediction has no sampling error, so the pooled tail is held to half a percent.
    assert report.cvar_predicted == pytest.approx(CVAR_NORMAL * SD, rel=0.005)
    assert report.cvar_realised == pytest.approx(CVAR_NORMAL * SD, rel=0.06)
    assert report.spread == pytest.approx(SD, rel=0.05)
    assert report.calibrated(0.2)
    exact = cvar_from_atoms(torch.from_numpy(tracker.completed.realised), None, 0.05)  # 102.4 windows: one is split
    assert report.cvar_realised == pytest.approx(float(exact), rel=1e-12)
    assert report.observed == pytest.approx(1 - 0.9**30)


def test_a_law_too_thin_by_half_is_found_out() -> None:
    report = told(normal_process(law=normal_law(0.0, SD / 2)))
    assert report.coverage[0] > 0.15  # Phi(-1.645 / 2) = .205
    assert report.coverage[1] == pytest.approx(0.5, abs=0.04)
    assert report.pit[0] + report.pit[9] > 0.4
    assert report.pit_error > 0.1
    assert not report.calibrated(0.5)
    assert report.agrees(CVAR_NORMAL * SD, 0.2) and not report.agrees(CVAR_NORMAL * SD / 2, 0.5)


def test_a_shifted_law_is_found_out() -> None:
    """A prediction one standard deviation too high: far more than half of the returns lie below its median."""
    report = told(normal_process(law=normal_law(SD, SD)))
    assert report.coverage[1] == pytest.approx(0.84, abs=0.04)
    assert report.cvar_predicted - report.cvar_realised == pytest.approx(SD, rel=0.15)
    assert not report.calibrated(0.5)


def test_the_rest_is_a_draw_and_not_the_mean() -> None:
    """Episodes cut after 6 steps leave about half of the discount: closed by means, returns would look too calm."""
    law = normal_law(0.0, SD)
    tracker = normal_process(law=law, length=6)
    report = told(tracker)
    assert report.observed < 0.4
    assert report.coverage == pytest.approx((0.05, 0.50, 0.95), abs=0.02)
    assert report.spread == pytest.approx(SD, rel=0.05)
    # The same history closed by the mean of the law, 0, which is what a zero law at the end does.
    g = torch.Generator().manual_seed(0)
    wrong = Calibration(quantile_critic(), Streams(0), gamma=0.9, alpha=0.05, environments=64)
    for update in range(12):
        reward = torch.randn(128, 64, generator=g)
        zero = torch.zeros(128, 64, 2, 64)
        wrong.absorb(rollout_of(reward, law, final_law=zero, truncated=every(6, 128, 64, update), update=update))
    assert told(wrong).coverage[0] < 0.03
    assert told(wrong).spread < 0.8 * SD


def crashing(*, length: int, updates: int, gamma: float = 0.95, hazard: float = 0.03) -> Calibration:
    """Reward 0 until a crash of -1 with probability `hazard` a step terminates; truncated after `length` steps.

    The return is -gamma^(n-1), n geometric: its exact law is the prediction (one critic, 64 quantiles) everywhere.
    """
    levels = quantile_midpoints(64)
    # P(Z <= -gamma^(n-1)) = 1 - (1 - hazard)^n
    n = torch.ceil(torch.log1p(-levels) / math.log1p(-hazard))
    law = -(gamma ** (n - 1)).float()[None]
    tracker = Calibration(quantile_critic(twin=False), Streams(3), gamma=gamma, alpha=0.05, environments=64)
    g = torch.Generator().manual_seed(5)
    age = torch.zeros(64)
    for update in range(updates):
        terminated, truncated = torch.zeros(2, 128, 64, dtype=torch.bool)
        for t in range(128):
            terminated[t] = torch.rand(64, generator=g) < hazard
            age += 1
            truncated[t] = age >= length
            age[terminated[t] | truncated[t]] = 0
        tracker.absorb(rollout_of(-terminated.float(), law, terminated=terminated, truncated=truncated, update=update))
    return tracker


def test_a_time_limit_does_not_leave_the_crashes_alone() -> None:
    """Rejects dropping windows that a time limit cuts while much discount remains: what stays are the crashes."""
    tracker = crashing(length=40, updates=8)
    truth = -0.03 / (1 - 0.95 * 0.97)
    done = tracker.completed
    assert done.realised.mean() == pytest.approx(truth, rel=0.06)
    assert told(tracker).pit_error < 0.06
    kept = done.observed >= 0.75
    assert done.realised[kept].mean() < 1.2 * truth


def test_the_first_windows_of_a_run_are_not_the_crashes_alone() -> None:
    """Rejects counting windows as they complete: after 50 steps those are the ones that terminated."""
    tracker = Calibration(quantile_critic(), Streams(0), gamma=0.99, alpha=0.05, environments=64)
    terminated = torch.zeros(50, 64, dtype=torch.bool)
    terminated[20, :16] = True
    tracker.absorb(rollout_of(-terminated.float(), normal_law(0.0, 1.0), terminated=terminated))
    assert len(tracker.waiting) > 50
    assert tracker.report() is None
    for update in range(1, 7):
        tracker.absorb(rollout_of(torch.zeros(50, 64), normal_law(0.0, 1.0), update=update))
    first = tracker.completed.start < 6
    assert first.sum() == 64 and (tracker.completed.observed[first] == 1.0).sum() == 16


# -------------------------------------------------------------------- atoms and points


def test_the_distribution_function_inverts_the_quantile_function() -> None:
    g = torch.Generator().manual_seed(2)
    theta = torch.randn(40, 9, generator=g, dtype=torch.float64).sort(-1).values
    levels = torch.rand(40, 1, generator=g, dtype=torch.float64) * 0.998 + 0.001
    y = inverse_cdf_quantiles(theta, levels)[:, 0].numpy()
    for side in ("left", "right"):
        assert distribution_of_quantiles(theta.numpy(), y, side) == pytest.approx(levels[:, 0].numpy(), abs=1e-12)


def test_atoms_of_a_quantile_law() -> None:
    """Three of four quantiles at 1: P(Z < 1) is the level 3/8 of the first centre at 1, P(Z <= 1) is all."""
    theta = np.array([[0.0, 1.0, 1.0, 1.0]])
    one = np.array([1.0])
    assert distribution_of_quantiles(theta, one, "left") == pytest.approx([0.375])
    assert distribution_of_quantiles(theta, one, "right") == pytest.approx([1.0])
    point = np.full((3, 4), 2.0)
    around = np.array([1.9, 2.0, 2.1])
    assert distribution_of_quantiles(point, around, "left").tolist() == [0.0, 0.0, 1.0]
    assert distribution_of_quantiles(point, around, "right").tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("value", [0.0, 0.3, -1e4])
def test_a_point_law_that_is_right_is_calibrated(value: float) -> None:
    """Constant reward: rejects a transform without randomisation (all mass in one bin) and exact float comparison."""
    law = torch.full((2, 64), value / (1 - 0.9))
    tracker = Calibration(quantile_critic(), Streams(0), gamma=0.9, alpha=0.05, environments=64)
    for update in range(5):
        tracker.absorb(rollout_of(torch.full((128, 64), value), law, update=update))
    report = told(tracker)
    assert report.pit == pytest.approx([0.1] * 10, abs=0.03)
    assert report.coverage == pytest.approx((0.05, 0.5, 0.95), abs=0.03)
    assert report.calibrated(0.1)


def test_a_point_law_that_is_wrong_is_not() -> None:
    tracker = Calibration(quantile_critic(), Streams(0), gamma=0.0, alpha=0.05, environments=64)
    for update in range(3):
        tracker.absorb(rollout_of(torch.ones(128, 64), torch.full((2, 64), 1.001), update=update))
    report = told(tracker)
    assert report.coverage == (1.0, 1.0, 1.0)
    assert report.spread == 0.0 and not report.calibrated(0.5)


def projected_normal(critic: CategoricalCritic, sd: float, mu: float, sigma: float) -> Tensor:
    """Logits [2, N] of the law of N(0, sd^2) projected onto the atoms, both critics alike."""
    atoms = mu + sigma * critic.support().double()
    y = sd * torch.special.ndtri(quantile_midpoints(20_000))
    spacing = atoms[1] - atoms[0]
    share = (1 - (y[:, None].clamp(atoms[0], atoms[-1]) - atoms).abs() / spacing).clamp(0, 1).mean(0)
    return share.clamp(min=1e-12).log().float().expand(2, -1)


@pytest.mark.parametrize("atoms", [101, 21])
def test_a_categorical_law_is_judged_fairly(atoms: int) -> None:
    """21 atoms are half a standard deviation apart: rejects comparing returns with the atoms as they are."""
    critic = CategoricalCritic(atoms=atoms)
    law = projected_normal(critic, SD, 0.4, SD)
    tracker = Calibration(critic, Streams(0), gamma=0.9, alpha=0.05, environments=64)
    thin = Calibration(critic, Streams(0), gamma=0.9, alpha=0.05, environments=64)
    g = torch.Generator().manual_seed(0)
    for update in range(10):
        reward = torch.randn(128, 64, generator=g)
        tracker.absorb(rollout_of(reward, law, mu=0.4, sigma=SD, update=update))
        thin.absorb(rollout_of(reward, projected_normal(critic, SD / 2, 0.4, SD), mu=0.4, sigma=SD, update=update))
    report = told(tracker)
    assert report.coverage == pytest.approx((0.05, 0.50, 0.95), abs=0.02)
    assert report.pit == pytest.approx([0.1] * 10, abs=0.025)
    assert report.cvar_predicted == pytest.approx(CVAR_NORMAL * SD, rel=0.03)
    assert told(thin).coverage[0] > 0.12
    done = tracker.completed
    plain = (tracker.laws[done.law] < done.realised[:, None]).mean(1)  # the wrong transform
    steps = np.abs(np.sort(plain) - np.arange(len(plain)) / len(plain)).max()
    assert steps > 1.5 * report.pit_error


def test_a_rare_atom_is_in_the_pooled_law() -> None:
    """A mass of .3% at the lowest of 101 atoms: rejects reading each law at the same midpoint levels, all above it."""
    critic = CategoricalCritic(atoms=101)
    probability = torch.full((101,), 1e-9)
    probability[50], probability[0] = 0.997, 0.003
    tracker = Calibration(critic, Streams(1), gamma=0.0, alpha=0.05, environments=64)
    for update in range(6):
        tracker.absorb(rollout_of(torch.zeros(128, 64), probability.log().expand(2, -1), update=update))
    assert told(tracker).cvar_predicted == pytest.approx(-5 * 0.003 / 0.05, rel=0.2)


# -------------------------------------------------------------------- report, state, real rollouts


def test_the_report_waits_for_fifty_windows_and_names_its_metrics() -> None:
    tracker = Calibration(quantile_critic(), Streams(0), gamma=0.0, alpha=0.05, environments=7)
    tracker.absorb(rollout_of(torch.ones(7, 7), normal_law(0, 1)))
    # 7 environments x starts 0..6, of which the last two are open (3 steps each).
    assert len(tracker.completed) == 35 and tracker.report() is None
    tracker.absorb(rollout_of(torch.ones(7, 7), normal_law(0, 1), update=1))
    metrics = told(tracker).metrics()
    names = ["windows", "coverage_05", "coverage_50", "coverage_95", "pit_error", "cvar_predicted", "cvar_realised"]
    names += ["spread", "observed", "dropped", *(f"pit/{k}" for k in range(10))]
    check_declared(metrics)
    assert metrics.keys() == {f"calibration/{name}" for name in names}
    assert metrics["calibration/windows"] == 84 and metrics["calibration/cvar_realised"] == 1.0
    assert metrics["calibration/coverage_05"] == 0.0 and metrics["calibration/coverage_95"] == 1.0
    assert metrics["calibration/pit/8"] == 1.0  # Phi(1) = .841


def test_only_the_first_64_environments_are_followed_and_the_newest_windows_kept() -> None:
    tracker = Calibration(quantile_critic(2), Streams(0), gamma=0.0, alpha=0.5, environments=70)
    for update in range(6):
        tracker.absorb(rollout_of(torch.full((16, 70), float(update)), torch.zeros(2, 2), update=update))
    done = tracker.completed
    assert len(done) == KEPT and set(done.column.tolist()) == set(range(64))
    assert done.realised.min() >= 1.0 and done.realised.max() == 5.0 and (np.diff(done.start) >= 0).all()


def test_of_windows_that_are_released_together_the_newest_stay() -> None:
    """Episodes of one step in 63 environments wait for a window of the first environment, whose only episode ends
    after 280 steps. Rejects the oldest KEPT of what is released at once."""
    tracker = Calibration(quantile_critic(2), Streams(0), gamma=0.99, alpha=0.5, environments=64)
    for update in range(7):
        ends = torch.ones(40, 64, dtype=torch.bool)
        ends[:, 0] = False
        ends[-1, 0] = update == 6
        assert len(tracker.completed) == 0
        tracker.absorb(rollout_of(torch.ones(40, 64), torch.zeros(2, 2), terminated=ends, update=update))
    done = tracker.completed
    assert len(done) == KEPT and len(tracker.open) == len(tracker.waiting) == 0
    assert done.start.min() > 100 and done.start.max() > 270


def test_a_verdict_needs_rewards_for_half_of_the_discount() -> None:
    """Below, a prediction is mostly compared with itself."""
    report = told(normal_process(law=normal_law(0.0, SD)))
    assert dataclasses.replace(report, observed=0.5).calibrated(0.2)
    assert not dataclasses.replace(report, observed=0.49).calibrated(0.2)


@pytest.mark.parametrize("kind", ["quantile", "categorical"])
def test_a_resumed_tracker_continues_bit_for_bit(kind: str) -> None:
    """Rejects a state without the open or waiting windows, or without the clock of the starts."""
    critic = quantile_critic(7) if kind == "quantile" else CategoricalCritic(atoms=7)
    for seed in range(6):
        rollouts = random_history(seed, critic, envs=30)
        whole = Calibration(critic, Streams(seed), gamma=0.9, alpha=0.2, environments=30)
        for at, rollout in enumerate(rollouts):
            whole.absorb(rollout)
            if at == len(rollouts) // 2:
                assert len(whole.open) > 0
                tensors, data = whole.state()
                kept = {name: bits(tensor) for name, tensor in tensors.items()}
        resumed = Calibration(critic, Streams(seed), gamma=0.9, alpha=0.2, environments=30)
        resumed.load(tensors, json.loads(json.dumps(data)))
        for rollout in rollouts[len(rollouts) // 2 + 1 :]:
            resumed.absorb(rollout)
        assert same(whole.state()[0], resumed.state()[0]) and whole.state()[1] == resumed.state()[1]
        assert whole.report() == resumed.report()
        assert {name: bits(tensor) for name, tensor in tensors.items()} == kept  # a state is a copy


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    def tracker(quantiles: int = 7, envs: int = 30) -> Calibration:
        return Calibration(quantile_critic(quantiles), Streams(0), gamma=0.9, alpha=0.2, environments=envs)

    source = tracker()
    for rollout in random_history(1, source.critic, envs=30):
        source.absorb(rollout)
    tensors, data = source.state()
    short = tensors["completed/pit"][:-1]
    whole = tensors["open/total"].float()
    old = torch.full_like(tensors["open/age"], source.horizon)
    cases: list[tuple[Calibration, dict[str, Tensor], dict[str, Any], str]] = [
        (tracker(quantiles=8), tensors, data, r"predicted' is float32 .* this model needs float32 \[\d+, 8\]"),
        (tracker(envs=3), tensors, data, r"this run follows 0 to 2; resume with the same run.environments"),
        (tracker(), {**tensors, "completed/pit": short}, data, "completed/pit' is float64"),
        (tracker(), {**tensors, "open/total": whole}, data, "open/total' is float32"),
        (tracker(), {**tensors, "open/age": old}, data, rf"has seen {source.horizon} steps; expected 0 to"),
        (tracker(), {}, data, "missing .*completed/column"),
        (tracker(), tensors, {**data, "clock": -1}, "clock = -1"),
        (tracker(), tensors, {"clock": 3}, "missing .*'dropped', 'next_update'"),
    ]
    for target, bad_tensors, bad_data, sentence in cases:
        before = target.state()
        with pytest.raises(CheckpointError, match=sentence):
            target.load(bad_tensors, bad_data)
        assert same(before[0], target.state()[0]) and before[1] == target.state()[1]


def test_a_rollout_of_another_run_is_refused() -> None:
    tracker = Calibration(quantile_critic(), Streams(0), gamma=0.9, alpha=0.05, environments=3)
    with pytest.raises(ShapeError, match=r"a rollout of 2 environments .* made for 3 environments"):
        tracker.absorb(rollout_of(torch.ones(4, 2), normal_law(0, 1)))
    blank = rollout_of(torch.ones(4, 3), normal_law(0, 1))
    scalar = dataclasses.replace(blank, critic=dataclasses.replace(blank.critic, law=None, final_law=None))
    with pytest.raises(ShapeError, match="with no law of the return"):
        tracker.absorb(scalar)


@pytest.mark.parametrize("critic", [{}, {"kind": "categorical", "atoms": 11, "hidden": [8]}])
def test_rollouts_of_a_learner_are_followed(critic: dict[str, Any]) -> None:
    """Real records: two critics, a scale that moves with each update, recurrent core, reset rows."""
    backend = small_backend(model={"critic": critic, "core": {"kind": "lstm", "hidden": 4}})
    config = backend.model.config.critic
    assert isinstance(config, QuantileCritic | CategoricalCritic)
    tracker = Calibration(config, backend.streams, gamma=backend.config.gamma, alpha=0.25, environments=6)
    rollouts = []
    for update in range(4):
        world = random_world(24, 6, seed=update, next_step=True)
        rollouts.append(play(backend, world, update=update))
        tracker.absorb(rollouts[-1])
        backend.update(rollouts[-1], knobs())
    assert rollouts[0].critic.sigma == 0.0 and len({r.critic.sigma for r in rollouts}) == 4
    expected, lost = reference(rollouts, config, backend.streams, backend.config.gamma)
    assert tracker.completed.realised.tolist() == [w[2] for w in expected]
    assert len(expected) > 10 and tracker.dropped == lost
