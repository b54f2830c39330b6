"""Playback: a policy over fixed, seeded episodes. Early stopping, evaluation and `predict` share its inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from tailwise.bars.bars import Bars
from tailwise.core.errors import DataError, EnvironmentContractError
from tailwise.core.streams import Streams
from tailwise.market.path import AccountPath
from tailwise.model.actor_critic import ActorCritic, decide_padded
from tailwise.run.envs import EnvDriver, StepResult

LONGEST_EPISODE = 1_000_000  # steps


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


class ModelPlayer:
    """One model with its hidden state. stream: name of the random stream of sampled actions."""

    def __init__(self, model: ActorCritic, *, deterministic: bool, seed: int, stream: str = "play") -> None:
        self.model, self.deterministic, self.stream = model, deterministic, stream
        self.streams = Streams(seed)
        self.state = model.initial_state(1)

    def begin(self, rows: int) -> None:
        self.state = self.model.initial_state(rows)

    def act(
        self, obs: npt.NDArray[Any], episode_start: npt.NDArray[Any], mask: npt.NDArray[Any] | None, step: int
    ) -> npt.NDArray[Any]:
        model, uniform = self.model, None
        if not self.deterministic:
            draws = self.streams.uniforms(
                self.stream, update=0, environments=len(obs), steps=1, draws=model.law.noise, first_step=step
            )
            uniform = torch.from_numpy(draws[0])
        decision = decide_padded(
            model,
            torch.from_numpy(obs).to(torch.get_default_dtype()),
            self.state,
            torch.from_numpy(episode_start),
            None if mask is None else torch.from_numpy(mask),
            uniform,
        )
        self.state = decision.state
        return model.action.to_env(decision.action.numpy(), squashed=model.law.squashed)


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


def play_episodes(model: ActorCritic, driver: EnvDriver, *, episodes: int, deterministic: bool, seed: int) -> Played:
    """`episodes_played_by` of one model."""
    return episodes_played_by(ModelPlayer(model, deterministic=deterministic, seed=seed), driver, episodes=episodes)


def episodes_played_by(player: Player, driver: EnvDriver, *, episodes: int) -> Played:
    """Play exactly `episodes` episodes: environment i plays episodes i, i + B, i + 2B, ... and then stops counting.

    The set of episodes is fixed before the first step, so short episodes are not over-represented.
    """
    envs = driver.num_envs
    quota = np.array([len(range(i, episodes, envs)) for i in range(envs)])
    returns, lengths = np.zeros(envs), np.zeros(envs, dtype=np.int64)
    finished: dict[int, tuple[float, int]] = {}
    count = np.zeros(envs, dtype=np.int64)
    observed, steps = np.zeros(driver.spaces.observation.size), 0
    for result in played_by(player, driver):
        returns += result.reward
        lengths += result.valid
        observed += result.obs.mean(0)
        steps += 1
        for i in np.flatnonzero(result.terminated | result.truncated).tolist():
            if count[i] < quota[i]:
                finished[i + int(count[i]) * envs] = (float(returns[i]), int(lengths[i]))
            count[i] += 1
            returns[i], lengths[i] = 0.0, 0
        if len(finished) == episodes:
            break
        if int(lengths.max()) >= LONGEST_EPISODE:
            raise EnvironmentContractError(
                f"an evaluation episode has not ended after {LONGEST_EPISODE:,} steps; set env.time_limit, so that the "
                "set of episodes to evaluate is finite"
            )
    ordered = [finished[i] for i in range(episodes)]
    return Played(np.array([r for r, _ in ordered]), np.array([n for _, n in ordered]), observed / steps)


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
        planned = planned or [int(last - row + 1) for row, last in zip(rows, simulator.table.last_rows, strict=True)]
        for i in np.flatnonzero(running).tolist():
            for name, values in result.infos["parts"].items():
                parts[i].setdefault(name, []).append(values[i])
        running &= ~(result.terminated | result.truncated)
        if not running.any():
            break
    ledgers = [{name: np.array(values) for name, values in part.items()} for part in parts]
    paths: list[AccountPath] = simulator.paths(bars, ledgers, [np.array(one) for one in targets], planned)
    return paths
