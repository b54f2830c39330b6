"""Configuration of the learner: returns, surrogate, step size and control of the update."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from tailwise.core.config import Section
from tailwise.learner.optimiser_config import (
    AdamOptimiser,
    AdamWOptimiser,
    AdaUpgdOptimiser,
    NoVarianceScaling,
    UpgdOptimiser,
    UpgdWOptimiser,
    VarianceScaling,
)

CHOSEN_BY_GEOMETRY: dict[str, Any] = {"chosen_by": "run.geometry"}  # of a field whose default depends on the budget


class ConstantSchedule(Section):
    """The learning rate stays at its base."""

    kind: Literal["constant"] = "constant"


class LinearSchedule(Section):
    """The learning rate falls linearly with steps/total_steps to `end` x base, and stays there."""

    kind: Literal["linear"] = "linear"
    end: float = Field(0.0, ge=0, le=1, description="factor at the end of training")


class CosineSchedule(Section):
    """The learning rate falls along half a cosine to `end` x base, and stays there (no rebound)."""

    kind: Literal["cosine"] = "cosine"
    end: float = Field(0.0, ge=0, le=1, description="factor at the end of training")


class ConstantEntropy(Section):
    """A fixed entropy bonus."""

    kind: Literal["constant"] = "constant"
    weight: float = Field(0.01, ge=0, le=10, description="weight of the entropy bonus, per nat; typical 0 to 0.02")


class PlateauEntropy(Section):
    """Constant until entropy stops changing; a plateau starts a linear decay to `floor`."""

    kind: Literal["plateau"] = "plateau"
    weight: float = Field(0.01, ge=0, le=10, description="weight before the plateau, per nat")
    floor: float = Field(0.0, ge=0, le=10, description="weight after the decay, per nat; at most `weight`")
    window: int = Field(20, ge=3, le=10_000, description="updates over which the slope of entropy is fitted")
    tolerance: float = Field(1e-3, ge=0, description="largest |slope| that counts as a plateau, nats per update")
    decay: int = Field(50, ge=1, description="updates from the plateau to the floor")


class NoAwr(Section):
    """No advantage-weighted imitation term."""

    kind: Literal["off"] = "off"


class Awr(Section):
    """Adds weight x (-mean(w ln pi(a))) with w = exp(min(A/beta, ln max_weight)) on the rollout's own actions."""

    kind: Literal["on"] = "on"
    weight: float = Field(0.1, gt=0, le=10, description="weight of the term in the loss")
    beta: float = Field(1.0, gt=0, le=100, description="temperature, in standard deviations of the advantage")
    max_weight: float = Field(20.0, ge=1, le=1e6, description="largest w")


class NoKlFactor(Section):
    """KL stops an update early, and leaves the step size alone (default)."""

    kind: Literal["off"] = "off"


class KlFactor(Section):
    """The step size shrinks by `ratio` when an update was stopped early and grows by it when KL < target/2."""

    kind: Literal["on"] = "on"
    ratio: float = Field(1.5, gt=1, le=10, description="shrink and growth per update")
    low: float = Field(0.05, gt=0, le=1, description="smallest factor")
    high: float = Field(4.0, ge=1, le=100, description="largest factor")


class AutoExploration(Section):
    """`narrow` for Box actions under risk.mode constraint, else `learnt`.

    Under a limit the policy that explores has the heavier tail, and is not the one that is used afterwards.
    """

    kind: Literal["auto"] = "auto"


class LearntExploration(Section):
    """The standard deviation of Box actions is a parameter like any other, and nothing else moves it."""

    kind: Literal["learnt"] = "learnt"


class NarrowingExploration(Section):
    """Beside what is learnt, the standard deviation of Box actions falls from its initial value to `end_std`.

    It falls geometrically with steps/total_steps. A policy that starts narrower than `end_std` is left alone: a factor
    instead of a width would take its last exploration and freeze it.
    """

    kind: Literal["narrow"] = "narrow"
    end_std: float = Field(
        0.05,
        ge=0.007,
        le=10,
        description="standard deviation at the end of training but for what is learnt, in units of half the range (of "
        "the action itself where it is unbounded)",
    )
    bounds_weight: float = Field(
        1.0,
        ge=0,
        le=100,
        description="weight of the squared distance by which means lie outside the bounds, in units of half the range: "
        "a narrow policy out there samples only the bound and never learns that less would be better; nothing where a "
        "component has no bounds",
    )


