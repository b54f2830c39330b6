"""Playback: a policy over fixed, seeded episodes. Early stopping, evaluation and `predict` share its inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from tailwise.core.errors import DataError, EnvironmentContractError
from tailwise.core.streams import Streams
from tailwise.model.actor_critic import ActorCritic
from tailwise.model.inference import ROWS, decide_padded
from tailwise.run.config import EnvConfig
from tailwise.run.envs import EnvDriver
from tailwise.run.make_env import make_driver

LONGEST_EPISODE = 1_000_000  # steps


@dataclass(frozen=True)
class Played:
    """Undiscounted return (reward units) and length (steps) per episode, in the order of their seeds."""

    returns: np.ndarray
    lengths: np.ndarray

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


def evaluation_driver(env: EnvConfig, seed: int, episodes: int, *, purpose: Literal["select", "test"]) -> EnvDriver:
    """Environments for `play_episodes`, seeded by the run's seed and the purpose.

    "select" serves early stopping and the best checkpoint, "test" the evaluation afterwards: no policy is judged on
    the episodes that it was selected by.
    """
    assert env.id is not None
    return make_driver(
        env.id,
        num_envs=min(episodes, ROWS),
        streams=Streams(seed),
        env_kwargs=env.kwargs,
        purpose=purpose,
        hide=env.hide,
        time_limit=env.time_limit,
    )


def play_episodes(model: ActorCritic, driver: EnvDriver, *, episodes: int, deterministic: bool, seed: int) -> Played:
    """Play exactly `episodes` episodes: environment i plays episodes i, i + B, i + 2B, ... and then stops counting.

    The set of episodes is fixed before the first step, so short episodes are not over-represented.
    """
    envs = driver.num_envs
    quota = np.array([len(range(i, episodes, envs)) for i in range(envs)])
    obs, mask = driver.reset()
    state = model.initial_state(envs)
    streams = Streams(seed)
    returns, lengths = np.zeros(envs), np.zeros(envs, dtype=np.int64)
    found: dict[int, tuple[float, int]] = {}
    count = np.zeros(envs, dtype=np.int64)
    step = 0
    dtype = torch.get_default_dtype()
    while len(found) < episodes:
        if int(lengths.max()) >= LONGEST_EPISODE:
            raise EnvironmentContractError(
                f"an evaluation episode has not ended after {LONGEST_EPISODE:,} steps; set env.time_limit, so that the "
                "set of episodes to evaluate is finite"
            )
        if not np.isfinite(obs).all():
            row = int(np.argmax(~np.isfinite(obs).all(axis=1)))
            raise DataError(
                f"evaluation environment {row} shows NaN or infinite numbers after {int(lengths[row])} steps of its "
                "episode; a policy cannot act on them, fix the environment's observation"
            )
        uniform = None
        if not deterministic:
            draws = streams.uniforms(
                "play", update=0, environments=envs, steps=1, draws=model.law.noise, first_step=step
            )
            uniform = torch.from_numpy(draws[0])
        decision = decide_padded(
            model,
            torch.from_numpy(obs).to(dtype),
            state,
            torch.from_numpy(driver.episode_start),
            None if mask is None else torch.from_numpy(mask),
            uniform,
        )
        result = driver.step(model.action.to_env(decision.action.numpy(), squashed=model.law.squashed))
        obs, mask, state = result.obs, result.mask, decision.state
        if not np.isfinite(result.reward).all():
            row = int(np.argmax(~np.isfinite(result.reward)))
            raise DataError(
                f"evaluation environment {row} paid the reward {result.reward[row]} in step {int(lengths[row]) + 1} of "
                "its episode; a return cannot be computed from it, fix the environment's reward"
            )
        returns += result.reward
        lengths += result.valid
        for i in np.flatnonzero(result.terminated | result.truncated).tolist():
            if count[i] < quota[i]:
                found[i + int(count[i]) * envs] = (float(returns[i]), int(lengths[i]))
            count[i] += 1
            returns[i], lengths[i] = 0.0, 0
        step += 1
    ordered = [found[i] for i in range(episodes)]
    return Played(np.array([r for r, _ in ordered]), np.array([n for _, n in ordered]))
