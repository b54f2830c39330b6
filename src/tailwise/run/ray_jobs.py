"""Jobs on Ray: it places tasks on the processes of this machine or of a cluster, and begins one again when its worker
or node dies. A job that is begun again goes on from its last checkpoint, so at most one checkpoint interval is lost.

What a search or a study decides does not come from here: the results are those of local processes, bit for bit.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tailwise.core.errors import ConfigError, DataError, TailwiseError
from tailwise.run.jobs import Job, Line, Result, Say, Stop, never, silent

POLL_SECONDS = 0.5  # between two looks at tasks and lines
CONNECT_SECONDS = 10.0
ASK_SECONDS = 1.0  # between two questions of a running job whether it shall stop
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


def load_ray() -> Any:
    """The package; a sentence where it is not installed."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ConfigError(
            "--on ray needs the package ray; install it with: pip install 'tailwise[tune]', or leave --on out."
        ) from error
    return ray


@dataclass(frozen=True)
class RayTasks:
    """Runs jobs as tasks of Ray.

    count    tasks side by side; each takes a CPU of Ray's
    address  of a cluster ("auto", "ray://host:10001"); None starts Ray on this machine, and ends it afterwards
    threads  of numba, BLAS and torch in a task
    retries  of a task whose worker or node died
    """

    count: int = 1
    address: str | None = None
    threads: int = 1
    retries: int = 10

    def run(self, jobs: Sequence[Job[Result]], *, stop: Stop = never, say: Say = silent) -> list[Result] | None:
        ray = load_ray()
        with self._connected(ray):
            return self._run(ray, jobs, stop, say)

    @contextlib.contextmanager
    def _connected(self, ray: Any) -> Iterator[None]:
        """Within this context there is a Ray; one that was there before stays."""
        if ray.is_initialized():
            yield
            return
        _check_reachable(self.address)
        given = {"num_cpus": self.count} if self.address is None else {"address": self.address}
        try:
            ray.init(include_dashboard=False if self.address is None else None, log_to_driver=False, **given)
        except (ConnectionError, ValueError) as error:
            raise ConfigError(
                f"Ray cannot be used at {self.address or 'this machine'} ({error}); start it with: ray start --head"
            ) from error
        try:
            yield
        finally:
            ray.shutdown()

    def _run(self, ray: Any, jobs: Sequence[Job[Result]], stop: Stop, say: Say) -> list[Result] | None:
        # Beside the driver (on the head for ray:// addresses): Ray would put an actor that needs no CPU on any node,
        # and the whole search would end with that node.
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        mailbox = ray.remote(num_cpus=0, scheduling_strategy=here)(Mailbox).remote()
        variables = dict.fromkeys(THREADS, str(self.threads))
        work = ray.remote(
            num_cpus=1, max_retries=self.retries, runtime_env={"env_vars": variables}, scheduling_strategy="SPREAD"
        )(_work)
        waiting = list(enumerate(jobs))
        running: dict[Any, int] = {}
        results: dict[int, Result] = {}
        error: TailwiseError | None = None
        stopped = False
        try:
            while waiting or running:
                if not stopped and (stop() or error is not None):
                    stopped = True
                    waiting.clear()
                    ray.get(mailbox.stop.remote())
                while waiting and len(running) < self.count:
                    place, job = waiting.pop(0)
                    running[work.remote(job, mailbox, self.threads, os.getcwd())] = place
                ready, _ = ray.wait(list(running), timeout=POLL_SECONDS) if running else ([], [])
                for line in ray.get(mailbox.take.remote()):
                    say(line)
                for task in ready:
                    place = running.pop(task)
                    answer = _answer(ray, task, jobs[place], attempts=self.retries + 1)
                    if isinstance(answer, TailwiseError):
                        error = error or answer
                    elif answer is not None:
                        results[place] = answer
            for line in ray.get(mailbox.take.remote()):
                say(line)
        finally:
            for task in running:
                ray.cancel(task, force=True)
            ray.kill(mailbox)
        if error is not None:
            raise error
        return [results[place] for place in range(len(jobs))] if len(results) == len(jobs) else None


def _check_reachable(address: str | None) -> None:
    """Raise where nobody listens at host:port: Ray itself would try for minutes."""
    if address is None or address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if not host or not port.isdigit():
            raise ConfigError(f"the address '{address}' is not HOST:PORT; write for example --address 10.0.0.5:6379.")
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"nobody answers at {address} ({error}); start Ray there with: ray start --head --port {port}"
        ) from error


class Mailbox:
    """An actor between tasks and the driver: lines one way, the wish to stop the other."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.stopping = False

    def put(self, line: Line) -> None:
        """Keep a line until it is taken."""
        self.lines.append(line)

    def take(self) -> list[Line]:
        """The lines since the last call."""
        taken, self.lines = self.lines, []
        return taken

    def stop(self) -> None:
        """Ask all jobs to end after their update."""
        self.stopping = True

    def is_stopping(self) -> bool:
        """Whether they were asked."""
        return self.stopping


def _answer(ray: Any, task: Any, job: Job[Result], *, attempts: int) -> Result | TailwiseError | None:
    """The result of a task that ended."""
    try:
        answer: Result | TailwiseError | None = ray.get(task)
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError) as error:
        return DataError(
            f"{job.label}: its worker died {attempts} times ({type(error).__name__}). Call the same command again "
            "to continue."
        )
    return answer


def _work(job: Job[Any], mailbox: Any, threads: int, folder: str) -> Any:
    """Run one job in a worker; its error is its result."""
    import ray
    import torch

    os.chdir(folder)  # paths of jobs may be relative; on a cluster the folder is one that all nodes see
    torch.set_num_threads(threads)
    asked, answer = 0.0, False

    def stop() -> bool:
        nonlocal asked, answer
        if not answer and time.monotonic() - asked > ASK_SECONDS:
            asked, answer = time.monotonic(), bool(ray.get(mailbox.is_stopping.remote()))
        return answer

    def say(line: Line) -> None:
        mailbox.put.remote(line)

    try:
        return job.run(stop, say)
    except TailwiseError as error:
        return error
