"""A Markov reward process as a vector environment in numpy: hundreds of thousands of steps a second for proofs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from benchmarks.toy_envs import RewardProcessParams
from tailwise.core.errors import ConfigError


class RewardProcessVector(VectorEnv):  # type: ignore[type-arg]
    """N copies of `RewardProcess` stepped at once, SAME_STEP autoreset, truncated after `time_limit` steps."""

    def __init__(self, params: RewardProcessParams, num_envs: int, *, time_limit: int = 200) -> None:
        self.params = params
        self.num_envs = num_envs
        self.time_limit = time_limit
        self.single_observation_space = spaces.Discrete(params.states + 1)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._means, self._sds, self._ends = (np.asarray(v) for v in (params.means, params.sds, params.terminal))
        self._cumulative = np.cumsum(np.asarray(params.transition), axis=1)
        self._state: npt.NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)
        self._age: npt.NDArray[np.int64] = np.zeros(num_envs, dtype=np.int64)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
        """Start all copies in uniformly random states. Ages differ, so that truncations do not fall on one step."""
        if seed is not None:
            if not isinstance(seed, int):
                raise ConfigError(
                    f"RewardProcessVector draws for all copies at once: its seed is one integer, not {seed}."
                )
            self._np_random = np.random.default_rng(seed)
        self._state = self.np_random.integers(self.params.states, size=self.num_envs)
        self._age = self.np_random.integers(self.time_limit, size=self.num_envs)
        return self._state.copy(), {}

    def step(
        self, actions: Any
    ) -> tuple[
        npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]
    ]:
        """Rewards of the states that are left; actions change nothing."""
        state, n, rng = self._state, self.num_envs, self.np_random
        reward = self._means[state] + self._sds[state] * rng.standard_normal(n)
        terminated = rng.random(n) < self._ends[state]
        following = (rng.random(n)[:, None] >= self._cumulative[state]).sum(axis=1)
        following = np.where(terminated, self.params.states, np.minimum(following, self.params.states - 1))
        self._age += 1
        truncated = (self._age >= self.time_limit) & ~terminated
        done = terminated | truncated
        fresh = rng.integers(self.params.states, size=n)
        infos = {"final_obs": following} if done.any() else {}
        self._state = np.where(done, fresh, following)
        self._age[done] = 0
        return self._state.copy(), reward, terminated, truncated, infos