class AutoPrior(Section):
    """`base` where env.base is set, else `off`."""

    kind: Literal["auto"] = "auto"


class NoPrior(Section):
    """Nothing pulls the policy anywhere."""

    kind: Literal["off"] = "off"


class PullSection(Section):
    """Adds weight x KL(policy || prior) to the loss."""

    weight: float = Field(0.01, ge=0, le=10, description="weight of the pull, per nat; typical 0.003 to 0.03")
    target: float | None = Field(
        None,
        gt=0,
        le=10,
        description="KL(policy || prior) that the weight is driven to, nats per decision; null: the weight stays",
    )


class UniformPrior(PullSection):
    """The law that knows nothing: an entropy bonus by another name (discrete actions)."""

    kind: Literal["uniform"] = "uniform"


class BasePrior(PullSection):
    """A law around the action that follows env.base: the untrained policy, whose most likely action is the rule."""

    kind: Literal["base"] = "base"
    mass: float = Field(0.8, gt=0, lt=1, description="discrete actions: probability of the base rule's own action")
    std: float = Field(
        0.2,
        ge=0.007,
        le=7,
        description="Box actions: standard deviation around the base rule's action, in units of half the range",
    )


Prior = UniformPrior | BasePrior


class StdBudget(Section):
    """Largest move of an entry of the observation, in the units of the network: standard deviations of the normaliser.

    What says something exact is left alone unless it is named: the account of a market, flags and one-hots.
    """

    kind: Literal["std"] = "std"
    size: float = Field(0.05, ge=0, le=10, description="largest move of each entry that is not named in `entries`")
    entries: dict[str, Annotated[float, Field(ge=0, le=10)]] = Field(
        default_factory=dict,
        description="other sizes by the name of an entry; * and ? stand for any characters, the first fitting name "
        "counts",
    )


class PriceBudget(Section):
    """What the features of a market move by when each price of the bars is off by so much."""

    kind: Literal["bps"] = "bps"
    size: float = Field(
        2.0, gt=0, le=1000, description="error of the prices of each bar, basis points, up or down independently"
    )


class AdversarySection(Section):
    """What every adversary has. has_loss: whether it adds a term to the loss."""

    has_loss: ClassVar[bool] = False


class NoAdversary(AdversarySection):
    """Nobody disturbs what the policy observes."""

    kind: Literal["none"] = "none"


class SaPpo(AdversarySection):
    """SA-PPO: adds weight x the largest divergence of the policy that a bounded move of its observations reaches.

    It costs several passes through encoder, core and actor per minibatch (docs/robust.md has the factor).
    """

    has_loss: ClassVar[bool] = True
    kind: Literal["sa_ppo"] = "sa_ppo"
    weight: float = Field(0.1, gt=0, le=1000, description="weight of the term in the loss (kappa)")
    budget: Annotated[StdBudget | PriceBudget, Field(discriminator="kind")] = Field(
        default=StdBudget(), description="how far an observation may be moved"
    )
    method: Literal["pgd", "sgld"] = Field(
        "pgd", description="search for the worst move: steps along the sign of the gradient, or the same with noise"
    )
    steps: int = Field(2, ge=1, le=100, description="steps of the search, together a little longer than the budget")
    ramp: float = Field(0.5, ge=0, le=1, description="share of training in which the budget grows linearly from 0")


