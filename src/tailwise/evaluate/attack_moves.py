"""Attacks on a frozen policy: what it is shown instead of its observation, within a budget per entry.

The truth about the environment is never touched. A policy with memory remembers what it was shown, not what was there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tailwise.core.streams import Streams
from tailwise.learner.adversary import Box, divergence, search, without_weights
from tailwise.model.actor_critic import ActorCritic, Decision, check_finite, decide_padded

Arrays = npt.NDArray[Any]


@dataclass(frozen=True)
class Moment:
    """What stands before a policy, B environments at once.

    box      normalised observations [B, D] and how far they may be moved
    state, start, mask   hidden state [B, S, H] before them, episode starts [B], action masks [B, K] or None
    clean    what the policy would do if nothing was moved
    draw     (name, k) -> uniform numbers in (0, 1) [1, B, k] of this step
    """

    box: Box
    state: Tensor
    start: Tensor
    mask: Tensor | None
    clean: Decision
    draw: Callable[[str, int], Tensor]


class Attack(Protocol):
    """Chooses what the policy is shown."""

    name: str

    def shown(self, model: ActorCritic, moment: Moment) -> Tensor:
        """Normalised observations [B, D] within the box of a moment."""


def decide_at(
    model: ActorCritic, normalised: Tensor, state: Tensor, start: Tensor, mask: Tensor | None, uniform: Tensor | None
) -> Decision:
    """`decide` on observations [B, D] that are normalised already."""
    with torch.no_grad():
        latent = model.latent_of(normalised[None], state, start[None])
        features = latent.features[0]
        params = model.policy(features, mask)
        action = model.law.mode(params) if uniform is None else model.law.sample(params, uniform)
        return Decision(action, model.law.log_prob(params, action), params, features, latent.state)


class RandomAttack:
    """Any place in the box, each as likely."""

    name = "random"

    def shown(self, model: ActorCritic, moment: Moment) -> Tensor:
        box = moment.box
        uniform = moment.draw("random", box.budget.shape[-1])[0].to(box.budget.dtype)
        return box.moved((2.0 * uniform - 1.0) * box.budget)[0]


class SearchAttack:
    """The place in the box at which an objective is largest, as far as gradients find it."""

    def __init__(
        self, name: str, objective: Callable[[ActorCritic, Moment, Tensor], Tensor], *, steps: int = 10
    ) -> None:
        self.name, self.objective, self.steps = name, objective, steps

    def shown(self, model: ActorCritic, moment: Moment) -> Tensor:
        def objective(place: Tensor) -> Tensor:
            features = model.latent_of(place, moment.state, moment.start[None]).features[0]
            return self.objective(model, moment, features).sum()

        box = moment.box
        whole = Box(box.centre[None], box.budget, box.scaled, box.limit)
        with without_weights(model):
            return search(whole, objective, steps=self.steps, noise=moment.draw)[0]


def _low_value(model: ActorCritic, moment: Moment, features: Tensor) -> Tensor:
    return -model.values(features).mean.mean(-1)


def _other_law(model: ActorCritic, moment: Moment, features: Tensor) -> Tensor:
    return divergence(model.law, moment.clean.params, model.policy(features, moment.mask))


def _other_action(model: ActorCritic, moment: Moment, features: Tensor) -> Tensor:
    action = model.law.mode(moment.clean.params)
    return -model.law.log_prob(model.policy(features, moment.mask), action)


def searches(steps: int) -> list[SearchAttack]:
    """The attacks by gradients.

    critic   the critics expect the least, so that a policy acts as in a bad state
    mad      the law of the action is as far as possible from what it was (maximal action difference)
    pgd      the most likely action becomes unlikely; of Gaussian actions it looks for the same moves as mad
    """
    objectives = {"critic": _low_value, "mad": _other_law, "pgd": _other_action}
    return [SearchAttack(name, objective, steps=steps) for name, objective in objectives.items()]


@dataclass
class Moved:
    """How far an attack came, over all decisions of a playback. changed: sums of `change` over rows."""

    decisions: int = 0
    changed: float = 0.0
    largest: float = 0.0
    excess: float = 0.0

    @property
    def mean_change(self) -> float:
        """Mean over decisions of `change_of_action`."""
        return self.changed / self.decisions if self.decisions else 0.0


def change_of_action(model: ActorCritic, clean: Tensor, moved: Tensor) -> npt.NDArray[np.float64]:
    """By how much the most likely action differs [B]; parameters of the law [B, P].

    Box: mean |difference| of the components, in units of the environment and within its bounds; otherwise 1 where any
    component is another choice.
    """
    actions = [
        model.action.to_env(model.law.mode(params).numpy(), squashed=model.law.squashed) for params in (clean, moved)
    ]
    before, after = (action.reshape(len(clean), -1) for action in actions)
    if model.law.discrete:
        return np.asarray((before != after).any(axis=1), dtype=np.float64)
    return np.asarray(np.abs(before.astype(np.float64) - after).mean(axis=1))


class AttackedPlayer:
    """Plays a policy that is shown what an attack chooses; with `attack` None what is there, written down in `seen`.

    budget: [D] in standard deviations of the normaliser.
    """

    def __init__(
        self, model: ActorCritic, attack: Attack | None, budget: Tensor, *, deterministic: bool, seed: int
    ) -> None:
        self.model, self.attack, self.budget, self.deterministic = model, attack, budget, deterministic
        self.streams, self.moved = Streams(seed), Moved()
        self.state = model.initial_state(1)
        self.seen: list[Moment] = []

    def begin(self, rows: int) -> None:
        self.state = self.model.initial_state(rows)

    def act(self, obs: Arrays, episode_start: Arrays, mask: Arrays | None, step: int) -> Arrays:
        model, rows = self.model, len(obs)
        raw = torch.from_numpy(obs).to(torch.get_default_dtype())
        start, allowed = torch.from_numpy(episode_start), None if mask is None else torch.from_numpy(mask)

        def draw(name: str, draws: int, stream: str = "attack") -> Tensor:
            return torch.from_numpy(
                self.streams.uniforms(
                    f"{stream}/{name}", update=0, environments=rows, steps=1, draws=draws, first_step=step
                )
            )

        uniform = None if self.deterministic else draw("action", model.law.noise, "play")[0]
        box = Box.around(model, model.normaliser(raw), self.budget)
        if self.attack is None:
            # The inference of all evaluations, so that this is what they say, to the last bit.
            decision = decide_padded(model, raw, self.state, start, allowed, uniform)
            self.seen.append(Moment(box, self.state, start, allowed, decision, draw))
        else:
            clean = decide_at(model, box.centre, self.state, start, allowed, uniform)
            moment = Moment(box, self.state, start, allowed, clean, draw)
            shown = self.attack.shown(model, moment)
            decision = decide_at(model, shown, self.state, start, allowed, uniform)
            self._note(moment, shown, decision)
            check_finite(decision, raw)
        self.state = decision.state
        return model.action.to_env(decision.action.numpy(), squashed=model.law.squashed)

    def _note(self, moment: Moment, shown: Tensor, decision: Decision) -> None:
        moves, moved = (shown - moment.box.centre).abs(), self.moved
        moved.decisions += len(moves)
        moved.changed += float(change_of_action(self.model, moment.clean.params, decision.params).sum())
        moved.largest = max(moved.largest, float(moves.max()))
        moved.excess = max(moved.excess, float((moves - moment.box.budget).max()))
