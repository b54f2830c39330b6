"""What steers a run besides its weights: schedules, controllers, and the watch over tail risk.

The controllers are one record, which checkpoints, undone updates and roll-backs all use;
docs/decisions/0015-one-record-of-controllers.md says what goes back with what.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np
import torch

from tailwise.core.config import parse
from tailwise.core.errors import CheckpointError, ConfigError
from tailwise.core.streams import Streams
from tailwise.learner.backend import Knobs, UpdateReport
from tailwise.learner.calibration import Calibration
from tailwise.learner.config import (
    ConstantEntropy,
    ConstantSchedule,
    CosineSchedule,
    LearnerConfig,
    LinearSchedule,
    NarrowingExploration,
    PlateauEntropy,
    Prior,
)
from tailwise.learner.constraint import Constraint
from tailwise.learner.optimisers import StepSize, next_kl_factor
from tailwise.learner.risk_config import RiskConstraint
from tailwise.learner.rollout import Rollout
from tailwise.learner.variance_scaling import NoiseAverage, averaged, from_json, noise_factors, to_json
from tailwise.run.config import Config

PREFIX = "calibration/"  # of tensors in a checkpoint


def schedule_factor(config: ConstantSchedule | LinearSchedule | CosineSchedule, steps: int, total_steps: int) -> float:
    """Factor on the learning rate after `steps` of `total_steps` environment steps; clamped past the end."""
    progress = min(max(steps / total_steps, 0.0), 1.0)
    if isinstance(config, ConstantSchedule):
        return 1.0
    if isinstance(config, LinearSchedule):
        return 1.0 + (config.end - 1.0) * progress
    return config.end + (1.0 - config.end) * 0.5 * (1.0 + math.cos(math.pi * progress))


def narrowing(
    config: NarrowingExploration | None, initial_log_std: float, steps: int, total_steps: int, applied: float
) -> float:
    """What is added to ln(standard deviation), at most 0, after `steps` of `total_steps`; `applied` so far.

    Never less than before: a run that goes on beyond its end stays as narrow as it is.
    """
    if config is None:
        return applied
    whole = min(0.0, math.log(config.end_std) - initial_log_std)
    return min(applied, whole * min(steps / total_steps, 1.0))


def plateau_begins(history: Sequence[float], window: int, tolerance: float) -> int | None:
    """Index of the first update at which the least-squares slope of the last `window` entropies is within tolerance.

    history: entropy per update in nats, oldest first. None while no window is flat.
    """
    if len(history) < window:
        return None
    x = np.arange(window) - (window - 1) / 2.0
    for end in range(window, len(history) + 1):
        slope = float(x @ np.asarray(history[end - window : end]) / (x @ x))
        if abs(slope) <= tolerance:
            return end - 1
    return None


def entropy_weight(config: ConstantEntropy | PlateauEntropy, *, plateau_at: int | None, update: int) -> float:
    """Weight of the entropy bonus at `update`, given the update at which a plateau was seen (None: not yet)."""
    if isinstance(config, ConstantEntropy) or plateau_at is None:
        return config.weight
    share = min(max((update - plateau_at) / config.decay, 0.0), 1.0)
    return config.weight + (config.floor - config.weight) * share


PRIOR_STEP, PRIOR_BOUNDS = 1.1, (1e-3, 1e3)


def next_prior_factor(factor: float, *, kl: float, target: float) -> float:
    """Stronger while the policy is further than `target` nats from the prior, weaker while it is nearer.

    In small steps: the policy needs several updates to follow.
    """
    low, high = PRIOR_BOUNDS
    return min(max(factor * (PRIOR_STEP if kl > target else 1.0 / PRIOR_STEP), low), high)


@dataclass
class Controllers:
    """State of the controllers.

    kl_factor      factor on the step size that KL moves
    health_factor  factor on the step size that health rules lower; never goes back
    narrowed       what the schedule of exploration added to ln(standard deviation) so far
    entropies      of the newest updates, as many as the plateau window, nats
    plateau_at     update at which the entropy's plateau began, None before
    constraint     the multiplier and its controller, None without risk that acts
    prior_factor   factor on the weight of the pull to the prior that its target moves
    gradient_noise noise and signal of the gradients by parameter group, which move its noise factor
    """

    kl_factor: float = 1.0
    health_factor: float = 1.0
    narrowed: float = 0.0
    entropies: list[float] = field(default_factory=list)
    plateau_at: int | None = None
    constraint: Constraint | None = None
    prior_factor: float = 1.0
    gradient_noise: dict[str, NoiseAverage] = field(default_factory=dict)

    @property
    def multiplier(self) -> float:
        """Weight of the risk advantages in the next update."""
        return 0.0 if self.constraint is None else self.constraint.multiplier

    @property
    def threshold(self) -> float | None:
        """VaR of the pooled return as known from earlier updates, reward units."""
        return None if self.constraint is None else self.constraint.threshold

    def knobs(
        self,
        learner: LearnerConfig,
        narrowing: NarrowingExploration | None,
        prior: Prior | None,
        *,
        update: int,
        steps: int,
        total_steps: int,
        measure_terms: bool,
    ) -> Knobs:
        """What schedules and controllers say for the update after `update` updates and `steps` environment steps."""
        schedule = schedule_factor(learner.schedule, steps, total_steps)
        return Knobs(
            StepSize(
                learner.learning_rate,
                schedule,
                self.kl_factor,
                self.health_factor,
                noise_factors(learner.variance_scaling, self.gradient_noise),
            ),
            entropy_weight(learner.entropy, plateau_at=self.plateau_at, update=update),
            measure_terms=measure_terms,
            multiplier=self.multiplier,
            threshold=self.threshold,
            bounds_weight=0.0 if narrowing is None else narrowing.bounds_weight,
            prior_weight=0.0 if prior is None else prior.weight * self.prior_factor,
            progress=min(max(steps / total_steps, 0.0), 1.0),
        )

    def adapt(
        self, learner: LearnerConfig, report: UpdateReport, *, update: int, noise: int, prior: Prior | None
    ) -> None:
        """Follow KL and entropy of an update, counted in `update`; one refused for broken numbers shows nothing.

        noise: components of an action, each of which narrowing takes entropy from.
        """
        if not (report.committed or report.went_too_far):
            return
        self.kl_factor = next_kl_factor(
            learner.kl_factor,
            self.kl_factor,
            stopped=report.stopped_early or report.went_too_far,
            kl=report.kl,
            target_kl=learner.target_kl,
        )
        if not report.committed:
            return
        self.gradient_noise = averaged(learner.variance_scaling, self.gradient_noise, report.gradient_noise)
        if prior is not None and prior.target is not None:
            self.prior_factor = next_prior_factor(
                self.prior_factor, kl=report.metrics["policy/prior_kl"], target=prior.target
            )
        if learner.entropy.kind == "plateau" and self.plateau_at is None and "policy/entropy" in report.metrics:
            # Narrowing lowers the entropy of every component by as much in each update, plateau or not.
            entropy = report.metrics["policy/entropy"] - self.narrowed * noise
            window = learner.entropy.window
            self.entropies = [*self.entropies, entropy][-window:]
            if plateau_begins(self.entropies, window, learner.entropy.tolerance) is not None:
                self.plateau_at = update

    def to_json(self) -> dict[str, Any]:
        """A copy as plain values; the names are those of training/state.json."""
        return {
            "kl_factor": self.kl_factor,
            "health_factor": self.health_factor,
            "narrowed": self.narrowed,
            "entropies": list(self.entropies),
            "plateau_at": self.plateau_at,
            "constraint": None if self.constraint is None else self.constraint.state(),
            "prior_factor": self.prior_factor,
            "gradient_noise": to_json(self.gradient_noise),
        }

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over everything that `to_json` gave."""
        self.health_factor = float(data["health_factor"])
        self.restore(data)

    def restore(self, data: Mapping[str, Any]) -> None:
        """Take over an earlier state, but for the health factor: a run that was in trouble stays careful."""
        self.kl_factor = float(data["kl_factor"])
        self.narrowed = float(data.get("narrowed", 0.0))
        self.entropies, self.plateau_at = list(data["entropies"]), data["plateau_at"]
        self.prior_factor = float(data.get("prior_factor", 1.0))
        self.gradient_noise = from_json(data.get("gradient_noise", {}))
        if self.constraint is not None:
            self.constraint.load(data["constraint"])


