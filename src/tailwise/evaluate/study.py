"""Studies: trainings that differ in fold, seed or limit, each judged, and what they come to together.

A kind of study says what is trained and how results are combined; this module runs it. Every training lies in a folder
of its own inside the folder of the study, so that a study that was interrupted is continued by running it again.
"""

from __future__ import annotations

import operator
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from tailwise.core.errors import ConfigError, ConfigWarning, TailwiseError
from tailwise.market.leaks.features import LeakVerdict
from tailwise.run.agent import PPO
from tailwise.run.config import Config
from tailwise.run.jobs import Executor, Line, Say, Stop, local_executor, never, silent
from tailwise.run.run_folder import new_folder
from tailwise.run.training_job import Trained, TrainingJob, trained
from tailwise.run.worlds import World

Result = TypeVar("Result")  # of one training, judged
Outcome = TypeVar("Outcome")  # of all of them


class StudyStopped(TailwiseError):
    """A study was stopped before its end; run again with the same folder, it goes on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder}: the study was stopped before its end; run it again with this folder to go on.")
        self.folder = folder


@dataclass(frozen=True)
class StudyJob(ABC, Generic[Result]):
    """One training of a study and its judgement; pickled on its way to a process."""

    training: TrainingJob

    judging: ClassVar[str] = "judged out of sample now"  # what its line says when training is over

    @property
    def label(self) -> str:
        return self.training.label

    def finished(self) -> Result | None:
        """The result, where this job was done before; None when there is something left to do."""
        return None

    def check(self, agent: PPO) -> None:
        """Raise when the run must not be trained."""

    @abstractmethod
    def judge(self, run: Trained) -> Result:
        """Judge the trained run out of sample."""

    def run(self, stop: Stop, say: Say) -> Result | None:
        """Read what was finished before; else train, judge and return the result; None when `stop` was asked for."""
        result = self.finished()
        if result is not None:
            return result
        with trained(self.training, stop, say, check=self.check) as run:
            if run is None:
                return None
            say(Line(self.label, f"{run.ended}; {self.judging}"))
            return self.judge(run)


@dataclass(frozen=True, eq=False)
class Study(ABC, Generic[Result, Outcome]):
    """A plan of trainings that was checked and not begun.

    name          of the configuration
    base          what all trainings share
    seeds         of the trainings
    facts         sentences: what is trained on what
    warnings      sentences about settings and data that work but are likely not meant
    leak_check    of the features that the user wrote; None outside the market
    """

    name: str
    base: Config
    seeds: tuple[int, ...]
    facts: tuple[str, ...]
    warnings: tuple[str, ...]
    leak_check: LeakVerdict | None

    kind = "study"  # default folders are runs/<kind>-<n>

    @abstractmethod
    def claim(self, folder: Path) -> None:
        """Make `folder` the one of this study; raise where it holds something else."""

    @abstractmethod
    def jobs(self, folder: Path) -> Sequence[StudyJob[Result]]:
        """Every training, in the order in which they are begun."""

    @abstractmethod
    def combine(self, folder: Path, results: Sequence[Result]) -> Outcome:
        """Combine the results of all jobs, in their order, and write the files of the study."""


def open_study(study: Study[Result, Outcome], out: str | Path | None = None) -> Path:
    """Claim the folder of a study: `out`, new or begun before by the same study, or the first free runs/<kind>-<n>."""
    with new_folder(None if out is None else Path(out), study.kind) as folder:
        study.claim(folder)
    return folder


def run_study(
    study: Study[Result, Outcome],
    folder: Path,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    stop: Stop = never,
    say: Say = silent,
) -> Outcome:
    """Do what is not done yet and combine all of it.

    jobs       trainings side by side, a process each
    executor   where jobs run; default: this machine
    stop       asked after every update; once it says True, runs end with a checkpoint and StudyStopped is raised
    say        is given the lines of the runs
    """
    return study.combine(folder, run_jobs(study, folder, jobs=jobs, executor=executor, stop=stop, say=say))


def run_jobs(
    study: Study[Result, Outcome],
    folder: Path,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    stop: Stop = never,
    say: Say = silent,
) -> Sequence[Result]:
    """Do the trainings that are not done yet; return the results of all. Arguments as for `run_study`."""
    executor = local_executor(jobs) if executor is None else executor
    results = executor.run(study.jobs(folder), stop=stop, say=say)
    if results is None:
        raise StudyStopped(folder)
    return results


def warn_about(study: Study[Result, Outcome]) -> None:
    """Raise the warnings of a study, once, for the caller of the function that planned it."""
    leaks = study.leak_check
    doubts = [f"leak-check: {leaks.sentence}"] if leaks is not None and leaks.doubtful else []
    for sentence in (*study.warnings, *doubts):
        warnings.warn(sentence, ConfigWarning, stacklevel=3)


def leak_verdict_of(world: World, warned: Sequence[str]) -> LeakVerdict | None:
    """Check the user's own features for look-ahead; where they are refused, warnings are raised all the same."""
    try:
        return world.leak_verdict()
    except TailwiseError:
        for sentence in warned:
            warnings.warn(sentence, ConfigWarning, stacklevel=3)
        raise


def named_seeds(seeds: int | Sequence[int], *, first: int) -> tuple[int, ...]:
    """Return so many seeds from `first` on, or those that are named."""
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        if not 1 <= seeds <= 1000:
            raise ConfigError(f"seeds is {seeds}; give how many, 1 to 1000, or the seeds themselves.")
        return tuple(range(first, first + seeds))
    try:
        named = () if isinstance(seeds, str | bool) else tuple(operator.index(seed) for seed in seeds)
    except TypeError as error:
        raise ConfigError(f"seeds are {seeds!r}; give how many, or whole numbers.") from error
    if not named or min(named) < 0 or len(set(named)) < len(named):
        raise ConfigError(f"seeds are {seeds!r}; name at least one, none negative, none twice.")
    return named


def training_facts(base: Config, leak_check: LeakVerdict | None) -> list[str]:
    """What is known of the user's own features, then model and length of a training; a sentence each."""
    facts = [f"leak-check: {leak_check.sentence}"] if leak_check is not None and leak_check.features else []
    return [
        *facts,
        f"core {base.model.core.kind}, {base.model.critic.kind} critic, gamma {base.learner.gamma:g}, "
        f"{base.run.total_steps:,} steps a run",
    ]
