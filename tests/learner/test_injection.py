"""Broken numbers in a rollout: refused and named, or survived, and never learnt."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tailwise.learner.ppo import TorchBackend
from tailwise.learner.rollout import Rollout
from tailwise.run.health import Health
from tests.support import BACKENDS, knobs, learner_of, play, random_world, same, small_backend, snapshot

Plant = Callable[[Rollout, float], Rollout]


def at(tensor: torch.Tensor, index: tuple[int, ...], value: float) -> torch.Tensor:
    changed = tensor.clone()
    changed[index] = value
    return changed


def in_critic(name: str, index: tuple[int, ...]) -> Plant:
    def plant(rollout: Rollout, value: float) -> Rollout:
        record = rollout.critic
        return dataclasses.replace(
            rollout, critic=dataclasses.replace(record, **{name: at(getattr(record, name), index, value)})
        )

    return plant


def in_rollout(name: str, index: tuple[int, ...]) -> Plant:
    return lambda rollout, value: dataclasses.replace(rollout, **{name: at(getattr(rollout, name), index, value)})


# (2, 1) is an inner row and (9, 0) a truncated one, see `trained`
PLANTS: dict[str, Plant] = {
    "observation": in_rollout("obs", (2, 1, 0)),
    "reward": in_rollout("reward", (2, 1)),
    "log_prob": in_rollout("log_prob", (2, 1)),
    "policy parameter": in_rollout("params", (2, 1, 0)),
    "value": in_critic("mean", (2, 1)),
    "value law": in_critic("law", (2, 1, 0, 3)),
    "bootstrap value": in_critic("mean", (-1, 1)),
    "bootstrap law": in_critic("law", (-1, 1, 0, 3)),
    "value at truncation": in_critic("final_mean", (9, 0)),
    "law at truncation": in_critic("final_law", (9, 0, 1, 2)),
}

# A stored policy parameter only measures KL, and a law inside the rollout is read with probability 1 - critic.lambda:
# one huge entry of either moves nothing, so there is nothing to raise an alarm about.
HARMLESS = ("policy parameter", "value law")


def trained(
    core: str = "none", steps: int = 12, envs: int = 4, *, kind: str = "torch", **more: Any
) -> tuple[TorchBackend, Rollout]:
    """A learner after two healthy updates, and its next rollout."""
    backend = learner_of(kind, model={"core": {"kind": core}}, **more)
    world = random_world(steps, envs, end=0.0)
    world.truncated[9, 0] = True
    world.start[10, 0] = True
    for update in range(2):
        assert backend.update(play(backend, world, update=update), knobs()).committed
    return backend, play(backend, world, update=2)


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", list(PLANTS))
def test_broken_number_is_refused_and_named(name: str, value: float, core: str, kind: str) -> None:
    """001-6, 004-T1: weights, optimiser, normaliser and return scale bit for bit as before; the reason names it."""
    backend, rollout = trained(core, kind=kind)
    before = snapshot(backend)
    report = backend.update(PLANTS[name](rollout, value), knobs())
    assert not report.committed
    assert report.reason is not None and re.search(rf"\b[12] in {name}\b", report.reason)
    assert same(snapshot(backend), before)
    health = Health()
    alerts = health.look(1, report.metrics, report)
    assert [alert.rule for alert in alerts] == ["update_refused"] and name in alerts[0].evidence
    assert health.refused_in_a_row == 1
    assert backend.update(rollout, knobs()).committed  # the same rollout without the NaN is learnt from


def test_clamp_alone_would_not_help() -> None:
    """The wrong defence of the old systems: clamp(NaN) stays NaN."""
    assert math.isnan(torch.tensor(math.nan).clamp(-1, 1).item())


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(("core", "sign"), [("none", 1.0), ("none", -1.0), ("lstm", 1.0)])
@pytest.mark.parametrize("name", list(PLANTS))
def test_huge_finite_number_is_survived_and_noticed(name: str, core: str, sign: float, kind: str) -> None:
    """1e12: finite weights, KL within max_kl, an alert; and learning goes on. Rejects an update without bounds."""
    backend, rollout = trained(core, steps=24, envs=24, kind=kind)
    report = backend.update(PLANTS[name](rollout, sign * 1e12), knobs())
    assert all(bool(torch.isfinite(t).all()) for t in snapshot(backend).values())
    assert report.kl <= backend.config.max_kl or not report.committed
    assert name in HARMLESS or Health().look(1, report.metrics, report) != [], report.metrics
    world = random_world(24, 24, end=0.0, seed=5)
    later = backend.update(play(backend, world, update=3), knobs())
    assert later.committed, later.reason


@pytest.mark.parametrize("kind", BACKENDS)
def test_targets_that_overflow_are_refused(kind: str) -> None:
    """Finite rewards whose squares or sums leave float32."""
    backend, rollout = trained(kind=kind)
    before = snapshot(backend)
    report = backend.update(dataclasses.replace(rollout, reward=torch.full_like(rollout.reward, 3e38)), knobs())
    assert not report.committed and report.reason is not None
    assert same(snapshot(backend), before)


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("stored", [0.0, -20.0, -120.0, -1e4])
def test_wrong_stored_log_probs_stay_bounded(stored: float, kind: str) -> None:
    """004-2: all log-probs replaced. Loss bounded by the dual clip. Rejects an unbounded exp(log_ratio) (asserted)."""
    backend, rollout = trained(kind=kind)
    report = backend.update(dataclasses.replace(rollout, log_prob=torch.full_like(rollout.log_prob, stored)), knobs())
    assert abs(report.metrics["loss/policy"]) < 10
    assert report.kl <= backend.config.max_kl
    assert all(bool(torch.isfinite(t).all()) for t in snapshot(backend).values())
    if stored <= -120:
        assert report.metrics["policy/log_ratio_clamp_fraction"] == 1.0
        assert any(alert.rule == "log_ratio_clamped" for alert in Health().look(1, report.metrics, report))
        assert torch.exp(rollout.log_prob - stored).max() > 1e30


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1.0, 1e6, 1e12])
def test_rewards_of_any_size_are_learnt(scale: float, kind: str) -> None:
    """004-T2: with rewards x 1e-12 .. 1e12 an update is committed, its loss is O(1), and the scale follows."""
    backend = learner_of(kind)
    world = random_world()
    for update in range(3):
        rollout = play(backend, dataclasses.replace(world, reward=world.reward * scale), update=update)
        report = backend.update(rollout, knobs())
        assert report.committed, report.reason
        assert report.metrics["critic/loss"] < 10
    assert report.metrics["return/sigma"] == pytest.approx(scale, rel=3)


def test_rollout_without_a_valid_row_is_refused_in_a_sentence() -> None:
    """004-T4: an empty rollout. Rejects a mean over nothing (NaN)."""
    backend = small_backend()
    rollout = play(backend, random_world())
    with pytest.raises(Exception, match="0 valid transitions; an update needs at least one"):
        dataclasses.replace(rollout, valid=torch.zeros_like(rollout.valid))


def test_rollout_with_another_dtype_is_refused() -> None:
    """004-5: one dtype, asserted at the buffer."""
    backend = small_backend()
    rollout = play(backend, random_world())
    with pytest.raises(Exception, match=r"rollout.reward is torch.float64; one dtype"):
        dataclasses.replace(rollout, reward=rollout.reward.double())
    with pytest.raises(Exception, match=r"rollout\.obs has shape"):
        dataclasses.replace(rollout, obs=rollout.obs[:-1])
