"""Applies rules to the numbers of each update. Everything that it remembers is small and in the checkpoint.

First come the signals that follow from the metrics of the same update, then the sieve that finds the rules that can
hold, then the engine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tailwise.core.errors import CheckpointError
from tailwise.core.metrics import is_compared
from tailwise.learner.optimisers import owner_of
from tailwise.run.health.rule import Alert, Condition, Rule
from tailwise.run.health.rules_data import DATA_RULES
from tailwise.run.health.rules_learning import LEARNING_RULES
from tailwise.run.health.rules_numbers import NUMBER_RULES

if TYPE_CHECKING:
    from tailwise.learner.backend import UpdateReport

RULES: tuple[Rule, ...] = (*NUMBER_RULES, *LEARNING_RULES, *DATA_RULES)

CAP_PATIENCE = 20  # updates at the cap without progress before the limit is called out of reach: twice its look back
BROKEN_PATIENCE = 50  # updates with the limit broken, wherever the multiplier is

_TERM = re.compile(r"grad/term/([^/]+)/([^/]+)")
Metrics = Mapping[str, float]


def derive(metrics: Mapping[str, float]) -> tuple[dict[str, float], dict[str, str]]:
    """(the metrics and what follows from them, sentences by signal); nothing is added that cannot be known."""
    signals, notes = conclusions(metrics, measured_terms=True)
    return {**metrics, **signals}, notes


def conclusions(metrics: Mapping[str, float], *, measured_terms: bool) -> tuple[dict[str, float], dict[str, str]]:
    """(what follows from the metrics, sentences by signal); measured_terms: whether there may be `grad/term/...`."""
    signals: dict[str, float] = {}
    notes: dict[str, str] = {}
    _non_finite(metrics, signals, notes)
    if measured_terms:
        _dead_terms(metrics, signals, notes)
    _critics(metrics, signals)
    _limit(metrics, signals, notes)
    return signals, notes


def _non_finite(metrics: Mapping[str, float], signals: dict[str, float], notes: dict[str, str]) -> None:
    # A number that is not finite makes the sum so. Finite ones can do that too, hence the second look.
    whole = math.isfinite(sum(metrics.values()))
    broken = [] if whole else sorted(name for name, value in metrics.items() if not math.isfinite(value))
    signals["update/non_finite"] = float(len(broken))
    if broken:
        notes["update/non_finite"] = f"{len(broken)} metrics are NaN or infinite: {', '.join(broken[:5])}"


def _dead_terms(metrics: Mapping[str, float], signals: dict[str, float], notes: dict[str, str]) -> None:
    terms = [(name, value) for name, value in metrics.items() if name.startswith("grad/term/")]
    rows = [(match[1], match[2], value) for name, value in terms if (match := _TERM.fullmatch(name))]
    if not rows:
        return
    # Nothing to learn from is not a broken term, nor are means that all lie within the bounds.
    quiet = {"bounds"} | ({"policy", "awr"} if metrics.get("advantage/largest_normalised") == 0.0 else set())
    quiet |= {"risk"} if metrics.get("risk/spread") == 0.0 else set()
    dead = [
        f"{term} on {group}"
        for term, group, value in rows
        if group == owner_of(term) and value == 0.0 and term not in quiet
    ]
    signals["grad/dead_terms"] = float(len(dead))
    if dead:
        notes["grad/dead_terms"] = f"loss terms with zero gradient on their owner: {', '.join(dead)}"


def _critics(metrics: Mapping[str, float], signals: dict[str, float]) -> None:
    first, second = metrics.get("grad/norm/critic_0"), metrics.get("grad/norm/critic_1")
    if first is None or second is None:
        return
    signals["grad/critic_smallest"] = min(first, second)
    if min(first, second) > 0:
        signals["grad/critic_ratio"] = max(first, second) / min(first, second)


def _limit(metrics: Mapping[str, float], signals: dict[str, float], notes: dict[str, str]) -> None:
    stuck, broken = metrics.get("risk/updates_at_cap", 0.0), metrics.get("risk/updates_broken", 0.0)
    if "risk/updates_at_cap" in metrics or "risk/updates_broken" in metrics:
        signals["risk/out_of_reach"] = float(stuck >= CAP_PATIENCE or broken >= BROKEN_PATIENCE)
    if signals.get("risk/out_of_reach") == 1.0:
        if stuck >= CAP_PATIENCE:
            how = f"the multiplier sits at its cap {metrics['risk/multiplier']:g} for {stuck:.0f} updates"
        else:
            multiplier = metrics["risk/multiplier"]
            how = f"{broken:.0f} updates of the constraint were not enough (multiplier {multiplier:.3g})"
        notes["risk/out_of_reach"] = (
            f"{how} and the limit {metrics['risk/limit']:.4g} is still broken; best achieved: "
            f"{metrics['risk/best_measure']:.4g}"
        )
    if metrics.get("risk/began_calibrated") == 0.0:
        predicted = "calibration/cvar_predicted" in metrics
        gap = (
            f"predicted CVaR {metrics['calibration/cvar_predicted']:.4g}, realised "
            f"{metrics['calibration/cvar_realised']:.4g}, and what was measured does not agree with it either"
            if predicted
            else "too few windows of the return are complete: the updates so far are short against the horizon"
        )
        notes["risk/began_calibrated"] = f"the constraint began without calibrated critics ({gap})"


def needed_now(condition: Condition) -> tuple[float, float] | None:
    """(below, above): a condition on the newest value that must hold for this one to hold; None when there is none.

    For the newest value alone it is the condition itself. A window whose smallest value lies above a limit has its
    newest one above it, too; likewise for a largest one below. Of the other statistics the newest value says nothing.
    """
    below = -math.inf if condition.below is None else condition.below
    above = math.inf if condition.above is None else condition.above
    if condition.window == 1 or condition.statistic == "last":
        return below, above
    if condition.statistic == "min" and condition.below is None:
        return -math.inf, above
    if condition.statistic == "max" and condition.above is None:
        return below, math.inf
    return None


PRESENT = (-math.inf, -math.inf)  # (below, above) of any finite number


class Sieve:
    """The conditions of all rules on the newest values: what a rule needs before it is worth a closer look.

    A rule whose condition says nothing of the newest value still needs a value of its signal. A loop over tuples: at
    the end of an update the code of numpy has left the caches, and the dozen arrays of this took half as long again.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        # One entry per rule: its index, the updates in which it is silent, (signal, below, above) of its first
        # condition, and those of the others.
        self._entries: list[tuple[int, int, str, float, float, list[tuple[str, float, float]]]] = []
        for index, rule in enumerate(rules):
            first, *others = [
                (signal, *(limits or PRESENT))
                for signal, condition in rule.reads
                if (limits := needed_now(condition)) is not None or condition is rule.condition
            ]
            self._entries.append((index, rule.not_before, *first, others))

    def pass_through(self, update: int, signals: Mapping[str, float]) -> list[int]:
        """Indices of the rules that can hold with these signals, in order; a signal that is missing stops a rule."""
        passed = []
        for index, not_before, name, below, above, others in self._entries:
            value = signals.get(name)
            if update <= not_before or value is None or not (value > above or value < below):
                continue
            for name, below, above in others:
                value = signals.get(name)
                if value is None or not (value > above or value < below):
                    break
            else:
                passed.append(index)
        return passed


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

    Nearly all rules are silent in nearly all updates, so a sieve finds those that can hold. They, and those
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
        derived: tuple[dict[str, float], dict[str, str]] | None = None,
    ) -> list[Alert]:
        """Alerts that this update raises or clears; derived: what `derive` gives for its metrics, if at hand."""
        self._refused_before = self.refused_in_a_row
        self.refused_in_a_row = 0 if report.committed else self.refused_in_a_row + 1
        if derived is None:
            measured = {
                f"grad/term/{term}/{group}": norm
                for term, row in report.term_gradients.items()
                for group, norm in row.items()
            }
            derived = derive({**metrics, **measured, "update/committed": float(report.committed)})
        return self._judge(update, *derived, refusal=report.reason)

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
                if len(values) >= 2 * self._windows[name]:  # every `window` values: it moves the retained tail
                    del values[: -self._windows[name]]
        self.holding = {}
        passed = self._sieve.pass_through(update, signals)
        events = [self._apply(index, update, signals, notes) for index in sorted({*passed, *self._awake})]
        return [event for event in events if event is not None]

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
        measured = self._measure(rule.signal, rule.condition, signals)
        if measured is None:
            return None
        if not (rule.condition.holds(measured) and self._all_hold(rule.when, signals)):
            state.held = 0
            state.quiet += state.firing
            if state.firing and state.quiet >= rule.clear_after:
                state.firing, state.quiet = False, 0
                self.firing.discard(rule.name)
                evidence = f"{rule.signal} is {measured:.4g}"
                return self._alert(rule, update, evidence, measured, event="cleared")
            return None
        state.held, state.quiet = state.held + 1, 0
        if state.held == 1 and not state.firing:
            state.onset = update - rule.condition.window + 1  # what a window shows began with it
        evidence = rule.describe(measured, signals, notes)
        if not state.firing and state.held < rule.raise_after:
            return None
        self.holding[rule.name] = evidence
        if state.firing:
            return None
        state.firing = True
        self.firing.add(rule.name)
        return self._alert(rule, update, evidence, measured, event="raised")

    def _all_hold(self, pairs: Sequence[tuple[str, Condition]], signals: Metrics) -> bool:
        for signal, condition in pairs:
            measured = self._measure(signal, condition, signals)
            if measured is None or not condition.holds(measured):
                return False
        return True

    def _measure(self, signal: str, condition: Condition, signals: Metrics) -> float | None:
        value = signals.get(signal)
        if value is None:
            return None
        if not math.isfinite(value):
            return None  # told by the rule on numbers that are not finite
        if condition.window == 1:
            return float(value)
        statistic = condition.measure(self._values[signal])
        return None if statistic is None else float(statistic)

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
        for name, stored in state["rules"].items():
            if name in self.states:
                self.states[name] = RuleState(**stored)
        self.firing = {name for name, rule in self.states.items() if rule.firing}
        self._awake = {i for i, rule in enumerate(self.rules) if (s := self.states[rule.name]).firing or s.held}
        for name, values in state["values"].items():
            if name in self._values:
                self._values[name] = [float(value) for value in values]
