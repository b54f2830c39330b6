"""Raw targets of a rollout as the update builds them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tailwise.learner.batches import build_targets, combine_means, particle_returns
from tailwise.learner.ppo import TorchBackend
from tailwise.learner.return_laws import return_law
from tests.support import knobs, play, prepared, random_world, small_backend, small_model


def trained(**model: object) -> TorchBackend:
    backend = small_backend(model=model)
    for update in range(2):
        assert backend.update(play(backend, random_world(), update=update), knobs(3e-3)).committed
    return backend


def test_lower_and_average_of_two_means() -> None:
    mean = torch.tensor([[1.0, 3.0], [5.0, -2.0]])
    assert combine_means(mean, "lower").tolist() == [1.0, -2.0]
    assert combine_means(mean, "average").tolist() == [2.0, 1.5]


def test_common_law_is_the_average_of_sorted_quantiles_and_not_the_lower_one() -> None:
    """Rejects the lower of two for the law, which would bias its mean downwards (asserted)."""
    critic = small_model().critic
    law = torch.tensor([[[3.0, 1.0, 2.0, 0.0], [10.0, 30.0, 20.0, 40.0]]])
    got = return_law(critic).particles(law, torch.tensor([[0.125, 0.375, 0.625, 0.875]]), mu=100.0, sigma=2.0)
    assert got.tolist() == [[110.0, 121.0, 132.0, 143.0]]
    assert float(law.amin(-2).mean()) * 2 + 100 < float(got.mean())


def test_untrained_critic_predicts_zero_so_first_targets_are_pure_rewards() -> None:
    """Rejects a bootstrap from random initial heads: the first targets would depend on the initialisation."""
    backend = small_backend()
    world = random_world(6, 2, end=0.0)
    targets = build_targets(play(backend, world), backend.model.config.critic, backend.streams, gamma=0.9, lam=1.0)
    expected = torch.zeros(2)
    for t in reversed(range(6)):
        expected = world.reward[t] + 0.9 * expected
        torch.testing.assert_close(targets.lambda_return[t], expected)
    assert torch.equal(targets.value, torch.zeros(6, 2))


def test_next_episode_changes_nothing_before_the_boundary() -> None:
    """H5, bit for bit, particles included. Rejects a carry through a truncation (asserted with truncated dropped)."""
    backend = trained()
    world = random_world(10, 2, end=0.0)
    world.truncated[4] = True
    world.start[5] = True
    rollout = play(backend, world, update=2)
    reward = rollout.reward.clone()
    reward[5:] += 100.0
    changed = dataclasses.replace(rollout, reward=reward)

    def targets(r: object) -> tuple[torch.Tensor, torch.Tensor]:
        made = build_targets(r, backend.model.config.critic, backend.streams, gamma=0.99, lam=0.95)  # type: ignore[arg-type]
        assert made.particles is not None
        return made.advantage[:5], made.particles[:5]

    assert all(torch.equal(a, b) for a, b in zip(targets(rollout), targets(changed), strict=True))
    off = torch.zeros_like(rollout.truncated)
    leaky = [targets(dataclasses.replace(r, truncated=off))[0] for r in (rollout, changed)]
    assert not torch.allclose(leaky[0], leaky[1])


def test_final_value_is_used_at_a_truncation_and_zero_at_a_termination() -> None:
    backend = trained()
    world = random_world(4, 3, end=0.0)
    world.truncated[3, 0] = True
    world.terminated[3, 1] = True
    rollout = play(backend, world, update=2)
    targets = build_targets(rollout, backend.model.config.critic, backend.streams, gamma=0.5, lam=0.0)
    record = rollout.critic
    value = record.raw(record.mean).amin(-1)
    final = record.raw(record.final_mean).amin(-1)
    expected = rollout.reward[3] + 0.5 * torch.stack([final[3, 0], torch.zeros(()), value[4, 2]])
    torch.testing.assert_close(targets.lambda_return[3], expected)
    assert abs(float(final[3, 0] - value[4, 0])) > 1e-4  # the reset observation's value would be another number


def test_mean_of_particles_is_the_lambda_return() -> None:
    """FORMULAS 1: with gl = cl the mean over draws of Y - V is the GAE; checked over 400 draws of the mixing."""
    backend = trained(critic={"lambda": 0.95, "mean": "quantiles", "combine": "average"})
    rollout = play(backend, random_world(6, 2, end=0.1), update=2)
    total = torch.zeros(6, 2, dtype=torch.float64)
    for update in range(400):
        made = build_targets(
            dataclasses.replace(rollout, update=update),
            backend.model.config.critic,
            backend.streams,
            gamma=0.99,
            lam=0.95,
        )
        assert made.particles is not None
        total += made.particles.double().mean(-1)
    assert float((total / 400 - made.lambda_return).abs().max()) < 0.05


def test_scalar_target_regresses_all_quantiles_on_the_lambda_return() -> None:
    backend = small_backend(model={"critic": {"target": "scalar"}})
    rollout = play(backend, random_world())
    targets = build_targets(rollout, backend.model.config.critic, backend.streams, gamma=0.99, lam=0.95)
    assert targets.particles is not None
    assert torch.equal(targets.particles, targets.lambda_return[..., None])
    assert prepared(backend, rollout).draws(backend.streams, backend.model, update=0, epoch=0)[0] is None


def test_a_minibatch_takes_one_particle_of_each_stratum() -> None:
    """8 particles, 4 taken: one of each pair, either one of them. Rejects strata that overlap at the lower end, which
    never look at the best returns."""
    backend = small_backend()
    ready = prepared(backend, play(backend, random_world()))
    chosen, _ = ready.draws(backend.streams, backend.model, update=0, epoch=0)
    assert chosen is not None and ready.particles is not None and ready.particles.shape[-1] == 8
    assert torch.equal(chosen // 2, torch.arange(4).expand_as(chosen))
    assert set((chosen % 2).unique().tolist()) == {0, 1}


@pytest.mark.parametrize("particles", [4, 16])
def test_particle_count_of_its_own_reads_the_law_at_stratified_levels(particles: int) -> None:
    backend = trained(critic={"particles": particles, "minibatch_particles": 4, "quantiles": 8})
    rollout = play(backend, random_world(), update=2)
    made = build_targets(rollout, backend.model.config.critic, backend.streams, gamma=0.99, lam=0.95)
    assert made.particles is not None and made.particles.shape == (12, 4, particles)
    again = build_targets(
        dataclasses.replace(rollout, update=3), backend.model.config.critic, backend.streams, gamma=0.99, lam=0.95
    )
    assert again.particles is not None and not torch.equal(made.particles, again.particles)


def test_per_env_advantages_have_unit_spread_in_each_environment() -> None:
    """001-9: one environment with rewards x 10. Global: it dominates (asserted); per_env: std 1 each."""
    for mode, equal in (("per_env", True), ("global", False)):
        backend = small_backend(learner={"advantages": mode})
        world = random_world(32, 4, end=0.0)
        world.reward[:, 2] *= 10
        std = prepared(backend, play(backend, world)).advantage.reshape(32, 4).std(0, correction=0)
        assert (float((std - 1).abs().max()) < 1e-5) == equal
        assert equal or float(std[2] / std[0]) > 4


def test_near_particles_have_the_lambda_of_the_advantages() -> None:
    """Rejects critic.lambda for both sets of particles."""
    backend = small_backend()
    with torch.no_grad():
        backend.model.return_scale.mu.fill_(0.5)
        backend.model.return_scale.sigma.fill_(2.0)
    rollout, critic = play(backend, random_world()), backend.model.config.critic
    found = build_targets(rollout, critic, backend.streams, gamma=0.9, lam=0.1, near=True)
    _, (far, close) = particle_returns(
        rollout, rollout.critic, critic, backend.streams, gamma=0.9, lambdas=(critic.lam, 0.1)
    )
    assert found.particles is not None and found.near is not None
    assert torch.equal(found.particles, far) and torch.equal(found.near, close) and not torch.equal(far, close)
