"""The constraint over a run: warm-up, the multiplier as a PID controller (Stooke, Achiam & Abbeel 2020), and how well
the limit was kept. All state is visible."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tailwise.core.errors import CheckpointError
from tailwise.learner.risk_config import Pid, RiskConstraint, RiskPenalty

DELAY = 10  # updates over which the derivative looks back
PROGRESS = 0.1  # of the violation: what it must lose in DELAY updates to count as shrinking while at the cap


@dataclass(frozen=True)
class PidState:
    """Everything the controller remembers. Costs are in its units (`Constraint.unit`); a cost is minus the measure."""

    integral: float = 0.0
    violation: float = 0.0  # moving average of cost - limit
    cost: float = 0.0  # moving average of the cost
    costs: tuple[float, ...] = (0.0,) * DELAY  # that average in the last DELAY updates, oldest first

    def progressing(self, limit: float) -> bool:
        """Whether the cost came at least a tenth closer to the limit within the updates that are remembered.

        A policy moves a bounded step per update, so it may need many although the multiplier stands at its cap.
        """
        return self.costs[0] - self.cost > PROGRESS * (self.costs[0] - limit)

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self) | {"costs": list(self.costs)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PidState:
        """The inverse of `to_json`."""
        return cls(
            float(data["integral"]), float(data["violation"]), float(data["cost"]), tuple(map(float, data["costs"]))
        )


def next_multiplier(
    state: PidState, cost: float, limit: float, gains: Pid, *, largest: float
) -> tuple[float, PidState]:
    """(multiplier, new state) after a cost was seen beside its limit (both in units of the controller).

    cost above limit is a violation. Two things keep the integral from gathering more than the limit needs while a
    policy, which moves a bounded step per update, is on its way: it counts at most `integral_clip` of a violation, and
    nothing while the violation is shrinking (conditional integration). It stays within [0, largest], so it neither
    winds up while a limit cannot be met nor keeps a debt from times when it was kept easily.
    """
    violation = cost - limit
    keep = gains.smoothing
    smoothed = keep * state.violation + (1 - keep) * violation
    average = state.cost + (1 - keep) * (cost - state.cost)  # exactly the same while nothing changes
    change = average - state.costs[0]
    shrinking = violation * smoothed > 0 and violation * change < 0
    counted = 0.0 if shrinking else min(max(violation, -gains.integral_clip), gains.integral_clip)
    integral = min(max(state.integral + gains.ki * counted, 0.0), largest)
    multiplier = min(max(gains.kp * smoothed + integral + gains.kd * max(0.0, change), 0.0), largest)
    return multiplier, PidState(integral, smoothed, average, (*state.costs[1:], average))


SMALLEST_REFERENCE = 0.1  # of the return's spread: a limit near 0 would make every violation look enormous
SMALLEST_UNIT = 0.5  # likewise, of what the controller counts in
THRESHOLD_RATE = 0.2  # of the newest rollout in the moving average of the VaR
EXCESS_RATE = 0.2  # of the newest rollout in the moving average by which a limit counts as kept
KEPT_WITHIN = 0.1  # of the reference: violations of single rollouts scatter at least as much
AT_CAP = 0.999  # of the largest multiplier


class Constraint:
    """Follows the measure of each committed update and holds the multiplier for the next one.

    With a penalty the multiplier is its weight from the first update on and nothing moves.
    """

    def __init__(self, config: RiskPenalty | RiskConstraint) -> None:
        self.config = config
        self.multiplier = config.weight if isinstance(config, RiskPenalty) else 0.0
        self.pid = PidState()
        self.seen = 0  # committed updates that measured something
        self.active_since: int | None = None  # update after which the constraint acts; None during warm-up
        self.trusted = False  # whether the critics were calibrated when it began, or what was measured was right
        self.warmup_cvar = 0.0  # mean CVaR of the returns of the updates seen until it began, reward units
        self.reference: float | None = None  # what violations are reported in, reward units; fixed when it begins
        self.unit: float | None = None  # what the controller counts violations in, likewise
        self.best: float | None = None  # highest measure since then
        self.excess: float | None = None  # moving average of the violation since it acts, in units of the reference
        self.updates_broken = 0  # in a row, with that average above what counts as kept
        self.updates_at_cap = 0  # in a row, with the limit violated and no progress
        self.threshold: float | None = None  # moving average of the pooled return's VaR, reward units

    @property
    def kept(self) -> bool:
        """Whether it acts and the limit is kept, but for a smoothed violation of a tenth of the reference."""
        return isinstance(self.config, RiskPenalty) or (self.excess is not None and self.excess <= KEPT_WITHIN)

    @property
    def tolerance(self) -> float:
        """Largest gap between predicted and realised tail with which it may begin, in standard deviations."""
        return self.config.warmup.tolerance if isinstance(self.config, RiskConstraint) else 0.0

    def see(
        self,
        update: int,
        *,
        measured: float,
        spread: float,
        threshold: float | None = None,
        calibrated: bool,
        cvar: float | None = None,
        agrees: Callable[[float], bool] | None = None,
    ) -> dict[str, float]:
        """Take in the measure, spread and VaR (reward units) of the pooled return after an update; the metrics of it.

        calibrated: whether the critics' tail agrees with what came; agrees: whether a CVaR does; None while nothing is
        known; cvar: that of this update's returns. What is not finite is skipped: it would poison the controller.
        """
        if threshold is not None and math.isfinite(threshold):
            known = threshold if self.threshold is None else self.threshold
            self.threshold = known + THRESHOLD_RATE * (threshold - known)
        if isinstance(self.config, RiskPenalty) or not (math.isfinite(measured) and math.isfinite(spread)):
            return self.metrics()
        self.seen += 1
        if self.active_since is None:
            if cvar is not None and math.isfinite(cvar):
                self.warmup_cvar += (cvar - self.warmup_cvar) / self.seen
            right = agrees is not None and cvar is not None and agrees(self.warmup_cvar)
            self._begin(update, measured, spread, calibrated, trusted=calibrated or right)
        if self.active_since is not None and self.reference is not None and self.unit is not None:
            self.multiplier, self.pid = next_multiplier(
                self.pid,
                -measured / self.unit,
                -self.config.level / self.unit,
                self.config.pid,
                largest=self.config.max_multiplier,
            )
            self.best = measured if self.best is None else max(self.best, measured)
            violation = (self.config.level - measured) / self.reference
            known = violation if self.excess is None else self.excess
            self.excess = known + EXCESS_RATE * (violation - known)
            self.updates_broken = 0 if self.kept else self.updates_broken + 1
            violated = measured < self.config.level
            at_cap = self.multiplier >= AT_CAP * self.config.max_multiplier
            stuck = violated and at_cap and not self.pid.progressing(-self.config.level / self.unit)
            self.updates_at_cap = self.updates_at_cap + 1 if stuck else 0
        return {"risk/violation": self.config.level - measured, **self.metrics()}

    def _begin(self, update: int, measured: float, spread: float, calibrated: bool, *, trusted: bool) -> None:
        assert isinstance(self.config, RiskConstraint)
        warmup = self.config.warmup
        if self.seen < warmup.updates or not (calibrated or self.seen >= warmup.longest):
            return
        self.active_since = update
        # The measure is mostly observed: it may be right while the critics still learn their tail.
        self.trusted = trusted
        self.reference = max(abs(self.config.level), SMALLEST_REFERENCE * spread) or 1.0
        self.unit = max(abs(self.config.level), SMALLEST_UNIT * spread) or 1.0
        cost = -measured / self.unit
        self.pid = PidState(cost=cost, costs=(cost,) * DELAY)  # from 0 the first costs would look like a change

    def metrics(self) -> dict[str, float]:
        """The controller's numbers."""
        found = {"risk/multiplier": self.multiplier}
        if isinstance(self.config, RiskConstraint):
            found |= {
                "risk/limit": self.config.level,
                "risk/active": float(self.active_since is not None),
                "risk/began_calibrated": float(self.trusted),
                "risk/updates_at_cap": float(self.updates_at_cap),
                "risk/updates_broken": float(self.updates_broken),
                "risk/integral": self.pid.integral,
            }
            if self.best is not None:
                found["risk/best_measure"] = self.best
        return found

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "multiplier": self.multiplier,
            "pid": self.pid.to_json(),
            "seen": self.seen,
            "active_since": self.active_since,
            "trusted": self.trusted,
            "warmup_cvar": self.warmup_cvar,
            "reference": self.reference,
            "unit": self.unit,
            "best": self.best,
            "updates_at_cap": self.updates_at_cap,
            "excess": self.excess,
            "updates_broken": self.updates_broken,
            "threshold": self.threshold,
        }

    def load(self, data: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        missing = sorted(self.state().keys() - data.keys() - {"unit", "warmup_cvar"})  # earlier runs had none
        if missing:
            raise CheckpointError(f"the state of the risk constraint lacks {', '.join(missing)}")
        self.multiplier = float(data["multiplier"])
        self.pid = PidState.from_json(data["pid"])
        self.seen = int(data["seen"])
        self.active_since = data["active_since"]
        self.trusted, self.warmup_cvar = bool(data["trusted"]), float(data.get("warmup_cvar", 0.0))
        self.reference, self.best = data["reference"], data["best"]
        unit = data.get("unit")
        self.unit = self.reference if unit is None else unit  # earlier runs counted in the reference
        self.updates_at_cap = int(data["updates_at_cap"])
        self.excess, self.updates_broken = data["excess"], int(data["updates_broken"])
        self.threshold = data["threshold"]
