"""What a run says: facts at its start, figures and a line every few seconds while it trains, sentences at its end."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from tailwise.core.errors import duration, number
from tailwise.features.spec import FeatureSpec
from tailwise.learner.risk_config import CvarMeasure, RiskConstraint, RiskOff
from tailwise.model.actor_critic import ActorCritic
from tailwise.run import checkpoint as ckpt
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.config import Config
from tailwise.run.health import Alert
from tailwise.run.leak_check import read_leak_verdict
from tailwise.run.risk_words import bars_in_a_day, limit_sentences, tail_name, training_verdict
from tailwise.run.run_folder import ALERTS, CONFIG, read_alerts
from tailwise.run.trainer import Trainer
from tailwise.run.worlds import World


class Agent(Protocol):
    """A `tailwise.PPO`, as far as sentences about a run need one."""

    config: Config
    trainer: Trainer
    model: ActorCritic
    features: FeatureSpec | None

    def world(self) -> World:
        """Where it trains."""


PLAIN_LINE_EVERY = 5.0  # seconds
SPEED_WINDOW = 20  # updates over which steps/s are averaged
JUDGED_UPDATES = 20  # the newest, over which the limit is judged at the end of training


class Speed:
    """Steps per second over the newest updates, evaluations and checkpoints included, and the time that is left."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=SPEED_WINDOW + 1)

    def mark(self, now: float, steps: int) -> None:
        """`steps` were done at time `now` (seconds)."""
        self._marks.append((now, steps))

    @property
    def steps_per_second(self) -> float | None:
        """None before the second mark."""
        if len(self._marks) < 2 or self._marks[-1][0] <= self._marks[0][0]:
            return None
        return (self._marks[-1][1] - self._marks[0][1]) / (self._marks[-1][0] - self._marks[0][0])

    def remaining(self, total: int) -> float | None:
        """Seconds until `total` steps at this speed."""
        speed = self.steps_per_second
        if speed is None or speed <= 0:
            return None
        return max(0.0, (total - self._marks[-1][1]) / speed)


@dataclass(frozen=True)
class Labels:
    """How the numbers of a run are named while it trains: level, horizon and unit of its tail.

    cvar     "CVaR 5% over 100 bars"; None when risk is off
    limited  the same of the measure that a limit speaks of
    market   rewards are log-returns and shown in percent; elsewhere they have the unit of the environment's reward
    """

    cvar: str | None
    limited: str | None
    market: bool

    def amount(self, value: float | None, digits: int = 3) -> str:
        """A return or a tail with its unit."""
        if value is None:
            return number(None)
        return f"{number(100 * value, digits)}%" if self.market else f"{number(value, digits)} reward"

    def bare(self, value: float, digits: int = 3) -> str:
        """The same without the word for a reward, where another amount stands beside it."""
        return self.amount(value, digits).removesuffix(" reward")


def labels_of(config: Config) -> Labels:
    """The labels for the runs of a configuration."""
    market = config.env.words.percent
    risk = config.risk
    if isinstance(risk, RiskOff):
        return Labels(None, None, market)
    cvar = tail_name(CvarMeasure(), risk.alpha, config)
    limited = tail_name(risk.measure, risk.alpha, config) if isinstance(risk, RiskConstraint) else None
    return Labels(cvar, limited, market)


def figures(metrics: Mapping[str, float], labels: Labels) -> list[tuple[str, str]]:
    """The numbers worth watching, with their labels and units; what the update did not measure is left out."""
    returns: list[tuple[str, str]] = []
    for name, market, elsewhere in (
        ("episode/return", "episode log-return", "episode return"),
        ("evaluate/return", "log-return of the select window", "evaluation"),
    ):
        if name in metrics:
            shown = labels.bare(metrics[name], 4)
            returns.append((market if labels.market else elsewhere, shown))
    tail = _against_limit(metrics, labels)
    if labels.cvar is not None and "risk/cvar_return" in metrics and labels.cvar not in dict(tail):
        tail.append((labels.cvar, labels.amount(metrics["risk/cvar_return"])))
    others = (("KL", "policy/kl"), ("entropy", "policy/entropy"), ("explained variance", "critic/explained_variance"))
    return [*returns, *tail, *((label, number(metrics[name])) for label, name in others if name in metrics)]


