"""Several policies that decide together and are judged like one: seeds of one configuration, as a rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tailwise.core.errors import CheckpointError, ConfigError
from tailwise.features.spec import FeatureSpec
from tailwise.market.action_kinds import action_kind
from tailwise.market.path import AccountPath
from tailwise.model.actor_critic import ActorCritic
from tailwise.run.agent import Policy
from tailwise.run.config import Config
from tailwise.run.decide import Decider
from tailwise.run.play import ModelPlayer, Played
from tailwise.run.worlds import MarketWorld, World, play_world, trade_window

EnsembleMethod = Literal["vote", "average"]


class Ensemble(Decider):
    """Policies that trade one account. Every member observes that account and keeps its own hidden state.

    vote      discrete actions: the one that most members chose. Of several with as many votes, the one whose position
              is nearest to the mean of all votes; where actions have no position, that of the earliest member
    average   the mean of the members' actions; of `positions`, the allowed one nearest to the mean (of two as near,
              the first of the list)
    """

    def __init__(self, members: Sequence[Policy], how: EnsembleMethod) -> None:
        if not members:
            raise ConfigError("an ensemble of no policies cannot decide; give at least one.")
        _check_alike(members)
        self.members, self.how = list(members), how
        # The members differ in their seeds at most, or in what does not touch playing.
        self.config = members[0].config
        self.scale = _positions(members[0].config)
        kind = members[0].model.action.kind
        if how == "vote" and kind == "box":
            raise ConfigError("policies with continuous actions cannot vote: hardly two ever agree; use average.")
        if how == "average" and kind != "box" and self.scale is None:
            raise ConfigError("actions that are choices without an order have no mean; use vote.")

    @property
    def deterministic(self) -> bool:
        """Whether its members are meant to be played by their most likely actions."""
        return self.members[0].deterministic

    @property
    def models(self) -> list[ActorCritic]:
        return [one.model for one in self.members]

    def feature_spec(self) -> FeatureSpec | None:
        return self.members[0].features

    def world(self) -> World:
        return self.members[0].world()

    def market(self) -> MarketWorld:
        """The market that the policies were trained for."""
        return self.members[0].market()

    def trade(
        self,
        purpose: Literal["train", "select", "test"] = "test",
        *,
        deterministic: bool | None = None,
        seed: int | None = None,
        market: MarketWorld | None = None,
    ) -> list[AccountPath]:
        """As `Policy.trade`."""
        world = self.market() if market is None else market
        seed = self.config.seed if seed is None else seed
        deterministic = self.deterministic if deterministic is None else deterministic
        return trade_window(self.player(deterministic=deterministic, seed=seed), world, purpose, seed=seed)

    def evaluate(self, *, episodes: int, deterministic: bool | None = None, seed: int | None = None) -> Played:
        """As `Policy.evaluate`."""
        seed = self.config.seed if seed is None else seed
        deterministic = self.deterministic if deterministic is None else deterministic
        player = self.player(deterministic=deterministic, seed=seed)
        return play_world(player, self.world(), episodes=episodes, seed=seed)

    def player(
        self, *, deterministic: bool, seed: int, environments: npt.NDArray[np.int64] | None = None
    ) -> EnsemblePlayer:
        """Start with new hidden states. Members sample from streams of their own; the first as if it were alone.
        environments: as in `ModelPlayer`."""
        players = [
            ModelPlayer(
                one.model,
                deterministic=deterministic,
                seed=seed,
                stream="play" if place == 0 else f"play/{place}",
                environments=environments,
            )
            for place, one in enumerate(self.members)
        ]
        return EnsemblePlayer(players, self.how, self.scale)


class EnsemblePlayer:
    """Ask every member for its action and combine them."""

    def __init__(
        self, players: Sequence[ModelPlayer], how: EnsembleMethod, scale: npt.NDArray[np.float64] | None
    ) -> None:
        self.players, self.how, self.scale = players, how, scale

    def begin(self, rows: int) -> None:
        for player in self.players:
            player.begin(rows)

    def hidden(self) -> list[Tensor]:
        return [one for player in self.players for one in player.hidden()]

    def restore(self, hidden: Sequence[Tensor]) -> None:
        if len(hidden) != len(self.players):
            raise CheckpointError(
                f"{len(hidden)} hidden states are stored, and {len(self.players)} policies decide here; they belong to "
                "other policies."
            )
        for player, one in zip(self.players, hidden, strict=True):
            player.restore([one])

    def act(
        self, obs: npt.NDArray[Any], episode_start: npt.NDArray[Any], mask: npt.NDArray[Any] | None, step: int
    ) -> npt.NDArray[Any]:
        answers = np.stack([player.act(obs, episode_start, mask, step) for player in self.players])
        if self.how == "vote":
            return vote(answers, self.scale)
        if self.scale is None:
            return answers.mean(axis=0, dtype=np.float64).astype(answers.dtype)
        return nearest_position(self.scale[answers].mean(axis=0), self.scale)


def vote(answers: npt.NDArray[Any], scale: npt.NDArray[np.float64] | None = None) -> npt.NDArray[Any]:
    """The winners [B, ...] of answers [members, B, ...], entry by entry; scale: position of each answer, if it has one.

    Whole numbers only. Ties: see `Ensemble`.
    """
    flat = answers.reshape(len(answers), -1)
    winners = np.empty(flat.shape[1], dtype=answers.dtype)
    for at, votes in enumerate(flat.T):
        choices, counts = np.unique(votes, return_counts=True)
        tied = choices[counts == counts.max()]
        if len(tied) == 1:
            winners[at] = tied[0]
        elif scale is None:
            winners[at] = next(one for one in votes if one in tied)
        else:
            winners[at] = tied[np.argmin(np.abs(scale[tied] - scale[votes].mean()))]
    return winners.reshape(answers.shape[1:])


def nearest_position(wanted: npt.NDArray[np.float64], scale: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Index [B] of the position nearest to wanted [B]; the first of two that are as near."""
    # Rounded: the mean of 0 and 1 is as far from both, and the last bit of a mean must not decide.
    distance = np.round(np.abs(scale[None] - wanted[:, None]), 12)
    return np.asarray(distance.argmin(axis=1), dtype=np.int64)


