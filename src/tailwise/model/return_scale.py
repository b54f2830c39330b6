"""PopArt: the affine scale (mu, sigma) between normalised critic outputs and raw returns.

raw = mu + sigma * normalised. Until a rollout with any return other than 0 was seen, mu = sigma = 0: a new critic
predicts exactly 0 in raw units, whatever the reward scale, so the first targets are free of an arbitrary bootstrap and
learning is equivariant to the scale of rewards.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

ABSOLUTE_FLOOR = 1e-12
RELATIVE_FLOOR = 1e-4  # of the largest sigma seen: a collapsing spread must not turn rounding noise into targets


class ReturnScale(nn.Module):
    """Running (mu, sigma) of raw returns in float64; `first` and `peak` sigma serve alerts and the floor."""

    mu: Tensor
    sigma: Tensor
    variance: Tensor
    first: Tensor
    peak: Tensor

    def __init__(self, *, rate: float | None) -> None:
        super().__init__()
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
        centred = raw.to(torch.float64, copy=True)  # of its own: millions of particles, so the rest is done in place
        return centred.sub_(self.mu).div_(self.sigma).to(raw.dtype)

    @torch.no_grad()
    def absorb(self, raw_returns: Tensor) -> tuple[float, float, float, float]:
        """Move (mu, sigma) towards the moments of raw returns [n]; returns (old mu, old sigma, mu, sigma)."""
        old_mu, old_sigma = float(self.mu), float(self.sigma)
        if self.rate is None or raw_returns.numel() == 0:
            return old_mu, old_sigma, old_mu, old_sigma
        sample = raw_returns.to(torch.float64)
        # In two passes, which is as exact as torch.std_mean and an eighth of its time.
        mean = sample.mean()
        centred = sample.sub(mean) if sample is raw_returns else sample.sub_(mean)
        spread = (centred.dot(centred) / len(centred)).sqrt()
        if not self.initialised:
            if float(torch.hypot(spread, mean)) <= ABSOLUTE_FLOOR:
                return old_mu, old_sigma, old_mu, old_sigma  # nothing but zeros yet: stay uninitialised
            # Identical returns have no spread to learn a scale from; their size serves until there is one.
            start = spread if float(spread) > 1e-9 * abs(float(mean)) else mean.abs()
            self.mu.copy_(mean)
            self.variance.copy_(start**2)
            self.first.copy_(start)
        else:
            # Moments of the mixture (1 - rate) x history + rate x newest; the usual E[y^2] - E[y]^2 cancels digits.
            shift = mean - self.mu
            self.variance.copy_(
                (1 - self.rate) * self.variance + self.rate * spread**2 + self.rate * (1 - self.rate) * shift**2
            )
            self.mu.add_(self.rate * shift)
        floor = torch.clamp(RELATIVE_FLOOR * self.peak, min=ABSOLUTE_FLOOR)
        self.sigma.copy_(torch.maximum(self.variance.sqrt(), floor))
        self.peak.copy_(torch.maximum(self.peak, self.sigma))
        return old_mu, old_sigma, float(self.mu), float(self.sigma)


@torch.no_grad()
def preserve_outputs(head: nn.Linear, *, old_mu: float, old_sigma: float, mu: float, sigma: float) -> None:
    """Rescale a linear head so that mu' + sigma' * head'(x) == mu + sigma * head(x) for every x.

    W <- W s/s', b <- (s b + mu - mu')/s', in float64. Nothing to preserve while the old scale was not initialised.
    """
    if old_sigma == 0.0 or (old_mu == mu and old_sigma == sigma):
        return
    head.weight.copy_(head.weight.to(torch.float64) * (old_sigma / sigma))
    head.bias.copy_((old_sigma * head.bias.to(torch.float64) + old_mu - mu) / sigma)
