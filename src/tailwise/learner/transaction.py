"""All or nothing: a snapshot of everything that an update changes, and the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


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
