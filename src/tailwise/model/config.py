"""Configuration of the model: encoder, core, actor, critics and the two normalisers."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, JsonValue, model_validator
from torch import Tensor

from tailwise.core.config import Section

# Half the range: of the three widths that were tried the one with which Hopper reaches its goal; HalfCheetah learns
# faster with less (docs/geometry.md).
LOG_STD = 0.0
EARLIER_LOG_STD = (-0.35, -0.7)  # defaults of earlier versions, which the files of their policies name
Layers = Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], Field(max_length=32)]


def quantile_midpoints(n: int) -> Tensor:
    """tau_i = (i + 0.5) / n, float64 [n]: in float32 the sum would round before the division."""
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def even_atoms(n: int, span: float) -> Tensor:
    """n atoms [n], evenly spaced from -span to span, in normalised return units."""
    return torch.linspace(-span, span, n)


class MlpEncoder(Section):
    """A stack of linear layers between the normalised observation and the core."""

    kind: Literal["mlp"] = "mlp"
    hidden: Layers = Field((64, 64), description="units per layer, first to last; typical (64, 64) to (256, 256)")
    activation: Literal["tanh", "relu", "silu"] = Field("tanh", description="nonlinearity after each hidden layer")


class CustomEncoder(Section):
    """An encoder that was registered with `tailwise.model.networks.register_encoder`."""

    kind: Literal["custom"] = "custom"
    name: str = Field(description="the name it was registered under")
    options: dict[str, JsonValue] = Field(default_factory=dict, description="keyword arguments of the factory")


class NoCore(Section):
    """No memory: the encoder's output is the latent."""

    kind: Literal["none"] = "none"


class LstmCore(Section):
    """Long short-term memory over the steps of an episode."""

    kind: Literal["lstm"] = "lstm"
    hidden: int = Field(64, ge=1, le=4096, description="units per layer; typical 32 to 256")
    layers: int = Field(1, ge=1, le=8, description="stacked layers; typical 1")


class GruCore(Section):
    """Gated recurrent unit over the steps of an episode."""

    kind: Literal["gru"] = "gru"
    hidden: int = Field(64, ge=1, le=4096, description="units per layer; typical 32 to 256")
    layers: int = Field(1, ge=1, le=8, description="stacked layers; typical 1")


class ActorConfig(Section):
    """The policy head."""

    hidden: Layers = Field((64,), description="units per hidden layer of the head")
    gain: float = Field(0.01, gt=0, le=10, description="orthogonal gain of the output layer; small starts near uniform")
    box: Literal["gaussian", "squashed"] = Field(
        "gaussian",
        description="law of Box actions: a Gaussian that the environment clips, or one squashed into the bounds",
    )
    log_std: float = Field(
        LOG_STD,
        ge=-5,
        le=2,
        description="initial ln(standard deviation) of Box actions, in units of half the range (of the action itself "
        "where it is unbounded)",
    )


class ClipSection(Section):
    """What every kind of value clip has; active: whether it clips anything."""

    active: ClassVar[bool] = True

    @property
    def limits(self) -> tuple[float, float]:
        """(range, factor) as `learner.critic_losses` takes them, 1 where the kind has none."""
        return 1.0, 1.0


class NoValueClip(ClipSection):
    """Value predictions are not clipped (default)."""

    active: ClassVar[bool] = False
    kind: Literal["disable"] = "disable"


class MeanOnlyClip(ClipSection):
    """The mean of the law may move by `range` per update; the shape moves freely."""

    kind: Literal["mean_only"] = "mean_only"
    range: float = Field(0.2, gt=0, le=100, description="largest move of the mean, in return standard deviations")

    @property
    def limits(self) -> tuple[float, float]:
        return self.range, 1.0


class MeanAndVarianceClip(ClipSection):
    """The mean may move by `range`, the standard deviation may grow by `factor`, per update."""

    kind: Literal["mean_and_variance"] = "mean_and_variance"
    range: float = Field(0.2, gt=0, le=100, description="largest move of the mean, in return standard deviations")
    factor: float = Field(2.0, ge=1, le=100, description="largest growth of the law's standard deviation, ratio")

    @property
    def limits(self) -> tuple[float, float]:
        return self.range, self.factor


class PerQuantileClip(ClipSection):
    """Every quantile may move by `range` per update (quantile critics only)."""

    kind: Literal["per_quantile"] = "per_quantile"
    range: float = Field(0.2, gt=0, le=100, description="largest move of a quantile, in return standard deviations")

    @property
    def limits(self) -> tuple[float, float]:
        return self.range, 1.0


