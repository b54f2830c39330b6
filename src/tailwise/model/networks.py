"""Multi-layer perceptrons with one initialisation and one norm policy, and the encoder registry."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tailwise.core.errors import ConfigError
from tailwise.model.config import CustomEncoder, MlpEncoder

_ACTIVATIONS: Mapping[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}

#: A factory takes the flat observation size and options, and returns a module [..., D] -> [..., out] with an
#: integer attribute `out_features`.
EncoderFactory = Callable[..., nn.Module]
_ENCODERS: dict[str, EncoderFactory] = {}


def register_encoder(name: str, factory: EncoderFactory) -> None:
    """Make `encoder: {kind: custom, name: NAME}` build `factory(in_features, **options)`."""
    if name in _ENCODERS and _ENCODERS[name] is not factory:
        raise ConfigError(f"an encoder named {name!r} is registered already; choose another name")
    _ENCODERS[name] = factory


def linear(in_features: int, out_features: int, *, gain: float, generator: torch.Generator) -> nn.Linear:
    """A linear layer with orthogonal weights of the given gain and zero bias."""
    layer = nn.Linear(in_features, out_features)
    nn.init.orthogonal_(layer.weight, gain=gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def hidden_stack(
    in_features: int,
    hidden: Sequence[int],
    *,
    activation: str,
    norm: str,
    generator: torch.Generator,
) -> nn.Sequential:
    """Hidden layers [..., in_features] -> [..., hidden[-1]], each linear, optional LayerNorm, activation."""
    layers: list[nn.Module] = []
    width = in_features
    for units in hidden:
        layers.append(linear(width, units, gain=math.sqrt(2.0), generator=generator))
        if norm == "layer":
            layers.append(nn.LayerNorm(units))
        layers.append(_ACTIVATIONS[activation]())
        width = units
    return nn.Sequential(*layers)


def build_encoder(
    config: MlpEncoder | CustomEncoder, in_features: int, *, norm: str, generator: torch.Generator
) -> tuple[nn.Module, int]:
    """The encoder and the size of its output."""
    if isinstance(config, MlpEncoder):
        stack = hidden_stack(in_features, config.hidden, activation=config.activation, norm=norm, generator=generator)
        return stack, config.hidden[-1] if config.hidden else in_features
    if config.name not in _ENCODERS:
        known = ", ".join(sorted(_ENCODERS)) or "none yet"
        raise ConfigError(
            f"model.encoder.name {config.name!r} is not registered (registered: {known}); "
            "call tailwise.model.networks.register_encoder before building the model"
        )
    module = _build_custom(config, in_features, generator)
    out = getattr(module, "out_features", None)
    if not isinstance(out, int):
        raise ConfigError(f"encoder {config.name!r} has no integer attribute out_features; set it to its output size")
    return module, out


def _build_custom(config: CustomEncoder, in_features: int, generator: torch.Generator) -> nn.Module:
    """Call a registered factory so that its weights depend on `generator` alone."""
    options: dict[str, Any] = dict(config.options)
    seed = int(torch.randint(2**31, (), generator=generator))
    # torch's layers draw from the global generators: those are seeded for the factory and put back afterwards.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        try:
            module = _ENCODERS[config.name](in_features, **options)
        except TypeError as error:
            raise ConfigError(
                f"encoder {config.name!r} cannot be built with model.encoder.options {options!r} ({error}); "
                "give the options that its factory takes"
            ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"the factory of encoder {config.name!r} returned a {type(module).__name__}; return a torch.nn.Module"
        )
    for path, part in module.named_modules():
        if _depends_on_more_than_its_input(part):
            raise ConfigError(
                f"encoder {config.name!r} contains {type(part).__name__} at {path or 'its top'!r}; its output depends "
                "on chance or on the other rows of a batch, but the log-probability stored with an action must be "
                "reproducible in the update; remove it (LayerNorm may be used instead of batch normalisation)"
            )
    return module


def _depends_on_more_than_its_input(module: nn.Module) -> bool:
    """True for dropout and batch normalisation; dropout with probability 0 does nothing and is harmless."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return True
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):  # these apply it without a Dropout module
        return module.dropout > 0
    return False
