"""The whole model: shapes, groups, and that nothing is left on a module between calls."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from tailwise.core.errors import ConfigError, EnvironmentContractError
from tailwise.model.action_spec import ActionSpec
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.config import EARLIER_LOG_STD, LOG_STD, ActorConfig, ModelConfig
from tailwise.model.observation import ObservationSpec
from tests.support import small_backend, small_model

CRITICS = {
    "quantile": {"kind": "quantile", "hidden": [8], "quantiles": 8, "minibatch_particles": 4},
    "quantile-mean": {"kind": "quantile", "hidden": [8], "quantiles": 8, "minibatch_particles": 4, "mean": "quantiles"},
    "categorical": {"kind": "categorical", "hidden": [8], "atoms": 11, "particles": 8, "minibatch_particles": 4},
    "scalar": {"kind": "scalar", "hidden": [8]},
}


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("critic", list(CRITICS))
@pytest.mark.parametrize("twin", [True, False])
def test_groups_hold_every_parameter_exactly_once(core: str, critic: str, twin: bool) -> None:
    """Rejects a group that forgets a parameter (it would never be clipped or reported) or counts it twice."""
    model = small_backend(model={"core": {"kind": core}, "critic": {**CRITICS[critic], "twin": twin}}).model
    grouped = [id(p) for group in model.groups().values() for p in group]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())
    assert ("core" in model.groups()) == (core != "none")
    assert ("critic_1" in model.groups()) == twin


@pytest.mark.parametrize("critic", list(CRITICS))
def test_twin_critics_share_no_storage_and_start_apart(critic: str) -> None:
    """Rejects one head in two places: the twins would agree for ever and their minimum would mean nothing."""
    model = small_backend(model={"critic": CRITICS[critic]}).model
    first, second = model.critic_heads()
    assert not {p.untyped_storage().data_ptr() for p in first.parameters()} & {
        p.untyped_storage().data_ptr() for p in second.parameters()
    }
    features = torch.randn(10, 8, generator=torch.Generator().manual_seed(0))
    out = model.values(features)
    if critic != "quantile-mean":  # whose initial mean is the mean of a symmetric law, about 0 for both
        assert float((out.mean[:, 0] - out.mean[:, 1]).abs().min().detach()) > 0
    if out.law is not None:
        assert not torch.equal(out.law[:, 0], out.law[:, 1])


def stored_tensors(model: torch.nn.Module) -> set[int]:
    """ids of tensors that are attributes of any module, beyond its parameters and buffers."""
    known = {id(t) for t in (*model.parameters(), *model.buffers())}
    found = set()
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and id(value) not in known:
                found.add(id(value))
    return found


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_forward_stores_no_tensor_on_a_module(core: str) -> None:
    """H1: a cached value tensor was overwritten by a no-grad pass and the critic never trained."""
    model = small_backend(model={"core": {"kind": core}}).model
    before = stored_tensors(model)
    obs, start = torch.randn(4, 3, 3), torch.zeros(4, 3, dtype=torch.bool)
    features = model.latent(obs, model.initial_state(3), start).features
    out = model.values(features)
    with torch.no_grad():  # what the old "diagnostic" pass did
        model.values(model.latent(obs, model.initial_state(3), start).features)
    assert stored_tensors(model) == before
    out.mean.sum().backward()
    assert all(
        p.grad is not None and float(p.grad.abs().sum()) > 0 for p in model.critic_heads()[0].mean_head.parameters()
    )


def test_initial_laws_are_sorted_and_about_standard_normal() -> None:
    model = small_backend(model={"critic": {"quantiles": 64, "minibatch_particles": 8}}).model
    law = model.values(torch.zeros(1, 8)).law
    assert law is not None
    assert bool((law[..., 1:] > law[..., :-1]).all())
    assert float(law.mean().detach()) == pytest.approx(0.0, abs=0.01)
    assert float(law.std().detach()) == pytest.approx(1.0, abs=0.06)
    atoms = small_backend(model={"critic": CRITICS["categorical"]}).model.values(torch.zeros(1, 8)).law
    assert atoms is not None
    assert int(atoms[0, 0].argmax()) == 5  # the middle of 11


def test_mean_of_quantiles_is_used_only_when_asked() -> None:
    own = small_backend(model={"critic": CRITICS["quantile"]}).model.values(torch.ones(2, 8))
    shared = small_backend(model={"critic": CRITICS["quantile-mean"]}).model.values(torch.ones(2, 8))
    assert own.law is not None and shared.law is not None
    assert not torch.allclose(own.mean, own.law.mean(-1))
    assert torch.equal(shared.mean, shared.law.mean(-1))


def test_standard_deviation_of_actions_is_bounded() -> None:
    """Rejects an unbounded ln(std): one bad step and the policy is a point (or infinite)."""
    model = small_backend(action="box").model
    assert model.actor.log_std is not None
    for value, expected in ((-100.0, -5.0), (100.0, 2.0), (0.5, 0.5)):
        with torch.no_grad():
            model.actor.log_std.fill_(value)
        model.project()
        params = model.policy(torch.zeros(1, 8), None)
        assert params[0, 2:].tolist() == [expected, expected]


def test_squashed_law_needs_a_bounded_box() -> None:
    observation = ObservationSpec.from_space(spaces.Box(-1, 1, (3,), np.float32))
    config = small_model(actor={"box": "squashed"})
    with pytest.raises(ConfigError, match="squashed but the action space is discrete"):
        ActorCritic(config, observation, ActionSpec.from_space(spaces.Discrete(2)), init_seed=0)
    with pytest.raises(EnvironmentContractError, match="unbounded"):
        ActorCritic(config, observation, ActionSpec.from_space(spaces.Box(-np.inf, 1, (2,), np.float32)), init_seed=0)


def test_a_discrete_policy_that_names_the_old_default_width_is_built() -> None:
    """Policies from before name log_std 0 or -0.7 in their files. Rejects refusing them for a key that does nothing."""
    spec = ActionSpec.from_space(spaces.Discrete(3))
    observation = ObservationSpec.from_space(spaces.Box(-1.0, 1.0, (2,)))
    for width in (LOG_STD, *EARLIER_LOG_STD):
        model = ActorCritic(ModelConfig(actor=ActorConfig(log_std=width)), observation, spec, init_seed=0)
        assert model.actor.log_std is None and model.law.discrete
    with pytest.raises(ConfigError, match="but the action space is discrete"):
        ActorCritic(ModelConfig(actor=ActorConfig(log_std=-1.0)), observation, spec, init_seed=0)