def controllers_of(training: Mapping[str, Any]) -> dict[str, Any]:
    """What `Controllers.load` reads of a training state, in which the constraint stands in the part "risk"."""
    return {**training, "constraint": training["risk"]["constraint"]}


@dataclass(frozen=True)
class Hyperparameters:
    """What may change while a run goes on, for instance between the generations of a population; None stays as it is.

    learning_rate   base step size, before its factors
    gamma           discount per step
    lam             GAE trace
    clip            PPO ratio clip
    entropy_weight  weight of the entropy bonus, per nat
    value_weight    weight of the critics' losses
    target_kl       nats
    prior_weight    weight of the pull to the prior, per nat, before the factor that its target moves
    limit           of risk.mode constraint, reward units
    """

    learning_rate: float | None = None
    gamma: float | None = None
    lam: float | None = None
    clip: float | None = None
    entropy_weight: float | None = None
    value_weight: float | None = None
    target_kl: float | None = None
    prior_weight: float | None = None
    limit: float | None = None

    @classmethod
    def of_keys(cls, values: Mapping[str, float]) -> Hyperparameters:
        """By the keys of a configuration, such as learner.learning_rate."""
        foreign = sorted(values.keys() - KEYS.keys())
        if foreign:
            raise ConfigError(
                f"{', '.join(foreign)} cannot change while a run goes on; what can is {', '.join(sorted(KEYS))}."
            )
        return cls(**{KEYS[key]: float(value) for key, value in values.items()})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Hyperparameters:
        """What `given` gave; a name that this version does not know is refused."""
        unknown = sorted(data.keys() - {item.name for item in fields(cls)})
        if unknown:
            raise CheckpointError(
                f"the run went on with other values of {', '.join(unknown)}, which this version cannot change in a "
                "run; continue it with the version that wrote it"
            )
        return cls(**{name: float(value) for name, value in data.items()})

    @property
    def given(self) -> dict[str, float]:
        """Those that are not None, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def applied_to(self, config: Config) -> Config:
        """The configuration with these values, checked against the bounds of each; a ConfigError names the key."""
        changes: dict[str, Any] = self.given
        learner = config.learner.model_dump()
        if "lam" in changes:
            changes["lambda"] = changes.pop("lam")
        if "entropy_weight" in changes:
            changes["entropy"] = {**learner["entropy"], "weight": changes.pop("entropy_weight")}
        if "prior_weight" in changes:
            if config.prior is None:
                raise ConfigError("learner.prior.weight cannot change: this configuration has no prior; leave it out.")
            changes["prior"] = {**config.prior.model_dump(), "weight": changes.pop("prior_weight")}
        parts: dict[str, Any] = {}
        if "limit" in changes:
            if not isinstance(config.risk, RiskConstraint):
                raise ConfigError(
                    f"risk.limit cannot change: risk.mode is {config.risk.mode} and only constraint has a limit; leave "
                    "it out."
                )
            changed = {**config.risk.model_dump(), "limit": changes.pop("limit")}
            parts["risk"] = parse(RiskConstraint, changed, source="risk")
        return config.model_copy(
            update={"learner": parse(LearnerConfig, {**learner, **changes}, source="learner"), **parts}
        )


#: Keys of the configuration whose values may change while a run goes on, and their names in `Hyperparameters`.
KEYS = {
    "learner.learning_rate": "learning_rate",
    "learner.gamma": "gamma",
    "learner.lambda": "lam",
    "learner.clip": "clip",
    "learner.entropy.weight": "entropy_weight",
    "learner.value_weight": "value_weight",
    "learner.target_kl": "target_kl",
    "learner.prior.weight": "prior_weight",
    "risk.limit": "limit",
}


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
        calibrated, agrees = False, None  # as long as too few windows are complete
        if self.calibration is not None:
            self.calibration.absorb(rollout)
            calibration = self.calibration.report()
            if calibration is not None:
                metrics |= calibration.metrics()
                if self.constraint is not None:
                    calibrated = calibration.calibrated(self.constraint.tolerance)
                    agrees = partial(calibration.agrees, tolerance=self.constraint.tolerance)
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
            cvar=report.metrics.get("risk/cvar_return"),
            agrees=agrees,
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
