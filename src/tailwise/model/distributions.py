"""Laws over actions, as stateless functions of one parameter tensor [..., P].

Discrete kinds: P = sum of K per component, the (masked) logits. Box: P = 2A, means then ln(standard deviations).
Raw actions [..., A] are what is stored and scored; `ActionSpec.to_env` turns them into what the environment receives.
Sampling takes its noise as an argument, so a draw depends on the random streams and on nothing else.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional

from tailwise.core.errors import EnvironmentContractError
from tailwise.model.action_spec import ActionSpec

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class ActionLaw(ABC):
    """One family of action distributions."""

    parameters: int  # P
    noise: int  # draws in (0, 1) per decision
    discrete: bool
    squashed: bool = False
    cut: bool = False  # whether raw actions below -1 or above 1 mean the same as -1 and 1

    @abstractmethod
    def sample(self, params: Tensor, uniform: Tensor) -> Tensor:
        """params [..., P], uniform [..., noise] in (0, 1) float64 -> raw action [..., A]."""

    @abstractmethod
    def mode(self, params: Tensor) -> Tensor:
        """The most likely raw action [..., A]."""

    @abstractmethod
    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """ln pi(action), [...]; components are summed."""

    @abstractmethod
    def entropy(self, params: Tensor, uniform: Tensor | None = None) -> Tensor:
        """Entropy in nats, [...], components summed once; the squashed law estimates it from `uniform` [..., noise]."""

    def overshoot(self, params: Tensor) -> Tensor:
        """Squared distance [...] of the means from where actions are cut; 0 where they are not."""
        return params.new_zeros(params.shape[:-1])

    @property
    @abstractmethod
    def max_entropy(self) -> float | None:
        """Largest possible entropy in nats, None where unbounded."""


def mask_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits [..., K] with invalid actions (mask False) filled by the smallest finite number.

    -inf would give NaN gradients through log-softmax (0 * inf).
    """
    if mask is None:
        return logits
    return torch.where(mask, logits, torch.finfo(logits.dtype).min)


def log_softmax(logits: Tensor) -> Tensor:
    """Log-probabilities [..., K] of logits [..., K].

    Actions as rows: of a few actions torch then takes a tenth of the time, forward and back.
    """
    return functional.log_softmax(logits.movedim(-1, 0).contiguous(), 0).movedim(0, -1)


class CategoricalLaw(ActionLaw):
    """Independent categorical components: Discrete (one) and MultiDiscrete (several)."""

    discrete = True

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.parameters = sum(sizes)
        self.noise = len(sizes)

    def split(self, params: Tensor) -> tuple[Tensor, ...]:
        """Logits per component, each [..., K_i]."""
        return torch.split(params, list(self.sizes), dim=-1)

    def sample(self, params: Tensor, uniform: Tensor) -> Tensor:
        picks = [_inverse_cdf(logits, uniform[..., i : i + 1]) for i, logits in enumerate(self.split(params.double()))]
        return torch.cat(picks, dim=-1)

    def mode(self, params: Tensor) -> Tensor:
        if len(self.sizes) == 1:
            return params.argmax(-1, keepdim=True)
        return torch.stack([logits.argmax(-1) for logits in self.split(params)], dim=-1)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        total = params.new_zeros(params.shape[:-1])
        for i, logits in enumerate(self.split(params)):
            chosen = log_softmax(logits).gather(-1, action[..., i : i + 1].long())
            total = total + chosen.squeeze(-1)
        return total

    def entropy(self, params: Tensor, uniform: Tensor | None = None) -> Tensor:
        total = params.new_zeros(params.shape[:-1])
        for logits in self.split(params):
            log_p = log_softmax(logits)
            p = log_p.exp()
            total = total - torch.where(p > 0, p * log_p, torch.zeros_like(p)).sum(-1)
        return total

    @property
    def max_entropy(self) -> float:
        return sum(math.log(k) for k in self.sizes)


def _inverse_cdf(logits: Tensor, uniform: Tensor) -> Tensor:
    """Index [..., 1] whose cumulative probability first exceeds uniform [..., 1]; never an action of probability 0."""
    p = functional.softmax(logits, -1)
    cumulative = p.cumsum(-1)
    index = (cumulative <= uniform * cumulative[..., -1:]).sum(-1, keepdim=True)
    positions = torch.arange(logits.shape[-1], device=logits.device)
    last_possible = torch.where(p > 0, positions, torch.zeros_like(positions)).amax(-1, keepdim=True)
    return torch.minimum(index, last_possible)


class GaussianLaw(ActionLaw):
    """Independent normal components; the environment clips to its bounds, the raw action is stored and scored."""

    discrete = False

    def __init__(self, components: int, *, cut: bool = False) -> None:
        self.cut = cut
        self.components = components
        self.parameters = 2 * components
        self.noise = components

    def split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """(means, ln standard deviations), each [..., A]."""
        mean, log_std = torch.split(params, self.components, dim=-1)
        return mean, log_std

    def sample(self, params: Tensor, uniform: Tensor) -> Tensor:
        mean, log_std = self.split(params)
        noise: Tensor = torch.special.ndtri(uniform)
        return mean + log_std.exp() * noise.to(params.dtype)

    def mode(self, params: Tensor) -> Tensor:
        return self.split(params)[0]

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        mean, log_std = self.split(params)
        z = (action - mean) * torch.exp(-log_std)
        return (-0.5 * z**2 - log_std - _HALF_LOG_2PI).sum(-1)

    def entropy(self, params: Tensor, uniform: Tensor | None = None) -> Tensor:
        return (self.split(params)[1] + 0.5 + _HALF_LOG_2PI).sum(-1)

    def overshoot(self, params: Tensor) -> Tensor:
        if not self.cut:
            return super().overshoot(params)
        return functional.relu(self.split(params)[0].abs() - 1.0).square().sum(-1)

    @property
    def max_entropy(self) -> None:
        return None


class SquashedGaussianLaw(GaussianLaw):
    """tanh of a Gaussian, scaled into the bounds; raw (pre-tanh) actions are stored.

    log-densities are those of tanh(raw) in [-1, 1]; the constant of the final scaling cancels in every ratio.
    """

    squashed = True

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        # ln(1 - tanh(x)^2) written so that it neither overflows nor loses digits for large |x|
        log_jacobian = 2.0 * (math.log(2.0) - action - functional.softplus(-2.0 * action))
        return super().log_prob(params, action) - log_jacobian.sum(-1)

    def entropy(self, params: Tensor, uniform: Tensor | None = None) -> Tensor:
        if uniform is None:
            raise ValueError("the entropy of a squashed Gaussian is estimated from a fresh sample: pass uniform")
        return -self.log_prob(params, self.sample(params, uniform))

    @property
    def max_entropy(self) -> float:  # type: ignore[override]
        return self.components * math.log(2.0)


def law_for(spec: ActionSpec, *, squashed: bool) -> ActionLaw:
    """The law that fits an action space."""
    if spec.kind in ("discrete", "multidiscrete"):
        return CategoricalLaw(spec.sizes)
    if spec.kind == "box":
        if squashed:
            return SquashedGaussianLaw(spec.components)
        return GaussianLaw(spec.components, cut=spec.unit_range)
    raise EnvironmentContractError(f"action kind {spec.kind!r} has no policy; use discrete, multidiscrete or box")
