"""What rules do beside telling: shrink the step, skip and restore, roll back, stop. Each has a budget per run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from tailwise.core.atomic import atomic_folder
from tailwise.core.errors import CheckpointError
from tailwise.learner.rollout import Rollout
from tailwise.run import checkpoint as ckpt
from tailwise.run.controllers import controllers_of
from tailwise.run.health.config import HealthConfig
from tailwise.run.health.engine import Health
from tailwise.run.health.rule import ACTIONS, Action, Alert, Rule
from tailwise.run.policy_files import load_policy_tensors
from tailwise.run.run_folder import DUMPS

if TYPE_CHECKING:
    from tailwise.run.trainer import Trainer


def rollout_tensors(rollout: Rollout) -> dict[str, torch.Tensor]:
    """All tensors of a rollout by name."""
    parts = {field.name: getattr(rollout, field.name) for field in fields(rollout) if field.name != "critic"}
    parts |= {f"critic.{field.name}": getattr(rollout.critic, field.name) for field in fields(rollout.critic)}
    return {name: part.contiguous().clone() for name, part in parts.items() if isinstance(part, torch.Tensor)}


def write_dump(
    trainer: Trainer, rollout: Rollout, metrics: Mapping[str, float], alerts: Sequence[Alert]
) -> Path | None:
    """Write dumps/update-N: rollout.safetensors, metrics.json, alerts.json and a checkpoint; None without a folder."""
    if trainer.run_dir is None:
        return None
    folder = trainer.run_dir / DUMPS / f"update-{trainer.update:06d}"
    with atomic_folder(folder) as temporary:
        save_file(rollout_tensors(rollout), temporary / "rollout.safetensors")
        numbers = {
            name: value if value == value and abs(value) < float("inf") else None for name, value in metrics.items()
        }
        (temporary / "metrics.json").write_text(json.dumps(numbers, indent=1), encoding="utf-8")
        told = [alert.to_json() for alert in alerts]
        (temporary / "alerts.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    trainer.write_checkpoint(folder / "checkpoint")
    return folder


KEPT = 3  # copies in memory


@dataclass(frozen=True)
class GoodCheckpoint:
    """A checkpoint that nothing is wrong with."""

    update: int
    policy: dict[str, torch.Tensor]
    tensors: dict[str, torch.Tensor]
    training: dict[str, Any]
    source: str

    def restore(self, trainer: Trainer) -> None:
        """Make the trainer's learner and controllers those of the checkpoint."""
        load_policy_tensors(trainer.model, self.policy, source=self.source)
        optimiser = {k: v for k, v in self.tensors.items() if k.startswith("optimiser/")}
        trainer.backend.optimiser.check(optimiser, fresh=True)
        trainer.backend.optimiser.load(optimiser)
        trainer.controllers.restore(controllers_of(self.training))


class GoodCopy:
    """The same in memory, around a snapshot of the learner."""

    def __init__(self, trainer: Trainer, snapshot: Any) -> None:
        self.update = trainer.update
        self.source = f"the state after update {trainer.update}"
        self.snapshot = snapshot
        self.controllers = trainer.controllers.to_json()

    def restore(self, trainer: Trainer) -> None:
        """Make the trainer's learner and controllers those of the copy."""
        trainer.backend.restore(self.snapshot)
        trainer.controllers.restore(self.controllers)


class GoodStates:
    """Copies of the newest good states, for a run that writes no checkpoints.

    What the learner is after an update is what it is before the next one, and that is copied anyway, to undo an update:
    so `expect` says that the present state is good, and `keep` gets it with that copy.
    """

    def __init__(self) -> None:
        self.copies: list[GoodCopy] = []
        self._good: int | None = None  # the update after which the learner was good

    def expect(self, trainer: Trainer) -> None:
        """The learner is good as it is."""
        self._good = trainer.update

    def keep(self, trainer: Trainer, snapshot: Any | None) -> None:
        """Before an update: keep the learner if it is good; snapshot: a copy of it, if there is one."""
        if self._good == trainer.update:
            taken = trainer.backend.snapshot() if snapshot is None else snapshot
            self.copies = [*self.copies[-(KEPT - 1) :], GoodCopy(trainer, taken)]
        self._good = None

    def before(self, update: int, run_dir: Path | None) -> GoodCheckpoint | GoodCopy | None:
        """The newest good state whose updates all lie before `update`."""
        if run_dir is None:
            return next((copy for copy in reversed(self.copies) if copy.update < update), None)
        for folder in ckpt.checkpoints_in(run_dir):
            try:
                policy, training = ckpt.read_policy(folder), ckpt.read_training(folder)
            except CheckpointError:
                continue  # a broken one is no good state; resuming tells what is wrong with it
            finite = all(bool(torch.isfinite(tensor).all()) for tensor in policy.tensors.values())
            if int(training.json["update"]) < update and finite:
                source = f"checkpoint {folder.name}"
                made = int(training.json["update"])
                return GoodCheckpoint(made, policy.tensors, training.tensors, training.json, source)
        return None


def go_back(trainer: Trainer, good: GoodCheckpoint | GoodCopy) -> None:
    """Weights, normaliser, return scale, optimiser and controllers of `good`; time, environments and windows go on."""
    good.restore(trainer)
    if not bool(torch.isfinite(trainer.collector.state).all()):
        trainer.collector.state = trainer.model.initial_state(trainer.driver.num_envs)


@dataclass(frozen=True)
class Before:
    """The learner before an update, so that it can be undone."""

    snapshot: Any
    controllers: dict[str, Any]


