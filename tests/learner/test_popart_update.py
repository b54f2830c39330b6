"""The return scale inside the update: outputs are preserved, moments follow, and learning does not see units."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tailwise.learner.batches import move_scale, old_outputs
from tailwise.learner.ppo import TorchBackend
from tests.support import (
    BACKENDS,
    World,
    knobs,
    learner_of,
    play,
    prepared,
    random_world,
    small_backend,
    snapshot,
    whole_batch_losses,
)

QUANTILE_MEAN = {"mean": "quantiles"}


def raw_outputs(backend: TorchBackend, obs: torch.Tensor) -> list[torch.Tensor]:
    """Means, and quantiles if any, in raw return units and float64."""
    model, rows = backend.model, obs.shape[0]
    features = model.latent(obs[None], model.initial_state(rows), torch.ones(1, rows).bool()).features[0]
    out = model.values(features)
    scale = model.return_scale
    return [scale.mu + scale.sigma * x.detach().double() for x in (out.mean, out.law) if x is not None]


def trained(world: World | None = None, **model: Any) -> TorchBackend:
    backend = small_backend(model=model)
    for update in range(3):
        assert backend.update(play(backend, world or random_world(), update=update), knobs()).committed
    return backend


@pytest.mark.parametrize("critic", [{}, QUANTILE_MEAN, {"kind": "scalar"}], ids=["quantile", "quantile-mean", "scalar"])
@pytest.mark.parametrize("shift", [0.0, 1e3])
@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_raw_outputs_are_unchanged_when_the_scale_moves(critic: dict[str, Any], shift: float, factor: float) -> None:
    """002-3: to 1e-6 of their size. Rejects moving (mu, sigma) without the heads, which moves all values (asserted)."""
    backend = trained(critic=critic)
    obs = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    before = raw_outputs(backend, obs)
    returns = shift + factor * torch.randn(500, generator=torch.Generator().manual_seed(1))
    heads = {name: p.detach().clone() for name, p in backend.model.critics.named_parameters()}
    move_scale(backend.model, backend.optimiser, returns)
    scale = backend.model.return_scale
    size = max(float(before[0].abs().max()), float(scale.sigma), abs(float(scale.mu)))
    for old, new in zip(before, raw_outputs(backend, obs), strict=True):
        assert float((new - old).abs().max()) <= 1e-6 * size
    with torch.no_grad():
        for name, p in backend.model.critics.named_parameters():
            p.copy_(heads[name])
    assert float((raw_outputs(backend, obs)[0] - before[0]).abs().max()) > 1e-2 * float(before[0].abs().max())


def test_adam_moments_of_squared_error_rows_follow_and_of_quantile_rows_stay() -> None:
    """m *= s/s', v *= (s/s')^2 for the mean; rejects leaving them (a step would be s'/s too large or small)."""
    backend = trained()
    first = snapshot(backend)
    old = float(backend.model.return_scale.sigma)
    move_scale(backend.model, backend.optimiser, 1e3 * torch.randn(500, generator=torch.Generator().manual_seed(1)))
    ratio = old / float(backend.model.return_scale.sigma)
    assert ratio < 0.1
    now = snapshot(backend)
    for critic in (0, 1):
        for part in ("weight", "bias"):
            name = f"optimiser/critics.{critic}.mean_head.{part}"
            # Without atol=0 moments of 1e-6 would equal anything: v times s/s' instead of its square passed.
            torch.testing.assert_close(now[f"{name}/exp_avg"], first[f"{name}/exp_avg"] * ratio, rtol=1e-5, atol=0)
            squares = first[f"{name}/exp_avg_sq"]
            torch.testing.assert_close(now[f"{name}/exp_avg_sq"], squares * ratio**2, rtol=1e-5, atol=0)
            assert bool((squares > 0).any())
            law = f"optimiser/critics.{critic}.law_head.{part}"
            assert torch.equal(now[f"{law}/exp_avg"], first[f"{law}/exp_avg"])
            assert torch.equal(now[f"{law}/exp_avg_sq"], first[f"{law}/exp_avg_sq"])
    body = "optimiser/critics.0.body.0.weight/exp_avg"
    assert torch.equal(now[body], first[body])


@pytest.mark.parametrize("kind", ["quantile", "scalar", "categorical"])
def test_old_outputs_are_re_expressed_in_the_new_scale(kind: str) -> None:
    """What the clip compares with: raw values stay the same. Rejects old outputs in the old scale (asserted)."""
    critics: dict[str, dict[str, Any]] = {
        "quantile": {"clip": {"kind": "per_quantile"}},
        "scalar": {"kind": "scalar", "clip": {"kind": "mean_only"}},
        "categorical": {
            "kind": "categorical", "atoms": 101, "span": 10.0, "particles": 8, "minibatch_particles": 4,
            "clip": {"kind": "mean_only"},
        },
    }  # fmt: skip
    backend = trained(critic=critics[kind])
    rollout = play(backend, random_world(seed=1), update=3)
    raw = rollout.critic.raw(rollout.critic.mean[:-1])
    move_scale(backend.model, backend.optimiser, 5 + 3 * torch.randn(500, generator=torch.Generator().manual_seed(1)))
    mean, law = old_outputs(rollout, backend.model)
    scale = backend.model.return_scale
    torch.testing.assert_close(scale.to_raw(mean), raw, rtol=1e-5, atol=1e-5)
    assert float((scale.to_raw(rollout.critic.mean[:-1]) - raw).abs().max()) > 0.01
    if kind == "quantile":
        assert law is not None and rollout.critic.law is not None
        torch.testing.assert_close(scale.to_raw(law), rollout.critic.raw(rollout.critic.law[:-1]), rtol=1e-5, atol=1e-5)
    if kind == "categorical":
        assert law is not None and rollout.critic.law is not None
        atoms = torch.linspace(-10, 10, 101)
        before = rollout.critic.raw((rollout.critic.law[:-1].softmax(-1) * atoms).sum(-1))
        torch.testing.assert_close(scale.to_raw((law * atoms).sum(-1)), before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("critic", [{}, {"kind": "scalar"}], ids=["quantile", "scalar"])
@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("power", [-13, 13])
def test_rewards_times_a_power_of_two_give_the_same_weights_bit_for_bit(
    critic: dict[str, Any], core: str, power: int
) -> None:
    """004-1: the learner is scale-free. Rejects any absolute constant from reward to loss (asserted without PopArt)."""

    def run(factor: float, returns: str = "popart") -> dict[str, torch.Tensor]:
        backend = small_backend(model={"critic": critic, "core": {"kind": core}, "returns": {"kind": returns}})
        for update in range(4):
            world = random_world(seed=update)
            rollout = play(backend, dataclasses.replace(world, reward=world.reward * factor), update=update)
            report = backend.update(rollout, knobs(3e-3))
            assert report.committed, report.reason
        return {name: p.detach().clone() for name, p in backend.model.named_parameters()}

    plain, scaled = run(1.0), run(2.0**power)
    assert all(torch.equal(plain[name], scaled[name]) for name in plain)
    wrong = run(2.0**power, "none")
    assert not torch.allclose(wrong["actor.head.weight"], run(1.0, "none")["actor.head.weight"], atol=1e-4)


@pytest.mark.parametrize("factor", [1e-4, 1e4])
def test_rewards_times_1e4_give_the_same_actions_within_rounding(factor: float) -> None:
    """004-1: the weights after four updates differ by rounding only, so the policy does."""
    policies = []
    for scale in (1.0, factor):
        backend = small_backend(model={"actor": {"gain": 1.0}})
        for update in range(4):
            world = random_world(seed=update)
            rollout = play(backend, dataclasses.replace(world, reward=world.reward * scale), update=update)
            assert backend.update(rollout, knobs(3e-3)).committed
        obs = torch.randn(100, 3, generator=torch.Generator().manual_seed(9))
        features = backend.model.encoder(backend.model.normaliser(obs))
        policies.append(backend.model.policy(features, None).detach().softmax(-1))
    assert float((policies[0] - policies[1]).abs().max()) < 1e-3


def test_categorical_support_moves_with_the_scale() -> None:
    """Not output-preserving, and it says so: probabilities stay, the atoms' raw places move."""
    backend = trained(critic={"kind": "categorical", "atoms": 11, "particles": 8, "minibatch_particles": 4})
    heads = {name: p.detach().clone() for name, p in backend.model.critics.named_parameters() if "law_head" in name}
    move_scale(backend.model, backend.optimiser, 50 * torch.randn(500, generator=torch.Generator().manual_seed(1)))
    assert all(torch.equal(dict(backend.model.critics.named_parameters())[name], p) for name, p in heads.items())


@pytest.mark.parametrize("kind", BACKENDS)
def test_quantiles_begin_as_those_of_the_first_returns(kind: str) -> None:
    """A law with a long left tail, in one rollout of single steps. Rejects the normal start (asserted), whose lowest
    quantile is more than a standard deviation of the return away; and a start that value clipping
    takes for a move of the critic."""
    generator = torch.Generator().manual_seed(0)
    reward = 1.0 - torch._standard_gamma(torch.full((64, 16), 0.3), generator=generator)
    ended = torch.ones(64, 16, dtype=torch.bool)
    world = dataclasses.replace(
        random_world(64, 16), reward=reward, terminated=ended, truncated=~ended, valid=torch.ones_like(ended)
    )
    clip = {} if kind == "fused" else {"clip": {"kind": "per_quantile", "range": 0.1}}
    backend = learner_of(kind, model={"critic": {"quantiles": 64, "minibatch_particles": 8, **clip}})
    rollout = play(backend, world)
    ready = prepared(backend, rollout)
    levels = (torch.arange(64, dtype=torch.float64) + 0.5) / 64
    expected = torch.quantile(reward.double().reshape(-1), levels)
    for law in raw_outputs(backend, rollout.obs[0])[1].reshape(-1, 64).unbind():
        assert float((law - expected).abs().max()) < 0.05 * float(reward.std())  # what the head's weights add
    scale = backend.model.return_scale
    assert float(torch.special.ndtri(levels[0]) - (expected[0] - scale.mu) / scale.sigma) > 1.0
    assert whole_batch_losses(backend, rollout, ready).means["critic/clip_fraction"] == 0.0
    assert float((rollout.critic.law[0, 0, 0] - torch.special.ndtri(levels)).abs().max()) < 0.1


def test_quantiles_keep_their_start_where_returns_have_no_spread() -> None:
    """All first returns are equal: nothing is known of the law's shape. Rejects a law that begins as a point."""
    backend = small_backend()
    heads = [critic.law_head for critic in backend.model.critic_heads()]
    before = [head.bias.detach().clone() for head in heads if head is not None]
    assert move_scale(backend.model, backend.optimiser, torch.full((50,), 3.0)) is None
    assert float(backend.model.return_scale.sigma) == 3.0
    assert all(torch.equal(head.bias, old) for head, old in zip(heads, before, strict=True) if head is not None)
