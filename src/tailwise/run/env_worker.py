"""One process that steps a share of the environments; `env_processes.py` is the other end.

A command is (number, name, argument) and is answered by its number and what it returns or the `TailwiseError` that it
raises. Actions, observations, rewards and the two flags of an episode's end lie in shared memory; what goes through the
pipe beside the command are infos, and states. The process ends when its parent closes the pipe, or is no more.
"""

from __future__ import annotations

import contextlib
import importlib
import pickle
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import read_from_shared_memory

from tailwise.core.errors import EnvironmentContractError, TailwiseError
from tailwise.core.streams import Streams
from tailwise.run.env_results import cause
from tailwise.run.seeded_envs import State, require_spaces
from tailwise.run.seeded_vector import SeededVectorEnv, Share


@dataclass(frozen=True)
class Built:
    """What a process is told of its environments, pickled by cloudpickle.

    build     makes one environment, pickled by itself before it was called
    spec      what its id stands for, registered where the process does not know the id; None without one
    observation_space, action_space   of environment 0
    restores_by   see `SeededEnvs`
    """

    build: bytes
    spec: Any
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    restores_by: str


@dataclass(frozen=True)
class SharedMemory:
    """Memory that all processes see, of all environments: observations and actions as `create_shared_memory` makes
    them, rewards float64 [N], terminated and truncated bool [N]."""

    observations: Any
    actions: Any
    rewards: Any
    terminated: Any
    truncated: Any

    def arrays(self, built: Built, num_envs: int) -> StepArrays:
        """The same as arrays."""
        return StepArrays(
            read_from_shared_memory(built.observation_space, self.observations, n=num_envs),
            np.asarray(read_from_shared_memory(built.action_space, self.actions, n=num_envs)),
            np.frombuffer(self.rewards, dtype=np.float64),
            np.frombuffer(self.terminated, dtype=np.bool_),
            np.frombuffer(self.truncated, dtype=np.bool_),
        )


@dataclass(frozen=True)
class StepArrays:
    """`SharedMemory` as arrays; observations in the structure of their space."""

    observations: Any
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


@dataclass(frozen=True)
class Work:
    """Which environments a process steps. built: pickled; rows: of num_envs; name, first_environment: of all rows, see
    `SeededEnvs`."""

    built: bytes
    rows: range
    num_envs: int
    streams: Streams
    name: str
    first_environment: int


@dataclass(frozen=True)
class Failure:
    """The answer to a command that raised; where: its traceback."""

    error: TailwiseError
    where: str


class WorkerTraceback(Exception):
    """The traceback of an error in a process, as text: the cause of the error that is raised again in the parent."""


def work(task: Work, memory: SharedMemory, connection: Connection) -> None:
    """Answer commands until the parent closes the pipe."""
    environments: EnvWorker | None = None
    try:
        while True:
            try:
                number, name, argument = connection.recv()
            except (EOFError, ConnectionResetError):
                return  # nobody sends any more
            try:
                if environments is None:
                    environments = EnvWorker(task, memory)
                answer = getattr(environments, name)(argument)
            except TailwiseError as error:
                answer = Failure(error, "".join(traceback.format_exception(error)))
            try:
                _send(connection, number, answer, name)
            except (BrokenPipeError, ConnectionResetError):
                return  # nobody waits for it any more
    finally:
        if environments is not None:
            environments.venv.close()
        with contextlib.suppress(OSError):
            connection.close()


def _send(connection: Connection, number: int, answer: Any, name: str) -> None:
    try:
        connection.send((number, answer))
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # nothing was written yet
        sentence = (
            f"What an environment said in {name} cannot be sent to another process ({cause(error)}); put numbers, "
            "texts and arrays into its infos, or leave env.processes out."
        )
        failure = Failure(EnvironmentContractError(sentence), "".join(traceback.format_exception(error)))
        connection.send((number, failure))


class EnvWorker:
    """The environments of one process; its methods are the commands."""

    def __init__(self, task: Work, memory: SharedMemory) -> None:
        built: Built = pickle.loads(task.built).fn
        _register(built.spec)
        rows, arrays = task.rows, memory.arrays(built, task.num_envs)
        self.arrays = StepArrays(
            rows_of(arrays.observations, rows),
            *(array[rows.start : rows.stop] for array in (arrays.actions, arrays.rewards)),
            *(array[rows.start : rows.stop] for array in (arrays.terminated, arrays.truncated)),
        )
        self.venv = SeededVectorEnv(
            pickle.loads(built.build).fn,
            len(rows),
            task.streams,
            name=task.name,
            first_environment=task.first_environment + rows.start,
            copy=False,
            share=Share(rows.start, self.arrays.observations),
        )
        require_spaces(self.venv.envs[0], rows.start, built.observation_space, built.action_space)
        if self.venv.restores_by != built.restores_by:
            raise EnvironmentContractError(
                f"Environment {rows.start} is restored by {self.venv.restores_by}, another one that the same function "
                f"built by {built.restores_by}; all environments of a run need get_state and set_state, or none."
            )

    def reset(self, argument: tuple[Streams, dict[str, Any] | None]) -> Any:
        """The first episodes of these streams, with these options; infos."""
        self.venv.streams, options = argument
        return self.venv.reset(options=options)[1]

    def step(self, _: None) -> Any:
        """One step with the actions in the shared memory; infos."""
        arrays = self.arrays
        # A copy, because an environment may keep the action that it was given.
        _, rewards, terminated, truncated, infos = self.venv.step(arrays.actions.copy())
        arrays.rewards[:] = rewards
        arrays.terminated[:] = terminated
        arrays.truncated[:] = truncated
        return infos

    def get_state(self, _: None) -> State:
        """See `SeededEnvs.get_state`; rows and ids are those of this share."""
        return self.venv.get_state()

    def restore(self, state: Mapping[str, Any]) -> str:
        """See `SeededEnvs.restore`."""
        return self.venv.restore(state)

    def begin_next_episodes(self, _: None) -> Any:
        """See `SeededEnvs.begin_next_episodes`; infos."""
        return self.venv.begin_next_episodes()[1]


def _register(spec: Any) -> None:
    """Let this process know the id of an environment that its parent may have registered by itself."""
    if spec is None:
        return
    if isinstance(spec.entry_point, str):
        importlib.import_module(spec.entry_point.partition(":")[0])  # which most often registers it
    gym.registry.setdefault(spec.id, spec)


def rows_of(batch: Any, rows: range) -> Any:
    """The rows of an array, or of arrays in dicts and tuples; they share its memory."""
    if isinstance(batch, Mapping):
        return {key: rows_of(part, rows) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(rows_of(part, rows) for part in batch)
    return batch[rows.start : rows.stop]
