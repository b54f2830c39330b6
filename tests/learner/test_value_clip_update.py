"""Value clipping as the update applies it: each critic around its own old output, targets untouched."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tailwise.learner.batches import build_targets
from tailwise.learner.losses import Batch, compute_losses
from tailwise.learner.ppo import TorchBackend
from tests.support import knobs, play, prepared, random_world, small_backend, whole_batch_losses

CLIPS: list[dict[str, Any]] = [
    {"kind": "disable"},
    {"kind": "mean_only", "range": 0.01},
    {"kind": "mean_only", "range": 10.0},
    {"kind": "mean_and_variance", "range": 0.1, "factor": 1.5},
    {"kind": "per_quantile", "range": 0.1},
]


@pytest.mark.parametrize("clip", CLIPS)
def test_targets_are_identical_for_any_clip(clip: dict[str, Any]) -> None:
    """000-F2: predictions are clipped, targets never. Rejects clipping the target around the old value (asserted)."""
    plain = small_backend(model={"critic": {"clip": {"kind": "disable"}}})
    other = small_backend(model={"critic": {"clip": clip}})
    made = []
    for backend in (plain, other):
        rollout = play(backend, random_world())
        raw = build_targets(rollout, backend.model.config.critic, backend.streams, gamma=0.99, lam=0.95)
        ready = prepared(backend, rollout)
        assert raw.particles is not None and ready.particles is not None
        made.append((raw.lambda_return, raw.particles, ready.mean_target, ready.particles, ready.advantage))
    assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))
    old = rollout.critic.mean[:-1, :, 0].reshape(-1)
    wrong = old + (made[0][2] - old).clamp(-0.01, 0.01)
    assert not torch.allclose(wrong, made[0][2], atol=0.1)


def scalar_critics(target: torch.Tensor) -> tuple[TorchBackend, Batch]:
    """Twins that predict (.5, .6) and predicted (0, 1), clip range .2, on rows with these targets [n]."""
    backend = small_backend(
        model={
            "critic": {"kind": "scalar", "hidden": [], "clip": {"kind": "mean_only", "range": 0.2}},
            "encoder": {"hidden": []},
            "observations": {"kind": "none"},
        },
        learner={"value_weight": 2.0},
    )
    for head, value in zip(backend.model.critic_heads(), (0.5, 0.6), strict=True):
        assert head.mean_head is not None
        torch.nn.init.zeros_(head.mean_head.weight)
        torch.nn.init.constant_(head.mean_head.bias, value)
    n = len(target)
    batch = Batch(
        action=torch.zeros(n, 1, dtype=torch.int64),
        log_prob=torch.full((n,), -1.386294),
        params=torch.zeros(n, 4),
        mask=None,
        advantage=torch.zeros(n),
        mean_target=target,
        particles=None,
        old_mean=torch.tensor([[0.0, 1.0]]).repeat(n, 1),
        old_law=None,
        uniform=None,
    )
    return backend, batch


def test_share_in_which_the_clipped_loss_is_the_larger_one() -> None:
    """000-M3, by hand. New means (.5, .6), clipped (.2, .8). Targets 1, 1, 0, .69:

    critic 0: .25 < .64 | .25 < .64 | .25 > .04 | .036 < .24: 3 of 4; critic 1: .16 > .04 | .16 > .04 | .36 < .64 |
    .0081 < .0121: 2 of 4. Together 5/8. Rejects counting moved predictions, which all of them are.
    """
    backend, batch = scalar_critics(torch.tensor([1.0, 1.0, 0.0, 0.69]))
    means = compute_losses(backend.model, torch.zeros(4, 3), batch, backend.config, entropy_weight=0.0).means
    assert means["critic/clip_loss_fraction"] == 5 / 8
    assert means["critic/clip_fraction"] == 1.0
    within = dataclasses.replace(batch, old_mean=torch.tensor([[0.5, 0.6]]).repeat(4, 1))
    means = compute_losses(backend.model, torch.zeros(4, 3), within, backend.config, entropy_weight=0.0).means
    assert means["critic/clip_loss_fraction"] == 0.0


@pytest.mark.parametrize("clip", CLIPS)
def test_clipped_loss_of_laws_is_counted_where_it_is_larger(clip: dict[str, Any]) -> None:
    """Above 0 exactly where the trained loss is larger than the unclipped one, and never more than was moved."""
    backend = small_backend(model={"critic": {"clip": clip}}, learner={"target_kl": None, "max_kl": 100})
    for update in range(2):
        metrics = backend.update(play(backend, random_world(), update=update), knobs(0.02)).metrics
    assert (metrics["critic/clip_loss_fraction"] > 0) == (metrics["critic/loss"] > metrics["critic/loss_unclipped"])
    assert metrics["critic/clip_loss_fraction"] <= metrics["critic/clip_fraction"]
    assert (metrics["critic/clip_loss_fraction"] > 0) == (clip["kind"] != "disable" and clip["range"] < 10)


def test_two_critics_by_hand() -> None:
    """001-1. Old means (0, 1), new means (.5, .6), range .2, target 1: clipped means (.2, .8).

    Critic 0: max((.5-1)^2, (.2-1)^2) = .64; critic 1: max((.6-1)^2, (.8-1)^2) = .16.
    The wrong version, both around critic 0's old output: critic 1 would be max(.16, (.2-1)^2) = .64.
    """
    n = 3
    backend, batch = scalar_critics(torch.ones(n))
    losses = compute_losses(backend.model, torch.zeros(n, 3), batch, backend.config, entropy_weight=0.0)
    # value_weight 2 over 2 critics: weight 1 each
    assert float(losses.terms["mean_0"].detach()) == pytest.approx(0.64)
    assert float(losses.terms["mean_1"].detach()) == pytest.approx(0.16)
    assert losses.means["critic/clip_fraction"] == 1.0
    assert losses.means["critic/loss"] == pytest.approx(0.80)
    assert losses.means["critic/loss_unclipped"] == pytest.approx(0.25 + 0.16)
    assert losses.means["critic/disagreement"] == pytest.approx(0.1)
    swapped = dataclasses.replace(batch, old_mean=torch.tensor([[0.0, 0.0]]).repeat(n, 1))
    wrong = compute_losses(backend.model, torch.zeros(n, 3), swapped, backend.config, entropy_weight=0.0)
    assert float(wrong.terms["mean_1"].detach()) == pytest.approx(0.64)


@pytest.mark.parametrize("kind", ["quantile", "categorical"])
def test_twin_laws_are_clipped_around_their_own_old_law(kind: str) -> None:
    """001-1 for laws: twins one return-std apart, a tiny range. Rejects both around critic 0's law (asserted)."""
    critics: dict[str, dict[str, Any]] = {
        "quantile": {"clip": {"kind": "per_quantile", "range": 0.01}},
        "categorical": {
            "kind": "categorical",
            "atoms": 21,
            "particles": 8,
            "minibatch_particles": 4,
            "clip": {"kind": "mean_only", "range": 0.01},
        },
    }
    backend = small_backend(model={"critic": critics[kind]})
    first = kind == "categorical"
    if not first:  # the first returns would set the start of both laws of quantiles
        backend.update(play(backend, random_world()), knobs(1e-6))
    head = backend.model.critic_heads()[1].law_head
    assert head is not None
    with torch.no_grad():
        head.bias.add_(1.0 if kind == "quantile" else torch.linspace(-2, 2, 21))
    rollout = play(backend, random_world(), update=0 if first else 1)
    ready = prepared(backend, rollout)
    assert whole_batch_losses(backend, rollout, ready).means["critic/clip_fraction"] == 0.0
    assert ready.old_law is not None
    wrong = dataclasses.replace(ready, old_law=ready.old_law[:, :1].expand_as(ready.old_law))
    assert whole_batch_losses(backend, rollout, wrong).means["critic/clip_fraction"] == 0.25  # law_1 of four losses


