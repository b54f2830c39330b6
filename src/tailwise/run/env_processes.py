"""Environments of others on several processes, equal bit for bit to one process.

Each process steps a contiguous share of the environments with a `SeededVectorEnv` of its own (`env_worker.py`). Seeds
belong to environments and episodes, so it does not matter which process steps an environment: observations, infos and
states are those of one process, and a state can be restored with another number of processes.

Gymnasium's `AsyncVectorEnv` has a process and a message per environment, one seed for all episodes and no state; only
what it shares memory with is used here.
"""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from ctypes import c_bool, c_double
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper, create_shared_memory

from tailwise.core.errors import ConfigError, DataError, EnvironmentContractError
from tailwise.core.streams import Streams
from tailwise.run.env_results import build_one, cause, join_infos
from tailwise.run.env_worker import Built, Failure, SharedMemory, StepArrays, Work, WorkerTraceback, work
from tailwise.run.processes import describe_exit, sigint_deferred, start_ignoring_sigint
from tailwise.run.seeded_envs import SeededEnvs, State
from tailwise.run.seeded_vector import has_state

GET_STATE = "get_state"  # the command that changes no environment, so that nothing is lost with its answers
END_SECONDS = 5.0  # how long processes may take to close their environments


@dataclass(frozen=True)
class _Worker:
    """A process, this end of its pipe and the environments it steps."""

    process: BaseProcess
    connection: Connection
    rows: range

    def send(self, message: bytes) -> None:
        try:
            self.connection.send_bytes(message)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self.lost() from error

    def receive(self, number: int, *, whole: bool = False) -> Any:
        """The answer to command `number`; those to commands before, which nobody waited for, are thrown away.

        whole   whether an interrupt leaves no answer half read: it comes while one is waited for, or after it
        """
        while True:
            try:
                if whole:
                    self.connection.poll(None)
                with sigint_deferred() if whole else nullcontext():
                    answered, answer = self.connection.recv()
            except (EOFError, ConnectionResetError) as error:
                raise self.lost() from error
            if answered == number:
                return answer

    def lost(self) -> DataError:
        self.process.join(END_SECONDS)
        code = self.process.exitcode
        how = f"it closed its pipe but still ran {END_SECONDS:g} s later" if code is None else describe_exit(code)
        return DataError(
            f"The process of environments {self.rows.start} to {self.rows.stop - 1} ended ({how}); what it printed is "
            'above. A script that trains with env.processes does so under `if __name__ == "__main__":`. A run goes on '
            "from its last checkpoint when it is resumed."
        )


