"""What rules do beside telling: shrink the step, undo an update, roll back, stop. Each has a budget per run.

`Actions.decide` returns an `Intervention`, a record of what is to be done; the trainer carries it out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tailwise.core.atomic import atomic_folder
from tailwise.core.errors import CheckpointError
from tailwise.learner.backend import Backend, UpdateReport
from tailwise.learner.rollout import Rollout
from tailwise.run import checkpoint as ckpt
from tailwise.run.controllers import Controllers, controllers_of
from tailwise.run.health.config import HealthConfig
from tailwise.run.health.engine import Health
from tailwise.run.health.rule import ACTIONS, Action, Alert, Rule
from tailwise.run.policy_files import load_policy_tensors
from tailwise.run.run_folder import DUMPS

COPIES = 3  # good states that a run without a folder keeps in memory


@dataclass(frozen=True)
class LearnerCopy:
    """The learner and its controllers after an update, in memory; snapshot: of the backend."""

    update: int
    snapshot: Any
    controllers: dict[str, Any]

    @property
    def source(self) -> str:
        """What it is called in alerts."""
        return f"the state after update {self.update}"

    def restore(self, backend: Backend, controllers: Controllers) -> None:
        """Put the copy back."""
        backend.restore(self.snapshot)
        controllers.restore(self.controllers)


@dataclass(frozen=True)
class GoodCheckpoint:
    """The learner and its controllers of a checkpoint."""

    source: str
    policy: ckpt.Part
    training: ckpt.Part

    def restore(self, backend: Backend, controllers: Controllers) -> None:
        """Take over weights, normaliser, return scale, optimiser and controllers."""
        load_policy_tensors(backend.model, self.policy.tensors, source=self.source)
        optimiser = {k: v for k, v in self.training.tensors.items() if k.startswith("optimiser/")}
        backend.optimiser.check(optimiser, fresh=True)
        backend.optimiser.load(optimiser)
        controllers.restore(controllers_of(self.training.json))


@dataclass(frozen=True)
class Intervention:
    """What a rule wants to be done about the newest update.

    rule      that wants it
    evidence  what is done, a sentence
    undo      whether learner and controllers go back to what they were before the update
    state     of learner and controllers to roll back to; None: none
    shrink    factor on the step size
    dump      folder for all numbers of the update; None: none
    stop      why the run ends, a sentence; None: it goes on
    """

    rule: Rule
    evidence: str
    undo: bool = False
    state: LearnerCopy | GoodCheckpoint | None = None
    shrink: float = 1.0
    dump: Path | None = None
    stop: str | None = None


class Actions:
    """Decides which action an update needs. Counts of actions are in the checkpoint.

    run_dir: folder of the run; without one, good states are copied in memory every `checkpoint_every` updates.
    """

    def __init__(
        self, config: HealthConfig, rules: Sequence[Rule], *, run_dir: Path | None, checkpoint_every: int
    ) -> None:
        self.config = config
        self.rules = {rule.name: rule for rule in rules}
        self.run_dir, self.checkpoint_every = run_dir, checkpoint_every
        self.budget: dict[Action, int] = {
            "shrink": config.max_shrinks,
            "skip": config.max_skips,
            "rollback": config.max_rollbacks,
        }
        self.counts: dict[str, int] = {"shrink": 0, "skip": 0, "rollback": 0, "stop": 0}
        self.spent: list[str] = []  # rules of which an alert said that their budget is spent
        self._copies: list[LearnerCopy] = []  # good states, oldest first
        self._good_after: int | None = None  # the newest update, where the learner is good as it left it
        wanted = {rule.action for rule in rules}
        self.may_skip = "skip" in wanted and config.max_skips > 0
        self.may_roll_back = "rollback" in wanted and config.max_rollbacks > 0

    def controllers_before(self, update: int, controllers: Controllers) -> dict[str, Any] | None:
        """Copy the controllers after `update` updates where the next one may be undone, or where they are good."""
        return controllers.to_json() if self.may_skip or self._good_after == update else None

    def learner_before(
        self, update: int, backend: Backend, report: UpdateReport, controllers: dict[str, Any] | None
    ) -> LearnerCopy | None:
        """The learner after `update` updates, from the report of the next one; None where nobody wants it.

        An update copies the learner in any case, to roll back by itself, and that copy serves here too. Without one
        nothing was touched, and what the learner is now is what it was. What it is after an update is what it is before
        the next one, so that one copy serves both.
        """
        good, self._good_after = self._good_after == update, None
        if controllers is None:
            return None
        copy = LearnerCopy(update, backend.snapshot() if report.before is None else report.before, controllers)
        if good:
            self._copies = [*self._copies[-(COPIES - 1) :], copy]
        return copy

    def decide(self, update: int, health: Health, *, committed: bool, health_factor: float) -> Intervention | None:
        """The strongest thing that a rule wants after `update` and may still do; None when there is nothing to do.

        committed: whether the learner kept the update; health_factor: on the step size so far.
        """
        wanted = self._wanting(update, health)
        if not wanted:
            due = self.run_dir is None and update % self.checkpoint_every == 0
            if self.may_roll_back and due and not health.firing:
                self._good_after = update
            return None
        plans = (
            self._plan(rule, update, health, committed=committed, health_factor=health_factor)
            for rule in sorted(wanted, key=lambda rule: -ACTIONS.index(rule.action))
        )
        return next((plan for plan in plans if plan is not None), None)

    def _wanting(self, update: int, health: Health) -> list[Rule]:
        wanting = []
        for name in health.holding:
            rule, state = self.rules[name], health.states[name]
            if rule.action == "warn":
                continue
            waited = state.last_action == 0 or update - state.last_action >= self.config.cooldown
            newly = state.held == rule.raise_after
            if rule.action == "skip" or (rule.action == "stop" and newly) or (rule.action != "stop" and waited):
                wanting.append(rule)
        return wanting

    def _plan(
        self, rule: Rule, update: int, health: Health, *, committed: bool, health_factor: float
    ) -> Intervention | None:
        """What a rule's action comes to within its budget; None when there is nothing to do or to tell."""
        action, evidence = rule.action, health.holding[rule.name]
        if action == "stop":
            return self._stop(rule, update, evidence)
        if self.counts[action] >= self.budget[action]:
            if action == "rollback":
                return self._stop(rule, update, f"{self.counts[action]} roll-backs did not help ({evidence})")
            if rule.name in self.spent:
                return None
            self.spent.append(rule.name)
            return Intervention(
                rule, f"nothing was done: this run has used its {self.budget[action]} times of '{action}'"
            )
        if action == "skip":
            if not committed:
                return None
            self.counts["skip"] += 1
            health.count_refusal()
            done = "the update was undone: weights, optimiser, normaliser and controllers are as before it"
            return Intervention(rule, done, undo=True)
        self.counts[action] += 1
        shrink, factor = self.config.shrink, health_factor * self.config.shrink
        if action == "shrink":
            done = f"the step was made smaller: factor {health_factor:g} -> {factor:g}"
            return Intervention(rule, done, shrink=shrink)
        onset = health.states[rule.name].onset
        state = self._good_state(onset)
        where = (
            f"there is no good state from before update {onset}" if state is None else f"went back to {state.source}"
        )
        return Intervention(rule, f"{where}; the step is smaller now: factor {factor:g}", state=state, shrink=shrink)

    def _stop(self, rule: Rule, update: int, evidence: str) -> Intervention:
        self.counts["stop"] += 1
        folder = None if self.run_dir is None else self.run_dir / DUMPS / f"update-{update:06d}"
        where = "" if folder is None else f"; all of its numbers are in {folder}"
        reason = f"the rule {rule.name} stopped the run: {evidence}{where}"
        return Intervention(rule, f"the run was stopped{where}", dump=folder, stop=reason)

    def _good_state(self, update: int) -> LearnerCopy | GoodCheckpoint | None:
        """The newest good state whose updates all lie before `update`."""
        if self.run_dir is None:
            return next((copy for copy in reversed(self._copies) if copy.update < update), None)
        for folder in ckpt.checkpoints_in(self.run_dir):
            try:
                policy, training = ckpt.read_policy(folder), ckpt.read_training(folder)
            except CheckpointError:
                continue  # a broken one is no good state; resuming tells what is wrong with it
            if int(training.json["update"]) < update:
                return GoodCheckpoint(f"checkpoint {folder.name}", policy, training)
        return None

    @property
    def total(self) -> int:
        """Actions taken so far."""
        return sum(self.counts.values())

    def state(self) -> dict[str, Any]:
        """For a checkpoint. A stop is not kept: who resumes a stopped run wants it to go on."""
        return {"counts": dict(self.counts), "spent": list(self.spent)}

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.counts = {name: int(state["counts"][name]) for name in self.counts}
        self.spent = list(state["spent"])


def write_dump(folder: Path, rollout: Rollout, metrics: Mapping[str, float], alerts: Sequence[Alert]) -> None:
    """Write rollout.safetensors, metrics.json and alerts.json of an update into a new folder."""
    parts = {field.name: getattr(rollout, field.name) for field in fields(rollout) if field.name != "critic"}
    parts |= {f"critic.{field.name}": getattr(rollout.critic, field.name) for field in fields(rollout.critic)}
    tensors = {name: part.contiguous().clone() for name, part in parts.items() if isinstance(part, torch.Tensor)}
    numbers = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    events = [alert.to_json() for alert in alerts]
    with atomic_folder(folder) as temporary:
        save_file(tensors, temporary / "rollout.safetensors")
        (temporary / "metrics.json").write_text(json.dumps(numbers, indent=1), encoding="utf-8")
        (temporary / "alerts.json").write_text(json.dumps(events, indent=1), encoding="utf-8")
