"""PopArt: the affine scale (mu, sigma) between normalised critic outputs and raw returns.

raw = mu + sigma * normalised. Until a rollout with any return other than 0 was seen, mu = sigma = 0: a new critic
predicts exactly 0 in raw units, whatever the reward scale, so the first targets are free of an arbitrary bootstrap and
learning is equivariant to the scale of rewards.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from tailwise.core.numerics import sample_moments

ABSOLUTE_FLOOR = 1e-12


class ReturnScale(nn.Module):
    """Running (mu, sigma) of raw returns in float64; `first` and `peak` sigma serve alerts and the floor.

    floor: smallest sigma as a share of its peak; a collapsing spread must not turn rounding noise into targets.
    """

    mu: Tensor
    sigma: Tensor
    variance: Tensor
    first: Tensor
    peak: Tensor

    def __init__(self, *, rate: float | None, floor: float = 1e-4) -> None:
        super().__init__()
        self.floor = floor
        self.rate = rate  # None: fixed scale, raw == normalised
        initial = 0.0 if rate is not None else 1.0
        for name, value in (("mu", 0.0), ("sigma", initial), ("variance", 0.0), ("first", 0.0), ("peak", 0.0)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    @property
    def initialised(self) -> bool:
        """Whether a rollout set the scale (always, for a fixed scale)."""
        return bool(self.sigma > 0)

    def to_raw(self, normalised: Tensor) -> Tensor:
        """Normalised critic output, any shape -> raw return units."""
        return normalised * self.sigma.to(normalised.dtype) + self.mu.to(normalised.dtype)

    def to_normalised(self, raw: Tensor) -> Tensor:
        """Raw return units, any shape -> normalised. Before the scale is set every return seen was 0, and stays 0."""
        if not self.initialised:
            return raw
        if raw.dtype is not torch.float32 or raw.device.type != "cpu" or raw.requires_grad:
            return ((raw.to(torch.float64) - self.mu) / self.sigma).to(raw.dtype)
        from tailwise.core.loops.arrays import rescale  # compiled code: not before somebody learns

        normalised = torch.empty(raw.shape, dtype=torch.float32)
        rescale(raw.reshape(-1).numpy(), float(self.mu), float(self.sigma), normalised.view(-1).numpy())
        return normalised

    @torch.no_grad()
    def absorb(self, raw_returns: Tensor) -> tuple[float, float, float, float]:
        """Move (mu, sigma) towards the moments of raw returns [n]; returns (old mu, old sigma, mu, sigma)."""
        old_mu, old_sigma = float(self.mu), float(self.sigma)
        if self.rate is None or raw_returns.numel() == 0:
            return old_mu, old_sigma, old_mu, old_sigma
        mean, square = sample_moments(raw_returns.numpy(force=True))
        spread = math.sqrt(square)
        # Plain numbers, written back at the end: a dozen small steps, and a tensor takes longer for each.
        mu, variance = old_mu, float(self.variance)
        if not self.initialised:
            if math.hypot(spread, mean) <= ABSOLUTE_FLOOR:
                return old_mu, old_sigma, old_mu, old_sigma  # nothing but zeros yet: stay uninitialised
            # Identical returns have no spread to learn a scale from; their size serves until there is one.
            start = spread if spread > 1e-9 * abs(mean) else abs(mean)
            mu, variance = mean, start * start
            self.first.fill_(start)
        else:
            # Moments of the mixture (1 - rate) x history + rate x newest; the usual E[y^2] - E[y]^2 cancels digits.
            shift = mean - mu
            variance = (1 - self.rate) * variance + self.rate * square + self.rate * (1 - self.rate) * shift * shift
            mu += self.rate * shift
        peak = float(self.peak)
        sigma = max(math.sqrt(variance), self.floor * peak, ABSOLUTE_FLOOR)
        for buffer, value in ((self.mu, mu), (self.variance, variance), (self.sigma, sigma)):
            buffer.fill_(value)
        self.peak.fill_(max(peak, sigma))
        return old_mu, old_sigma, mu, sigma


def preserve_outputs(head: nn.Linear, *, old_mu: float, old_sigma: float, mu: float, sigma: float) -> None:
    """Rescale a linear head so that mu' + sigma' * head'(x) == mu + sigma * head(x) for every x.

    W <- W s/s', b <- (s b + mu - mu')/s', in float64. Nothing to preserve while the old scale was not initialised.
    """
    if old_sigma == 0.0 or (old_mu == mu and old_sigma == sigma):
        return
    # In place through numpy: for so few numbers torch takes nearly twice as long.
    weight, bias = head.weight.detach().numpy(), head.bias.detach().numpy()
    np.multiply(weight, old_sigma / sigma, out=weight, dtype=np.float64, casting="same_kind")
    bias[:] = (old_sigma * bias.astype(np.float64) + old_mu - mu) / sigma
