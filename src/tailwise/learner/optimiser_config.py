"""Configuration of the optimiser: which one, and what keeps a network able to learn on a problem that changes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tailwise.core.config import Section

Beta = Annotated[float, Field(ge=0, lt=1)]


class AdamOptimiser(Section):
    """Adam with betas 0.9 and 0.999 (default)."""

    kind: Literal["adam"] = "adam"

    @property
    def anchored(self) -> bool:
        """Whether it remembers the weights that the run began with."""
        return False


class PerturbingOptimiser(Section):
    """What every other optimiser can do beside its step."""

    shrink_perturb: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share a of freshly drawn weights mixed in at each optimiser step, w <- (1-a) w + a w_fresh; heads "
        "that PopArt scales are left out; 0 is off, typical 1e-6 to 1e-4",
    )

    @property
    def anchored(self) -> bool:
        """Whether it remembers the weights that the run began with."""
        return self.shrink_perturb > 0


class DecayingOptimiser(PerturbingOptimiser):
    """Decoupled weight decay, w <- w - lr x weight_decay x (w - target)."""

    weight_decay: float = Field(
        1e-3, ge=0, le=10, description="decoupled decay per unit of step size; heads that PopArt scales are left out"
    )
    decay_to: Literal["zero", "initial"] = Field(
        "zero", description="what weights decay to: zero, or the weights that the run began with"
    )

    @property
    def anchored(self) -> bool:
        return super().anchored or (self.weight_decay > 0 and self.decay_to == "initial")


class AdamWOptimiser(DecayingOptimiser):
    """Adam with betas of one's own and decoupled weight decay."""

    kind: Literal["adamw"] = "adamw"
    beta1: Beta = Field(0.9, description="memory of the mean of gradients, per step")
    beta2: Beta = Field(0.999, description="memory of the mean of their squares, per step")


class UpgdOptimiser(PerturbingOptimiser):
    """Utility-based perturbed gradient descent: what is useful moves little, the rest moves and is perturbed.

    A step along raw gradients: `learner.learning_rate` is that of gradient descent, not of Adam.
    """

    kind: Literal["upgd"] = "upgd"
    utility_beta: Beta = Field(0.999, description="memory of the utility -gradient x weight, per step")
    noise: float = Field(1e-3, ge=0, le=1, description="standard deviation of the noise that is added to gradients")


class UpgdWOptimiser(DecayingOptimiser):
    """UPGD with decoupled weight decay."""

    kind: Literal["upgd_w"] = "upgd_w"
    utility_beta: Beta = Field(0.999, description="memory of the utility -gradient x weight, per step")
    noise: float = Field(1e-3, ge=0, le=1, description="standard deviation of the noise that is added to gradients")


class AdaUpgdOptimiser(DecayingOptimiser):
    """UPGD along Adam's direction, with decoupled weight decay."""

    kind: Literal["ada_upgd"] = "ada_upgd"
    beta1: Beta = Field(0.9, description="memory of the mean of gradients, per step")
    beta2: Beta = Field(0.999, description="memory of the mean of their squares, per step")
    utility_beta: Beta = Field(0.999, description="memory of the utility -gradient x weight, per step")
    noise: float = Field(
        1e-3,
        ge=0,
        le=1,
        description="standard deviation of the noise that is added to Adam's direction, whose size is 1",
    )


AnyOptimiser = AdamOptimiser | AdamWOptimiser | UpgdOptimiser | UpgdWOptimiser | AdaUpgdOptimiser


class NoVarianceScaling(Section):
    """Steps do not depend on how far the gradients of microbatches agree."""

    kind: Literal["off"] = "off"


class VarianceScaling(Section):
    """The step of each parameter group is multiplied by 1 / (1 + strength x n), n the noise-to-signal ratio of its mean
    gradient, measured between the microbatches; needs learner.microbatches of at least 2."""

    kind: Literal["on"] = "on"
    strength: float = Field(1.0, ge=0, le=100, description="weight of the ratio; 0 only measures it")
    low: float = Field(0.1, gt=0, le=1, description="smallest multiplier")
    rate: float = Field(0.1, gt=0, le=1, description="weight of the newest update in the averages of noise and signal")
