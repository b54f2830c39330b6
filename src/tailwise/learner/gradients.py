"""Gradient norms by parameter group, clipping, and which loss term reaches which group."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from tailwise.model.actor_critic import ActorCritic


def group_norms(model: ActorCritic) -> dict[str, float]:
    """Euclidean norm of the gradient per named group, and per layer of the core; each parameter counts once a name."""
    squares: dict[str, Tensor] = {}
    for group, parameters in model.groups().items():
        squares[group] = _square_sum(parameters)
    if model.core is not None:
        layers: dict[str, list[nn.Parameter]] = {}
        for name, parameter in model.core.named_parameters():
            layer = re.search(r"_l(\d+)$", name)
            assert layer is not None, name
            layers.setdefault(f"core.layer_{layer.group(1)}", []).append(parameter)
        squares |= {name: _square_sum(parameters) for name, parameters in layers.items()}
    return {name: float(value.sqrt()) for name, value in squares.items()}


def _square_sum(parameters: Sequence[nn.Parameter]) -> Tensor:
    parts = [p.grad.double().square().sum() for p in parameters if p.grad is not None]
    return torch.stack(parts).sum() if parts else torch.zeros((), dtype=torch.float64)


def clip_global_norm(parameters: Sequence[nn.Parameter], max_norm: float | None) -> tuple[float, float]:
    """Scale all gradients so that their joint norm is at most max_norm (None: leave them). Norms (before, after)."""
    before = float(_square_sum(parameters).sqrt())
    if max_norm is None or not before > max_norm:
        return before, before
    scale = max_norm / before
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(scale)
    return before, float(_square_sum(parameters).sqrt())


def term_gradients(terms: Mapping[str, Tensor], model: ActorCritic) -> dict[str, dict[str, float]]:
    """Norm of d(term)/d(group) for every loss term and parameter group; exactly 0.0 where no gradient exists."""
    groups = model.groups()
    parameters = [parameter for group in groups.values() for parameter in group]
    result: dict[str, dict[str, float]] = {}
    for name, term in terms.items():
        if not term.requires_grad:
            result[name] = dict.fromkeys(groups, 0.0)
            continue
        # One pass for all groups: a pass for each would go through the same graph again.
        grads = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
        squares = [0.0 if grad is None else float(grad.double().square().sum()) for grad in grads]
        of_parameter = dict(zip(parameters, squares, strict=True))
        result[name] = {group: math.sqrt(sum(of_parameter[p] for p in members)) for group, members in groups.items()}
    return result


def owner_of(term: str) -> str:
    """The group that a loss term exists to train: mean_0 and law_0 critic 0, everything else the actor."""
    index = re.fullmatch(r"(?:mean|law)_(\d+)", term)
    return f"critic_{index.group(1)}" if index else "actor"
