"""`tailwise.train` and `tailwise.resume`: all seeds of a configuration side by side, in one run folder."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from tailwise.core.errors import ConfigWarning
from tailwise.run import checkpoint as ckpt
from tailwise.run.agent import load
from tailwise.run.callbacks import Callback
from tailwise.run.config import Config, ConfigLike, effective_config, require_environment, warnings_of
from tailwise.run.jobs import Executor, Line, Say, Stop, local_executor, never, silent
from tailwise.run.lock import RunLock
from tailwise.run.policy import Trader
from tailwise.run.progress import JUDGED_UPDATES
from tailwise.run.quick import Source, config_beside, is_bars, name_of, with_limits
from tailwise.run.risk_words import training_verdict
from tailwise.run.run_folder import (
    CONFIG,
    create_run_folder,
    new_folder,
    read_alerts,
    refuse_existing,
    remove_unfinished,
)
from tailwise.run.run_list import newest_rows
from tailwise.run.seeds import member_config, members_of, seeds_of, several
from tailwise.run.tracking import make_trackers
from tailwise.run.training_job import TrainingJob, trained
from tailwise.run.trials import TrialBook
from tailwise.run.trust import Trust, open_config
from tailwise.run.worlds import World, make_world


@dataclass(frozen=True)
class SeedTrained:
    """How far the training of one seed has come, from the files of its run.

    run_dir   its folder
    ended     why it ended, a sentence; None while there is something left to train
    failed    whether a health rule, refused updates or a full disk ended it
    steps     environment steps so far; updates: of the policy
    metrics   of the newest update; empty before the first one
    limit     whether it was kept over the newest updates, a sentence; None without a limit
    alerts    of severity warn and above
    """

    seed: int
    run_dir: str
    ended: str | None
    failed: bool
    steps: int
    updates: int
    metrics: dict[str, float]
    limit: str | None
    alerts: int


@dataclass(frozen=True)
class Training:
    """What came of a training.

    folder    of the run
    seeds     one entry for each, in their order
    seconds   of this call, wall-clock
    """

    folder: Path
    seeds: tuple[SeedTrained, ...]
    seconds: float

    @property
    def finished(self) -> bool:
        """Whether every seed is trained to its end."""
        return all(one.ended is not None for one in self.seeds)

    @property
    def failed(self) -> bool:
        return any(one.failed for one in self.seeds)

    @property
    def reason(self) -> str:
        """Why it ended, a sentence."""
        done = sum(one.ended is not None for one in self.seeds)
        return f"all {done} seeds are trained" if self.finished else f"interrupted, {done} seeds are trained"

    def policy(self) -> Trader:
        """The policy that speaks for the run; of several seeds all of them, deciding together."""
        return load(self.folder)

    def to_json(self) -> dict[str, Any]:
        return {
            "run_dir": str(self.folder),
            "reason": self.reason,
            "steps": sum(one.steps for one in self.seeds),
            "updates": sum(one.updates for one in self.seeds),
            "seconds": self.seconds,
            "alerts": sum(one.alerts for one in self.seeds),
            "seeds": [asdict(one) for one in self.seeds],
        }


def train(
    config: ConfigLike | Source | Sequence[Source],
    *,
    overrides: Sequence[str] = (),
    limit: float | Mapping[str, Any] | None = None,
    drawdown: float | None = None,
    symbol: str | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    stop: Stop = never,
    say: Say = silent,
) -> Training:
    """Train a policy, or with run.seeds several that decide together.

    config      a `Config`, a nested dictionary, a YAML file or the name of a preset. Or bars: a DataFrame, `Bars`, a
                CSV or Parquet file, or a list of them; then `tailwise init` chooses, and its file lies beside the run
    overrides   "run.seeds=5" and the like
    limit       lowest mean of the worst discounted returns (risk.limit): a number, or a share of the tail that a rule
                had on the train bars, e.g. {"of": "buy_and_hold", "share": 0.5}
    drawdown    loss of the highest equity, a fraction, that closes the position until the episode ends (env.guards)
    symbol      name of a DataFrame's bars
    out         folder of the run; None: runs/NAME-N, the first free N
    jobs        seeds that are trained side by side, a process each; then call this `if __name__ == "__main__":`
    stop        asked after every update; once it says True, all seeds end with a checkpoint
    say         is given the lines of progress

        training = tailwise.train("sp500", overrides=["run.seeds=5"])
        training.policy().trade("test")
    """
    changes = [*with_limits(limit, drawdown), *overrides]
    place = None if out is None else Path(out)
    if is_bars(config):
        with new_folder(place, name_of(config, symbol)) as folder:
            refuse_existing(folder)
            effective = effective_config(config_beside(config, folder, symbol=symbol), changes)
            world = begin_seeds(effective.config, folder)
    else:
        effective = effective_config(cast(ConfigLike, config), changes)
        require_environment(effective)
        with new_folder(place, effective.name) as folder:
            world = begin_seeds(effective.config, folder)
    for sentence in (*warnings_of(world.config), *world.warnings()):
        warnings.warn(sentence, ConfigWarning, stacklevel=2)
    return train_seeds(folder, world.config, jobs=jobs, stop=stop, say=say)


def resume(run: str | Path, *, jobs: int = 1, stop: Stop = never, say: Say = silent, trust: Trust = False) -> Training:
    """Go on with the seeds of a run that are not finished; those that are stay untouched. Arguments as for `train`.

    trust: execute the code that the run names although somebody else may have written it (docs/security.md).
    """
    folder = Path(run)
    return train_seeds(folder, open_config(folder, training=True, trust=trust), jobs=jobs, stop=stop, say=say)


def begin_seeds(config: Config, folder: Path) -> World:
    """Check what is to be trained and write the folder of the run; return its world. A run with one seed writes its
    own folder when its training begins."""
    refuse_existing(folder)
    world = make_world(config)
    checked = world.check_before_training()
    if several(config):
        driver = world.training()
        driver.close()
        create_run_folder(
            folder,
            world.config,
            exact_resume=driver.exact_resume,
            exact_resume_reason=driver.exact_resume_reason,
            world={**world.facts(), **checked},
        )
    return world


def train_seeds(
    folder: Path,
    config: Config,
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    track: Sequence[str] = (),
    stop: Stop = never,
    say: Say = silent,
) -> Training:
    """Train the seeds of a run that are not finished yet; config: of the run, with its numbers.

    jobs: None: as many as there are cores for; track: trackers that each seed is logged with.
    """
    clock = time.perf_counter()
    work = seed_jobs(folder, config, track=track)
    executor = local_executor(jobs or side_by_side(config)) if executor is None else executor
    with RunLock(folder).held() if several(config) else nullcontext():
        if several(config):
            remove_unfinished(folder)
        ends: Sequence[Ended | None] = executor.run(work, stop=stop, say=say) or [None for _ in work]
    states = tuple(job.state(end) for job, end in zip(work, ends, strict=True))
    return Training(folder, states, time.perf_counter() - clock)


def seed_jobs(folder: Path, config: Config, *, track: Sequence[str] = ()) -> list[SeedJob]:
    """The trainings of all seeds."""
    book = TrialBook.beside(folder)
    if several(config):
        book = TrialBook(book.file, whole=config)
    return [
        SeedJob(TrainingJob(f"seed {seed}", member_config(config, seed), one, trials=book), tuple(track))
        for seed, one in zip(seeds_of(config), members_of(folder, config), strict=True)
    ]


def side_by_side(config: Config) -> int:
    """How many seeds are trained at a time: as many as there are cores for, each with run.threads."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(config.run.seeds, cores // config.run.threads))


