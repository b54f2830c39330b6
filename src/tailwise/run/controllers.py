"""What steers a run besides its weights, as one record: checkpoints, undone updates and roll-backs all use it.

docs/decisions/0015-one-record-of-controllers.md says what goes back with what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tailwise.core.config import parse
from tailwise.core.errors import CheckpointError
from tailwise.learner.config import LearnerConfig
from tailwise.learner.constraint import Constraint


@dataclass
class Controllers:
    """State of the controllers.

    kl_factor      factor on the step size that KL moves
    health_factor  factor on the step size that health rules lower; never goes back
    narrowed       what the schedule of exploration added to ln(standard deviation) so far
    entropies      of the newest updates, as many as the plateau window, nats
    plateau_at     update at which the entropy's plateau began, None before
    constraint     the multiplier and its controller, None without risk that acts
    """

    kl_factor: float = 1.0
    health_factor: float = 1.0
    narrowed: float = 0.0
    entropies: list[float] = field(default_factory=list)
    plateau_at: int | None = None
    constraint: Constraint | None = None

    @property
    def multiplier(self) -> float:
        """Weight of the risk advantages in the next update."""
        return 0.0 if self.constraint is None else self.constraint.multiplier

    @property
    def threshold(self) -> float | None:
        """VaR of the pooled return as known from earlier updates, reward units."""
        return None if self.constraint is None else self.constraint.threshold

    def to_json(self) -> dict[str, Any]:
        """A copy as plain values; the names are those of training/state.json."""
        return {
            "kl_factor": self.kl_factor,
            "health_factor": self.health_factor,
            "narrowed": self.narrowed,
            "entropies": list(self.entropies),
            "plateau_at": self.plateau_at,
            "constraint": None if self.constraint is None else self.constraint.state(),
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
    """

    learning_rate: float | None = None
    gamma: float | None = None
    lam: float | None = None
    clip: float | None = None
    entropy_weight: float | None = None
    value_weight: float | None = None
    target_kl: float | None = None

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

    def applied_to(self, learner: LearnerConfig) -> LearnerConfig:
        """The configuration with these values, checked against the bounds of each; a ConfigError names the key."""
        changes: dict[str, Any] = self.given
        if "lam" in changes:
            changes["lambda"] = changes.pop("lam")
        if "entropy_weight" in changes:
            changes["entropy"] = {**learner.entropy.model_dump(), "weight": changes.pop("entropy_weight")}
        return parse(LearnerConfig, {**learner.model_dump(), **changes}, source="learner")
