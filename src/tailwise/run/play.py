"""Playback: a policy over fixed, seeded episodes. Early stopping, evaluation and `predict` share its inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tailwise.bars.bars import Bars
from tailwise.core.errors import CheckpointError, DataError, EnvironmentContractError
from tailwise.core.streams import Streams
from tailwise.market.path import AccountPath
from tailwise.model.actor_critic import ActorCritic, Decided
from tailwise.model.playback import PaddedPolicy
from tailwise.run.envs import EnvDriver, StepResult

LONGEST_EPISODE = 1_000_000  # steps

#: (obs [B, D], state [B, S, H], start [B], mask [B, K] or None, uniform [B, noise] or None) -> decision, as `decide`.
Decide = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None], Decided]


@dataclass(frozen=True)
class Played:
    """Undiscounted return (reward units) and length (steps) per episode, in the order of their seeds."""

    returns: np.ndarray
    lengths: np.ndarray
    observation: np.ndarray | None = None  # [D] mean over all steps that were played

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Standard deviation of returns between episodes."""
        return float(self.returns.std())

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean return; None for a single episode."""
        n = len(self.returns)
        return float(self.returns.std(ddof=1) / np.sqrt(n)) if n > 1 else None


class Player(Protocol):
    """Decides for all environments of a driver, step after step."""

    def begin(self, rows: int) -> None:
        """Episodes start in all `rows` environments."""

    def act(
        self, obs: npt.NDArray[Any], episode_start: npt.NDArray[Any], mask: npt.NDArray[Any] | None, step: int
    ) -> npt.NDArray[Any]:
        """Actions as the environments take them; obs [B, D], episode_start [B], mask [B, K]; step counts from 0."""


class KeepingPlayer(Player, Protocol):
    """A player whose memory can be put aside, so that a live session continues after it was killed."""

    def hidden(self) -> list[Tensor]:
        """Copies of its hidden states, one tensor [B, S, H] for each model."""

    def restore(self, hidden: Sequence[Tensor]) -> None:
        """Continue from `hidden` of a player of the same models."""


class ModelPlayer:
    """One model with its hidden state. stream: name of the random stream of sampled actions; decide: in which no row
    may depend on the rows beside it, by default `PaddedPolicy` of the model; environments: the numbers of the rows in
    that stream, by default 0, 1, ..."""

    def __init__(
        self,
        model: ActorCritic,
        *,
        deterministic: bool,
        seed: int,
        stream: str = "play",
        decide: Decide | None = None,
        environments: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.model, self.deterministic, self.stream = model, deterministic, stream
        self.environments = environments
        self.decide = decide or PaddedPolicy(model)
        self.streams = Streams(seed)
        self.state = model.initial_state(1)

    def begin(self, rows: int) -> None:
        self.state = self.model.initial_state(rows)

    def hidden(self) -> list[Tensor]:
        return [self.state.clone()]

    def restore(self, hidden: Sequence[Tensor]) -> None:
        restored = [one.shape[1:] for one in hidden]
        if restored != [self.model.state_shape]:
            raise CheckpointError(
                f"a stored hidden state has the shapes {[tuple(shape) for shape in restored]}, and this policy has "
                f"{self.model.state_shape}; it belongs to another policy."
            )
        self.state = hidden[0].clone()

    def act(
        self, obs: npt.NDArray[Any], episode_start: npt.NDArray[Any], mask: npt.NDArray[Any] | None, step: int
    ) -> npt.NDArray[Any]:
        draws = self.uniforms(len(obs), first_step=step, steps=1)
        decision = self.decide(
            torch.from_numpy(obs).to(torch.get_default_dtype()),
            self.state,
            torch.from_numpy(episode_start),
            None if mask is None else torch.from_numpy(mask),
            None if draws is None else torch.from_numpy(draws[0]),
        )
        self.state = decision.state
        return self.model.action.to_env(decision.action.numpy(), squashed=self.model.law.squashed)

    def uniforms(self, rows: int, *, first_step: int, steps: int) -> npt.NDArray[np.float64] | None:
        """Numbers in (0, 1) [steps, rows, draws] that decide from `first_step` on; None: the most likely action."""
        if self.deterministic:
            return None
        draws = self.model.law.noise
        numbers = rows if self.environments is None else self.environments
        return self.streams.uniforms(
            self.stream, update=0, environments=numbers, steps=steps, draws=draws, first_step=first_step
        )


def played_by(
    player: Player, driver: EnvDriver, *, before: Callable[[npt.NDArray[Any]], None] | None = None
) -> Iterator[StepResult]:
    """Act from the reset on, without end: what came of every step; `before` is shown the actions before they are taken.

    All playback goes through here: one inference function with a fixed number of rows, so that a decision does not
    depend on how many others are made beside it.
    """
    obs, mask = driver.reset()
    player.begin(driver.num_envs)
    step = 0
    while True:
        if not np.isfinite(obs).all():
            row = int(np.argmax(~np.isfinite(obs).all(axis=1)))
            raise DataError(
                f"evaluation environment {row} shows NaN or infinite numbers before step {step + 1}; a policy cannot "
                "act on them, fix the environment's observation"
            )
        action = player.act(obs, driver.episode_start, mask, step)
        if before is not None:
            before(action)
        result = driver.step(action)
        if not np.isfinite(result.reward).all():
            row = int(np.argmax(~np.isfinite(result.reward)))
            raise DataError(
                f"evaluation environment {row} paid the reward {result.reward[row]} in step {step + 1}; a return "
                "cannot be computed from it, fix the environment's reward"
            )
        yield result
        obs, mask = result.obs, result.mask
        step += 1


class EpisodeSet:
    """Episodes that are fixed before the first step: environment i of B plays i, i + B, i + 2B, ..."""

    def __init__(self, episodes: int, envs: int) -> None:
        self._episodes, self._envs = episodes, envs
        self._ended = [0] * envs
        self._finished: dict[int, tuple[float, int]] = {}

    def add(self, env: int, episode_return: float, length: int) -> None:
        """Count the next episode of an environment, unless all of its own are there."""
        episode = env + self._ended[env] * self._envs
        self._ended[env] += 1
        if episode < self._episodes:
            self._finished[episode] = (episode_return, length)

    @property
    def complete(self) -> bool:
        """Whether all episodes have ended."""
        return len(self._finished) == self._episodes

    def played(self, observation: np.ndarray) -> Played:
        """All of them; observation [D]: mean over all steps."""
        ordered = [self._finished[i] for i in range(self._episodes)]
        return Played(np.array([r for r, _ in ordered]), np.array([n for _, n in ordered]), observation)


def check_length(lengths: npt.NDArray[np.int64]) -> None:
    """Raise when a running episode does not seem to end; lengths [B], steps."""
    if int(lengths.max()) >= LONGEST_EPISODE:
        raise EnvironmentContractError(
            f"an evaluation episode has not ended after {LONGEST_EPISODE:,} steps; set env.time_limit, so that the "
            "set of episodes to evaluate is finite"
        )


def play_episodes(model: ActorCritic, driver: EnvDriver, *, episodes: int, deterministic: bool, seed: int) -> Played:
    """`episodes_played_by` of one model."""
    return episodes_played_by(ModelPlayer(model, deterministic=deterministic, seed=seed), driver, episodes=episodes)


def episodes_played_by(player: Player, driver: EnvDriver, *, episodes: int) -> Played:
    """Play exactly `episodes` episodes: environment i plays episodes i, i + B, i + 2B, ... and then stops counting.

    The set of episodes is fixed before the first step, so short episodes are not over-represented.
    """
    envs, wanted = driver.num_envs, EpisodeSet(episodes, driver.num_envs)
    returns, lengths = np.zeros(envs), np.zeros(envs, dtype=np.int64)
    observed, steps = np.zeros(driver.spaces.observation.size), 0
    for result in played_by(player, driver):
        returns += result.reward
        lengths += result.valid
        observed += result.obs.mean(0)
        steps += 1
        for i in np.flatnonzero(result.terminated | result.truncated).tolist():
            wanted.add(i, float(returns[i]), int(lengths[i]))
            returns[i], lengths[i] = 0.0, 0
        if wanted.complete:
            break
        check_length(lengths)
    return wanted.played(observed / steps)


def windows_played_by(player: Player, driver: EnvDriver, bars: Sequence[Bars]) -> list[AccountPath]:
    """Play the first episode of every environment of a market driver, whole: one path per account.

    driver: of `MarketWorld.eval_env`, with `report` on; bars: of the symbols, in the order of its tables.
    """
    simulator = driver.venv.simulator  # type: ignore[attr-defined]
    parts: list[dict[str, list[Any]]] = [{} for _ in range(driver.num_envs)]
    targets: list[list[Any]] = [[] for _ in range(driver.num_envs)]
    running = np.ones(driver.num_envs, dtype=np.bool_)

    def note_targets(action: npt.NDArray[Any]) -> None:
        for i, target in enumerate(simulator.targets(action)):  # by the bounds of this decision, not of the next one
            if running[i]:
                targets[i].append(target)

    planned: list[int] = []
    for result in played_by(player, driver, before=note_targets):
        rows = result.infos["parts"]["row"]
        if not planned:
            last_rows = np.resize(simulator.table.last_rows, len(rows))  # account i holds symbol i, modulo their number
            planned = [int(last - row + 1) for row, last in zip(rows, last_rows, strict=True)]
        for i in np.flatnonzero(running).tolist():
            for name, values in result.infos["parts"].items():
                parts[i].setdefault(name, []).append(values[i])
        running &= ~(result.terminated | result.truncated)
        if not running.any():
            break
    ledgers = [{name: np.array(values) for name, values in part.items()} for part in parts]
    paths: list[AccountPath] = simulator.paths(bars, ledgers, [np.array(one) for one in targets], planned)
    return paths
