"""The evaluation that stops a run and chooses its best checkpoint, played by the backend that trains.

A select window is one account over thousands of bars, so a step through Python costs far more than the network and the
market. Where the backend can run ahead in these environments, whole stretches are played in compiled code; everywhere
else it is `episodes_played_by`, which gives the same numbers bit for bit.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from tailwise.core.loops import BROKEN_OBSERVATION, BROKEN_REWARD
from tailwise.core.numerics import surely_finite
from tailwise.learner.backend import Backend
from tailwise.learner.decisions import Ahead
from tailwise.run.collector import RolloutRows
from tailwise.run.config import Config
from tailwise.run.envs import EnvDriver
from tailwise.run.play import EpisodeSet, ModelPlayer, Played, check_length, episodes_played_by
from tailwise.run.worlds import World

STRETCH = 1024  # steps in one call


class Selection:
    """The episodes of "select" and the wall-clock time that playing them took, in seconds."""

    def __init__(self, world: World) -> None:
        self.world, self.seconds = world, 0.0
        self._driver: EnvDriver | None = None

    def play(self, backend: Backend, config: Config) -> Played:
        """Play all of them with the present weights of the backend's model."""
        begun = time.perf_counter()
        try:
            wanted = config.evaluate.episodes
            if self._driver is None:
                self._driver = self.world.eval_env("select", episodes=wanted, seed=config.seed)
            deterministic = config.plays_most_likely(discrete=backend.model.law.discrete)
            player = ModelPlayer(backend.model, deterministic=deterministic, seed=config.seed, decide=backend.play)
            played = play_with(backend, player, self._driver, episodes=self.world.episodes(wanted))
            units = self.world.reward_units()
            return played if units is None else replace(played, returns=played.returns / units)
        finally:
            self.seconds += time.perf_counter() - begun


def play_with(backend: Backend, player: ModelPlayer, driver: EnvDriver, *, episodes: int) -> Played:
    """`episodes_played_by`, in compiled code where the backend can; player: decides by `backend.play`."""
    ahead = backend.ahead(driver.venv)
    played = None if ahead is None else episodes_ahead(ahead, player, driver, episodes=episodes)
    # Step by step also after something was not finite: that names the step, or ends before it.
    return episodes_played_by(player, driver, episodes=episodes) if played is None else played


def episodes_ahead(ahead: Ahead, player: ModelPlayer, driver: EnvDriver, *, episodes: int) -> Played | None:
    """`episodes_played_by` in stretches of STRETCH steps without Python; None where a number was not finite."""
    wanted, envs = EpisodeSet(episodes, driver.num_envs), driver.num_envs
    observed, steps = np.zeros(driver.spaces.observation.size), 0
    driver.reset()
    state = player.model.initial_state(envs)
    while True:
        if not driver.obs_is_finite:
            return None
        noise = player.uniforms(envs, first_step=steps, steps=STRETCH)
        decisions = ahead.begin(np.zeros((STRETCH, 0, 0)) if noise is None else noise, state)
        memory = RolloutRows(driver, STRETCH).shown(*driver.running())
        went = ahead.run(decisions, memory, finite=True)
        if went.broken_action is not None:
            return None
        driver.went_ahead(memory.last_obs, memory.last_start, finite=went.finite, finished=())
        finite = surely_finite(decisions.parameters, decisions.states)
        if went.seen & (BROKEN_OBSERVATION | BROKEN_REWARD) or not finite:
            return None
        taken = STRETCH
        for end in went.ends:
            for row, reward, length in zip(end.rows.tolist(), end.returns.tolist(), end.lengths.tolist(), strict=True):
                wanted.add(row, reward, length)
            if wanted.complete:
                taken = end.step + 1
                break
        shown = np.concatenate([memory.obs[1:], memory.last_obs[None]])[:taken].mean(1)
        # One after the other, as step by step; a sum would add in another order.
        observed = np.cumsum(np.concatenate([observed[None], shown]), axis=0)[-1]
        steps += taken
        if wanted.complete:
            return wanted.played(observed / steps)
        check_length(memory.lengths)
        state = decisions.state
