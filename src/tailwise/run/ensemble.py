"""Several policies that decide together and are one policy to everybody else: the seeds of a run, as a rule."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from tailwise.core.atomic import atomic_folder, write_json
from tailwise.core.errors import CheckpointError, ConfigError, ShapeError
from tailwise.core.parsing import Stored
from tailwise.market.action_kinds import action_kind
from tailwise.model.actor_critic import ActorCritic
from tailwise.run import checkpoint as ckpt
from tailwise.run.config import Config
from tailwise.run.play import ModelPlayer
from tailwise.run.policy import Policy, Trader, allowed_actions, batch_size, policy_of
from tailwise.run.policy_files import load_policy
from tailwise.run.run_files import SMALL, read_file, read_stored
from tailwise.run.trust import Trust
from tailwise.run.worlds import World

EnsembleMethod = Literal["vote", "average"]
SAVED = "ensemble.json"  # makes a folder that of a saved ensemble
MOST_MEMBERS = 100
Combine = Callable[[npt.NDArray[Any], npt.NDArray[Any] | None], npt.NDArray[Any]]


class Ensemble(Trader):
    """Policies that trade one account. Every member observes that account and keeps its own hidden state.

    average   the mean of the members' actions; of `positions`, the allowed one nearest to the mean (of two as near,
              the first of the list)
    vote      discrete actions: the one that most members chose. Of several with as many votes, the one whose position
              is nearest to the mean of all votes; where actions have no position, that of the earliest member

    members  in the order of their seeds
    how      None: average where actions have an order, vote elsewhere
    config   of the run that trained them; None: that of the first member
    """

    def __init__(
        self, members: Sequence[Policy], how: EnsembleMethod | None = None, *, config: Config | None = None
    ) -> None:
        if not members:
            raise ConfigError("an ensemble of no policies cannot decide; give at least one.")
        _check_alike(members)
        first = members[0]
        self.members, self.config, self.features = list(members), config or first.config, first.features
        self.scale = _positions(first.config)
        ordered = first.model.action.kind == "box" or self.scale is not None
        self.how: EnsembleMethod = how or ("average" if ordered else "vote")
        if self.how == "vote" and first.model.action.kind == "box":
            raise ConfigError("policies with continuous actions cannot vote: hardly two ever agree; use average.")
        if self.how == "average" and not ordered:
            raise ConfigError("actions that are choices without an order have no mean; use vote.")

    @property
    def deterministic(self) -> bool:
        """Whether its members are meant to be played by their most likely actions."""
        return self.members[0].deterministic

    @property
    def models(self) -> list[ActorCritic]:
        return [one.model for one in self.members]

    def needs_mask(self) -> bool:
        return self.members[0].needs_mask()

    def world(self) -> World:
        return self.members[0].world()

    def predict(
        self,
        obs: Any,
        *,
        state: torch.Tensor | None = None,
        episode_start: Any = None,
        mask: Any = None,
        deterministic: bool = False,
    ) -> tuple[Any, torch.Tensor]:
        """As `Policy.predict`; the state [n, M, S, H] holds that of each of the M members."""
        first = self.members[0]
        spec = first.model.observation
        single, rows = batch_size(spec, obs)
        batch = spec.with_batch_axis(obs) if single else obs
        expected = (rows, len(self.members), *first.model.state_shape)
        if state is not None and state.shape != expected:
            raise ShapeError(
                f"state has shape {tuple(state.shape)}; expected {expected}: pass what the previous predict returned"
            )
        answers, states = [], []
        for place, one in enumerate(self.members):
            own = None if state is None else state[:, place]
            action, after = one.predict(
                batch, state=own, episode_start=episode_start, mask=mask, deterministic=deterministic
            )
            answers.append(action)
            states.append(after)
        together = self._combine(np.stack(answers), allowed_actions(first, batch, mask, rows))
        return (together[0] if single else together), torch.stack(states, dim=1)

    def player(
        self, *, deterministic: bool, seed: int, environments: npt.NDArray[np.int64] | None = None
    ) -> EnsemblePlayer:
        """Start with new hidden states. Members sample from streams of their own; the first as if it were alone.
        environments: as in `ModelPlayer`."""
        players = [
            one.player(
                deterministic=deterministic,
                seed=seed,
                environments=environments,
                stream="play" if place == 0 else f"play/{place}",
            )
            for place, one in enumerate(self.members)
        ]
        return EnsemblePlayer(players, self._combine)

    def _combine(self, answers: npt.NDArray[Any], mask: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        """One action [B, ...] for each row of answers [M, B, ...]; mask [B, K]: allowed choices."""
        if self.how == "vote":
            return vote(answers, self.scale)
        if self.scale is None:
            return np.asarray(answers.mean(axis=0, dtype=np.float64).astype(answers.dtype))
        return nearest_position(self.scale[answers].mean(axis=0), self.scale, mask)

    def save(self, path: str | Path) -> None:
        """Write all members and how they decide into a folder that `tailwise.load` reads, whole or not at all."""
        with atomic_folder(path) as draft:
            stored = []
            for place, one in enumerate(self.members):
                name = f"member_{place}"
                Policy.save(one, draft / name)
                stored.append({"folder": name, "sha256": _digest(draft, name)})
            write_json(draft / SAVED, {"format": 1, "how": self.how, "members": stored})


class EnsemblePlayer:
    """Ask every member for its action and combine them."""

    def __init__(self, players: Sequence[ModelPlayer], combine: Combine) -> None:
        self.players, self.combine = players, combine

    def begin(self, rows: int) -> None:
        for player in self.players:
            player.begin(rows)

    def hidden(self) -> list[torch.Tensor]:
        return [one for player in self.players for one in player.hidden()]

    def restore(self, hidden: Sequence[torch.Tensor]) -> None:
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
        return self.combine(answers, mask)


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


def nearest_position(
    wanted: npt.NDArray[np.float64], scale: npt.NDArray[np.float64], mask: npt.NDArray[Any] | None = None
) -> npt.NDArray[np.int64]:
    """Index [B] of the allowed position nearest to wanted [B]; the first of two that are as near. mask [B, K]."""
    # Rounded: the mean of 0 and 1 is as far from both, and the last bit of a mean must not decide.
    distance = np.round(np.abs(scale[None] - wanted[:, None]), 12)
    if mask is not None:
        distance = np.where(np.asarray(mask, dtype=bool), distance, np.inf)
    return np.asarray(distance.argmin(axis=1), dtype=np.int64)


def ensemble_method(text: str) -> EnsembleMethod:
    """Return the method of that name."""
    if text == "vote":
        return "vote"
    if text == "average":
        return "average"
    raise ConfigError(f"--ensemble is '{text}'; choose vote or average.")


class StoredMember(Stored):
    """A member of a saved ensemble. sha256: of its checkpoint.json, so that no member is exchanged unseen."""

    folder: Annotated[str, Field(pattern=r"^member_\d{1,3}$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class StoredEnsemble(Stored):
    """ensemble.json."""

    format: Literal[1]
    how: EnsembleMethod
    members: Annotated[list[StoredMember], Field(min_length=1, max_length=MOST_MEMBERS)]


def load_ensemble(folder: Path, *, trust: Trust = False) -> Ensemble:
    """Read what `Ensemble.save` wrote; every member is verified as a policy of its own."""
    stored = read_stored(folder / SAVED, StoredEnsemble, root=folder)
    for one in stored.members:
        if _digest(folder, one.folder) != one.sha256:
            raise CheckpointError(
                f"{folder / one.folder}: it is not the member that was saved with this ensemble; restore the folder."
            )
    members = [policy_of(load_policy(folder / one.folder, trust=trust)) for one in stored.members]
    return Ensemble(members, stored.how)


def _digest(folder: Path, member: str) -> str:
    return hashlib.sha256(read_file(folder / member / ckpt.MANIFEST, root=folder, limit=SMALL)).hexdigest()


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
