"""`tailwise train` and `resume` of a run with several seeds: facts, progress of all, what came of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tailwise.cli.output import CHECK_FAILED, DONE, INTERRUPTED, note, print_json, say_leak_check
from tailwise.cli.progress import SeedLines, stop_after_update
from tailwise.core.errors import TailwiseError, duration
from tailwise.run.config import Config, Effective, warnings_of
from tailwise.run.leak_check import read_leak_verdict
from tailwise.run.placement import Placement
from tailwise.run.progress import Recorder, limit_words
from tailwise.run.run_folder import ALERTS, CONFIG, new_folder
from tailwise.run.seeds import seeds_of
from tailwise.run.training import Training, begin_seeds, seed_jobs, side_by_side, train_seeds
from tailwise.run.worlds import World


@dataclass(frozen=True)
class How:
    """How a training is shown and logged, and where its seeds run: as many side by side as there are cores, where the
    placement does not say. track: names of trackers."""

    as_json: bool
    quiet: bool
    where: Placement
    track: tuple[str, ...] = ()

    @property
    def silent(self) -> bool:
        return self.as_json or self.quiet


def start_seeds(effective: Effective, how: How, *, out: Path | None) -> int:
    """Train all seeds of a configuration into a new folder; return the exit code."""
    with new_folder(out, effective.name) as folder:
        world = begin_seeds(effective.config, folder)
    for sentence in (*warnings_of(world.config), *world.warnings()):
        note(f"warning: {sentence}")
    say_leak_check(read_leak_verdict(folder, world.features))
    if not how.silent:
        for name, sentence in _facts(world, folder, how):
            print(f"{name:<14} {sentence}", flush=True)
    return train_all(folder, world.config, how)


def train_all(folder: Path, config: Config, how: How) -> int:
    """Train the seeds that are not finished, to their ends or until Ctrl-C; print the result, return the exit code."""
    before = [job for job in seed_jobs(folder, config) if job.finished() is not None]
    if before and not how.silent:
        names = ", ".join(job.label for job in before)
        print(f"finished before: {names} of {len(seeds_of(config))}", flush=True)
    recorder = Recorder()
    executor = how.where.executor(jobs=side_by_side(config), threads=config.run.threads)
    try:
        with SeedLines(silent=how.silent) as say, stop_after_update(recorder):
            training = train_seeds(
                folder, config, executor=executor, track=how.track, stop=lambda: recorder.stop, say=say
            )
    except KeyboardInterrupt:
        note(f"interrupted; continue with: tailwise resume {folder}")
        return INTERRUPTED
    except TailwiseError:
        note(f"what was trained is kept; continue with: tailwise resume {folder}")
        raise
    if how.as_json:
        print_json(training.to_json())
    else:
        _print(training)
    return INTERRUPTED if not training.finished else CHECK_FAILED if training.failed else DONE


def _facts(world: World, folder: Path, how: How) -> list[tuple[str, str]]:
    """(name, sentence): what is trained and where."""
    config = world.config
    seeds, jobs = seeds_of(config), how.where.jobs or side_by_side(config)
    return [
        ("configuration", str(folder / CONFIG)),
        *(("data", sentence) for sentence in world.describe()),
        ("seeds", f"{seeds[0]} to {seeds[-1]}, {min(jobs, len(seeds))} at a time; they decide together as one policy"),
        ("training", f"{config.run.total_steps:,} steps each"),
        ("geometry", f"{config.run.geometry}: {config.geometry.describe(config.run.total_steps)}"),
        *(("limit", sentence) for sentence in limit_words(config, world)),
    ]


def _print(training: Training) -> None:
    for one in training.seeds:
        reason = one.ended or "interrupted"
        print(f"seed {one.seed}: {reason}: {one.steps:,} steps in {one.updates} updates")
        if one.limit is not None:
            print(f"seed {one.seed}: {one.limit}")
        if one.alerts:
            print(f"seed {one.seed}: {one.alerts} alerts; see {Path(one.run_dir) / ALERTS}")
    print(f"{training.reason}, {duration(training.seconds)}")
    what = "evaluate it with: tailwise evaluate" if training.finished else "continue with: tailwise resume"
    print(f"{what} {training.folder}")
