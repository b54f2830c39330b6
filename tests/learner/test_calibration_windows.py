"""Which windows the calibration tracker completes, and with which return."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import ndtri

from tailwise.core.streams import Streams
from tailwise.learner.calibration import KEPT, LONGEST, Calibration
from tailwise.model.config import CategoricalCritic, quantile_midpoints
from tests.learner.calibration_reference import (
    normal_law,
    quantile_critic,
    random_history,
    reference,
    rollout_of,
)
from tests.support import same


@pytest.mark.parametrize("kind", ["quantile", "categorical"])
@pytest.mark.parametrize("gamma", [0.0, 0.6, 0.9, 1.0])
def test_windows_equal_a_plain_reference(kind: str, gamma: float) -> None:
    """Rejects discounts off by one, windows carried over an end or a reset row, and laws of another state or record."""
    critic = quantile_critic(7) if kind == "quantile" else CategoricalCritic(atoms=7)
    completed, dropped = 0, 0
    for seed in range(12):
        rollouts = random_history(seed, critic, envs=3, longest=150 if gamma == 1 else 30)
        tracker = Calibration(critic, Streams(seed), gamma=gamma, alpha=0.2, environments=3)
        for rollout in rollouts:
            tracker.absorb(rollout)
        expected, lost = reference(rollouts, critic, Streams(seed), gamma)
        done = tracker.completed
        assert list(zip(done.start.tolist(), done.column.tolist(), strict=True)) == [w[:2] for w in expected]
        assert done.realised.tolist() == [w[2] for w in expected]
        assert done.observed.tolist() == [w[3] for w in expected]
        assert np.array_equal(tracker.laws[done.law], np.array([w[4] for w in expected], np.float32).reshape(-1, 7))
        assert tracker.dropped == lost
        assert ((done.pit >= 0) & (done.pit <= 1)).all()
        completed, dropped = completed + len(done), dropped + lost
    assert completed > (100 if gamma == 1 else 300)
    assert dropped > 0 or gamma == 0.0


def test_how_a_history_is_cut_into_rollouts_does_not_change_a_return() -> None:
    """Terminations only, so that no draw matters: rejects a discount or a clock that starts again with each rollout."""
    g = torch.Generator().manual_seed(4)
    reward = torch.randn(120, 5, generator=g)
    terminated = torch.rand(120, 5, generator=g) < 0.05
    states = []
    for length in (40, 24, 8):
        tracker = Calibration(quantile_critic(4), Streams(0), gamma=0.99, alpha=0.3, environments=5)
        for update, t in enumerate(range(0, 120, length)):
            rows = slice(t, t + length)
            tracker.absorb(rollout_of(reward[rows], torch.zeros(2, 4), terminated=terminated[rows], update=update))
        done = tracker.completed
        assert len(done) > 40
        states.append((done.start.tolist(), done.column.tolist(), done.realised.tolist()))
    assert states[0] == states[1] == states[2]


def test_windows_start_in_every_part_of_an_episode() -> None:
    """Episodes of 16 steps, windows every 16 steps: rejects a fixed grid, which would see one state of sixteen."""
    tracker = Calibration(quantile_critic(2), Streams(0), gamma=0.5, alpha=0.5, environments=1)
    for update in range(12):
        truncated = torch.zeros(128, 1, dtype=torch.bool)
        truncated[15::16] = True
        tracker.absorb(rollout_of(torch.ones(128, 1), torch.zeros(2, 2), truncated=truncated, update=update))
    phases = np.bincount(tracker.completed.start % 16, minlength=16)
    assert phases.sum() >= 95 and phases.min() >= 4 and phases.max() <= 8


def test_no_window_starts_before_the_first_scale() -> None:
    tracker = Calibration(quantile_critic(), Streams(0), gamma=0.0, alpha=0.05, environments=64)
    tracker.absorb(rollout_of(torch.ones(64, 64), normal_law(0, 1), sigma=0.0))
    assert len(tracker.open) == len(tracker.completed) == 0
    tracker.absorb(rollout_of(torch.ones(64, 64), normal_law(0, 1), sigma=0.5, update=1))
    assert len(tracker.completed) > 0
    predicted = tracker.laws[tracker.completed.law]
    assert predicted == pytest.approx(
        np.broadcast_to(0.5 * ndtri(quantile_midpoints(64).numpy()), predicted.shape), abs=1e-5
    )


@pytest.mark.parametrize(("gamma", "steps"), [(1.0, 8), (0.999, 8), (0.9999, 128), (0.99, 8)])
def test_open_windows_are_bounded_and_complete(gamma: float, steps: int) -> None:
    """Short rollouts and long horizons: rejects one window a step, dropping the oldest before its horizon, and rows of
    laws that are not used again."""
    tracker = Calibration(quantile_critic(2), Streams(0), gamma=gamma, alpha=0.5, environments=2)
    law = torch.zeros(2, 2)
    most = 0
    for update in range(2 * LONGEST // steps if gamma > 0.99 else 100):
        tracker.absorb(rollout_of(torch.ones(steps, 2), law, update=update))
        most = max(most, len(tracker.open) + len(tracker.waiting))
    assert most <= 2 * 66
    assert len(tracker.laws) <= KEPT + 3 * 66
    assert tracker.dropped == 0
    assert len(tracker.completed) > 100
    horizon = LONGEST if gamma in (1.0, 0.9999) else round(3 / (1 - gamma))
    expected = horizon if gamma == 1 else (1 - gamma**horizon) / (1 - gamma)
    assert tracker.completed.realised == pytest.approx(np.full(len(tracker.completed), expected))


def test_numbers_that_are_not_finite_are_dropped_and_counted() -> None:
    """NaN and infinity in a reward, a law at the start and a law at the end; the other environments are untouched."""
    for critic in (quantile_critic(4), CategoricalCritic(atoms=4)):
        clean, broken = (Calibration(critic, Streams(0), gamma=0.5, alpha=0.5, environments=4) for _ in range(2))
        g = torch.Generator().manual_seed(0)
        for update in range(3):
            reward, law = torch.randn(8, 4, generator=g), torch.randn(9, 4, 2, 4, generator=g)
            clean.absorb(rollout_of(reward, law, update=update))
            reward, law = reward.clone(), law.clone()
            if update == 1:
                reward[3, 0], reward[4, 0], law[2, 1, 1, 0], law[7, 2] = math.inf, -math.inf, math.nan, math.inf
            broken.absorb(rollout_of(reward, law, update=update))
        assert clean.dropped == 0 < broken.dropped
        assert np.isfinite(broken.completed.realised).all() and np.isfinite(broken.laws[broken.completed.law]).all()
        mine, other = (t.completed.take(t.completed.column == 3) for t in (clean, broken))
        assert same(mine.tensors("x", clean.laws), other.tensors("x", broken.laws))
        before, after = (set(zip(t.completed.start, t.completed.column, strict=True)) for t in (clean, broken))
        assert {(10, 1), (15, 2)} <= before - after  # they started from a broken law: 8 steps, then row 2 and row 7


def test_a_rollout_that_is_left_out_is_not_bridged() -> None:
    """Rejects windows that go on after a gap as if nothing had happened in it."""
    tracker = Calibration(quantile_critic(4), Streams(0), gamma=0.9, alpha=0.5, environments=4)
    for update in (0, 1, 3, 4, 5, 6):
        tracker.absorb(rollout_of(torch.ones(16, 4), torch.zeros(2, 4), update=update))
        if update == 3:
            assert tracker.dropped > 0 and tracker.open.start.min() >= 32  # two rollouts of 16 steps came before
    done = tracker.completed
    assert done.realised == pytest.approx(np.full(len(done), (1 - 0.9**30) / 0.1))
    assert len(done) > 0