class PathAdversary(AdversarySection):
    """Some training episodes begin on paths of the train bars that are found to hurt the newest policy (a market).

    Log-returns of the bars are shifted within a budget, in units of the volatility known before each bar; features
    are computed anew from the shifted bars. A search costs 2 + `steps` playbacks of the train bars.
    """

    kind: Literal["path"] = "path"
    size: float = Field(0.02, gt=0, le=1, description="largest mean |shift| over the train bars, in volatilities")
    largest: float = Field(4.0, ge=1, le=100, description="largest |shift| of a single bar, as a multiple of `size`")
    share: float = Field(0.25, gt=0, lt=1, description="share of the training episodes that begin on such paths")
    every: int = Field(10, ge=1, le=100_000, description="updates after which the paths are found anew")
    steps: int = Field(4, ge=1, le=100, description="steps of the search, each with a playback of the train bars")


Adversary = Annotated[NoAdversary | SaPpo | PathAdversary, Field(discriminator="kind")]


class DemonstrationSource(Section):
    """What every source has."""

    @property
    def code(self) -> str | None:
        """The function of somebody's that it calls; None where there is none."""
        return None


class FileDemonstrations(DemonstrationSource):
    """Episodes in Parquet files, in the order of time (docs/imitation.md has the columns)."""

    kind: Literal["files"] = "files"
    paths: tuple[str, ...] = Field((), max_length=1000, description="Parquet files, one after the other")


class RuleDemonstrations(DemonstrationSource):
    """Episodes that a rule plays in the training environment before the run begins."""

    kind: Literal["rule"] = "rule"
    rule: str = Field(
        "base",
        description="base: what env.base holds; else module.py:function or package.module:function, called with the "
        "observations [B, D] and their names, giving the actions of the environments",
    )
    steps: int = Field(10_000, ge=1, le=10_000_000, description="steps over all environments, rounded up to whole ones")

    @property
    def code(self) -> str | None:
        return None if self.rule == "base" else self.rule


class MinariDemonstrations(DemonstrationSource):
    """A Minari data set (needs the package minari, and the data set on this machine)."""

    kind: Literal["minari"] = "minari"
    dataset: str | None = Field(None, description="its id, such as D4RL/pen/human-v2")


class NoImitation(Section):
    """There are no demonstrations."""

    kind: Literal["none"] = "none"


class Demonstrations(Section):
    """Adds weight x (-mean(w ln pi(a))) on the steps of demonstrations, w = exp(min(A/beta, ln max_weight)).

    A is the return that followed minus what the critics predict, in standard deviations of the return: of a rule that
    is not the best the better part is imitated.
    """

    kind: Literal["demonstrations"] = "demonstrations"
    source: Annotated[FileDemonstrations | RuleDemonstrations | MinariDemonstrations, Field(discriminator="kind")] = (
        Field(default=RuleDemonstrations(), description="where the demonstrations come from")
    )
    weight: float = Field(0.5, ge=0, le=100, description="weight of the term in the loss when training begins")
    until: float = Field(
        0.5, gt=0, le=1, description="share of training after which the weight, falling linearly, is 0"
    )
    beta: float | None = Field(
        1.0, gt=0, le=100, description="temperature, in standard deviations of the return; null: all steps weigh alike"
    )
    max_weight: float = Field(20.0, ge=1, le=1e6, description="largest w")
    rows: int = Field(
        256, ge=1, le=1_000_000, description="steps of demonstrations per minibatch; with memory whole stretches"
    )
    clone: int = Field(
        0, ge=0, le=100_000, description="optimiser steps of plain behaviour cloning before the first rollout"
    )


Imitation = Annotated[NoImitation | Demonstrations, Field(discriminator="kind")]


