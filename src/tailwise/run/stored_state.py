"""The shape of training/state.json of a checkpoint, what a resumed run starts from besides tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import Field

from tailwise.core.errors import CheckpointError, DataError, TailwiseError
from tailwise.core.parsing import Stored, as_stored
from tailwise.learner.constraint import DELAY
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
    unit: Positive | None = None  # earlier runs have none: they counted in the reference
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
    narrowed: Number = 0.0
    entropies: list[Number]
    plateau_at: Count | None
    adopted: dict[str, Number] = Field(default_factory=dict)
    episodes: list[Annotated[list[Number], Field(min_length=2, max_length=2)]]
    best_return: Number | None
    evaluations_without_gain: Count
    health: StoredHealth
    risk: StoredRisk
    environment: dict[str, Any]


def check_state(data: Mapping[str, Any]) -> None:
    """Raise unless `data` has the shape of a training state."""
    try:
        as_stored(TrainingState, dict(data), source="the training state")
    except DataError as error:
        raise CheckpointError(f"{error}\nIt was not written by this version; use another checkpoint.") from error


@contextmanager
def stored_by_this_version(part: str) -> Iterator[None]:
    """Say so when a part of a stored state cannot be put back.

    Names, types and shapes of what environments and windows keep are known to them alone.
    """
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, TailwiseError):
            raise
        what = f"{type(error).__name__}: {str(error)[:200]}"
        raise CheckpointError(
            f"the stored state of {part} does not fit ({what}); it was damaged or written by another version, use "
            "another checkpoint."
        ) from error
