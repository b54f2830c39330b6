"""Where the numbers that describe a law of the return stand: levels of quantiles, places of atoms."""

from __future__ import annotations

import torch
from torch import Tensor


def quantile_midpoints(n: int) -> Tensor:
    """tau_i = (i + 0.5) / n, float64 [n]: in float32 the sum would round before the division."""
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def even_atoms(n: int, span: float) -> Tensor:
    """n atoms [n], evenly spaced from -span to span, in normalised return units."""
    return torch.linspace(-span, span, n)
