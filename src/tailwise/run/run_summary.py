"""What is trained, and what came of a training: facts, sentences for people, one object for programs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tailwise.core.errors import duration
from tailwise.run import checkpoint as ckpt
from tailwise.run.agent import PPO
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.config import Config
from tailwise.run.leak_verdict import read_leak_verdict
from tailwise.run.progress import labels_of
from tailwise.run.risk_words import bars_in_a_day, limit_sentences, training_verdict
from tailwise.run.run_folder import ALERTS, CONFIG, read_alerts
from tailwise.run.worlds import World

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


def run_facts(agent: PPO, folder: Path) -> list[tuple[str, str]]:
    """(name, sentence): what is trained, where, and whether it can be resumed exactly."""
    config, driver, world = agent.config, agent.trainer.driver, agent.world()
    action, critic = driver.spaces.action, config.model.critic
    parameters = sum(parameter.numel() for parameter in agent.model.parameters())
    exact = f"bit for bit with run.threads {config.run.threads}" if driver.exact_resume else "not exactly"
    facts = [("configuration", f"{folder / CONFIG}"), ("backend", f"{agent.trainer.backend_choice}")]
    facts += [("data", sentence) for sentence in world.describe()]
    verdict = read_leak_verdict(folder, agent.features)
    facts += [] if verdict is None else [("leak-check", verdict.sentence)]
    limit_name = config.risk.mode if config.risk.mode == "penalty" else "limit"
    twin, plural = ("twin ", "s") if critic.twin else ("", "")
    return [
        *facts,
        (
            "environment",
            f"{world.name} x {driver.num_envs}, {driver.spaces.observation.size} observed numbers, "
            f"{action.kind} actions",
        ),
        ("model", f"core {config.model.core.kind}, {twin}{critic.kind} critic{plural}, {parameters:,} parameters"),
        ("training", f"{config.run.total_steps:,} steps, seed {config.seed}"),
        ("geometry", f"{config.run.geometry}: {config.geometry.describe(config.run.total_steps)}"),
        *((limit_name, sentence) for sentence in _limit_words(config, world)),
        ("resumes", f"{exact}: {driver.exact_resume_reason}"),
    ]


def _limit_words(config: Config, world: World) -> list[str]:
    """What the limit means, with the bars of this market."""
    frequency = world.frequency()
    if frequency is None:
        return limit_sentences(config, bars_per_day=None, bars_per_year=None)
    return limit_sentences(config, bars_per_day=bars_in_a_day(frequency), bars_per_year=frequency.periods_per_year)


@dataclass(frozen=True)
class RunSummary:
    """What came of a training.

    reason    why it ended, a sentence
    steps     environment steps so far; updates: of the policy
    seconds   of this call, wall-clock
    metrics   of the newest update; empty when there was none
    limit     whether it was kept over the newest updates, a sentence; None without a limit
    alerts    of severity warn and above; those of severity info are in the file for who looks closer
    """

    run_dir: str
    reason: str
    steps: int
    updates: int
    seconds: float
    metrics: dict[str, float]
    limit: str | None
    alerts: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarise_run(agent: PPO, recorder: Recorder, folder: Path, *, reason: str, seconds: float) -> RunSummary:
    """The summary of a training that ended; `recorder` was among its callbacks."""
    return RunSummary(
        run_dir=str(folder),
        reason=reason,
        steps=agent.trainer.steps,
        updates=agent.trainer.update,
        seconds=seconds,
        metrics={} if recorder.last is None else dict(recorder.last.metrics),
        limit=training_verdict(agent.config, list(recorder.newest)),
        alerts=len(_loud_alerts(folder)),
    )


def end_sentences(agent: PPO, recorder: Recorder, folder: Path, *, reason: str, seconds: float) -> list[str]:
    """Why a training ended, its return, its limit, its alerts."""
    trainer = agent.trainer
    sentences = [f"{reason}: {trainer.steps:,} steps in {trainer.update} updates, {duration(seconds)}"]
    if recorder.last is not None and "episode/return" in recorder.last.metrics:
        labels = labels_of(agent.config)
        kind, mean = "log-return" if labels.market else "return", recorder.last.metrics["episode/return"]
        sentences.append(f"mean {kind} of the last finished episodes: {labels.bare(mean, 4)}")
    alerts = _loud_alerts(folder)
    sentences += _limit_at_the_end(agent, recorder, alerts)
    if alerts:
        counts = Counter(alert["rule"] for alert in alerts)
        listed = ", ".join(f"{rule} ({count} times)" if count > 1 else rule for rule, count in counts.items())
        sentences.append(f"alerts: {listed}; see {folder / ALERTS}")
    return sentences


def where_to_continue(folder: Path) -> str:
    """The checkpoint from which an interrupted run goes on, in words."""
    newest = ckpt.checkpoints_in(folder)
    return f"from {newest[0].name}" if newest else "from its beginning, as there is no checkpoint yet"


def _loud_alerts(folder: Path) -> list[dict[str, Any]]:
    return [alert for alert in read_alerts(folder) if alert["severity"] != "info"]


def _limit_at_the_end(agent: PPO, recorder: Recorder, alerts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whether the limit was kept in training; that it is out of reach, if it still is."""
    verdict = training_verdict(agent.config, list(recorder.newest))
    if verdict is None or recorder.last is None:
        return []
    raised = [alert for alert in alerts if alert["rule"] == "limit_out_of_reach"]
    if raised and "limit_out_of_reach" in agent.trainer.health.rules.firing:
        return [f"limit out of reach: {raised[-1]['evidence']}; {raised[-1]['advice']}"]
    return [verdict]
