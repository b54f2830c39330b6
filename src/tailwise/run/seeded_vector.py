"""A vector environment whose every episode has its own explicit seed, so that it can be restored exactly.

Gymnasium seeds an environment once and lets its generator run on; what episode 57 looks like then depends on all draws
before it, and no one can rebuild it after a crash. Here episode number e of environment i is always reset with
`streams.integer(name, environment=i, index=e)`. An environment without any state interface is restored by resetting it
with the seed of the running episode and replaying that episode's actions; the observation it arrives at is compared bit
for bit with the stored one, and a difference is reported as "not exact" instead of being hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array

from tailwise.core.errors import ConfigError, EnvironmentContractError
from tailwise.core.streams import Streams
from tailwise.model.observation import MASK_KEY
from tailwise.run.env_results import add_info, build_one, call_one, cause, observation_problem, reset_one, step_one
from tailwise.run.seeded_envs import SeededEnvs, State, require_spaces

#: Actions kept of one running episode. Replaying more would take longer than anyone waits for a resume, and an episode
#: without end would fill the memory.
LONGEST_REPLAY = 1_000_000
_PACK_EVERY = 1024


@dataclass(frozen=True)
class Share:
    """Which rows of a larger vector environment a `SeededVectorEnv` steps.

    first_row      of them; what is said of environments counts from it
    observations   arrays of these rows [n, ...] in the structure of the space, into which observations are written
    """

    first_row: int
    observations: Any


class SeededVectorEnv(SeededEnvs):
    """N single environments stepped in a plain loop with SAME_STEP autoreset (`final_obs`, `final_info`).

    `build` makes one environment; `name` and `first_environment`: see `SeededEnvs`. With `copy=False` the returned
    observation is a buffer that the next step overwrites. `share`: rows of a larger vector environment.
    An episode of more than `longest_replay` steps is no longer recorded: a state taken inside it is not exact.
    """

    def __init__(
        self,
        build: Callable[[], gym.Env[Any, Any]],
        num_envs: int,
        streams: Streams,
        *,
        name: str = "environment",
        first_environment: int = 0,
        copy: bool = True,
        longest_replay: int = LONGEST_REPLAY,
        share: Share | None = None,
    ) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}; a vector environment needs at least 1.")
        self._first_row = 0 if share is None else share.first_row
        self.envs = [build_one(self._first_row + row, build) for row in range(num_envs)]
        super().__init__(self.envs[0], num_envs, streams, name=name, first_environment=first_environment)
        self.copy = copy
        for row, env in enumerate(self.envs):
            require_spaces(env, self._first_row + row, self.single_observation_space, self.single_action_space)
        self._buffer: Any = (
            create_empty_array(self.single_observation_space, n=num_envs, fn=np.zeros)
            if share is None
            else share.observations
        )
        self._observations: list[Any] = [None] * num_envs
        self._episodes = np.zeros(num_envs, dtype=np.int64)
        # None: nothing is recorded, because the environments give and take their state themselves.
        self._actions: list[_ActionLog] | None = None
        if not all(map(has_state, self.envs)):
            self._actions = [_ActionLog(longest_replay) for _ in self.envs]

    @property
    def restores_by(self) -> str:
        """ "state" when the environments implement get_state/set_state, else "replay"."""
        return "state" if self._actions is None else "replay"

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start over with episode 0 of every environment: two resets give the same episodes.

        A seed replaces the streams of this environment; None keeps them.
        """
        self._check_reset(seed, options)
        self._episodes[:] = 0
        infos = self._begin_episodes(options)
        self._started = True
        return self._batched(), infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step every environment; a finished one is reset at once and its last observation goes to `final_obs`."""
        self._check_step(actions)
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        terminated = np.zeros(self.num_envs, dtype=np.bool_)
        truncated = np.zeros(self.num_envs, dtype=np.bool_)
        infos: dict[str, Any] = {}
        recorded = self._actions
        actions = self._single_actions(actions)
        first_row = self._first_row
        for row, env in enumerate(self.envs):
            action = actions[row]
            if recorded is not None:
                recorded[row].append(action)
            observation, reward, ended, cut, info = step_one(env, first_row + row, action)
            self._observations[row] = observation
            rewards[row] = reward
            if ended or cut:
                terminated[row] = ended
                truncated[row] = cut
                # Copied, because an environment may write its next observation into the same array.
                infos = self._collect(infos, {"final_obs": _copied(observation), "final_info": info}, row)
                self._episodes[row] += 1
                info = self._begin_episode(row, None)
            if info:
                infos = self._collect(infos, info, row)
        return self._batched(), rewards, terminated, truncated, infos

    @property
    def not_exact(self) -> str:
        """Why a state taken now cannot be restored exactly; "" when it can."""
        too_long = [log for log in self._actions or () if log.overflowed]
        if not too_long:
            return ""
        return (
            f"an episode ran longer than {too_long[0].limit:,} steps and can no longer be replayed; "
            "set env.time_limit or give the environment get_state and set_state"
        )

    def get_state(self) -> State:
        """See `SeededEnvs.get_state`."""
        self._check_started()
        state: State = {
            "kind": self.restores_by,
            "num_envs": self.num_envs,
            "first_environment": self.first_environment,
            "episodes": self._episodes.copy(),
            "observation": self._observation_spec.arrays(self._batched()),
        }
        if self._actions is None:
            state["environments"] = {
                str(row): call_one(self._first_row + row, "get_state", _get_env_state, env)
                for row, env in enumerate(self.envs)
            }
        else:
            state["not_exact"] = self.not_exact
            state["lengths"] = np.array([log.length for log in self._actions], dtype=np.int64)
            state["actions"] = self._recorded_actions()
        return state

    def restore(self, state: Mapping[str, Any]) -> str:
        """See `SeededEnvs.restore`."""
        self._episodes[:] = state["episodes"]
        self._started = True
        problem = self._restore_states(state) if self._actions is None else self._replay(state)
        return problem or self._compare(state["observation"])

    def begin_next_episodes(self) -> tuple[Any, dict[str, Any]]:
        """See `SeededEnvs.begin_next_episodes`."""
        self._episodes += 1
        infos = self._begin_episodes(None)
        return self._batched(), infos

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()

    def _begin_episodes(self, options: dict[str, Any] | None) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for row in range(self.num_envs):
            infos = self._collect(infos, self._begin_episode(row, options), row)
        return infos

    def _begin_episode(self, row: int, options: dict[str, Any] | None) -> Mapping[str, Any]:
        seed = self.streams.integer(self.name, environment=self.first_environment + row, index=int(self._episodes[row]))
        self._observations[row], info = reset_one(self.envs[row], self._first_row + row, seed=seed, options=options)
        if self._actions is not None:
            self._actions[row].clear()
        return info

    def _collect(self, infos: dict[str, Any], info: Mapping[str, Any], row: int) -> dict[str, Any]:
        mask = info.get(MASK_KEY)
        if mask is not None and not isinstance(mask, np.ndarray):
            try:
                info = {**info, MASK_KEY: np.asarray(mask)}  # a list would end in an array of objects
            except (RuntimeError, TypeError, ValueError) as error:
                raise EnvironmentContractError(
                    f"Environment {self._first_row + row} gave an action mask that is no array ({error}); give one "
                    "entry per choice."
                ) from error
        return add_info(infos, info, row, self.num_envs)

    def _batched(self) -> Any:
        try:
            self._buffer = concatenate(self.single_observation_space, self._observations, self._buffer)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            for row, observation in enumerate(self._observations):
                problem = observation_problem(self.single_observation_space, observation, "observation")
                if problem:
                    raise EnvironmentContractError(
                        f"Environment {self._first_row + row} returned an observation that its space does not declare: "
                        f"{problem}; correct the environment's observation_space or what its reset and step return."
                    ) from error
            raise EnvironmentContractError(f"The observations cannot be put together: {cause(error)}.") from error
        if not self.copy:
            return self._buffer
        return _copied(self._buffer)

    def _single_actions(self, actions: Any) -> Any:
        """A row per environment. Discrete ones as Python integers: spaces check those several times faster."""
        if isinstance(actions, np.ndarray) and isinstance(self.single_action_space, gym.spaces.Discrete):
            return actions.tolist()
        return actions

    def _recorded_actions(self) -> np.ndarray:
        """The actions of the running episodes, one after another: [sum of lengths, *action shape]."""
        assert self._actions is not None
        space = self.single_action_space
        logs = [log.actions for log in self._actions if log.length]  # an empty one knows no dtype and shape
        return np.concatenate(logs) if logs else np.zeros((0, *(space.shape or ())), dtype=space.dtype)

    def _replay(self, state: Mapping[str, Any]) -> str:
        """Reset each environment with its episode's seed and repeat its actions; returns what went wrong, or ""."""
        if state.get("not_exact"):  # states written before this entry existed have recorded everything
            return str(state["not_exact"])
        position = 0
        for row, length in enumerate(np.asarray(state["lengths"]).tolist()):
            self._begin_episode(row, None)
            for action in self._single_actions(state["actions"][position : position + length]):
                self._observations[row], _, ended, cut, _ = step_one(self.envs[row], self._first_row + row, action)
                assert self._actions is not None
                self._actions[row].append(action)
                if ended or cut:
                    return (
                        f"environment {self._first_row + row} ended while its {length} actions were replayed, which it "
                        "did not before"
                    )
            position += length
        return ""

    def _restore_states(self, state: Mapping[str, Any]) -> str:
        for row, env in enumerate(self.envs):
            # The wrappers need a reset before they accept a step; the state then replaces what the reset made.
            self._begin_episode(row, None)
            stored = state["environments"][str(row)], self._stored_row(state, row)
            self._observations[row] = call_one(self._first_row + row, "set_state", _set_env_state, env, *stored)
        return ""

    def _stored_row(self, state: Mapping[str, Any], row: int) -> Any:
        """The stored observation of one environment in the structure of its space."""
        arrays = state["observation"]

        def pick(space: gym.Space[Any], path: str) -> Any:
            if isinstance(space, gym.spaces.Dict):
                return {key: pick(part, f"{path}.{key}" if path else key) for key, part in space.spaces.items()}
            if isinstance(space, gym.spaces.Tuple):
                return tuple(pick(part, f"{path}.{i}" if path else str(i)) for i, part in enumerate(space.spaces))
            return arrays[path or "observation"][row]

        return pick(self.single_observation_space, "")

    def _compare(self, stored: Mapping[str, np.ndarray]) -> str:
        for name, now in self._observation_spec.arrays(self._batched()).items():
            was = np.asarray(stored[name])
            if now.shape != was.shape or now.dtype != was.dtype or now.tobytes() != was.tobytes():
                rows = [row for row in range(self.num_envs) if now[row].tobytes() != was[row].tobytes()]
                first = self._first_row + (rows[0] if rows else 0)
                return (
                    f"observation '{name}' of environment {first} differs after the restore "
                    "(the environment draws random numbers that its reset seed does not control)"
                )
        return ""


