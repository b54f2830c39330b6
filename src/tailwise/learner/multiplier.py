"""The multiplier of the constraint as a PID controller (Stooke, Achiam & Abbeel 2020), a pure function of its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tailwise.learner.risk_config import Pid

DELAY = 10  # updates over which the derivative looks back


@dataclass(frozen=True)
class PidState:
    """Everything the controller remembers. Costs are in units of the reference; a cost is minus the measure."""

    integral: float = 0.0
    violation: float = 0.0  # moving average of cost - limit
    cost: float = 0.0  # moving average of the cost
    costs: tuple[float, ...] = (0.0,) * DELAY  # that average in the last DELAY updates, oldest first

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
    """(multiplier, new state) after a cost was seen beside its limit (both in units of the reference).

    cost above limit is a violation. The integral stays within [0, largest], so it neither winds up while a limit cannot
    be met nor keeps a debt from times when it was kept easily. It counts at most `integral_clip` of a violation: a
    policy moves a bounded step per update, and what the integral gathers on a long way would carry it past the limit.
    """
    violation = cost - limit
    counted = min(max(violation, -gains.integral_clip), gains.integral_clip)
    integral = min(max(state.integral + gains.ki * counted, 0.0), largest)
    keep = gains.smoothing
    smoothed = keep * state.violation + (1 - keep) * violation
    average = keep * state.cost + (1 - keep) * cost
    rise = max(0.0, average - state.costs[0])
    multiplier = min(max(gains.kp * smoothed + integral + gains.kd * rise, 0.0), largest)
    return multiplier, PidState(integral, smoothed, average, (*state.costs[1:], average))
