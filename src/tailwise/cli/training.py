"""`tailwise train` and `tailwise resume`."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from tailwise.cli.configuring import read_effective
from tailwise.cli.main import CHECK_FAILED, DONE, INTERRUPTED
from tailwise.cli.output import duration, note, print_json, say_leak_check
from tailwise.run.progress import LiveProgress, PlainProgress, labels_of
from tailwise.core.errors import ConfigError
from tailwise.run import checkpoint as ckpt
from tailwise.run.agent import PPO
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.config import Config, GymEnv, warnings_of
from tailwise.run.leak_verdict import read_leak_verdict
from tailwise.run.risk_words import bars_in_a_day, limit_sentences, training_verdict
from tailwise.run.run_folder import ALERTS, CONFIG, read_alerts
from tailwise.run.tracking import make_trackers
from tailwise.run.trust import open_config
from tailwise.run.worlds import MarketWorld, World

JUDGED_UPDATES = 20  # the newest, over which the limit is judged at the end of training


class Recorder(Callback):
    """Keeps the newest updates, and ends the run after one of them once `stop` is set."""

    def __init__(self) -> None:
        self.last: Progress | None = None
        self.newest: deque[Mapping[str, float]] = deque(maxlen=JUDGED_UPDATES)
        self.stop = False

    def on_update(self, progress: Progress) -> bool | None:
        self.last = progress
        self.newest.append(progress.metrics)
        return False if self.stop else None


def start_run(
    config: str, overrides: list[str], *, out: Path | None, as_json: bool, quiet: bool, track: Sequence[str] = ()
) -> int:
    """Train a configuration into a new folder; returns the exit code."""
    source, full = read_effective(config, overrides)
    require_environment(full, source.label)
    recorder = Recorder()
    display = make_display(full, silent=as_json or quiet)
    with run_folder(out, source.name) as folder:
        trackers = make_trackers(track, full, folder)
        agent = PPO(config=full, run_dir=folder, callbacks=[recorder, *display, *trackers])
    for sentence in (*warnings_of(full), *agent.world().warnings()):
        note(f"warning: {sentence}")
    say_leak_check(read_leak_verdict(folder, agent.features))
    if not as_json and not quiet:
        print_facts(agent, folder)
    return train(agent, recorder, display, folder, as_json=as_json)


def resume_run(folder: Path, *, as_json: bool, quiet: bool, track: Sequence[str] = (), trust: bool = False) -> int:
    """Continue a run; returns the exit code."""
    config = open_config(folder, training=True, trust=trust)
    recorder = Recorder()
    display = make_display(config, silent=as_json or quiet)
    trackers = make_trackers(track, config, folder)
    agent, notes = PPO.resume(folder, callbacks=[recorder, *display, *trackers], trust=trust)
    for sentence in notes:
        note(f"note: {sentence}")
    say_leak_check(read_leak_verdict(folder, agent.features))
    trainer = agent.trainer
    over = trainer.finished()
    if over is not None:
        if as_json:
            print_json(summary(agent, recorder, folder, f"the run was finished before: {over}", 0.0))
        else:
            print(f"{folder} is finished: {over}. Evaluate it with: tailwise evaluate {folder}")
        return DONE
    if not as_json and not quiet:
        print_facts(agent, folder)
        print(f"goes on after update {trainer.update}, {trainer.steps:,} of {config.run.total_steps:,} steps")
    return train(agent, recorder, display, folder, as_json=as_json)


def train(agent: PPO, recorder: Recorder, display: list[Callback], folder: Path, *, as_json: bool) -> int:
    """Train to the end, or until Ctrl-C, and print what came of it."""
    started = time.perf_counter()
    try:
        with stop_after_update(recorder):
            reason = agent.learn()
    except KeyboardInterrupt:
        reason = "interrupted"
    finally:
        for shown in display:
            if isinstance(shown, LiveProgress):
                shown.stop()
    over = agent.trainer.finished()  # Ctrl-C during the last update changes nothing
    interrupted = recorder.stop and over is None
    if recorder.stop:
        reason = "interrupted" if over is None else over
    seconds = time.perf_counter() - started
    if as_json:
        print_json(summary(agent, recorder, folder, reason, seconds))
    else:
        print_end(agent, recorder, folder, reason, seconds, interrupted=interrupted)
    if interrupted:
        return INTERRUPTED
    return CHECK_FAILED if agent.trainer.failed else DONE


@contextlib.contextmanager
def stop_after_update(recorder: Recorder) -> Iterator[None]:
    """Ctrl-C ends the run after the update it is in, with a checkpoint; a second Ctrl-C ends it at once."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        if recorder.stop:
            raise KeyboardInterrupt
        recorder.stop = True
        note("stopping after this update; press Ctrl-C again to stop at once")

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def require_environment(config: Config, label: str) -> None:
    """A configuration without environment can be used from Python only."""
    if isinstance(config.env, GymEnv) and config.env.id is None:
        raise ConfigError(f"{label}: env.id is not set; write the id of an environment, e.g. -s env.id=CartPole-v1")


def make_display(config: Config, *, silent: bool) -> list[Callback]:
    """Live on a terminal, plain lines elsewhere, nothing when silent."""
    if silent:
        return []
    labels = labels_of(config)
    return [LiveProgress(labels, Console()) if sys.stdout.isatty() else PlainProgress(labels)]


