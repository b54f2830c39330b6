"""The optimiser and what surrounds a step: its size, gradient norms and clipping, copies to roll back to."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tailwise.learner.config import KlFactor, NoKlFactor
from tailwise.model.actor_critic import ActorCritic


@dataclass(frozen=True)
class StepSize:
    """The factors of one update's learning rate."""

    base: float
    schedule: float
    kl_factor: float
    health_factor: float

    @property
    def value(self) -> float:
        """The learning rate that the optimiser uses."""
        return self.base * self.schedule * self.kl_factor * self.health_factor


def next_kl_factor(
    config: NoKlFactor | KlFactor, factor: float, *, stopped: bool, kl: float, target_kl: float | None
) -> float:
    """The factor after an update: smaller when it was stopped early, larger when KL stayed below half the target."""
    if isinstance(config, NoKlFactor) or target_kl is None:
        return factor
    if stopped:
        factor = factor / config.ratio
    elif kl < target_kl / 2:
        factor = factor * config.ratio
    return min(max(factor, config.low), config.high)


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


@dataclass(frozen=True)
class Snapshot:
    """Copies of parameters and buffers by name, and of the optimiser's state by parameter."""

    tensors: dict[str, Tensor]
    optimiser: dict[Tensor, dict[str, Any]]


def take_snapshot(model: nn.Module, optimiser: Optimizer) -> Snapshot:
    """Copy what an update may change."""
    tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    return Snapshot(tensors, {parameter: _copied(entry) for parameter, entry in optimiser.state.items()})


@torch.no_grad()
def restore(snapshot: Snapshot, model: nn.Module, optimiser: Optimizer) -> None:
    """Put everything back, bit for bit; the snapshot stays what it is and can be restored again."""
    for name, tensor in model.state_dict().items():
        tensor.copy_(snapshot.tensors[name])
    optimiser.state.clear()
    for parameter, entry in snapshot.optimiser.items():
        optimiser.state[parameter] = _copied(entry)


def _copied(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in entry.items()}


def first_non_finite(model: nn.Module) -> str | None:
    """Name of the first parameter or float buffer with a NaN or infinite entry, None when all are finite."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None
