"""Demonstrations: the policy follows them at first, the better ones more (advantage-weighted regression).

A step weighs exp(A/beta), A being the return that followed it minus what the critics expect there, so that of a rule
that is not the best its better part is imitated, and less and less as the critics learn to expect more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tailwise.core.errors import DataError
from tailwise.core.streams import Streams
from tailwise.learner.config import Demonstrations
from tailwise.learner.losses import View, awr_loss_terms
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.distributions import GaussianLaw

NAME = "imitation"  # of the loss term
# With memory: steps of a stretch, and those at its beginning that only fill the memory, unless an episode begins there.
STRETCH, BURN_IN = 64, 16
EDGE = 0.999  # of the range of a squashed action: at the bound itself no action is possible


@dataclass(frozen=True)
class Episode:
    """n steps. obs float32 [n, D]; action [n, A] as policies store it; reward [n]; mask bool [n, K] or None;
    terminated: whether it ended by itself, and was not cut off."""

    obs: npt.NDArray[np.float32]
    action: npt.NDArray[np.generic]
    reward: npt.NDArray[np.float64]
    mask: npt.NDArray[np.bool_] | None
    terminated: bool


@dataclass(frozen=True)
class Demos:
    """N steps of demonstrations, episode after episode.

    following [N]: discounted rewards from a step to the end of its episode; rest [N]: discount of what comes after, 0
    where the episode terminated; start [N]: first steps.
    """

    obs: Tensor
    action: Tensor
    mask: Tensor | None
    following: Tensor
    rest: Tensor
    start: Tensor

    @classmethod
    def of(cls, episodes: Sequence[Episode], *, gamma: float) -> Demos:
        """Join episodes, of which there must be one at least."""
        episodes = [one for one in episodes if len(one.reward)]
        if not episodes:
            raise DataError("learner.imitation: the demonstrations have no steps; give at least one episode")
        if len({one.mask is None for one in episodes}) > 1:
            raise DataError("learner.imitation: some episodes have action masks and others have none; give all or none")
        following, rest = [], []
        for one in episodes:
            discounted, value = np.empty(len(one.reward)), 0.0
            for step in range(len(one.reward) - 1, -1, -1):
                discounted[step] = value = one.reward[step] + gamma * value
            following.append(discounted)
            left = gamma ** np.arange(len(one.reward), 0, -1.0)
            rest.append(np.zeros_like(left) if one.terminated else left)
        starts = np.concatenate([np.arange(len(one.reward)) == 0 for one in episodes])
        masks = None if episodes[0].mask is None else np.concatenate([one.mask for one in episodes])
        dtype = torch.get_default_dtype()
        return cls(
            obs=torch.from_numpy(np.concatenate([one.obs for one in episodes])).to(dtype),
            action=torch.from_numpy(np.concatenate([one.action for one in episodes])),
            mask=None if masks is None else torch.from_numpy(masks),
            following=torch.from_numpy(np.concatenate(following)).to(dtype),
            rest=torch.from_numpy(np.concatenate(rest)).to(dtype),
            start=torch.from_numpy(starts),
        )

    def __len__(self) -> int:
        return len(self.following)

    def digest(self) -> Tensor:
        """sha256 of everything, uint8 [32]."""
        masks = () if self.mask is None else (self.mask,)
        parts = (self.obs, self.action, self.following, self.rest, self.start, *masks)
        sums = hashlib.sha256(b"".join(part.contiguous().numpy().tobytes() for part in parts))
        return torch.from_numpy(np.frombuffer(sums.digest(), dtype=np.uint8).copy())


@dataclass(frozen=True)
class Chosen:
    """Steps [n] of demonstrations with the latent features [n, H] that lead to them."""

    rows: Tensor
    features: Tensor


def choose(model: ActorCritic, demos: Demos, levels: Tensor) -> Chosen:
    """Steps by uniform numbers [n] in (0, 1): single ones, or with memory stretches, n // STRETCH of them or one."""
    count = len(demos)
    if model.core is None:
        rows = (levels * count).long().clamp(max=count - 1)
        blank = torch.zeros(len(rows), 0, 0)
        features = model.latent(demos.obs[rows][None], blank, torch.zeros(1, len(rows), dtype=torch.bool)).features[0]
        return Chosen(rows, features)
    length = min(STRETCH, count)
    begins = (levels[: max(len(levels) // STRETCH, 1)] * (count - length + 1)).long().clamp(max=count - length)
    rows = torch.arange(length)[:, None] + begins  # [L, b]
    start = demos.start[rows].clone()
    known = start.cumsum(0) > 0  # an episode began within the stretch, so the memory is what it should be
    start[0] = True
    features = model.latent(demos.obs[rows], model.initial_state(len(begins)), start).features
    burnt = torch.arange(length)[:, None] >= min(BURN_IN, length - 1)
    inside = known | burnt
    return Chosen(rows[inside], features[inside])


def log_likelihood(model: ActorCritic, params: Tensor, action: Tensor) -> Tensor:
    """ln pi(action) [n] whose gradient leaves the width of Box actions alone.

    A rule has no width: the likelihood of its actions would end exploration before it began.
    """
    law = model.law
    if isinstance(law, GaussianLaw):
        mean, log_std = law.split(params)
        params = torch.cat([mean, log_std.detach()], dim=-1)
    return law.log_prob(params, action)


class ImitationLoss:
    """The loss term, for the seam `auxiliary` of a learner."""

    def __init__(self, config: Demonstrations, demos: Demos) -> None:
        self.config, self.demos = config, demos

    def weight(self, progress: float) -> float:
        """Of the term after a share of the training: linear to 0."""
        return self.config.weight * max(0.0, 1.0 - progress / self.config.until)

    def __call__(self, model: ActorCritic, view: View) -> Tensor | None:
        """weight x mean of -w ln pi(a) over steps of the demonstrations; None once the weight is 0."""
        weight, noise = self.weight(view.progress), view.inputs.noise
        if weight == 0.0:
            return None
        assert noise is not None, "steps are chosen by chance"
        places = view.inputs.obs.shape[0] * view.inputs.obs.shape[1]
        levels = noise(NAME, -(-self.config.rows // places)).reshape(-1)[: self.config.rows]
        chosen = choose(model, self.demos, levels)
        return weight * self._terms(model, chosen, view)

    def _terms(self, model: ActorCritic, chosen: Chosen, view: View) -> Tensor:
        demos, rows = self.demos, chosen.rows
        params = model.policy(chosen.features, None if demos.mask is None else demos.mask[rows])
        likelihood = log_likelihood(model, params, demos.action[rows])
        terms = awr_loss_terms(
            likelihood,
            self.advantage(model, chosen),
            beta=self.config.beta or 1.0,
            max_weight=self.config.max_weight,
        )
        view.means["imitation/weight"] = float(terms.weight.mean())
        view.means["imitation/log_prob"] = float(likelihood.detach().mean())
        return terms.loss.mean()

    @torch.no_grad()
    def advantage(self, model: ActorCritic, chosen: Chosen) -> Tensor:
        """[n], in standard deviations of the return; 0 without beta, and before any return was seen.

        What came after the end of an episode that was cut off is taken to be worth what the critics expect at the step.
        """
        scale, rows = model.return_scale, chosen.rows
        if self.config.beta is None or not scale.initialised:
            return torch.zeros(len(rows))
        value = scale.to_raw(model.values(chosen.features).mean.mean(-1))
        ahead = self.demos.following[rows] + (self.demos.rest[rows] - 1.0) * value
        return ahead / scale.sigma.to(ahead.dtype)


def clone(model: ActorCritic, demos: Demos, config: Demonstrations, streams: Streams, *, learning_rate: float) -> None:
    """Behaviour cloning before the first rollout: `config.clone` steps of Adam on -ln pi(a), all steps alike.

    The normaliser takes in the demonstrations first: the policy would otherwise have learnt from other numbers than it
    is shown.
    """
    model.normaliser.absorb(demos.obs)
    optimiser = torch.optim.Adam(
        [
            *model.encoder.parameters(),
            *([] if model.core is None else model.core.parameters()),
            *model.actor.parameters(),
        ],
        lr=learning_rate,
    )
    for step in range(config.clone):
        levels = streams.uniforms("imitation/clone", update=step, environments=1, steps=config.rows, draws=1)
        chosen = choose(model, demos, torch.from_numpy(levels.reshape(-1)))
        params = model.policy(chosen.features, None if demos.mask is None else demos.mask[chosen.rows])
        loss = -log_likelihood(model, params, demos.action[chosen.rows]).mean()
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimiser.step()
    model.zero_grad(set_to_none=True)
