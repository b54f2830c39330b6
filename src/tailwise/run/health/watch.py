"""Health during a run: signals, rules and actions together, as the trainer uses them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tailwise.core.errors import CheckpointError
from tailwise.core.metrics import is_compared
from tailwise.core.numerics import Moments
from tailwise.learner.backend import Backend, UpdateReport
from tailwise.learner.rollout import Rollout
from tailwise.model.actor_critic import ActorCritic
from tailwise.run.config import Config
from tailwise.run.controllers import Controllers
from tailwise.run.health.actions import Actions, Intervention, LearnerCopy
from tailwise.run.health.engine import Health, conclusions
from tailwise.run.health.probes import StepFacts
from tailwise.run.health.rule import Alert
from tailwise.run.health.signals import Signals

PREFIX = "health/"  # of tensors in a checkpoint


class Stopwatch:
    """Adds up the seconds of the blocks that it is the context of, one after the other."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since = 0.0

    def __enter__(self) -> None:
        self._since = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.seconds += time.perf_counter() - self._since


class HealthWatch:
    """What a trainer knows about its health, and the wall-clock time that this takes: `time/health`.

    That is the reading of infos while the rollout is collected, signals, rules and actions. The copy that an update can
    be undone with is the update's own.
    """

    def __init__(self, config: Config, model: ActorCritic, run_dir: Path | None) -> None:
        rules = config.health.effective_rules()
        self.rules = Health(rules)
        self.signals = Signals(model, config.learner, every=config.health.signals_every)
        every = config.run.checkpoint_every
        self.actions = Actions(config.health, rules, run_dir=run_dir, checkpoint_every=every)
        self.timed = Stopwatch()  # of the update that goes on
        self.evaluated: dict[str, float] = {}  # signals of an evaluation, for the rules of the next update
        # What depends on the machine is left out, so that equal runs have equal metrics.
        self._loud = {rule.name for rule in rules if rule.severity != "info" and is_compared(rule.signal)}

    def warm_up(self) -> None:
        """Compile or load what the first update needs."""
        self.signals.warm_up()

    def before(self, update: int, controllers: Controllers) -> dict[str, Any] | None:
        """Copy the controllers in case the next update has to be undone; None when no rule could want that."""
        self.timed.seconds = 0.0
        with self.timed:
            return self.actions.controllers_before(update, controllers)

    def updated(
        self, update: int, backend: Backend, report: UpdateReport, controllers: dict[str, Any] | None
    ) -> LearnerCopy | None:
        """What the newest update may have to be undone with; controllers: what `before` gave."""
        with self.timed:
            return self.actions.learner_before(update, backend, report, controllers)

    def measure(
        self,
        rollout: Rollout,
        facts: StepFacts,
        metrics: Mapping[str, float],
        *,
        kl_factor: float,
        target_kl: float | None,
        observed: Moments | None = None,
    ) -> dict[str, float]:
        """Signals of this update that the learner's metrics do not have; observed: see `UpdateReport`."""
        self.timed.seconds += facts.seconds
        with self.timed:
            return self.signals.measure(
                rollout, facts, metrics, kl_factor=kl_factor, target_kl=target_kl, observed=observed
            )

    def judge(
        self, update: int, metrics: dict[str, float], report: UpdateReport, *, health_factor: float
    ) -> tuple[list[Alert], Intervention | None]:
        """Apply the rules: (alerts that were raised or cleared, what is to be done); derived signals join `metrics`."""
        with self.timed:
            evaluated, self.evaluated = self.evaluated, {}
            known = {**evaluated, **metrics} if evaluated else metrics
            derived, notes = conclusions(known, measured_terms=bool(report.term_gradients))
            metrics |= derived
            known |= derived
            alerts = self.rules.judge(update, metrics, report, derived=(known, notes))
            decided = self.actions.decide(update, self.rules, committed=report.committed, health_factor=health_factor)
            return alerts, decided

    def finish(self, update: int, intervention: Intervention | None) -> tuple[list[Alert], dict[str, float]]:
        """Note that an intervention was carried out: (the alert about it, metrics of rules, actions and time)."""
        alerts = []
        if intervention is not None:
            rule = intervention.rule
            self.rules.states[rule.name].last_action = update
            evidence, advice = intervention.evidence, rule.advice
            alerts = [Alert(update, rule.name, rule.severity, evidence, advice, "acted", rule.action, rule.signal)]
        return alerts, {
            "health/firing": float(len(self.rules.firing & self._loud)),
            "health/actions": float(self.actions.total),
            "time/health": self.timed.seconds,
        }

    def evaluation(self, mean_observation: np.ndarray | None) -> dict[str, float]:
        """Shift between training and an evaluation with this mean observation [D]."""
        self.evaluated = {} if mean_observation is None else self.signals.evaluation(mean_observation)
        return dict(self.evaluated)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """For a checkpoint: (tensors, JSON)."""
        tensors, signals = self.signals.state()
        data = {"rules": self.rules.state(), "signals": signals, "actions": self.actions.state()}
        data["evaluated"] = dict(self.evaluated)
        return {PREFIX + name: tensor for name, tensor in tensors.items()}, data

    def load(self, tensors: Mapping[str, torch.Tensor], data: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        missing = {"rules", "signals", "actions", "evaluated"} - data.keys()
        if missing:
            raise CheckpointError(
                f"the health state lacks {', '.join(sorted(missing))}: another version of Tailwise wrote this "
                "checkpoint; finish the run with that version"
            )
        self.rules.load(data["rules"])
        own = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
        self.signals.load(own, data["signals"])
        self.actions.load(data["actions"])
        self.evaluated = {name: float(value) for name, value in data["evaluated"].items()}
