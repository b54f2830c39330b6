"""A training as a job: begun or continued in its folder, alone, to its end or until it is stopped."""

from __future__ import annotations

import contextlib
import fcntl
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tailwise.core.errors import ConfigWarning
from tailwise.run.agent import PPO
from tailwise.run.callbacks import Callback, StopWhen
from tailwise.run.config import Config
from tailwise.run.controllers import Hyperparameters
from tailwise.run.jobs import Line, Say, Stop, never, silent
from tailwise.run.progress import PlainProgress, labels_of
from tailwise.run.run_folder import CONFIG
from tailwise.run.trials import TrialBook


@dataclass(frozen=True)
class TrainingJob:
    """A training: what goes in, how far it goes, where it is kept.

    label        names it in lines and errors
    config       of the run, complete
    folder       of the run; one that holds this run already is continued
    checkpoint   folder of a checkpoint to begin from; None: from the beginning
    steps        environment steps of the run, those behind `checkpoint` included, after which it ends; None:
                 `config.run.total_steps`, on which the schedules depend in any case
    trials       where a training on bars is written down; None: beside `folder`
    changes      hyperparameters that replace the configuration's, or those of `checkpoint`, applied last; None: none
    forget       whether the optimiser begins anew behind `checkpoint`
    """

    label: str
    config: Config
    folder: Path
    checkpoint: Path | None = None
    steps: int | None = None
    trials: TrialBook | None = None
    changes: Hyperparameters | None = None
    forget: bool = False

    def run(self, stop: Stop = never, say: Say = silent) -> Path | None:
        """Train to the end; the folder of the run, or None when `stop` was asked for before."""
        with trained(self, stop, say) as run:
            return None if run is None else self.folder


@dataclass(frozen=True)
class Trained:
    """A run that was trained to its end. ended: why, a sentence."""

    agent: PPO
    ended: str


@contextlib.contextmanager
def trained(
    job: TrainingJob,
    stop: Stop,
    say: Say,
    *,
    check: Callable[[PPO], None] | None = None,
    callbacks: Sequence[Callback] = (),
) -> Iterator[Trained | None]:
    """Begin the run of a job, or continue it, and train to the end; None when `stop` was asked for before.

    check: looks at the agent before it trains and raises when it must not; callbacks: of the training, besides.
    """
    with _exclusive(job.folder), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)  # whoever planned the jobs gave them, once for all
        lines = PlainProgress(labels_of(job.config), lambda text: say(Line(job.label, text)))
        ends = StopWhen(lambda done: stop() or (job.steps is not None and done.steps >= job.steps))
        agent, notes = _begin_or_continue(job, [ends, lines, *callbacks])
        for sentence in notes:
            say(Line(job.label, sentence, "note"))
        trainer = agent.trainer
        try:
            if check is not None:
                check(agent)
            ended = _finished(job, agent)
            if ended is None:
                if trainer.update:
                    lines.say(f"goes on after update {trainer.update}")
                reason = agent.learn(progress=False)
                ended = _finished(job, agent) or reason
                # A stop during the last update changes nothing: the run is finished all the same.
                if stop() and _finished(job, agent) is None:
                    yield None
                    return
            yield Trained(agent, ended)
        finally:
            trainer.driver.close()


def _begin_or_continue(job: TrainingJob, callbacks: Sequence[Callback]) -> tuple[PPO, list[str]]:
    if (job.folder / CONFIG).exists():
        agent, notes = PPO.resume(job.folder, callbacks=callbacks, trials=job.trials, trust=job.config)
    else:
        agent, notes = PPO(config=job.config, run_dir=job.folder, callbacks=callbacks, trials=job.trials), []
    if agent.trainer.update == 0:
        if job.checkpoint is not None:
            reason = agent.restore(job.checkpoint)
            notes += [] if reason is None else [f"the continuation of {job.checkpoint} is not exact: {reason}"]
            if job.forget:
                agent.trainer.forget_moments()
        if job.changes is not None:
            agent.trainer.adopt(job.changes)  # last: a checkpoint brings the values that it was written with
    return agent, notes


def _finished(job: TrainingJob, agent: PPO) -> str | None:
    """Why the run is over, a sentence; None while there is something left to train."""
    if job.steps is not None and agent.trainer.steps >= job.steps:
        return f"reached {agent.trainer.steps:,} steps"
    return agent.trainer.finished()


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Wait until no other process works on this run.

    The processes of a study that was killed notice it after their update; the next one must not begin before.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f".{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by a kill
        yield
