"""SA-PPO (Zhang et al. 2020, arXiv 2003.08938): the policy should answer alike wherever its observation might be.

Within a budget per entry the move of the normalised observations is sought that changes the policy most; its divergence
there is a loss term. Hidden states begin where they began in the rollout and are carried through the moved
observations, so that with memory the whole sequence is moved at once. Only the term itself is differentiated by the
weights: the search asks for gradients by the observations alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from tailwise.core.errors import ConfigError
from tailwise.learner.config import SaPpo, StdBudget
from tailwise.learner.losses import Inputs, View, law_kl
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.distributions import ActionLaw, GaussianLaw
from tailwise.model.scales import ObservationNormaliser

NAME = "adversary"  # of the loss term
EXCESS = 1e-5  # rounding of normalised observations, which are at most 10 in size

#: Uniform numbers in (0, 1) [T, b, k]: (name of a stream, k) -> tensor.
Noise = Callable[[str, int], Tensor]


@dataclass(frozen=True)
class Entries:
    """The entries of a flat observation. names [D]; open [D]: whether an adversary may move them unless told otherwise.

    What says something exact (the account of a market, flags, one-hots) is not open.
    """

    names: tuple[str, ...]
    open: tuple[bool, ...]


@dataclass(frozen=True)
class Budgets:
    """Largest moves of the entries [D] of an observation: of normalised ones, and of raw ones. One of them is 0."""

    normalised: Tensor
    raw: Tensor

    def in_std(self, normaliser: ObservationNormaliser) -> Tensor:
        """The budgets [D] in the units of the network, as its normaliser scales now; 0 where it shows no spread."""
        factor = normaliser.factor.to(self.raw.dtype)
        return self.normalised * (factor > 0) + self.raw * factor


def std_budgets(config: StdBudget, entries: Entries) -> Budgets:
    """Budgets in normalised units: the first fitting name in `config.entries` counts, else whether an entry is open."""
    for pattern in config.entries:
        if not any(fnmatchcase(name, pattern) for name in entries.names):
            near = difflib.get_close_matches(pattern, entries.names, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"the entries are {', '.join(entries.names[:20])}"
            raise ConfigError(f"the entries of the adversary's budget name '{pattern}', which is none; {hint}")
    sizes = [
        next((size for pattern, size in config.entries.items() if fnmatchcase(name, pattern)), config.size * is_open)
        for name, is_open in zip(entries.names, entries.open, strict=True)
    ]
    if not any(sizes):
        raise ConfigError(
            "the budget of the adversary is 0 for every entry (flags, one-hots and the account of a market are left "
            "alone unless they are named); raise its size, or name some of them in entries"
        )
    return Budgets(torch.tensor(sizes), torch.zeros(len(sizes)))


def raw_budgets(moves: Sequence[float]) -> Budgets:
    """Budgets of raw entries [D], as a market measures them for a move of its prices."""
    return Budgets(torch.zeros(len(moves)), torch.tensor(list(moves)))


def divergence(law: ActionLaw, clean: Tensor, moved: Tensor) -> Tensor:
    """How far the policy moved [n]: KL of categoricals; of Gaussians |(mean' - mean)/std|^2, std without gradient.

    clean, moved [n, P]: parameters of the law; no gradient goes into `clean`.
    """
    clean = clean.detach()
    if law.discrete:
        return law_kl(law, clean, moved)
    assert isinstance(law, GaussianLaw)
    mean, log_std = law.split(clean)
    return ((law.split(moved)[0] - mean) * torch.exp(-log_std)).square().sum(-1)


@contextmanager
def without_weights(model: nn.Module) -> Iterator[None]:
    """Compute gradients by inputs alone: graphs that are built inside do not lead to the weights."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


@dataclass(frozen=True)
class Box:
    """Where a normalised observation may be moved to: centre [..., D], budget [D], limit: the normaliser's clip."""

    centre: Tensor
    budget: Tensor
    scaled: Tensor
    limit: float | None

    @classmethod
    def around(cls, model: ActorCritic, normalised: Tensor, budget: Tensor) -> Box:
        """The box of a model's normalised observations."""
        normaliser = model.normaliser
        return cls(normalised.detach(), budget, normaliser.scaled, normaliser.clip)

    def moved(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """(observations, moves) after `delta` [..., D] was cut to the box; nothing leaves what the network can see."""
        delta = torch.maximum(torch.minimum(delta, self.budget), -self.budget)
        place = self.centre + delta
        if self.limit is not None:
            place = torch.where(self.scaled, place.clamp(-self.limit, self.limit), place)
        return place, delta


def search(
    box: Box,
    objective: Callable[[Tensor], Tensor],
    *,
    steps: int,
    noise: Noise,
    langevin: bool = False,
) -> Tensor:
    """Observations [..., D] in the box that make `objective` (a scalar of such observations) large.

    Projected steps along the sign of the gradient, from a random corner budget/steps away: at the observation itself
    there is no slope. Together they are long enough to come from the wrong corner to the edge. langevin: noise of
    falling size is added to the gradient before its sign is taken.
    """
    start, width = box.budget / steps, box.budget.shape[-1]
    size = start * (1.0 + 1.0 / steps)
    place, delta = box.moved(torch.sign(noise(NAME, width).to(start.dtype) - 0.5) * start)
    for step in range(steps):
        place = place.detach().requires_grad_()
        (slope,) = torch.autograd.grad(objective(place), place)
        if langevin:
            uniform = noise(f"{NAME}/{step}", width)
            scale = slope.abs().mean(-1, keepdim=True) / (step + 1)
            slope = slope + scale * torch.special.ndtri(uniform).to(slope.dtype)
        place, delta = box.moved(delta + torch.sign(slope) * size)
    return place.detach()


class SaPpoLoss:
    """The loss term, for the seam `auxiliary` of a learner."""

    def __init__(self, config: SaPpo, budgets: Budgets) -> None:
        self.config, self.budgets = config, budgets

    def budget(self, model: ActorCritic, progress: float) -> Tensor:
        """Budgets [D] after a share of the training, of their own full size and not of the last one."""
        share = 1.0 if self.config.ramp == 0 else min(progress / self.config.ramp, 1.0)
        return self.budgets.in_std(model.normaliser) * share

    def __call__(self, model: ActorCritic, view: View) -> Tensor | None:
        """weight x mean divergence at the worst observations that were found; None while the budget is 0."""
        budget = self.budget(model, view.progress)
        if not bool(budget.any()):
            return None
        box = Box.around(model, model.normaliser(view.inputs.obs), budget)
        worst = self._worst(model, view, box)
        params = model.policy(view.inputs.encode_normalised(model, worst), view.batch.mask)
        distance = divergence(model.law, view.params, params)
        self._measure(model, view, params, box, worst)
        return self.config.weight * distance.mean()

    def _worst(self, model: ActorCritic, view: View, box: Box) -> Tensor:
        inputs, noise = view.inputs, view.inputs.noise
        assert noise is not None, "the search begins at random corners"

        def objective(place: Tensor) -> Tensor:
            params = model.policy(inputs.encode_normalised(model, place), view.batch.mask)
            return divergence(model.law, view.params, params).sum()

        with without_weights(model):
            return search(box, objective, steps=self.config.steps, noise=noise, langevin=self.config.method == "sgld")

    @torch.no_grad()
    def _measure(self, model: ActorCritic, view: View, params: Tensor, box: Box, worst: Tensor) -> None:
        moves = rows_of(view.inputs, (worst - box.centre).abs())
        excess = float((moves - box.budget).amax())
        rounding = EXCESS * max(1.0, float(box.centre.abs().amax()))  # of float32, where observations are large
        assert excess <= rounding, f"an observation was moved by {excess:g} more than its budget"
        view.means["policy/adversary_kl"] = float(law_kl(model.law, view.params, params).mean())
        view.means["adversary/epsilon"] = float(box.budget[box.budget > 0].mean())
        view.maxima["adversary/largest_perturbation"] = float(moves.amax())
        view.maxima["adversary/excess"] = max(excess, 0.0)


def rows_of(inputs: Inputs, tensor: Tensor) -> Tensor:
    """The rows [n, D] of a microbatch in a tensor [T, b, D]."""
    return tensor[0] if inputs.inside is None else tensor.reshape(-1, tensor.shape[-1])[inputs.inside]
