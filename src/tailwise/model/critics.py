"""One critic: the scalar mean of the return, and (unless scalar) its law. Twins are two of these, sharing nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tailwise.model.config import Critic
from tailwise.model.networks import hidden_stack, linear


@dataclass(frozen=True)
class CriticOutput:
    """Normalised units. mean [..., C]; law [..., C, N]: quantiles, or logits on atoms, or None for scalar critics."""

    mean: Tensor
    law: Tensor | None


class CriticHead(nn.Module):
    """latent [..., H] -> mean [...], law [..., N] or None."""

    def __init__(
        self,
        config: Critic,
        in_features: int,
        *,
        activation: str,
        norm: str,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.body = hidden_stack(in_features, config.hidden, activation=activation, norm=norm, generator=generator)
        width = config.hidden[-1] if config.hidden else in_features
        self.mean_head = None if config.mean_from_law else linear(width, 1, gain=1.0, generator=generator)
        self.law_head: nn.Linear | None = None
        start = config.initial_law()
        if start is not None:
            self.law_head = linear(width, config.law_size, gain=0.01, generator=generator)
            with torch.no_grad():
                self.law_head.bias.copy_(start)

    def forward(self, latent: Tensor) -> tuple[Tensor, Tensor | None]:
        """See the class."""
        features = self.body(latent)
        law = self.law_head(features) if self.law_head is not None else None
        if self.mean_head is not None:
            return self.mean_head(features).squeeze(-1), law
        assert law is not None
        return law.mean(-1), law