class Actions:
    """Decides which action an update needs and carries it out; counts are in the checkpoint."""

    def __init__(self, config: HealthConfig, rules: Sequence[Rule]) -> None:
        self.config = config
        self.rules = {rule.name: rule for rule in rules}
        self.budget: dict[Action, int] = {
            "shrink": config.max_shrinks,
            "skip": config.max_skips,
            "rollback": config.max_rollbacks,
        }
        self.counts: dict[str, int] = {"shrink": 0, "skip": 0, "rollback": 0, "stop": 0}
        self.spent: list[str] = []  # rules whose spent budget was told
        self.good = GoodStates()
        self.stop_reason: str | None = None
        wanted = {rule.action for rule in rules}
        self.may_skip = "skip" in wanted and config.max_skips > 0
        self.may_roll_back = "rollback" in wanted and config.max_rollbacks > 0

    def before(self, trainer: Trainer) -> Before | None:
        """What is needed to undo the update that comes; None when no rule could want that."""
        if not self.may_skip:
            self.good.keep(trainer, None)
            return None
        snapshot = trainer.backend.snapshot()
        self.good.keep(trainer, snapshot)
        return Before(snapshot, trainer.controllers.to_json())

    def act(
        self,
        trainer: Trainer,
        health: Health,
        alerts: Sequence[Alert],
        *,
        rollout: Rollout,
        metrics: dict[str, float],
        before: Before | None,
    ) -> list[Alert]:
        """Do the strongest thing that a rule wants; what was done, as alerts. `metrics` learns of a skipped update."""
        wanted = self._wanting(trainer.update, health)
        if not wanted:
            if self.may_roll_back and trainer.run_dir is None and not health.firing and self._due(trainer):
                self.good.expect(trainer)
            return []
        done: list[Alert] = []
        for rule in sorted(wanted, key=lambda rule: -ACTIONS.index(rule.action)):
            told = self._do(rule, trainer, health, alerts, rollout, metrics, before)
            if told is None:
                continue
            done.append(
                Alert(trainer.update, rule.name, rule.severity, told, rule.advice, "acted", rule.action, rule.signal)
            )
            health.states[rule.name].last_action = trainer.update
            break  # the strongest one is enough
        return done

    @staticmethod
    def _due(trainer: Trainer) -> bool:
        return trainer.update % trainer.config.run.checkpoint_every == 0

    def _wanting(self, update: int, health: Health) -> list[Rule]:
        found = []
        for name in health.holding:
            rule, state = self.rules[name], health.states[name]
            if rule.action == "warn":
                continue
            waited = state.last_action == 0 or update - state.last_action >= self.config.cooldown
            newly = state.held == rule.raise_after
            if rule.action == "skip" or (rule.action == "stop" and newly) or (rule.action != "stop" and waited):
                found.append(rule)
        return found

    def _do(
        self,
        rule: Rule,
        trainer: Trainer,
        health: Health,
        alerts: Sequence[Alert],
        rollout: Rollout,
        metrics: dict[str, float],
        before: Before | None,
    ) -> str | None:
        """Carry out a rule's action; what was done, None when there is nothing to tell."""
        action = rule.action
        if action == "stop":
            return self._stop(rule, health.holding[rule.name], trainer, alerts, rollout, metrics)
        if self.counts[action] >= self.budget[action]:
            if action == "rollback":
                why = f"{self.counts[action]} roll-backs did not help ({health.holding[rule.name]})"
                return self._stop(rule, why, trainer, alerts, rollout, metrics)
            return self._spent(rule)
        if action == "shrink":
            return self._shrink(trainer)
        if action == "skip":
            return None if metrics.get("update/committed") == 0.0 else self._skip(trainer, health, metrics, before)
        return self._roll_back(trainer, health.states[rule.name].onset)

    def _spent(self, rule: Rule) -> str | None:
        if rule.name in self.spent:
            return None
        self.spent.append(rule.name)
        return f"nothing was done: this run has used its {self.budget[rule.action]} times of '{rule.action}'"

    def _shrink(self, trainer: Trainer) -> str:
        self.counts["shrink"] += 1
        controllers = trainer.controllers
        before = controllers.health_factor
        controllers.health_factor = before * self.config.shrink
        return f"the step was made smaller: factor {before:g} -> {controllers.health_factor:g}"

    def _skip(self, trainer: Trainer, health: Health, metrics: dict[str, float], before: Before | None) -> str:
        assert before is not None
        self.counts["skip"] += 1
        trainer.backend.restore(before.snapshot)
        trainer.controllers.restore(before.controllers)
        if trainer.controllers.constraint is not None:
            metrics |= trainer.controllers.constraint.metrics()  # of the next update, which are the old ones
        metrics["update/committed"] = 0.0
        health.count_refusal()
        return "the update was undone: weights, optimiser, normaliser and controllers are as before it"

    def _roll_back(self, trainer: Trainer, onset: int) -> str:
        good = self.good.before(onset, trainer.run_dir)
        self.counts["rollback"] += 1
        if good is None:
            told = self._smaller(trainer)
            return f"there is no good state from before update {onset}; {told}"
        go_back(trainer, good)
        return f"went back to {good.source}; {self._smaller(trainer)}"

    def _smaller(self, trainer: Trainer) -> str:
        trainer.controllers.health_factor *= self.config.shrink
        return f"the step is smaller now: factor {trainer.controllers.health_factor:g}"

    def _stop(
        self,
        rule: Rule,
        evidence: str,
        trainer: Trainer,
        alerts: Sequence[Alert],
        rollout: Rollout,
        metrics: Mapping[str, float],
    ) -> str:
        self.counts["stop"] += 1
        folder = write_dump(trainer, rollout, metrics, alerts)
        where = "" if folder is None else f"; all of its numbers are in {folder}"
        self.stop_reason = f"the rule {rule.name} stopped the run: {evidence}{where}"
        return f"the run was stopped{where}"

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
