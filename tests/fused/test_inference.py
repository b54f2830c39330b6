"""Decisions, features and critic outputs of the kernels against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.fused.twins import random_case, rollout_for, twins


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_rollouts_are_the_same(first: int) -> None:
    """Same draws, so the same actions; log-probs, parameters and values to 1e-5. Rejects a state that is not reset."""
    for seed in range(first, first + 10):
        case = random_case(seed)
        plain, fused = twins(case)
        expected, found = rollout_for(case, plain, 0), rollout_for(case, fused, 0)
        close = {"rtol": 1e-5, "atol": 2e-6}
        assert torch.allclose(found.action.double(), expected.action.double(), **close), case
        assert torch.allclose(found.log_prob, expected.log_prob, **close), case
        assert torch.allclose(found.params, expected.params, **close), case
        assert torch.allclose(found.critic.mean, expected.critic.mean, **close), case
        assert (
            (found.critic.law is None)
            == (expected.critic.law is None)
            == (case.model["critic"].get("kind") == "scalar")
        )
        if found.critic.law is not None and expected.critic.law is not None:
            assert torch.allclose(found.critic.law, expected.critic.law, **close), case
        assert torch.allclose(found.critic.final_mean, expected.critic.final_mean, **close), case


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_the_most_likely_action_and_the_state(core: str) -> None:
    case = random_case(1, core=core)
    plain, fused = twins(case)
    obs, start = torch.randn(5, case.features), torch.tensor([True, False, False, True, False])
    state = torch.randn(plain.model.initial_state(5).shape)
    expected = plain.act(obs, state, start, None, None)
    found = fused.act(obs, state, start, None, None)
    assert torch.allclose(found.action.double(), expected.action.double(), atol=1e-5)
    assert torch.allclose(found.state, expected.state, atol=2e-6)
    assert torch.allclose(fused.encode(obs, state, start), plain.encode(obs, state, start), atol=2e-6)


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_a_broken_observation_shows_in_the_features(core: str) -> None:
    """Rejects an activation that turns NaN into a number: a broken value would be learnt from."""
    for seed in (1, 4, 7, 10):
        case = random_case(seed, core=core)
        _, fused = twins(case)
        obs = torch.zeros(3, case.features)
        obs[1] = torch.nan
        features = fused.encode(obs, fused.model.initial_state(3), torch.ones(3, dtype=torch.bool))
        assert bool(torch.isnan(features[1]).any())
        assert bool(torch.isfinite(features[[0, 2]]).all())


def test_the_normaliser_is_read_again_after_an_update() -> None:
    """Rejects statistics that are read once: after the first update the policy would see other observations."""
    case = next(c for c in map(random_case, range(50)) if c.model["observations"]["kind"] == "running" and c.steps > 5)
    plain, fused = twins(case)
    obs, state = torch.randn(4, case.features), plain.model.initial_state(4)
    start = torch.ones(4, dtype=torch.bool)
    first = fused.encode(obs, state, start)
    fused.model.normaliser.absorb(5.0 + torch.randn(100, case.features))
    plain.model.normaliser.load_state_dict(fused.model.normaliser.state_dict())
    assert not torch.allclose(first, fused.encode(obs, state, start))
    assert torch.allclose(fused.encode(obs, state, start), plain.encode(obs, state, start), atol=2e-6)


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_steps_of_a_rollout_use_the_parameters_as_they_are(core: str) -> None:
    """Two rollouts with other parameters in between. Rejects weights that are laid out for products once and for all:
    the policy would act with those of an earlier update."""
    for seed in (1, 2, 5, 6):
        case = random_case(seed, core=core)
        backends, envs, steps = twins(case), 5, 3
        g = np.random.default_rng(seed)
        obs = g.standard_normal((steps, envs, case.features)).astype(np.float32)
        start = g.random((steps, envs)) < 0.3
        for update in range(2):
            rollouts = []
            for backend in backends:
                made = backend.begin(update, np.arange(envs), steps, backend.model.initial_state(envs))
                for t in range(steps):
                    backend.decide(made, t, obs[t], start[t], None)
                rollouts.append(made)
                with torch.no_grad():
                    for parameter in backend.model.parameters():
                        parameter.mul_(0.7).add_(0.05)
            expected, found = rollouts
            for name in ("log_prob", "params", "state"):
                assert torch.allclose(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=2e-6), (case, name)
            assert torch.allclose(found.features[:steps], expected.features[:steps], rtol=1e-5, atol=2e-6), case
            assert torch.allclose(found.action.double(), expected.action.double(), rtol=1e-5, atol=2e-6), case
