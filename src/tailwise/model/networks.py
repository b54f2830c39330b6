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
    options: dict[str, Any] = dict(config.options)
    module = _ENCODERS[config.name](in_features, **options)
    out = getattr(module, "out_features", None)
    if not isinstance(out, int):
        raise ConfigError(f"encoder {config.name!r} has no integer attribute out_features; set it to its output size")
    return module, out