ValueClip = Annotated[
    NoValueClip | MeanOnlyClip | MeanAndVarianceClip | PerQuantileClip,
    Field(discriminator="kind"),
]


class NoTail(NamedTuple):
    """Why no tail can be read from a critic's law: the setting, what follows from it, what to use instead."""

    setting: str
    because: str
    use: str


class CriticBase(Section):
    """What every critic kind has. `tailwise.learner.return_laws` says how the learner treats the law it predicts."""

    hidden: Layers = Field((64,), description="units per hidden layer of each critic's own head")
    twin: bool = Field(True, description="two critics with their own parameters from the core output on")
    combine: Literal["lower", "average"] = Field(
        "lower", description="value used for advantages: the lower of the two means, or their average"
    )
    clip: ValueClip = Field(default=NoValueClip(), description="value clipping around each critic's old output")

    @model_validator(mode="after")
    def _combine_needs_two(self) -> CriticBase:
        if not self.twin and self.combine != "lower":
            raise ValueError("combine says how two critics become one value and twin is false; remove combine")
        return self

    @property
    def law_size(self) -> int:
        """N, how many numbers describe the law of the return; 0 where only the mean is predicted."""
        return 0

    @property
    def mean_from_law(self) -> bool:
        """Whether the value is the mean of the law, without a head of its own."""
        return False

    def initial_law(self) -> Tensor | None:
        """Outputs [N] of a new critic, in normalised units; None where only the mean is predicted.

        The law starts with mean 0 and variance 1, the best guess before any data.
        """
        return None

    @property
    def no_tail(self) -> NoTail | None:
        """Why no tail of the return can be read from the law; None where it can."""
        return None

    @property
    def tail_levels(self) -> int | None:
        """Quantiles whose number bounds how small a tail can be read; None where no such bound exists."""
        return None


class ScalarCritic(CriticBase):
    """A critic that predicts the mean return only."""

    kind: Literal["scalar"] = "scalar"

    @model_validator(mode="after")
    def _clip_fits(self) -> ScalarCritic:
        if self.clip.kind not in ("disable", "mean_only"):
            raise ValueError(
                f"clip.kind {self.clip.kind!r} needs a distribution and this critic has a mean only; "
                "use clip.kind disable or mean_only, or critic.kind quantile"
            )
        return self

    @property
    def no_tail(self) -> NoTail:
        return NoTail("model.critic.kind is scalar", "it predicts a mean only", "use model.critic.kind quantile")


class DistributionalBase(CriticBase):
    """What quantile and categorical critics share: the particle target."""

    lam: float = Field(
        0.99,
        ge=0,
        le=1,
        alias="lambda",
        description="SR(lambda) trace of the particle target; bootstraps bring in the learnt law's error: keep near 1",
    )
    minibatch_particles: int = Field(
        8,
        ge=1,
        le=1024,
        description="particles drawn (stratified) from each target per minibatch; must divide particles",
    )


class QuantileCritic(DistributionalBase):
    """A critic that predicts quantiles of the return, and its mean beside them."""

    kind: Literal["quantile"] = "quantile"
    quantiles: int = Field(64, ge=2, le=1024, description="quantiles per critic; resolution of the tail is 1/quantiles")
    kappa: float = Field(
        0.02, gt=0, le=10, description="Huber threshold in normalised return units; large values blur the tail"
    )
    particles: int | None = Field(
        None, ge=2, le=1024, description="particles per target; null means as many as quantiles"
    )
    target: Literal["particles", "scalar"] = Field(
        "particles",
        description="particles: the law of the return; scalar: all quantiles regress on the lambda-return, "
        "whose law is narrower (no CVaR can be read from it)",
    )
    mean: Literal["head", "quantiles"] = Field(
        "head", description="value: a scalar head of its own, or the mean of the quantiles (blind to rare events)"
    )

    @model_validator(mode="after")
    def _scalar_target_has_no_particles(self) -> QuantileCritic:
        unused = {"lambda": (self.lam, 0.99), "particles": (self.particles, None)}
        changed = [key for key, (value, default) in unused.items() if value != default]
        if self.target == "scalar" and changed:
            raise ValueError(f"target scalar makes no particles, so {', '.join(changed)} would do nothing; remove it")
        return self

    @model_validator(mode="after")
    def _particles_split(self) -> QuantileCritic:
        _require_split(self.particle_count, self.minibatch_particles)
        return self

    @property
    def particle_count(self) -> int:
        """M, particles per target."""
        return self.particles if self.particles is not None else self.quantiles

    @property
    def law_size(self) -> int:
        return self.quantiles

    @property
    def mean_from_law(self) -> bool:
        return self.mean == "quantiles"

    def initial_law(self) -> Tensor:
        """A standard normal, until the first returns (`learner.batches.start_laws`)."""
        start: Tensor = torch.special.ndtri(quantile_midpoints(self.quantiles))
        return start

    @property
    def no_tail(self) -> NoTail | None:
        if self.target == "particles":
            return None
        because = "its quantiles regress on the lambda-return, whose tail is too thin"
        return NoTail("model.critic.target is scalar", because, "use target particles")

    @property
    def tail_levels(self) -> int:
        return self.quantiles


