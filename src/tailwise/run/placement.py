"""Where jobs run: in processes of this machine, or as tasks of Ray."""

from __future__ import annotations

from dataclasses import dataclass

from tailwise.core.errors import ConfigError
from tailwise.run.jobs import Executor, local_executor
from tailwise.run.ray_jobs import RayTasks, load_ray

PLACES = ("local", "ray")


@dataclass(frozen=True)
class Placement:
    """What `--on`, `--jobs` and `--address` say; checked when it is made.

    on       "local" or "ray"
    jobs     side by side; None: as many as the command chooses by itself
    address  of a Ray cluster; None starts Ray on this machine
    """

    on: str = "local"
    jobs: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if self.on not in PLACES:
            raise ConfigError(f"--on is '{self.on}'; choose {' or '.join(PLACES)}.")
        if self.on == "local" and self.address is not None:
            raise ConfigError(f"--address is '{self.address}', which is of a Ray cluster; add --on ray.")
        if self.on == "ray":
            load_ray()

    def executor(self, *, jobs: int, threads: int) -> Executor:
        """Who runs jobs there. jobs: side by side where nobody said; threads: of numba, BLAS and torch in a task on
        Ray."""
        count = jobs if self.jobs is None else self.jobs
        return local_executor(count) if self.on == "local" else RayTasks(count, address=self.address, threads=threads)
