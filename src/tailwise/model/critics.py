"""One critic: the scalar mean of the return, and (unless scalar) its law. Twins are two of these, sharing nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tailwise.model.config import CategoricalCritic, QuantileCritic, ScalarCritic
from tailwise.model.networks import hidden_stack, linear


@dataclass(frozen=True)
class CriticOutput:
    """Normalised units. mean [..., C]; law [..., C, N]: quantiles, or logits on atoms, or None for scalar critics."""

    mean: Tensor
    law: Tensor | None


def quantile_midpoints(n: int) -> Tensor:
    """tau_i = (i + 0.5) / n, float64 [n]: in float32 the sum would round before the division."""
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def normalised_atoms(config: CategoricalCritic) -> Tensor:
    """The support in normalised return units, [N]."""
    return torch.linspace(-config.span, config.span, config.atoms)


class CriticHead(nn.Module):
    """latent [..., H] -> mean [...], law [..., N] or None."""

    def __init__(
        self,
        config: ScalarCritic | QuantileCritic | CategoricalCritic,
        in_features: int,
        *,
        activation: str,
        norm: str,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.body = hidden_stack(in_features, config.hidden, activation=activation, norm=norm, generator=generator)
        width = config.hidden[-1] if config.hidden else in_features
        self.mean_from_law = isinstance(config, QuantileCritic) and config.mean == "quantiles"
        self.mean_head = None if self.mean_from_law else linear(width, 1, gain=1.0, generator=generator)
        self.law_head: nn.Linear | None = None
        # The law starts with mean 0 and variance 1 in normalised units, the best guess before any data: quantiles as
        # a standard normal (until the first returns, `learner.preparation.start_laws`), atoms as a Laplace law, because
        # a far atom that starts without mass is slow to gain any.
        if isinstance(config, QuantileCritic):
            self.law_head = linear(width, config.quantiles, gain=0.01, generator=generator)
            with torch.no_grad():
                self.law_head.bias.copy_(torch.special.ndtri(quantile_midpoints(config.quantiles)))
        elif isinstance(config, CategoricalCritic):
            self.law_head = linear(width, config.atoms, gain=0.01, generator=generator)
            with torch.no_grad():
                self.law_head.bias.copy_(-math.sqrt(2.0) * normalised_atoms(config).abs())

    def forward(self, latent: Tensor) -> tuple[Tensor, Tensor | None]:
        """See the class."""
        features = self.body(latent)
        law = self.law_head(features) if self.law_head is not None else None
        if self.mean_head is not None:
            return self.mean_head(features).squeeze(-1), law
        assert law is not None
        return law.mean(-1), law