class CategoricalCritic(DistributionalBase):
    """A critic that predicts probabilities on fixed atoms (C51), and the mean beside them."""

    kind: Literal["categorical"] = "categorical"
    atoms: int = Field(101, ge=3, le=1024, description="atoms of the support")
    span: float = Field(
        5.0, gt=0, le=100, description="support is mean +- span standard deviations of the return; beyond it is counted"
    )
    particles: int = Field(64, ge=2, le=1024, description="particles per target")

    @model_validator(mode="after")
    def _fits(self) -> CategoricalCritic:
        _require_split(self.particles, self.minibatch_particles)
        if self.clip.kind == "per_quantile":
            raise ValueError(
                "clip.kind per_quantile has no meaning for atoms; use mean_only or mean_and_variance, "
                "or critic.kind quantile"
            )
        return self

    @property
    def particle_count(self) -> int:
        """M, particles per target."""
        return self.particles

    @property
    def law_size(self) -> int:
        return self.atoms

    def support(self) -> Tensor:
        """The atoms in normalised return units, [N]."""
        return even_atoms(self.atoms, self.span)

    def initial_law(self) -> Tensor:
        """Logits of a Laplace law: a far atom that starts without mass, as a normal law has it, is slow to gain any."""
        return -math.sqrt(2.0) * self.support().abs()


def _require_split(particles: int, sampled: int) -> None:
    if particles % sampled:
        raise ValueError(
            f"minibatch_particles {sampled} does not divide the {particles} particles of a target; "
            f"use a divisor of {particles}"
        )


Critic = Annotated[ScalarCritic | QuantileCritic | CategoricalCritic, Field(discriminator="kind")]


class RunningNormaliser(Section):
    """Observations are standardised by running statistics, frozen during a rollout."""

    kind: Literal["running"] = "running"
    clip: float = Field(10.0, gt=0, le=1e6, description="standardised entries are clipped to +- this many std")


class NoNormaliser(Section):
    """Observations enter the encoder as they are."""

    kind: Literal["none"] = "none"


class PopArt(Section):
    """Returns are standardised; heads are rescaled so that raw predictions do not change."""

    kind: Literal["popart"] = "popart"
    rate: float = Field(0.05, gt=0, le=1, description="weight of the newest rollout in the running moments")
    floor: float = Field(
        1e-4,
        ge=0,
        le=1,
        description="smallest scale, as a share of the largest so far; raise it (0.01 to 0.1) where the spread of "
        "returns collapses while single ones stay large, or targets explode",
    )


class NoReturnScale(Section):
    """Critics learn returns in raw reward units."""

    kind: Literal["none"] = "none"


class ModelConfig(Section):
    """observation -> normaliser -> encoder -> core -> actor and critics."""

    observations: Annotated[RunningNormaliser | NoNormaliser, Field(discriminator="kind")] = Field(
        default=RunningNormaliser(), description="what happens to observations before the encoder"
    )
    returns: Annotated[PopArt | NoReturnScale, Field(discriminator="kind")] = Field(
        default=PopArt(), description="scale in which critics learn"
    )
    norm: Literal["none", "layer"] = Field(
        "none", description="normalisation after every hidden layer of trunk and heads alike"
    )
    encoder: Annotated[MlpEncoder | CustomEncoder, Field(discriminator="kind")] = Field(
        default=MlpEncoder(), description="observation to features"
    )
    core: Annotated[NoCore | LstmCore | GruCore, Field(discriminator="kind")] = Field(
        default=NoCore(), description="memory over the steps of an episode"
    )
    actor: ActorConfig = Field(default=ActorConfig(), description="policy head")
    critic: Critic = Field(default=QuantileCritic(), description="value heads")