def ensemble_method(text: str) -> EnsembleMethod:
    """Return the method of that name."""
    if text == "vote":
        return "vote"
    if text == "average":
        return "average"
    raise ConfigError(f"--ensemble is '{text}'; choose vote or average.")


def _positions(config: Config) -> npt.NDArray[np.float64] | None:
    """Target exposures by action of a market with a list of positions; None elsewhere."""
    market = config.env.market
    if market is None:
        return None
    choices = action_kind(market.action).choices
    return choices if choices.size else None


def _check_alike(members: Sequence[Policy]) -> None:
    """Raise unless all members see and do the same things, by features fitted on the same bars."""
    first = members[0]
    for number, other in enumerate(members[1:], start=2):
        for what in ("observation", "action"):
            if getattr(first.model, what).to_json() != getattr(other.model, what).to_json():
                raise ConfigError(
                    f"policy {number} has another {what} space than the first one; policies that decide together must "
                    "be of one environment."
                )
        mine, theirs = (one.config.model_dump(mode="json") for one in (first, other))
        if any(mine[key] != theirs[key] for key in ("data", "env", "costs")):
            raise ConfigError(
                f"policy {number} was trained on other bars, another environment or other costs than the first one; "
                "policies that decide together must be of one market."
            )
        if (first.features is None) != (other.features is None):
            raise ConfigError(f"policy {number} and the first one do not both have features; train them alike.")
        if first.features is not None and other.features is not None:
            first.features.check_same(other.features)


Trader = Policy | Ensemble  # whatever can be judged