def _against_limit(metrics: Mapping[str, float], labels: Labels) -> list[tuple[str, str]]:
    """The measure beside its limit and the multiplier, where there is a limit."""
    if "risk/limit" not in metrics or labels.limited is None:
        return []
    measured = f"{labels.amount(metrics.get('risk/measure'))} (limit {labels.bare(metrics['risk/limit'])})"
    acts = metrics["risk/active"] == 1.0
    multiplier = number(metrics["risk/multiplier"], 2) if acts else "0 (warm-up: the limit does not act yet)"
    return [(labels.limited, measured), ("multiplier", multiplier)]


class Watcher(Callback):
    """What both displays share: the last update, the newest alert, the speed."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.speed = Speed()
        self.alert: Alert | None = None

    def on_start(self, update: int, steps: int, total_steps: int) -> None:
        self.speed.mark(time.perf_counter(), steps)

    def on_update(self, progress: Progress) -> bool | None:
        self.speed.mark(time.perf_counter(), progress.steps)
        if progress.alerts:
            self.alert = progress.alerts[-1]
        return None


class PlainProgress(Watcher):
    """One line every few seconds, and one per kind of alert: readable in a file and in the log of a job.

    say: where a line goes, standard output by default.
    """

    def __init__(self, labels: Labels, say: Callable[[str], None] = print) -> None:
        super().__init__(labels)
        self.say = say
        self._next_line = 0.0
        # Rules whose alert was printed; the others of the same rule are counted at the end.
        self._told: set[tuple[str, str]] = set()

    def on_note(self, sentence: str) -> None:
        self.say(sentence)

    def on_update(self, progress: Progress) -> bool | None:
        super().on_update(progress)
        for alert in progress.alerts:
            if (alert.rule, alert.event) in self._told:
                continue
            self._told.add((alert.rule, alert.event))
            self.say(f"update {alert.update}: {alert_sentence(alert)}")
        now = time.perf_counter()
        if now < self._next_line and progress.steps < progress.total_steps:
            return None
        self._next_line = now + PLAIN_LINE_EVERY
        left = self.speed.remaining(progress.total_steps)
        parts = [
            f"update {progress.update}",
            f"{progress.steps:,}/{progress.total_steps:,} steps",
            f"{number(self.speed.steps_per_second)} steps/s",
            *(f"{label} {value}" for label, value in figures(progress.metrics, self.labels)),
            *([] if left is None else [f"{duration(left)} left"]),
        ]
        self.say(", ".join(parts))
        return None


def to_standard_error(text: str) -> None:
    """Print a line beside the results of a program, which belong to standard output."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def alert_sentence(alert: Alert) -> str:
    """Rule, evidence and advice in one line."""
    return f"{alert.severity} {alert.rule}: {alert.evidence}; {alert.advice}"


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


def run_facts(agent: Agent, folder: Path) -> list[tuple[str, str]]:
    """(name, sentence): what is trained, where, and whether it can be resumed exactly."""
    config, driver, world = agent.config, agent.trainer.driver, agent.world()
    action, critic = driver.spaces.action, config.model.critic
    parameters = sum(parameter.numel() for parameter in agent.model.parameters())
    exact = f"bit for bit with run.threads {config.run.threads}" if driver.exact_resume else "not exactly"
    facts = [("configuration", f"{folder / CONFIG}"), ("backend", f"{agent.trainer.backend_choice}")]
    ranks = agent.trainer.group.words
    facts += [] if ranks is None else [("ranks", ranks)]
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
        *((limit_name, sentence) for sentence in limit_words(config, world)),
        ("resumes", f"{exact}: {driver.exact_resume_reason}"),
    ]


def limit_words(config: Config, world: World) -> list[str]:
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


def summarise_run(agent: Agent, recorder: Recorder, folder: Path, *, reason: str, seconds: float) -> RunSummary:
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


def end_sentences(agent: Agent, recorder: Recorder, folder: Path, *, reason: str, seconds: float) -> list[str]:
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


def _limit_at_the_end(agent: Agent, recorder: Recorder, alerts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whether the limit was kept in training; that it is out of reach, if it still is."""
    verdict = training_verdict(agent.config, list(recorder.newest))
    if verdict is None or recorder.last is None:
        return []
    raised = [alert for alert in alerts if alert["rule"] == "limit_out_of_reach"]
    if raised and "limit_out_of_reach" in agent.trainer.health.rules.firing:
        return [f"limit out of reach: {raised[-1]['evidence']}; {raised[-1]['advice']}"]
    return [verdict]
