"""Health during a run: signals, rules and actions together, as the trainer uses them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tailwise.core.errors import CheckpointError
from tailwise.core.metrics import is_compared
from tailwise.core.numerics import Moments
from tailwise.learner.backend import UpdateReport
from tailwise.learner.rollout import Rollout
from tailwise.model.actor_critic import ActorCritic
from tailwise.run.config import Config
from tailwise.run.health.actions import Actions, Before
from tailwise.run.health.engine import Health, conclusions
from tailwise.run.health.probes import StepFacts
from tailwise.run.health.rule import Alert
from tailwise.run.health.signals import Signals

if TYPE_CHECKING:
    from tailwise.run.trainer import Trainer

PREFIX = "health/"  # of tensors in a checkpoint


class HealthWatch:
    """What a trainer knows about its health. Its own time is measured: `time/health`.

    That is all of the wall-clock time of this package: the copy that an update can be undone with, the looks at infos
    while the rollout is collected, signals, rules and actions.
    """

    def __init__(self, config: Config, model: ActorCritic) -> None:
        rules = config.health.effective_rules()
        self.rules = Health(rules)
        self.signals = Signals(model, config.learner, every=config.health.signals_every)
        self.actions = Actions(config.health, rules)
        self.seconds = 0.0  # spent on the update that goes on
        self.evaluated: dict[str, float] = {}  # signals of an evaluation, for the rules of the next update
        # What depends on the machine is left out, so that equal runs have equal metrics.
        self._loud = {rule.name for rule in rules if rule.severity != "info" and is_compared(rule.signal)}

    def before(self, trainer: Trainer) -> Before | None:
        """Call before an update."""
        clock = time.perf_counter()
        kept = self.actions.before(trainer)
        self.seconds = time.perf_counter() - clock
        return kept

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
        clock = time.perf_counter()
        found = self.signals.measure(
            rollout, facts, metrics, kl_factor=kl_factor, target_kl=target_kl, observed=observed
        )
        self.seconds += time.perf_counter() - clock + facts.seconds
        return found

    def after(
        self, trainer: Trainer, rollout: Rollout, metrics: dict[str, float], report: UpdateReport, before: Before | None
    ) -> list[Alert]:
        """Apply the rules to an update and do what they want; everything that was raised, cleared or done."""
        clock = time.perf_counter()
        known = {**self.evaluated, **metrics} if self.evaluated else metrics
        found, notes = conclusions(known, measured_terms=bool(report.term_gradients))
        self.evaluated = {}
        metrics |= found
        signals = {**known, **found} if known is not metrics else metrics
        events = self.rules.judge(trainer.update, metrics, report, known=(signals, notes))
        events += self.actions.act(trainer, self.rules, events, rollout=rollout, metrics=metrics, before=before)
        metrics["health/firing"] = float(len(self.rules.firing & self._loud))
        metrics["health/actions"] = float(self.actions.total)
        self.seconds += time.perf_counter() - clock
        metrics["time/health"] = self.seconds
        return events

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