class EnvProcesses(SeededEnvs):
    """N environments in `processes` processes, which start with the first reset; see `SeededVectorEnv`.

    `build` must build an equal environment at every call: each process has its own copy of it, as it was passed, and
    calls it once for each of its environments; it is called here once more, for the spaces. What it counts (ports,
    files) differs from one process.

    Observations are in memory that the next step overwrites. After an exception in the middle of a step (Ctrl-C, a
    process that was killed) only `reset` and `set_state` go on, with new processes; an interrupted `get_state` leaves
    everything as it was.
    """

    def __init__(
        self,
        build: Callable[[], gym.Env[Any, Any]],
        num_envs: int,
        streams: Streams,
        *,
        processes: int,
        name: str = "environment",
        first_environment: int = 0,
    ) -> None:
        if not 1 <= processes <= num_envs:
            raise ConfigError(
                f"env.processes is {processes} and there are {num_envs} environments to share; use at most {num_envs}."
            )
        sent = _pickled(build)  # before it is called, which may change it
        with closing(build_one(0, build)) as first:  # for its spaces; the processes build their own
            super().__init__(first, num_envs, streams, name=name, first_environment=first_environment)
            self._restores_by = "state" if has_state(first) else "replay"
            spec = None if first.spec is None else gym.registry.get(first.spec.id)
            built = Built(sent, spec, self.single_observation_space, self.single_action_space, self._restores_by)
        self._built = _pickled(built)
        self._context = cast(Any, multiprocessing.get_context("spawn"))  # a fork would copy the locks of other threads
        base, longer = divmod(num_envs, processes)
        edges = [k * base + min(k, longer) for k in range(processes + 1)]
        self._rows = [range(*pair) for pair in itertools.pairwise(edges)]
        self._memory = SharedMemory(
            create_shared_memory(self.single_observation_space, n=num_envs, ctx=self._context),
            create_shared_memory(self.single_action_space, n=num_envs, ctx=self._context),
            self._context.RawArray(c_double, num_envs),
            self._context.RawArray(c_bool, num_envs),
            self._context.RawArray(c_bool, num_envs),
        )
        self._arrays: StepArrays = self._memory.arrays(built, num_envs)
        self._workers: list[_Worker] = []
        self._number = 0  # of the newest command
        self._unanswered = "start"  # the newest command while its answers are not all read; "" afterwards

    @property
    def restores_by(self) -> str:
        """See `SeededEnvs.restores_by`."""
        return self._restores_by

    @property
    def process_ids(self) -> list[int]:
        """Of the processes that run."""
        return [int(worker.process.pid or 0) for worker in self._workers]

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """See `SeededVectorEnv.reset`."""
        self._check_reset(seed, options)
        self._run_processes()
        infos = self._infos("reset", (self.streams, options))
        self._started = True
        return self._arrays.observations, infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """See `SeededVectorEnv.step`."""
        self._check_step(actions)
        arrays = self._arrays
        arrays.actions[:] = actions
        infos = self._infos("step")
        return arrays.observations, arrays.rewards, arrays.terminated, arrays.truncated, infos

    def get_state(self) -> State:
        """See `SeededEnvs.get_state`."""
        self._check_started()
        parts: list[State] = self._exchange(GET_STATE, [None] * len(self._rows))
        state: State = {
            "kind": self.restores_by,
            "num_envs": self.num_envs,
            "first_environment": self.first_environment,
            "episodes": _joined(parts, "episodes"),
            "observation": {
                name: np.concatenate([part["observation"][name] for part in parts]) for name in parts[0]["observation"]
            },
        }
        if self.restores_by == "state":
            state["environments"] = {
                str(rows.start + own): part["environments"][str(own)]
                for rows, part in zip(self._rows, parts, strict=True)
                for own in range(len(rows))
            }
        else:
            state["not_exact"] = next(filter(None, (part["not_exact"] for part in parts)), "")
            state["lengths"] = _joined(parts, "lengths")
            # One without actions does not know the dtype in which they came.
            state["actions"] = _joined([part for part in parts if len(part["actions"])] or parts[:1], "actions")
        return state

    def restore(self, state: Mapping[str, Any]) -> str:
        """See `SeededEnvs.restore`."""
        self._run_processes()
        problems: list[str] = self._exchange("restore", [self._part(state, rows) for rows in self._rows])
        return next(filter(None, problems), "")

    def begin_next_episodes(self) -> tuple[Any, dict[str, Any]]:
        """See `SeededEnvs.begin_next_episodes`."""
        return self._arrays.observations, self._infos("begin_next_episodes")

    def close_extras(self, **kwargs: Any) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.connection.close()  # which they notice
        deadline = time.monotonic() + END_SECONDS
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
        for worker in self._workers:
            worker.process.kill()  # those that have not ended
        for worker in self._workers:
            worker.process.join()
        self._workers, self._unanswered = [], "start"

    def _run_processes(self) -> None:
        """Have processes that wait for a command; new ones where these still have another to answer."""
        self._check_open()
        if not self._unanswered:
            return
        self.close_extras()
        for rows in self._rows:
            here, there = self._context.Pipe()
            task = Work(self._built, rows, self.num_envs, self.streams, self.name, self.first_environment)
            process = self._context.Process(target=work, args=(task, self._memory, there), daemon=True)
            start_ignoring_sigint(process)
            there.close()  # its other end is in the process now: when that dies, reading here ends
            self._workers.append(_Worker(process, here, rows))
        self._unanswered = ""

    def _check_open(self) -> None:
        if self.closed:
            raise EnvironmentContractError("The environments are closed; build new ones.")

    def _exchange(self, command: str, arguments: Sequence[Any]) -> list[Any]:
        """A command to each process; their answers, or the error of the first environment that has one."""
        self._check_open()
        if self._unanswered not in ("", GET_STATE):
            raise EnvironmentContractError(
                "The environments did not come to the end of a step; call reset or set_state before anything else."
            )
        self._unanswered = command
        self._number += 1
        for worker, argument in zip(self._workers, arguments, strict=True):
            worker.send(pickle.dumps((self._number, command, argument)))
        answers = [worker.receive(self._number, whole=command == GET_STATE) for worker in self._workers]
        self._unanswered = ""
        for answer in answers:
            if isinstance(answer, Failure):
                raise answer.error from WorkerTraceback(answer.where)
        return answers

    def _infos(self, command: str, argument: Any = None) -> dict[str, Any]:
        """The infos that a command to all processes is answered by, as those of one process."""
        parts = self._exchange(command, [argument] * len(self._rows))
        return join_infos(parts, [len(rows) for rows in self._rows]) if any(parts) else {}

    def _part(self, state: Mapping[str, Any], rows: range) -> State:
        """What the process of these rows needs of a state of all."""
        inside = slice(rows.start, rows.stop)
        part: State = {
            "episodes": np.asarray(state["episodes"])[inside],
            "observation": {name: np.asarray(array)[inside] for name, array in state["observation"].items()},
        }
        if self.restores_by == "state":
            return part | {"environments": {str(own): state["environments"][str(row)] for own, row in enumerate(rows)}}
        lengths = np.asarray(state["lengths"])
        before = int(lengths[: rows.start].sum())
        actions = np.asarray(state["actions"])[before : before + int(lengths[inside].sum())]
        return part | {"lengths": lengths[inside], "actions": actions, "not_exact": state.get("not_exact", "")}


def _pickled(sent: Any) -> bytes:
    try:
        return pickle.dumps(CloudpickleWrapper(sent))
    except Exception as error:  # anything may go wrong in somebody else's function
        raise ConfigError(
            f"The function that builds the environment cannot be sent to other processes ({cause(error)}); let it "
            "build what it needs instead of holding it, or leave env.processes out."
        ) from error


def _joined(parts: Sequence[State], name: str) -> np.ndarray:
    return np.concatenate([part[name] for part in parts])
