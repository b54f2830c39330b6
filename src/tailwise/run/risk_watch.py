"""Tail risk during a run: how well the critics are calibrated, and what an update shows the constraint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tailwise.core.errors import CheckpointError
from tailwise.core.streams import Streams
from tailwise.learner.backend import UpdateReport
from tailwise.learner.calibration import Calibration
from tailwise.learner.constraint import Constraint
from tailwise.learner.rollout import Rollout
from tailwise.run.config import Config

PREFIX = "calibration/"  # of tensors in a checkpoint


class RiskWatch:
    """What a trainer knows about tails. Without a law of the return, or with risk off, everything is empty.

    constraint: that of the run's controllers, which an update moves; None without risk that acts.
    """

    def __init__(
        self, config: Config, streams: Streams, constraint: Constraint | None, *, gamma: float, environments: int
    ) -> None:
        self.constraint = constraint
        self.calibration: Calibration | None = None
        critic = config.model.critic
        if config.tail_alpha is not None and critic.law_size > 0:
            self.calibration = Calibration(
                critic, streams, gamma=gamma, alpha=config.tail_alpha, environments=environments
            )

    @property
    def selectable(self) -> bool:
        """Whether the policy of now may be selected: not while it breaks its limit or has not met it yet."""
        return self.constraint is None or self.constraint.kept

    def after(self, update: int, rollout: Rollout, report: UpdateReport) -> dict[str, float]:
        """Take in an update; its metrics. `update` counts it already. A refused one shows nothing."""
        metrics: dict[str, float] = {}
        calibrated = False
        if self.calibration is not None:
            self.calibration.absorb(rollout)
            found = self.calibration.report()
            if found is not None:
                metrics |= found.metrics()
                if self.constraint is not None:
                    calibrated = found.calibrated(self.constraint.tolerance)
        if self.constraint is None:
            return metrics
        if not report.committed:
            return metrics | self.constraint.metrics()
        return metrics | self.constraint.see(
            update,
            measured=report.metrics["risk/measure"],
            spread=report.metrics["risk/spread"],
            threshold=report.metrics.get("risk/threshold"),
            calibrated=calibrated,
        )

    def known(self) -> dict[str, float]:
        """Metrics that follow from the state alone, as `after` reported them."""
        report = None if self.calibration is None else self.calibration.report()
        return ({} if report is None else report.metrics()) | (
            {} if self.constraint is None else self.constraint.metrics()
        )

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any] | None]:
        """Of the calibration, for a checkpoint: (tensors, JSON)."""
        tensors, data = ({}, None) if self.calibration is None else self.calibration.state()
        return {PREFIX + name: tensor for name, tensor in tensors.items()}, data

    def load(self, tensors: Mapping[str, torch.Tensor], data: Mapping[str, Any]) -> None:
        """Continue the calibration from `state`; data: the part "risk" of a training state."""
        for part, current in (("calibration", self.calibration), ("constraint", self.constraint)):
            if (current is None) != (data[part] is None):
                raise CheckpointError(
                    f"the stored state has {'no' if data[part] is None else 'a'} {part} and this run has "
                    f"{'none' if current is None else 'one'}; resume with the configuration it was started with"
                )
        if self.calibration is not None:
            own = {name.removeprefix(PREFIX): t for name, t in tensors.items() if name.startswith(PREFIX)}
            self.calibration.load(own, data["calibration"])
