"""Builds drivers: from an environment id, a function, an environment or a vector environment; and what wraps them."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from tailwise.core.errors import ConfigError, TailwiseError
from tailwise.core.streams import Streams
from tailwise.market.env import ENV_ID as MARKET_ID
from tailwise.run.env_processes import EnvProcesses
from tailwise.run.env_results import cause
from tailwise.run.envs import EnvDriver
from tailwise.run.seeded_vector import SeededVectorEnv

Purpose = Literal["train", "select", "test"]
_ID = re.compile(r"(?:[^\W\d]\w*(?:\.[^\W\d]\w*)*:)?(?:[\w-]+/)?[\w.-]+")  # [module:][namespace/]name


def make_driver(
    env: str | Callable[..., Any] | gym.Env[Any, Any] | VectorEnv,  # type: ignore[type-arg]
    *,
    num_envs: int | None = None,
    streams: Streams,
    env_kwargs: Mapping[str, Any] | None = None,
    purpose: Purpose = "train",
    hide: Sequence[int] = (),
    time_limit: int | None = None,
    first_environment: int = 0,
    processes: int = 1,
) -> EnvDriver:
    """A driver for an environment id, a function that builds one environment, an environment, or a vector environment.

    num_envs    copies to run (id or function); a single environment allows only 1, a vector environment brings its own
    purpose     selects the random stream: selection never sees a training seed, nor a test the seeds of selection
    hide        indices of observation entries to remove (1-D Box only), for instance (1, 3): CartPole's velocities
    time_limit  steps after which an episode is truncated; replaces the limit that an id was registered with
    first_environment   the id of row 0 when several processes share the environments of one run
    processes   that step them, of an id or a function that builds an equal environment at every call (each process has
                a copy of its own); the result is that of 1
    """
    name = f"environment/{purpose}"
    kwargs = dict(env_kwargs or {})
    if processes > 1 and isinstance(env, VectorEnv | gym.Env):
        raise ConfigError(
            f"env.processes is {processes} and the environment passed is built already, so other processes cannot step "
            "it; pass its id or a function that builds one environment, or leave env.processes out."
        )
    if isinstance(env, VectorEnv):
        if kwargs or hide or time_limit is not None:
            raise ConfigError(
                "env_kwargs, hide and time_limit do not apply to a vector environment that is already built; "
                "set them where it is built, or pass an environment id."
            )
        return EnvDriver(env, streams, name=name)
    if isinstance(env, gym.Env):
        if num_envs not in (None, 1) or kwargs:
            raise ConfigError(
                f"A single environment object was passed with num_envs {num_envs} and env_kwargs {kwargs}; it "
                "cannot be copied: set num_envs to 1 and no env_kwargs, or pass its id or a function that builds it."
            )
        single, count = env, 1
        build: Callable[[], Any] = lambda: _wrapped(single, hide, time_limit)  # noqa: E731
    else:
        count = 1 if num_envs is None else num_envs
        if isinstance(env, str):
            identifier = env
            build = lambda: _wrapped(_make_registered(identifier, kwargs, time_limit), hide, None)  # noqa: E731
        elif callable(env):
            function = env
            build = lambda: _wrapped(function(**kwargs), hide, time_limit)  # noqa: E731
        else:
            raise ConfigError(
                f"The environment is a {type(env).__name__}; pass a Gymnasium id, a function that builds an "
                "environment, an environment or a vector environment."
            )
    common: dict[str, Any] = {"name": name, "first_environment": first_environment}
    if processes > 1:
        return EnvDriver(EnvProcesses(build, count, streams, processes=processes, **common), streams, name=name)
    return EnvDriver(SeededVectorEnv(build, count, streams, copy=False, **common), streams, name=name)


def _make_registered(identifier: str, kwargs: Mapping[str, Any], time_limit: int | None) -> gym.Env[Any, Any]:
    if not _ID.fullmatch(identifier):
        raise ConfigError(
            f"The environment id {identifier!r} cannot be read; write it as Name-v1, namespace/Name-v1 or, to import a "
            "module that registers it first, package.module:Name-v1."
        )
    if identifier == MARKET_ID:
        raise ConfigError(
            f"The environment id '{identifier}' is for other libraries, which pass bars in Python; here, set env.kind "
            "to market and name the bars in the section data."
        )
    try:
        # The driver checks the contract itself; Gymnasium's checker would cost a call per step.
        return gym.make(identifier, max_episode_steps=time_limit, disable_env_checker=True, **kwargs)
    except (gym.error.UnregisteredEnv, gym.error.DeprecatedEnv) as error:
        near = difflib.get_close_matches(identifier, list(gym.registry), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "gymnasium.pprint_registry() lists the known ones."
        raise ConfigError(f"The environment id '{identifier}' is not registered; {hint}") from error
    except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise ConfigError(f"The environment '{identifier}' needs a package that is not installed: {error}") from error
    except gym.error.Error as error:
        raise ConfigError(
            f"The environment '{identifier}' cannot be built with env_kwargs {reprlib.repr(dict(kwargs))}: {error}"
        ) from error
    except TailwiseError:
        raise
    except Exception as error:  # anything may go wrong in somebody else's environment
        raise ConfigError(
            f"The environment '{identifier}' cannot be built with env_kwargs {reprlib.repr(dict(kwargs))}: "
            f"{cause(error)}"
        ) from error


def _wrapped(env: Any, hide: Sequence[int], time_limit: int | None) -> gym.Env[Any, Any]:
    if not isinstance(env, gym.Env):
        raise ConfigError(
            f"The function that builds the environment returned a {type(env).__name__}, expected a gymnasium.Env "
            "(pass a vector environment itself, not a function that builds it)."
        )
    if time_limit is not None:
        if time_limit < 1:
            raise ConfigError(f"time_limit is {time_limit}; it must be at least 1 step.")
        env = gym.wrappers.TimeLimit(env, max_episode_steps=time_limit)
    return HideEntries(env, hide) if len(hide) else env


class HideEntries(gym.ObservationWrapper):  # type: ignore[type-arg]
    """Removes entries of a 1-D Box observation, which makes a fully observed task need memory."""

    stateless = True  # lets SeededVectorEnv use the state of the environment inside

    def __init__(self, env: gym.Env[Any, Any], indices: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise ConfigError(f"hide works on 1-D Box observations; this environment observes {space}.")
        size = space.shape[0]
        wrong = [index for index in indices if not 0 <= index < size]
        if wrong or len(set(indices)) == size:
            raise ConfigError(
                f"hide is {list(indices)}; give indices from 0 to {size - 1} and leave at least one entry."
            )
        self._kept = np.array([index for index in range(size) if index not in set(indices)])
        self.observation_space = gym.spaces.Box(space.low[self._kept], space.high[self._kept], dtype=space.dtype.type)

    def observation(self, observation: Any) -> Any:
        return observation[self._kept]
