"""Random streams and particle targets of the kernels against their plain twins."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tailwise.core.streams import Streams, _Cipher
from tailwise.fused.epochs import FusedEpochs
from tailwise.fused.targets import particle_returns
from tailwise.learner.batches import particle_returns as plain_particle_returns
from tests.fused.twins import Case, random_case, rollout_for, twins
from tests.support import knobs, prepared


def test_words_are_those_of_numpy() -> None:
    """Bit for bit, at addresses that use every word of the counter. Rejects a swapped word or a round too few."""
    streams = Streams(7)
    ids = np.array([0, 3, 2**40, 2**64 - 1], dtype=np.uint64)
    found = streams.uniforms("test", update=2**64 - 1, epoch=3, environments=ids, steps=4, draws=7, first_step=2**39)
    cipher = _Cipher(streams.key("test"))
    for row, environment in enumerate(ids.tolist()):
        for draw in range(7):
            at = {"epoch": 3, "environment": environment, "update": 2**64 - 1, "blocks": 4}
            words = cipher.words(word0=(draw // 4) << 40 | 2**39, **at).reshape(4, 4)[:, draw % 4]
            expected = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
            assert np.array_equal(found[:, row, draw], expected)


def _with_quantiles(seed: int) -> Case:
    return random_case(seed, critic="quantile")


@pytest.mark.parametrize("seed", range(12))
def test_particles_are_the_same(seed: int) -> None:
    """Episode ends of both kinds, reset rows, several critics. Rejects a bootstrap from the wrong row."""
    case = random_case(seed, critic="quantile")
    case.model["critic"]["target"] = "particles"
    plain, fused = twins(case)
    with torch.no_grad():
        plain.model.return_scale.mu.fill_(0.5)
        plain.model.return_scale.sigma.fill_(2.0)
    rollout = rollout_for(case, plain, 3)
    critic = plain.model.config.critic
    arguments = (rollout, rollout.critic, critic, plain.streams)
    law, expected = plain_particle_returns(*arguments, gamma=0.9, lambdas=(0.7, 0.2))  # type: ignore[arg-type]
    own_law, found = particle_returns(*arguments, gamma=0.9, lambdas=(0.7, 0.2), run=fused.workers.run)  # type: ignore[arg-type]
    for plain_one, own in zip((law, *expected), (own_law, *found), strict=True):
        assert own is not None and torch.allclose(own, plain_one, rtol=1e-5, atol=1e-5)
    none, only = particle_returns(*arguments, gamma=0.9, lambdas=(0.7,), run=fused.workers.run)  # type: ignore[arg-type]
    assert none is None and torch.equal(only[0], found[0])


def test_terminated_wins_over_truncated() -> None:
    """Both flags in every end: particles there are the reward alone. Rejects a bootstrap from the final observation."""
    case = next(c for c in map(_with_quantiles, range(100)) if c.end > 0.1 and c.steps * c.envs > 40)
    case.model["critic"]["target"] = "particles"
    plain, fused = twins(case)
    with torch.no_grad():
        plain.model.return_scale.mu.fill_(5.0)
        plain.model.return_scale.sigma.fill_(2.0)
    rollout = rollout_for(case, plain, 3)
    ends = rollout.terminated | rollout.truncated
    assert bool(rollout.truncated.any())
    rollout = dataclasses.replace(rollout, terminated=ends, truncated=ends)
    critic = plain.model.config.critic
    arguments = (rollout, rollout.critic, critic, plain.streams)
    _, expected = plain_particle_returns(*arguments, gamma=0.9, lambdas=(0.7,))  # type: ignore[arg-type]
    _, found = particle_returns(*arguments, gamma=0.9, lambdas=(0.7,), run=fused.workers.run)  # type: ignore[arg-type]
    for particles in (expected[0], found[0]):
        alone = rollout.reward[..., None].expand_as(particles)
        assert torch.equal(particles[ends], alone[ends])


def test_a_bootstrap_is_decided_by_all_bits_of_its_uniform() -> None:
    """lambda just above and just below one coin: only that particle changes, in both. Rejects a comparison of 16 bits,
    which is up to 1.5e-5 off in lambda and sees no difference here."""
    case = next(c for c in map(_with_quantiles, range(100)) if c.model["critic"]["quantiles"] > 4)
    case.model["critic"]["target"] = "particles"
    plain, fused = twins(case)
    rollout = rollout_for(case, plain, 3)
    critic, ids = plain.model.config.critic, rollout.environment.numpy()
    arguments = (rollout, rollout.critic, critic, plain.streams)
    inside = rollout.valid & ~rollout.terminated & ~rollout.truncated
    t, b = inside[:-1].nonzero()[0].tolist()
    count = critic.particle_count  # type: ignore[union-attr]
    coins = plain.streams.uniforms(
        "bootstrap", update=rollout.update, environments=ids, steps=rollout.steps, draws=count, short=True
    )
    coin = float(coins[t, b, 3])
    lambdas = (coin, float(np.nextafter(coin, 1.0)))
    _, expected = plain_particle_returns(*arguments, gamma=0.9, lambdas=lambdas)  # type: ignore[arg-type]
    _, found = particle_returns(*arguments, gamma=0.9, lambdas=lambdas, run=fused.workers.run)  # type: ignore[arg-type]
    for one, other in zip(expected, found, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)
    for below, above in (expected, found):
        changed = (below != above)[: t + 1, b].any(0)
        assert changed.tolist() == [j == 3 for j in range(count)]


def test_each_epoch_looks_at_the_same_particles() -> None:
    case = next(c for c in map(_with_quantiles, range(100)) if c.model["critic"]["minibatch_particles"] > 4)
    case.model["critic"] |= {"target": "particles", "quantiles": 12, "minibatch_particles": 6}
    plain, fused = twins(case)
    rollout = rollout_for(case, plain, 1)
    ready = prepared(plain, rollout)
    assert ready.particles is not None
    seen = []
    for epoch in range(2):
        chosen, _ = ready.draws(plain.streams, plain.model, update=rollout.update, epoch=epoch)
        found = torch.from_numpy(FusedEpochs(fused, rollout, ready, knobs()).draws(epoch).particles)
        assert chosen is not None and torch.equal(ready.particles.gather(-1, chosen), found)
        seen.append(found)
    assert not torch.equal(*seen)


def test_each_epoch_draws_the_same_noise_for_a_squashed_entropy() -> None:
    case = next(c for c in map(random_case, range(100)) if c.action == "box")
    case.model["actor"]["box"] = "squashed"
    plain, fused = twins(case)
    rollout = rollout_for(case, plain, 1)
    ready = prepared(plain, rollout)
    for epoch in range(2):
        _, uniform = ready.draws(plain.streams, plain.model, update=rollout.update, epoch=epoch)
        assert uniform is not None
        found = FusedEpochs(fused, rollout, ready, knobs()).draws(epoch).noise
        assert np.array_equal(found, torch.special.ndtri(uniform).float().numpy())
