"""One initialisation and one norm policy for trunk and heads."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tailwise.core.errors import ConfigError
from tailwise.model.networks import build_encoder, hidden_stack, linear, register_encoder
from tests.support import small_backend, small_model


def test_linear_is_orthogonal_with_its_gain_and_zero_bias() -> None:
    """Rejects torch's default uniform initialisation, whose rows are not orthogonal."""
    layer = linear(16, 8, gain=0.5, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(layer.weight @ layer.weight.T, 0.25 * torch.eye(8), atol=1e-6, rtol=0)
    assert torch.equal(layer.bias, torch.zeros(8))
    default = nn.Linear(16, 8)
    assert (default.weight @ default.weight.T - torch.eye(8) * default.weight.square().sum(1).mean()).abs().max() > 1e-2


def test_initial_weights_depend_on_the_seed_and_not_on_the_global_generator() -> None:
    """Rejects layers that draw from torch's global generator: two processes would then start from other weights."""
    for core in ("none", "lstm", "gru"):
        torch.manual_seed(1)
        first = small_backend(model={"core": {"kind": core}}, seed=3).model.state_dict()
        torch.manual_seed(2)
        again = small_backend(model={"core": {"kind": core}}, seed=3).model.state_dict()
        other = small_backend(model={"core": {"kind": core}}, seed=4).model.state_dict()
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert not all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_norm_policy_is_the_same_for_trunk_and_heads(norm: str) -> None:
    """Rejects a LayerNorm in the trunk only (or in the critics only): the gradients of the parts would differ."""
    model = small_backend(model={"norm": norm}).model
    parts = {
        "encoder": model.encoder,
        "actor": model.actor.body,
        **{f"c{i}": c.body for i, c in enumerate(model.critic_heads())},
    }
    counts = {name: sum(isinstance(m, nn.LayerNorm) for m in part.modules()) for name, part in parts.items()}
    assert set(counts.values()) == {1 if norm == "layer" else 0}, counts


@pytest.mark.parametrize("norm", ["none", "layer"])
@pytest.mark.parametrize("activation", ["tanh", "relu", "silu"])
def test_gradient_norms_of_layers_at_initialisation_are_within_a_factor(norm: str, activation: str) -> None:
    """004-9. A deep stack (6 layers) neither explodes nor vanishes; a gain of 0.1 does (asserted)."""

    def spread(stack: nn.Sequential) -> float:
        x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
        stack(x).square().mean().backward()
        norms = [layer.weight.grad.norm().item() for layer in stack if isinstance(layer, nn.Linear)]
        return max(norms) / min(norms)

    generator = torch.Generator().manual_seed(0)
    healthy = hidden_stack(32, [32] * 6, activation=activation, norm=norm, generator=generator)
    assert spread(healthy) < 10
    if norm == "none":
        sick = hidden_stack(32, [32] * 6, activation=activation, norm=norm, generator=generator)
        for layer in sick:
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, gain=0.1 if layer is not sick[0] else math.sqrt(2.0))
        assert spread(sick) > 10


def test_registered_encoder_is_built_with_its_options() -> None:
    class Scaled(nn.Module):
        def __init__(self, in_features: int, factor: float) -> None:
            super().__init__()
            self.out_features = in_features
            self.factor = nn.Parameter(torch.tensor(factor))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    register_encoder("scaled_for_test", Scaled)
    backend = small_backend(
        model={"encoder": {"kind": "custom", "name": "scaled_for_test", "options": {"factor": 3.0}}}
    )
    assert isinstance(backend.model.encoder, Scaled)
    latent = backend.model.latent(torch.ones(1, 2, 3), torch.zeros(2, 0, 0), torch.zeros(1, 2).bool())
    assert torch.equal(latent.features, torch.full((1, 2, 3), 3.0))
    with pytest.raises(ConfigError, match="registered already"):
        register_encoder("scaled_for_test", nn.Identity)