@contextlib.contextmanager
def run_folder(out: Path | None, name: str) -> Iterator[Path]:
    """The folder to train into: `out`, or runs/<name>-<n> with the first free n, taken at once.

    Runs that start at the same moment get different folders; a folder that stayed empty is removed when the run
    cannot start.
    """
    if out is not None:
        yield out
        return
    number = 1
    while True:
        folder = Path("runs") / f"{name}-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
            continue
        break
    try:
        yield folder
    except BaseException:
        with contextlib.suppress(OSError):  # not empty: what is in it stays
            folder.rmdir()
        raise


def print_facts(agent: PPO, folder: Path) -> None:
    """What is trained, where, and whether it can be resumed exactly."""
    config, driver = agent.config, agent.trainer.driver
    action = driver.spaces.action
    parameters = sum(parameter.numel() for parameter in agent.model.parameters())
    critic = config.model.critic
    exact = f"bit for bit with run.threads {config.run.threads}" if driver.exact_resume else "not exactly"
    print(f"configuration  {folder / CONFIG}")
    print(f"backend        {agent.trainer.backend_choice}")
    world = agent.world()
    if isinstance(world, MarketWorld):
        for sentence in world.dataset.describe():
            print(f"data           {sentence}")
        verdict = read_leak_verdict(folder, agent.features)
        if verdict is not None:
            print(f"leak-check     {verdict.sentence}")
    print(
        f"environment    {world.name} x {driver.num_envs}, {driver.spaces.observation.size} observed numbers, "
        f"{action.kind} actions"
    )
    print(
        f"model          core {config.model.core.kind}, {'twin ' if critic.twin else ''}{critic.kind} "
        f"critic{'s' if critic.twin else ''}, {parameters:,} parameters"
    )
    print(f"training       {config.run.total_steps:,} steps, seed {config.seed}")
    print(f"geometry       {config.run.geometry}: {config.geometry.describe(config.run.total_steps)}")
    for sentence in told_limit(config, world):
        print(f"{config.risk.mode if config.risk.mode == 'penalty' else 'limit':<14} {sentence}")
    print(f"resumes        {exact}: {driver.exact_resume_reason}", flush=True)


def told_limit(config: Config, world: World) -> list[str]:
    """What the limit means, with the bars of this market."""
    if not isinstance(world, MarketWorld):
        return limit_sentences(config, bars_per_day=None, bars_per_year=None)
    frequency = world.dataset.bars[0].frequency  # that of all symbols
    return limit_sentences(config, bars_per_day=bars_in_a_day(frequency), bars_per_year=frequency.periods_per_year)


def summary(agent: PPO, recorder: Recorder, folder: Path, reason: str, seconds: float) -> dict[str, Any]:
    """What --json prints."""
    return {
        "run_dir": str(folder),
        "reason": reason,
        "steps": agent.trainer.steps,
        "updates": agent.trainer.update,
        "seconds": seconds,
        "metrics": {} if recorder.last is None else dict(recorder.last.metrics),
        "limit": training_verdict(agent.config, list(recorder.newest)),
        "alerts": len(_loud_alerts(folder)),
    }


def print_end(agent: PPO, recorder: Recorder, folder: Path, reason: str, seconds: float, *, interrupted: bool) -> None:
    """The last lines of a run: why it ended, its return, its alerts, and what can be done with it."""
    trainer = agent.trainer
    print(f"{reason}: {trainer.steps:,} steps in {trainer.update} updates, {duration(seconds)}")
    if recorder.last is not None and "episode/return" in recorder.last.metrics:
        labels = labels_of(agent.config)
        kind, mean = "log-return" if labels.market else "return", recorder.last.metrics["episode/return"]
        print(f"mean {kind} of the last finished episodes: {labels.bare(mean, 4)}")
    alerts = _loud_alerts(folder)
    for sentence in _limit_at_the_end(agent, recorder, alerts):
        print(sentence)
    if alerts:
        counts = Counter(alert["rule"] for alert in alerts)
        told = ", ".join(f"{rule} ({count} times)" if count > 1 else rule for rule, count in counts.items())
        print(f"alerts: {told}; see {folder / ALERTS}")
    if interrupted:
        newest = ckpt.checkpoints_in(folder)
        kept = f"from {newest[0].name}" if newest else "from its beginning, as there is no checkpoint yet"
        print(f"continue {kept} with: tailwise resume {folder}")
    else:
        print(f"evaluate it with: tailwise evaluate {folder}")


def _loud_alerts(folder: Path) -> list[dict[str, Any]]:
    """Alerts of severity warn and above; those of severity info are in the file for who looks closer."""
    return [alert for alert in read_alerts(folder) if alert["severity"] != "info"]


def _limit_at_the_end(agent: PPO, recorder: Recorder, alerts: list[dict[str, Any]]) -> list[str]:
    """Whether the limit was kept in training; that it is out of reach, if it still is."""
    verdict = training_verdict(agent.config, list(recorder.newest))
    if verdict is None or recorder.last is None:
        return []
    told = [alert for alert in alerts if alert["rule"] == "limit_out_of_reach"]
    if told and "limit_out_of_reach" in agent.trainer.health.rules.firing:
        return [f"limit out of reach: {told[-1]['evidence']}; {told[-1]['advice']}"]
    return [verdict]
