"""The calibration tracker: which windows it completes, with which return, and how it judges the predicted laws."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtri
from torch import Tensor

from tailwise.core.errors import CheckpointError, ShapeError
from tailwise.core.metrics import check_declared
from tailwise.core.streams import Streams
from tailwise.learner.calibration import KEPT, LONGEST, Calibration, CalibrationReport
from tailwise.learner.calibration_windows import distribution_of_quantiles
from tailwise.learner.particles import inverse_cdf_quantiles
from tailwise.learner.rollout import CriticRecord, Rollout
from tailwise.learner.tail import cvar_from_atoms
from tailwise.learner.targets import law_particles
from tailwise.model.config import CategoricalCritic, QuantileCritic
from tailwise.model.critics import normalised_atoms, quantile_midpoints
from tests.support import bits, knobs, play, random_world, same, small_backend

CVAR_NORMAL = -2.0627  # 5% of N(0, 1)


def quantile_critic(n: int = 64, **changes: Any) -> QuantileCritic:
    return QuantileCritic(quantiles=n, minibatch_particles=1, **changes)


def rollout_of(
    reward: Tensor,
    law: Tensor,
    *,
    final_law: Tensor | None = None,
    terminated: Tensor | None = None,
    truncated: Tensor | None = None,
    valid: Tensor | None = None,
    start: Tensor | None = None,
    mu: float = 0.0,
    sigma: float = 1.0,
    update: int = 0,
) -> Rollout:
    """A rollout whose policy part is blank; law [T+1, B, C, N] or [C, N] for every state; flags default to False."""
    steps, envs = reward.shape
    no = torch.zeros(steps, envs, dtype=torch.bool)
    whole = law.expand(steps + 1, envs, *law.shape[-2:])
    record = CriticRecord(
        mean=whole.mean(-1),
        law=whole,
        final_mean=whole[1:].mean(-1),
        final_law=whole[1:] if final_law is None else final_law,
        mu=mu,
        sigma=sigma,
    )
    return Rollout(
        obs=torch.zeros(steps, envs, 1),
        action=torch.zeros(steps, envs, 1, dtype=torch.int64),
        log_prob=torch.zeros(steps, envs),
        params=torch.zeros(steps, envs, 2),
        mask=None,
        reward=reward.float(),
        terminated=no if terminated is None else terminated,
        truncated=no if truncated is None else truncated,
        valid=~no if valid is None else valid,
        start=no if start is None else start,
        state=torch.zeros(envs, 0, 0),
        critic=record,
        environment=torch.arange(envs),
        update=update,
    )


def normal_law(mean: float, sd: float, n: int = 64) -> Tensor:
    """Two critics whose average is the exact law, unsorted: [2, N]."""
    exact = mean + sd * torch.special.ndtri(quantile_midpoints(n))
    return torch.stack([exact - 0.3, exact.flip(0) + 0.3]).float()


def every(length: int, steps: int, envs: int, update: int) -> Tensor:
    """True at the last step of episodes of `length` steps; environments are out of phase."""
    clock = torch.arange(update * steps, (update + 1) * steps)[:, None] + torch.arange(envs)[None]
    return clock % length == length - 1


def normal_process(
    *, law: Tensor, gamma: float = 0.9, updates: int = 12, length: int | None = None, seed: int = 0
) -> Calibration:
    """Rewards N(0, 1), independent; 64 environments, 128 steps; `length`: truncated after so many steps.

    The return of a state is N(0, 1 / (1 - gamma^2)).
    """
    critic = quantile_critic(law.shape[-1])
    tracker = Calibration(critic, Streams(seed), gamma=gamma, alpha=0.05, environments=64)
    g = torch.Generator().manual_seed(seed)
    for update in range(updates):
        reward = torch.randn(128, 64, generator=g)
        truncated = None if length is None else every(length, 128, 64, update)
        tracker.absorb(rollout_of(reward, law, truncated=truncated, update=update))
    return tracker


def told(tracker: Calibration) -> CalibrationReport:
    report = tracker.report()
    assert report is not None
    return report


SD = 1 / math.sqrt(1 - 0.9**2)


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
    atoms = mu + sigma * normalised_atoms(critic).double()
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
    plain = (done.predicted < done.realised[:, None]).mean(1)  # the wrong transform
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


# -------------------------------------------------------------------- which windows, which returns


@dataclasses.dataclass
class Step:
    """One step of one environment in a long history, with the laws that its rollout recorded."""

    reward: float
    terminated: bool
    truncated: bool
    valid: bool
    start: bool
    update: int
    law: Tensor
    next_law: Tensor
    final_law: Tensor
    mu: float
    sigma: float


def random_history(
    seed: int, critic: QuantileCritic | CategoricalCritic, envs: int, *, longest: int = 30
) -> list[Rollout]:
    """Rollouts of random lengths, ends, reset rows, scales and laws; a silent reset of all environments in the middle.

    The state after a rollout is recorded twice, by the critics before and after the update, with different laws.
    """
    rng = np.random.default_rng(seed)
    n = critic.quantiles if isinstance(critic, QuantileCritic) else critic.atoms
    next_step = bool(rng.integers(2))
    end = rng.choice([0.02, 0.1, 0.3])
    after = np.zeros(envs, dtype=bool)  # the row only resets
    begins = np.ones(envs, dtype=bool)
    rollouts = []
    count = int(rng.integers(4, 9))
    for update in range(count):
        steps = int(rng.integers(1, longest))
        flags = np.zeros((4, steps, envs), dtype=bool)
        if update == count // 2:
            begins[:], after[:] = True, False
        for t in range(steps):
            valid = ~after if next_step else np.ones(envs, dtype=bool)
            ends = (rng.random(envs) < end) & valid
            both, by_time = rng.random(envs) < 0.1, rng.random(envs) < 0.5
            flags[:, t] = ends & (~by_time | both), ends & (by_time | both), valid, begins
            begins = (~valid if next_step else ends).copy()
            after = ends
        if not flags[2].any():
            flags[2, 0, 0] = True
        tensors = [torch.from_numpy(f) for f in flags]
        law = torch.from_numpy(rng.normal(size=(steps + 1, envs, 2, n))).float()
        final = torch.from_numpy(rng.normal(size=(steps, envs, 2, n))).float()
        rollouts.append(
            rollout_of(
                torch.from_numpy(rng.normal(size=(steps, envs))),
                law,
                final_law=final,
                terminated=tensors[0],
                truncated=tensors[1],
                valid=tensors[2],
                start=tensors[3],
                mu=float(rng.normal()) if update else 0.0,
                sigma=float(rng.random() + 0.5) if update else 0.0,
                update=update,
            )
        )
    return rollouts


def reference(
    rollouts: list[Rollout], critic: QuantileCritic | CategoricalCritic, streams: Streams, gamma: float
) -> tuple[list[tuple[int, int, float, float, list[float]]], int]:
    """Completed windows (start, environment, return, observed, law) in order, and the number dropped."""
    envs = rollouts[0].envs
    histories: list[list[Step]] = [[] for _ in range(envs)]
    starts: list[tuple[int, int, int]] = []
    horizon = 4096 if gamma == 1 else min(4096, math.ceil(round(3 / (1 - gamma), 6)))
    clock = 0
    for r in rollouts:
        assert r.critic.law is not None and r.critic.final_law is not None
        for t in range(r.steps):
            stride = max(1, r.steps // 8, math.ceil(horizon / 64))
            for b in range(envs):
                stretch = (clock + t) // stride
                place = math.floor(stride * math.fmod((stretch + b) * (math.sqrt(5) - 1) / 2, 1.0))
                if clock + t == stretch * stride + place:
                    starts.append((clock + t, b, stretch - clock // stride))
            for b in range(envs):
                histories[b].append(
                    Step(
                        float(r.reward[t, b]),
                        bool(r.terminated[t, b]),
                        bool(r.truncated[t, b]),
                        bool(r.valid[t, b]),
                        bool(r.start[t, b]),
                        r.update,
                        r.critic.law[t, b],
                        r.critic.law[t + 1, b],
                        r.critic.final_law[t, b],
                        r.critic.mu,
                        r.critic.sigma,
                    )
                )
        clock += r.steps
    done, open_starts, dropped = [], [], 0
    for s, b, index in starts:
        begin = histories[b][s]
        if not begin.valid or begin.sigma == 0:
            continue
        luck = streams.uniforms(
            "calibration", update=begin.update, environments=np.array([b]), steps=1, draws=4, first_step=index
        )[0, 0]
        total, discount, state = 0.0, 1.0, "open"
        for age, step in enumerate(histories[b][s:], start=1):
            if age > 1 and (step.start or not step.valid):
                state = "dropped"
                break
            total += discount * step.reward
            discount *= gamma
            if step.terminated:
                state, discount = "done", 0.0
                break
            if step.truncated or age == horizon:
                state = "done"
                law = step.final_law if step.truncated else step.next_law
                drawn = law_particles(law, critic, torch.from_numpy(luck[:1]), mu=step.mu, sigma=step.sigma)
                total += discount * float(drawn)
                break
        if state == "open":
            open_starts.append(s)
        dropped += state == "dropped"
        if state == "done":
            if isinstance(critic, QuantileCritic):
                law = begin.law.sort(-1).values.mean(0) * begin.sigma + begin.mu
            else:
                levels = (torch.arange(critic.atoms) + luck[3]) / critic.atoms
                law = law_particles(begin.law, critic, levels, mu=begin.mu, sigma=begin.sigma)
            done.append((s, b, total, 1 - discount, law.tolist()))
    oldest = min(open_starts, default=clock)
    return [w for w in done if w[0] < oldest][-KEPT:], dropped


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
        assert np.array_equal(done.predicted, np.array([w[4] for w in expected], np.float32).reshape(-1, 7))
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
    assert tracker.completed.predicted == pytest.approx(
        np.broadcast_to(0.5 * ndtri(quantile_midpoints(64).numpy()), tracker.completed.predicted.shape), abs=1e-5
    )


@pytest.mark.parametrize(("gamma", "steps"), [(1.0, 8), (0.999, 8), (0.9999, 128), (0.99, 8)])
def test_open_windows_are_bounded_and_complete(gamma: float, steps: int) -> None:
    """Short rollouts and long horizons: rejects one window a step, and dropping the oldest before its horizon."""
    tracker = Calibration(quantile_critic(2), Streams(0), gamma=gamma, alpha=0.5, environments=2)
    law = torch.zeros(2, 2)
    most = 0
    for update in range(2 * LONGEST // steps if gamma > 0.99 else 100):
        tracker.absorb(rollout_of(torch.ones(steps, 2), law, update=update))
        most = max(most, len(tracker.open) + len(tracker.waiting))
    assert most <= 2 * 66
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
        assert np.isfinite(broken.completed.realised).all() and np.isfinite(broken.completed.predicted).all()
        mine, other = (t.completed.take(t.completed.column == 3) for t in (clean, broken))
        assert same(mine.tensors("x"), other.tensors("x"))
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
    cases: list[tuple[Calibration, dict[str, Tensor], dict[str, Any], str]] = [
        (tracker(quantiles=8), tensors, data, r"predicted' is float32 .* this model needs float32 \[\d+, 8\]"),
        (tracker(envs=3), tensors, data, r"this run follows 0 to 2; resume with the same run.environments"),
        (tracker(), {**tensors, "completed/pit": short}, data, "completed/pit' is float64"),
        (tracker(), {**tensors, "open/total": whole}, data, "open/total' is float32"),
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