class _ActionLog:
    """The actions of one running episode; nothing is kept past `limit`.

    The newest actions wait in a list, because appending to one is several times cheaper than writing an array row; full
    lists are packed into arrays, because an object per action takes many times the memory in a long episode.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.clear()

    def clear(self) -> None:
        """Forget everything: a new episode begins."""
        self.overflowed = False
        self._packed: list[np.ndarray] = []
        self._packed_length = 0
        self._newest: list[Any] = []
        self._room = min(_PACK_EVERY, self.limit + 1)  # newest actions at which they are packed or found too many

    @property
    def length(self) -> int:
        """Number of actions."""
        return self._packed_length + len(self._newest)

    @property
    def actions(self) -> np.ndarray:
        """[length, *action shape] in the dtype in which the actions came: what an exact replay needs."""
        self._pack()
        self._packed = [np.concatenate(self._packed)]
        return self._packed[0]

    def append(self, action: Any) -> None:
        if self.overflowed:
            return
        self._newest.append(action.copy() if isinstance(action, np.ndarray) else action)
        if len(self._newest) == self._room:
            self._pack()

    def _pack(self) -> None:
        if self.length > self.limit:
            self.clear()
            self.overflowed = True
        elif self._newest:
            self._packed.append(np.array(self._newest))
            self._packed_length += len(self._newest)
            self._newest = []
            self._room = min(_PACK_EVERY, self.limit + 1 - self._packed_length)


# Wrappers whose whole state is known here; any other wrapper may hide state, so its environment is replayed.
_PLAIN_WRAPPERS = (gym.wrappers.OrderEnforcing, gym.wrappers.PassiveEnvChecker, gym.wrappers.TimeLimit)


def has_state(env: gym.Env[Any, Any]) -> bool:
    if hasattr(env, "get_state") and hasattr(env, "set_state"):
        return True
    inner = env
    while isinstance(inner, gym.Wrapper):
        if not isinstance(inner, _PLAIN_WRAPPERS) and not getattr(inner, "stateless", False):
            return False
        inner = inner.env
    return hasattr(inner, "get_state") and hasattr(inner, "set_state")


def _time_limits(env: gym.Env[Any, Any]) -> list[gym.wrappers.TimeLimit[Any, Any]]:
    limits = []
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            limits.append(env)
        env = env.env
    return limits


def _get_env_state(env: gym.Env[Any, Any]) -> State:
    if hasattr(env, "get_state"):
        return {"elapsed": [], "inner": env.get_state()}
    inner: Any = env.unwrapped
    return {"elapsed": [limit._elapsed_steps for limit in _time_limits(env)], "inner": inner.get_state()}


def _set_env_state(env: gym.Env[Any, Any], state: Mapping[str, Any], observation: Any) -> Any:
    """Restore one environment; its observation is the stored one, because set_state returns nothing."""
    if hasattr(env, "set_state"):
        env.set_state(state["inner"])
        return observation
    inner: Any = env.unwrapped
    inner.set_state(state["inner"])
    for limit, elapsed in zip(_time_limits(env), state["elapsed"], strict=True):
        limit._elapsed_steps = elapsed
    return observation


def _copied(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: _copied(value) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_copied(value) for value in batch)
    return batch.copy() if isinstance(batch, np.ndarray) else batch
