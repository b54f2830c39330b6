"""The section `health` of a configuration: what is measured, which rules there are, and what they may do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace

from pydantic import Field, field_validator, model_validator

from tailwise.core.config import Section
from tailwise.core.metrics import METRICS, find_spec
from tailwise.run.health.engine import RULES
from tailwise.run.health.rule import Action, Condition, Rule, Severity, Statistic


def _unknown(what: str, name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"there is no {what} '{name}'" + (f"; did you mean '{near[0]}'?" if near else "")


class UserRule(Section):
    """A rule of one's own on any metric."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", description="name in alerts, lower case with underscores")
    signal: str = Field(description="name of a metric, see docs/metrics.md")
    above: float | None = Field(None, description="it holds above this")
    below: float | None = Field(None, description="it holds below this")
    statistic: Statistic = Field("last", description="what is compared, over the window")
    window: int = Field(1, ge=1, le=1000, description="newest updates that the statistic is taken over")
    raise_after: int = Field(1, ge=1, le=1000, description="times in a row that it must hold before the alert")
    clear_after: int = Field(3, ge=1, le=1000, description="times in a row without, before the alert is over")
    not_before: int = Field(0, ge=0, description="updates of a run in which the rule is silent")
    severity: Severity = Field("warn", description="how bad it is")
    action: Action = Field("warn", description="what is done about it")
    advice: str = Field("a rule of this run's configuration; see its section health", description="what to do")

    @field_validator("signal")
    @classmethod
    def _signal_exists(cls, value: str) -> str:
        if find_spec(value) is None or "<" in value:
            raise ValueError(_unknown("metric", value, METRICS))
        return value

    @model_validator(mode="after")
    def _has_a_limit(self) -> UserRule:
        if self.above is None and self.below is None:
            raise ValueError(f"the rule {self.name} has no limit; set above, below or both")
        if self.window < 2 and self.statistic not in ("last", "mean", "min", "max"):
            raise ValueError(f"the statistic {self.statistic} of rule {self.name} needs a window of at least 2")
        if any(rule.name == self.name for rule in RULES):
            raise ValueError(f"the name {self.name} belongs to a built-in rule; choose another one")
        return self

    def rule(self) -> Rule:
        """As the engine reads it."""
        return Rule(
            name=self.name,
            signal=self.signal,
            condition=Condition(self.above, self.below, self.statistic, self.window),
            severity=self.severity,
            advice=self.advice,
            reason="set in the configuration",
            action=self.action,
            raise_after=self.raise_after,
            clear_after=self.clear_after,
            not_before=self.not_before,
        )


class HealthConfig(Section):
    """What is measured to audit the run, and what is done about findings."""

    gradients_every: int = Field(
        20, ge=1, description="updates between measurements of every loss term's gradient on every parameter group"
    )
    signals_every: int = Field(
        20, ge=1, description="updates between looks at dead and dormant units and at observation histograms"
    )
    rules: tuple[UserRule, ...] = Field((), description="rules of one's own: name, signal, above or below, ...")
    disable: tuple[str, ...] = Field((), description="names of rules that are switched off")
    actions: dict[str, Action] = Field(
        default_factory=dict, description="rule -> warn, shrink, skip, rollback or stop, instead of its own action"
    )
    shrink: float = Field(0.5, gt=0, lt=1, description="factor on the step size when a rule shrinks it")
    max_shrinks: int = Field(4, ge=0, le=100, description="how often rules may shrink the step in a run")
    max_skips: int = Field(20, ge=0, description="how many updates rules may skip and undo in a run")
    max_rollbacks: int = Field(3, ge=0, le=100, description="how often rules may go back to a checkpoint in a run")
    cooldown: int = Field(10, ge=1, description="updates before a rule that still holds acts again")

    @model_validator(mode="after")
    def _rules_exist(self) -> HealthConfig:
        own = [rule.name for rule in self.rules]
        names = [rule.name for rule in RULES] + own
        double = sorted({name for name in own if own.count(name) > 1})
        if double:
            raise ValueError(f"two rules are called {double[0]}; give each a name of its own")
        for name in (*self.disable, *self.actions):
            if name not in names:
                raise ValueError(_unknown("rule", name, names))
        return self

    def effective_rules(self) -> tuple[Rule, ...]:
        """Built-in and own rules that are on, with the actions of this configuration."""
        every = (*RULES, *(rule.rule() for rule in self.rules))
        kept = [rule for rule in every if rule.name not in self.disable]
        return tuple(replace(rule, action=self.actions.get(rule.name, rule.action)) for rule in kept)