@dataclass(frozen=True)
class Ended:
    """Why the training of a seed ended, a sentence; failed: see `SeedTrained`."""

    reason: str
    failed: bool = False


@dataclass(frozen=True)
class SeedJob:
    """The training of one seed; pickled on its way to a process. track: names of trackers."""

    training: TrainingJob
    track: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return self.training.label

    def run(self, stop: Stop, say: Say) -> Ended | None:
        """Train to the end, unless that was done before, which is left untouched; None when `stop` was asked for."""
        before = self.finished()
        if before is not None:
            return before
        trackers: list[Callback] = make_trackers(self.track, self.training.config, self.training.folder)
        with trained(self.training, stop, say, callbacks=trackers) as run:
            if run is None:
                return None
            say(Line(self.label, run.ended))
            return Ended(run.ended, run.agent.trainer.failed)

    def finished(self) -> Ended | None:
        """Why there is nothing left to train, by the newest checkpoint and the metrics; None while there is."""
        folder, config = self.training.folder, self.training.config
        if not (folder / CONFIG).exists():
            return None
        newest, rejected = ckpt.latest_good(folder)
        rows = newest_rows(folder, 1)
        if newest is None or rejected or not rows:
            return None
        state = ckpt.read_training(newest).json
        if int(state["update"]) != int(rows[-1]["update"]):
            return None  # killed between the metrics and the checkpoint of its last update
        total, patience = max(int(state["total_steps"]), config.run.total_steps), config.evaluate.patience
        if int(state["steps"]) >= total:
            return Ended(f"all {total:,} steps are done")
        if patience is not None and int(state["evaluations_without_gain"]) >= patience:
            return Ended(f"the evaluation did not improve {patience} times in a row")
        return None

    def state(self, end: Ended | None = None) -> SeedTrained:
        """How far it has come; end: what `run` returned, if it was trained just now."""
        folder, config = self.training.folder, self.training.config
        if not (folder / CONFIG).exists():
            return SeedTrained(config.seed, str(folder), None, False, 0, 0, {}, None, 0)
        rows = newest_rows(folder, JUDGED_UPDATES)
        last = rows[-1] if rows else {}
        loud = [alert for alert in read_alerts(folder) if alert["severity"] != "info"]
        end = end or self.finished()
        return SeedTrained(
            seed=config.seed,
            run_dir=str(folder),
            ended=None if end is None else end.reason,
            failed=end is not None and end.failed,
            steps=int(last.get("steps", 0)),
            updates=int(last.get("update", 0)),
            metrics={name: value for name, value in last.items() if name not in ("update", "steps")},
            limit=training_verdict(config, rows),
            alerts=len(loud),
        )