@pytest.mark.parametrize("clip", CLIPS[1:])
@pytest.mark.parametrize("next_step", [False, True])
def test_clip_is_inactive_before_the_first_step_even_when_the_scale_jumps(
    clip: dict[str, Any], next_step: bool
) -> None:
    """Old outputs are re-expressed in the new scale; without that the clip would be active everywhere (x 1000)."""
    backend = small_backend(model={"critic": {"clip": clip}})
    for update in range(2):
        backend.update(play(backend, random_world(next_step=next_step), update=update), knobs())
    world = random_world(seed=1, next_step=next_step)
    rollout = play(backend, dataclasses.replace(world, reward=1000 * world.reward), update=2)
    ready = prepared(backend, rollout)
    means = whole_batch_losses(backend, rollout, ready).means
    assert means["critic/clip_fraction"] == 0.0
    assert means["critic/loss"] == pytest.approx(float(means["critic/loss_unclipped"]), rel=1e-5)
    stale = dataclasses.replace(ready, old_mean=rollout.critic.mean[:-1].reshape(-1, 2))
    assert whole_batch_losses(backend, rollout, stale).means["critic/clip_fraction"] > 0.1 or clip["range"] >= 10


@pytest.mark.parametrize("kind", ["quantile", "categorical", "scalar"])
def test_clip_binds_in_a_real_update(kind: str) -> None:
    """H3: the option changes the trained weights, for each critic kind and mode. Rejects a clip that never runs."""
    base: dict[str, Any] = {
        "quantile": {},
        "categorical": {"kind": "categorical", "atoms": 21, "particles": 8, "minibatch_particles": 4},
        "scalar": {"kind": "scalar"},
    }[kind]
    modes = {"quantile": CLIPS, "categorical": CLIPS[:4], "scalar": CLIPS[:3]}[kind]
    weights = []
    for clip in modes:
        if clip.get("range") == 10.0:
            continue  # too wide to bind: equal to disable
        backend = small_backend(model={"critic": {**base, "clip": clip}}, learner={"target_kl": None, "max_kl": 100})
        for update in range(2):
            metrics = backend.update(play(backend, random_world(), update=update), knobs(0.02)).metrics
        assert (metrics["critic/clip_fraction"] > 0) == (clip["kind"] != "disable")
        weights.append(backend.model.critic_heads()[0].body[0].weight.detach().clone())
    for i, first in enumerate(weights):
        for second in weights[i + 1 :]:
            assert not torch.equal(first, second)


def test_wide_clip_equals_no_clip() -> None:
    states = []
    for clip in ({"kind": "disable"}, {"kind": "mean_only", "range": 100.0}):
        backend = small_backend(model={"critic": {"clip": clip}})
        backend.update(play(backend, random_world()), knobs())
        states.append(backend.model.state_dict())
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], atol=1e-6, rtol=1e-5)
