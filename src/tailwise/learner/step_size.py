"""Step size = base x schedule x kl_factor x health_factor; each factor is logged and checkpointed."""

from __future__ import annotations

from dataclasses import dataclass

from tailwise.learner.config import KlFactor, NoKlFactor


@dataclass(frozen=True)
class StepSize:
    """The factors of one update's learning rate."""

    base: float
    schedule: float
    kl_factor: float
    health_factor: float

    @property
    def value(self) -> float:
        """The learning rate that the optimiser uses."""
        return self.base * self.schedule * self.kl_factor * self.health_factor


def next_kl_factor(
    config: NoKlFactor | KlFactor, factor: float, *, stopped: bool, kl: float, target_kl: float | None
) -> float:
    """The factor after an update: smaller when it was stopped early, larger when KL stayed below half the target."""
    if isinstance(config, NoKlFactor) or target_kl is None:
        return factor
    if stopped:
        factor = factor / config.ratio
    elif kl < target_kl / 2:
        factor = factor * config.ratio
    return min(max(factor, config.low), config.high)