class LearnerConfig(Section):
    """rollout -> returns -> losses -> update."""

    gamma: float = Field(0.99, gt=0, lt=1, description="discount per step")
    lam: float = Field(0.95, ge=0, le=1, alias="lambda", description="GAE trace for advantages and the mean target")
    epochs: int = Field(
        4, ge=1, le=100, description="passes over a rollout per update", json_schema_extra=CHOSEN_BY_GEOMETRY
    )
    minibatches: int = Field(
        4,
        ge=1,
        le=4096,
        description="minibatches per epoch; recurrent ones split environments",
        json_schema_extra=CHOSEN_BY_GEOMETRY,
    )
    microbatches: int = Field(
        1, ge=1, le=1024, description="parts of a minibatch whose gradients are accumulated before one step"
    )
    learning_rate: float = Field(3e-4, gt=0, le=1, description="base step size of the optimiser")
    optimiser: Annotated[
        AdamOptimiser | AdamWOptimiser | UpgdOptimiser | UpgdWOptimiser | AdaUpgdOptimiser, Field(discriminator="kind")
    ] = Field(default=AdamOptimiser(), description="how gradients become steps")
    variance_scaling: Annotated[NoVarianceScaling | VarianceScaling, Field(discriminator="kind")] = Field(
        default=NoVarianceScaling(), description="whether steps shrink where the gradients of microbatches disagree"
    )
    schedule: Annotated[ConstantSchedule | LinearSchedule | CosineSchedule, Field(discriminator="kind")] = Field(
        default=LinearSchedule(), description="factor on the step size as a function of steps/total_steps"
    )
    clip: float = Field(0.2, gt=0, lt=1, description="PPO ratio clip")
    dual_clip: float | None = Field(3.0, gt=1, le=100, description="dual clip for negative advantages; null is off")
    advantages: Literal["global", "per_env"] = Field(
        "global", description="advantages are standardised over the rollout, or per environment"
    )
    entropy: Annotated[ConstantEntropy | PlateauEntropy, Field(discriminator="kind")] = Field(
        default=ConstantEntropy(), description="entropy bonus"
    )
    exploration: Annotated[AutoExploration | LearntExploration | NarrowingExploration, Field(discriminator="kind")] = (
        Field(default=AutoExploration(), description="how the width of Box actions changes over a run")
    )
    prior: Annotated[AutoPrior | NoPrior | UniformPrior | BasePrior, Field(discriminator="kind")] = Field(
        default=AutoPrior(), description="law that the policy starts from and is pulled to"
    )
    value_weight: float = Field(0.5, gt=0, le=100, description="weight of the critics' losses")
    max_grad_norm: float | None = Field(
        0.5,
        gt=0,
        le=1e6,
        description="global gradient norm is clipped to this; null is off (0 is refused: no learning)",
    )
    target_kl: float | None = Field(
        0.02, gt=0, le=10, description="the update stops at 1.5 x this KL(old||new), nats; null never stops"
    )
    kl_factor: Annotated[NoKlFactor | KlFactor, Field(discriminator="kind")] = Field(
        default=NoKlFactor(), description="whether KL also moves the step size"
    )
    max_kl: float = Field(
        1.0, gt=0, le=100, description="an update that ends with KL(old||new) above this is rolled back, nats"
    )
    awr: Annotated[NoAwr | Awr, Field(discriminator="kind")] = Field(
        default=NoAwr(), description="advantage-weighted imitation of the rollout's own actions"
    )
    adversary: Adversary = Field(
        default=NoAdversary(), description="who disturbs what the policy observes, or the bars it trains on"
    )
    imitation: Imitation = Field(default=NoImitation(), description="demonstrations that the policy follows at first")

    @model_validator(mode="after")
    def _combination(self) -> LearnerConfig:
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip:
            raise ValueError(
                f"learner.dual_clip {self.dual_clip} must exceed 1 + learner.clip = {1 + self.clip}; 3 or null"
            )
        if self.entropy.kind == "plateau" and self.entropy.floor > self.entropy.weight:
            raise ValueError(
                f"learner.entropy.floor {self.entropy.floor} is above learner.entropy.weight "
                f"{self.entropy.weight}; the decay goes down"
            )
        if self.kl_factor.kind == "on" and self.target_kl is None:
            raise ValueError("learner.kl_factor follows learner.target_kl, which is null; set target_kl, e.g. 0.02")
        if self.variance_scaling.kind == "on" and self.microbatches < 2:
            raise ValueError(
                f"learner.variance_scaling compares the gradients of microbatches and learner.microbatches is "
                f"{self.microbatches}; set learner.microbatches to 2 or more, e.g. 4"
            )
        return self
