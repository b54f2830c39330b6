"""Applies rules to the numbers of each update. Everything that it remembers is small and in the checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tailwise.core.errors import CheckpointError
from tailwise.core.metrics import is_compared
from tailwise.run.health.alert import Alert
from tailwise.run.health.builtin import RULES
from tailwise.run.health.derived import derive
from tailwise.run.health.rule import Condition, Rule
from tailwise.run.health.sieve import Sieve

if TYPE_CHECKING:
    from tailwise.learner.backend import UpdateReport

Metrics = Mapping[str, float]


@dataclass
class RuleState:
    """What is remembered of one rule: updates in a row with and without its condition, and since when it fires."""

    held: int = 0
    quiet: int = 0  # while it fires; before that nobody asks
    firing: bool = False
    onset: int = 0  # the first update that the condition looked at when it began to hold
    last_action: int = 0  # update of the newest action, 0: none


class Health:
    """Looks at each update; an alert appears once, until it has cleared.

    Nearly all rules are silent in nearly all updates, so a sieve of arrays finds those that can hold. They, and those
    that held or fired before ("awake"), are looked at one by one; for all others nothing would change.
    """

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self.rules = tuple(rules)
        self.states = {rule.name: RuleState() for rule in self.rules}
        self.firing: set[str] = set()  # names of the rules that fire now
        self.refused_in_a_row = 0
        self._refused_before = 0  # the same before the newest update
        self.holding: dict[str, str] = {}  # rules whose condition held in the newest update -> evidence
        self._sieve = Sieve(self.rules)
        self._awake: set[int] = set()
        self._windows: dict[str, int] = {}  # of signals that are remembered: the longest
        for rule in self.rules:
            for signal, condition in rule.reads:
                if condition.window > 1:
                    self._windows[signal] = max(self._windows.get(signal, 1), condition.window)
        self._values: dict[str, list[float]] = {name: [] for name in self._windows}  # oldest first

    def look(self, update: int, metrics: Metrics, report: UpdateReport) -> list[Alert]:
        """Alerts that are new with this update."""
        return [alert for alert in self.judge(update, metrics, report) if alert.event == "raised"]

    def judge(
        self,
        update: int,
        metrics: Metrics,
        report: UpdateReport,
        *,
        known: tuple[dict[str, float], dict[str, str]] | None = None,
    ) -> list[Alert]:
        """What is raised and what clears with this update; `known`: what `derive` said of these metrics, if at hand."""
        self._refused_before = self.refused_in_a_row
        self.refused_in_a_row = 0 if report.committed else self.refused_in_a_row + 1
        if known is None:
            measured = {
                f"grad/term/{term}/{group}": norm
                for term, row in report.term_gradients.items()
                for group, norm in row.items()
            }
            known = derive({**metrics, **measured, "update/committed": float(report.committed)})
        return self._judge(update, *known, refusal=report.reason)

    def count_refusal(self) -> None:
        """The newest update was undone: it counts as refused."""
        self.refused_in_a_row = self._refused_before + 1

    def judge_row(self, update: int, metrics: Metrics, refusal: str | None = None) -> list[Alert]:
        """The same from a line of metrics, as a file has it; `refusal`: why the update was refused, if it was."""
        return self._judge(update, *derive(metrics), refusal=refusal)

    def _judge(
        self, update: int, signals: dict[str, float], notes: dict[str, str], *, refusal: str | None
    ) -> list[Alert]:
        if refusal is not None:
            notes["update/committed"] = refusal
        for name, values in self._values.items():
            value = signals.get(name)
            if value is not None and math.isfinite(value):
                values.append(float(value))
                if len(values) >= 2 * self._windows[name]:  # now and then, because it moves what is kept
                    del values[: -self._windows[name]]
        self.holding = {}
        passed = self._sieve.pass_through(signals)
        found = [self._apply(index, update, signals, notes) for index in sorted({*passed, *self._awake})]
        return [event for event in found if event is not None]

    def _apply(self, index: int, update: int, signals: Metrics, notes: Mapping[str, str]) -> Alert | None:
        rule = self.rules[index]
        state = self.states[rule.name]
        event = self._step(rule, state, update, signals, notes)
        if state.held or state.firing:
            self._awake.add(index)
        else:
            self._awake.discard(index)
        return event

    def _step(
        self, rule: Rule, state: RuleState, update: int, signals: Metrics, notes: Mapping[str, str]
    ) -> Alert | None:
        if update <= rule.not_before:
            return None
        measured = [self._measure(signal, condition, signals) for signal, condition in rule.reads]
        if measured[0] is None:
            return None
        held = all(
            value is not None and condition.holds(value)
            for value, (_, condition) in zip(measured, rule.reads, strict=True)
        )
        if not held:
            state.held = 0
            state.quiet += state.firing
            if state.firing and state.quiet >= rule.clear_after:
                state.firing, state.quiet = False, 0
                self.firing.discard(rule.name)
                told = f"{rule.signal} is {measured[0]:.4g}"
                return self._alert(rule, update, told, measured[0], event="cleared")
            return None
        state.held, state.quiet = state.held + 1, 0
        if state.held == 1 and not state.firing:
            state.onset = update - rule.condition.window + 1  # what a window shows began with it
        evidence = rule.tell(measured[0], signals, notes)
        if not state.firing and state.held < rule.raise_after:
            return None
        self.holding[rule.name] = evidence
        if state.firing:
            return None
        state.firing = True
        self.firing.add(rule.name)
        return self._alert(rule, update, evidence, measured[0], event="raised")

    def _measure(self, signal: str, condition: Condition, signals: Metrics) -> float | None:
        value = signals.get(signal)
        if value is None:
            return None
        if not math.isfinite(value):
            return None  # told by the rule on numbers that are not finite
        if condition.window == 1:
            return float(value)
        found = condition.measure(self._values[signal])
        return None if found is None else float(found)

    @staticmethod
    def _alert(rule: Rule, update: int, evidence: str, value: float, *, event: str) -> Alert:
        return Alert(update, rule.name, rule.severity, evidence, rule.advice, event, rule.action, rule.signal, value)

    def state(self) -> dict[str, Any]:
        """For a checkpoint. What depends on the machine begins anew: equal runs have equal checkpoints."""
        fresh = RuleState()
        compared = [rule.name for rule in self.rules if is_compared(rule.signal)]
        return {
            "refused_in_a_row": self.refused_in_a_row,
            "rules": {name: asdict(self.states[name]) for name in compared if self.states[name] != fresh},
            "values": {
                name: values[-self._windows[name] :]
                for name, values in self._values.items()
                if values and is_compared(name)
            },
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`. Rules that the checkpoint does not know begin anew."""
        missing = {"refused_in_a_row", "rules", "values"} - state.keys()
        if missing:
            raise CheckpointError(f"the health state lacks {', '.join(sorted(missing))}; an older version wrote it")
        self.refused_in_a_row = self._refused_before = int(state["refused_in_a_row"])
        for name, known in state["rules"].items():
            if name in self.states:
                self.states[name] = RuleState(**known)
        self.firing = {name for name, rule in self.states.items() if rule.firing}
        self._awake = {i for i, rule in enumerate(self.rules) if (s := self.states[rule.name]).firing or s.held}
        for name, values in state["values"].items():
            if name in self._values:
                self._values[name] = [float(value) for value in values]