def test_custom_encoder_that_is_unknown_or_has_no_size_is_refused() -> None:
    register_encoder("sizeless_for_test", lambda in_features: nn.Identity())
    with pytest.raises(ConfigError, match="'nowhere' is not registered"):
        small_backend(model={"encoder": {"kind": "custom", "name": "nowhere"}})
    with pytest.raises(ConfigError, match="out_features"):
        small_backend(model={"encoder": {"kind": "custom", "name": "sizeless_for_test"}})


def test_model_without_hidden_layers_works() -> None:
    backend = small_backend(
        model={"encoder": {"hidden": []}, "actor": {"hidden": []}, "critic": {"hidden": []}}, features=5
    )
    assert backend.model.actor.head.in_features == 5
    assert small_model(encoder={"hidden": []}).encoder.hidden == ()


class TwoLayers(nn.Module):
    """A custom encoder as users write them: torch's own initialisation, from the global generator."""

    def __init__(self, in_features: int, width: int = 4, inner: Callable[[int], nn.Module] | None = None) -> None:
        super().__init__()
        self.out_features = width
        self.body = nn.Sequential(nn.Linear(in_features, width), inner(width) if inner else nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.body(x)
        return result


def test_custom_encoder_is_seeded_and_leaves_the_global_generator_alone() -> None:
    """Rejects calling the factory under whatever state the global generator has: one seed, two models."""
    register_encoder("two_layers_for_test", TwoLayers)
    model = {"encoder": {"kind": "custom", "name": "two_layers_for_test"}}
    torch.manual_seed(1)
    first = small_backend(model=model, seed=3).model.state_dict()
    torch.manual_seed(2)
    again = small_backend(model=model, seed=3).model.state_dict()
    other = small_backend(model=model, seed=4).model.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["encoder.body.0.weight"], other["encoder.body.0.weight"])
    before = torch.random.get_rng_state()
    config = small_model(**model).encoder
    build_encoder(config, 3, norm="none", generator=torch.Generator().manual_seed(3))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "inner", "refused"),
    [
        ("dropout", lambda n: nn.Dropout(0.1), "Dropout"),
        ("alpha_dropout", lambda n: nn.AlphaDropout(0.1), "AlphaDropout"),
        ("batch_norm", lambda n: nn.BatchNorm1d(n), "BatchNorm1d"),
        ("lstm", lambda n: nn.LSTM(n, n, num_layers=2, dropout=0.1), "LSTM"),
        ("layer_norm", lambda n: nn.LayerNorm(n), None),
        ("dropout_off", lambda n: nn.Dropout(0.0), None),
    ],
)
def test_custom_encoder_whose_output_is_not_a_function_of_its_input_is_refused(
    name: str, inner: Callable[[int], nn.Module], refused: str | None
) -> None:
    """Rejects accepting them: the ratio of the first update would differ from 1 without any change of the policy."""
    register_encoder(f"{name}_for_test", lambda in_features: TwoLayers(in_features, inner=inner))
    model = {"encoder": {"kind": "custom", "name": f"{name}_for_test"}}
    if refused is None:
        assert small_backend(model=model).model.encoder.out_features == 4
        return
    with pytest.raises(ConfigError, match=rf"'{name}_for_test' contains {refused} at 'body.1'.*reproducible"):
        small_backend(model=model)


def test_custom_encoder_with_wrong_options_or_result_is_a_sentence() -> None:
    register_encoder("options_for_test", TwoLayers)
    register_encoder("number_for_test", lambda in_features: in_features)
    with pytest.raises(ConfigError, match=r"'options_for_test' cannot be built with .*\{'widht': 3\}.*widht"):
        small_backend(model={"encoder": {"kind": "custom", "name": "options_for_test", "options": {"widht": 3}}})
    with pytest.raises(ConfigError, match="returned a int"):
        small_backend(model={"encoder": {"kind": "custom", "name": "number_for_test"}})
