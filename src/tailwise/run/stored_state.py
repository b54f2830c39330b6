"""The shape of training/state.json of a checkpoint, what a resumed run starts from besides tensors."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from tailwise.core.stored import Stored
from tailwise.learner.multiplier import DELAY
from tailwise.run.stored import Count

Number = float
Positive = Annotated[float, Field(gt=0)]


class StoredRule(Stored):
    """See `RuleState`."""

    held: Count
    quiet: Count
    firing: bool
    onset: Count
    last_action: Count


class StoredRules(Stored):
    """See `Health.state`."""

    refused_in_a_row: Count
    rules: dict[str, StoredRule]
    values: dict[str, list[Number]]


class StoredSignals(Stored):
    """See `Signals.state`."""

    rollouts: Count
    largest_reward: Number
    rewards_varied: bool
    ends_told: bool
    peak_std: Number
    returns: Count
    return_mean: Number
    return_variance: Number


class StoredActions(Stored):
    """See `Actions.state`."""

    counts: dict[str, Count]
    spent: list[str]


class StoredHealth(Stored):
    """See `HealthWatch.state`."""

    rules: StoredRules
    signals: StoredSignals
    actions: StoredActions
    evaluated: dict[str, Number]


class StoredPid(Stored):
    """See `PidState`."""

    integral: Number
    violation: Number
    cost: Number
    costs: Annotated[list[Number], Field(min_length=DELAY, max_length=DELAY)]


class StoredConstraint(Stored):
    """See `Constraint.state`."""

    multiplier: Number
    pid: StoredPid
    seen: Count
    active_since: Count | None
    trusted: bool
    reference: Positive | None
    best: Number | None
    updates_at_cap: Count
    excess: Number | None
    updates_broken: Count
    threshold: Number | None


class StoredRisk(Stored):
    """See `RiskWatch.state`."""

    calibration: dict[str, Count] | None
    constraint: StoredConstraint | None


class TrainingState(Stored):
    """training/state.json; environment: as its driver wrote it, see `join_state`."""

    update: Count
    steps: Count
    total_steps: Count
    kl_factor: Positive
    health_factor: Positive
    entropies: list[Number]
    plateau_at: Count | None
    episodes: list[Annotated[list[Number], Field(min_length=2, max_length=2)]]
    best_return: Number | None
    evaluations_without_gain: Count
    health: StoredHealth
    risk: StoredRisk
    environment: dict[str, Any]
