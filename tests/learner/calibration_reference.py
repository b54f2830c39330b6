"""Rollouts with known laws, and the windows of a long history one at a time: what the tracker is compared with."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tailwise.core.streams import Streams
from tailwise.learner.calibration import KEPT, Calibration, CalibrationReport
from tailwise.learner.return_laws import return_law
from tailwise.learner.rollout import CriticRecord, Rollout
from tailwise.model.config import CategoricalCritic, QuantileCritic, quantile_midpoints


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
                drawn = return_law(critic).particles(law, torch.from_numpy(luck[:1]), mu=step.mu, sigma=step.sigma)
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
                law = return_law(critic).particles(begin.law, levels, mu=begin.mu, sigma=begin.sigma)
            done.append((s, b, total, 1 - discount, law.tolist()))
    oldest = min(open_starts, default=clock)
    return [w for w in done if w[0] < oldest][-KEPT:], dropped
