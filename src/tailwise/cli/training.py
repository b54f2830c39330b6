"""`tailwise train`, `tailwise resume` and `tailwise runs reproduce`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tailwise.cli.output import CHECK_FAILED, DONE, INTERRUPTED, note, print_json, say_leak_check
from tailwise.cli.progress import LiveProgress, make_display, stop_after_update
from tailwise.cli.ranks import check_one_policy
from tailwise.cli.seeds import How, start_seeds, train_all
from tailwise.core.errors import ConfigError
from tailwise.run.agent import PPO
from tailwise.run.callbacks import Callback
from tailwise.run.config import Config, effective_config, require_environment, warnings_of
from tailwise.run.leak_check import read_leak_verdict
from tailwise.run.progress import Recorder, end_sentences, run_facts, summarise_run, where_to_continue
from tailwise.run.ranks import RankLostError
from tailwise.run.reproduction import free_folder, repeat
from tailwise.run.run_folder import new_folder, read_config
from tailwise.run.seeds import several
from tailwise.run.tracking import make_trackers
from tailwise.run.trust import open_config


@dataclass(frozen=True)
class Started:
    """A run that is about to train."""

    agent: PPO
    folder: Path
    recorder: Recorder
    display: list[Callback]


def begin(
    config: Config,
    out: Path | None,
    name: str,
    *,
    silent: bool,
    track: Sequence[str] = (),
    display: list[Callback] | None = None,
) -> Started:
    """Create a run in a new folder. display: of its progress; None: the usual one, or none where it is silent."""
    recorder = Recorder()
    display = make_display(config, silent=silent) if display is None else display
    with new_folder(out, name) as folder:
        trackers = make_trackers(track, config, folder)
        agent = PPO(config=config, run_dir=folder, callbacks=[recorder, *display, *trackers])
    return Started(agent, folder, recorder, display)


def start_run(
    config: str,
    overrides: list[str],
    how: How,
    *,
    out: Path | None,
    ranks: int = 1,
) -> int:
    """Train a configuration into a new folder; return the exit code. ranks: processes that share it, this the first;
    where run.shards is not set, there are as many shards."""
    effective = effective_config(config, overrides)
    if ranks > 1 and "shards" not in effective.config.run.model_fields_set:
        effective = effective_config(config, [*overrides, f"run.shards={ranks}"])
    require_environment(effective)
    check_one_policy(effective.config, ranks)
    if several(effective.config):
        return start_seeds(effective, how, out=out)
    _check_here(how)
    started = begin(effective.config, out, effective.name, silent=how.silent, track=how.track)
    for sentence in (*warnings_of(effective.config), *started.agent.world().warnings()):
        note(f"warning: {sentence}")
    say_leak_check(read_leak_verdict(started.folder, started.agent.features))
    if not how.silent:
        print_facts(started)
    return train(started, as_json=how.as_json)


def _check_here(how: How) -> None:
    """Raise where a training of one policy is to run somewhere else."""
    if how.where.on != "local":
        raise ConfigError(
            f"--on {how.where.on} places the seeds of a run, and run.seeds is 1; set run.seeds (-s run.seeds=3), or "
            "leave --on out."
        )


def resume_run(folder: Path, how: How, *, trust: bool = False, ranks: int = 1) -> int:
    """Continue a run; return the exit code. ranks: see `start_run`."""
    config = open_config(folder, training=True, trust=trust)
    check_one_policy(config, ranks)
    if several(config):
        return train_all(folder, config, how)
    _check_here(how)
    recorder, display = Recorder(), make_display(config, silent=how.silent)
    trackers = make_trackers(how.track, config, folder)
    agent, notes = PPO.resume(folder, callbacks=[recorder, *display, *trackers], trust=trust)
    for sentence in notes:
        note(f"note: {sentence}")
    say_leak_check(read_leak_verdict(folder, agent.features))
    trainer, started = agent.trainer, Started(agent, folder, recorder, display)
    over = trainer.finished()
    if over is not None:
        if how.as_json:
            reason = f"the run was finished before: {over}"
            print_json(summarise_run(agent, recorder, folder, reason=reason, seconds=0.0).to_json())
        else:
            print(f"{folder} is finished: {over}. Evaluate it with: tailwise evaluate {folder}")
        return DONE
    if not how.silent:
        print_facts(started)
        print(f"goes on after update {trainer.update}, {trainer.steps:,} of {config.run.total_steps:,} steps")
    return train(started, as_json=how.as_json)


@dataclass(frozen=True)
class Learned:
    """How a training ended: why, after how many seconds, whether by Ctrl-C, and with which exit code."""

    reason: str
    seconds: float
    interrupted: bool
    code: int


def learn(started: Started) -> Learned:
    """Train to the end or until Ctrl-C."""
    agent, recorder = started.agent, started.recorder
    clock = time.perf_counter()
    try:
        with stop_after_update(recorder):
            reason = agent.learn(progress=False)
    except KeyboardInterrupt:
        reason = "interrupted"
        if len(agent.trainer.group.mine) < agent.trainer.group.count:
            # The others wait for the rest of this update: no order that comes now would be understood.
            _say_where_it_ends(started.folder)
            raise RankLostError("interrupted within an update; the other ranks end with this one") from None
    except RankLostError:
        _say_where_it_ends(started.folder)
        raise
    finally:
        for display in started.display:
            if isinstance(display, LiveProgress):
                display.stop()
    over = agent.trainer.finished()  # Ctrl-C during the last update changes nothing
    interrupted = recorder.stop and over is None
    if recorder.stop:
        reason = "interrupted" if over is None else over
    code = INTERRUPTED if interrupted else CHECK_FAILED if agent.trainer.failed else DONE
    return Learned(reason, time.perf_counter() - clock, interrupted, code)


def _say_where_it_ends(folder: Path) -> None:
    note(f"the run ends here; continue {where_to_continue(folder)} with: tailwise resume {folder}")


def train(started: Started, *, as_json: bool) -> int:
    """Train to the end or until Ctrl-C, and print the result; return the exit code."""
    agent, recorder, folder = started.agent, started.recorder, started.folder
    ended = learn(started)
    if as_json:
        print_json(summarise_run(agent, recorder, folder, reason=ended.reason, seconds=ended.seconds).to_json())
        return ended.code
    for sentence in end_sentences(agent, recorder, folder, reason=ended.reason, seconds=ended.seconds):
        print(sentence)
    if ended.interrupted:
        print(f"continue {where_to_continue(folder)} with: tailwise resume {folder}")
    else:
        print(f"evaluate it with: tailwise evaluate {folder}")
    return ended.code


def print_facts(started: Started) -> None:
    """Print what is trained, where, and whether it can be resumed exactly."""
    for name, sentence in run_facts(started.agent, started.folder):
        print(f"{name:<14} {sentence}", flush=name == "resumes")


def reproduce(run: Path, *, out: Path | None, trust: bool, as_json: bool) -> int:
    """Train a run again, compare, print; the exit code is 1 when anything differs."""
    config = read_config(run)
    folder = out or free_folder(run)
    repetition = repeat(run, folder, make_display(config, silent=as_json), trust=trust)
    if as_json:
        print_json({**asdict(repetition), "same": repetition.same})
        return DONE if repetition.same else CHECK_FAILED
    for sentence in repetition.notes:
        print(f"note: {sentence}")
    print(f"{run} again, {repetition.updates} updates, in {folder}")
    if repetition.same:
        weights = f"the weights of {repetition.checkpoint}"
        print(f"the same bit for bit, with run.threads {repetition.threads}: all metrics, and {weights}")
        return DONE
    for what, same in (("metrics", repetition.same_metrics), ("weights", repetition.same_weights)):
        print(f"{what}: {'the same' if same else 'different'}")
    print(f"first difference: {repetition.first_difference}")
    return CHECK_FAILED
