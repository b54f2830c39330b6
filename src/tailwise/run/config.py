"""The whole configuration: one tree, composed of the sections that each package owns, and how it is read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, JsonValue, model_validator

from tailwise.bars.data_config import DataConfig
from tailwise.core.config import Section, SectionType, apply_overrides, parse
from tailwise.core.errors import ConfigError
from tailwise.core.numerics import tail_horizon
from tailwise.features.config import FeaturesConfig
from tailwise.fused.coverage import why_not_configured
from tailwise.learner.config import (
    CHOSEN_BY_GEOMETRY,
    AutoExploration,
    AutoPrior,
    BasePrior,
    LearnerConfig,
    NarrowingExploration,
    NoPrior,
    Prior,
)
from tailwise.learner.risk import RiskSettings, check_resolution
from tailwise.learner.risk_config import RiskConfig, RiskConstraint, RiskOff, RiskPenalty, RiskReport
from tailwise.market.costs import CostConfig
from tailwise.market.env_config import MarketEnvConfig, WeightsAction
from tailwise.model.config import ModelConfig, NoCore
from tailwise.run.config_texts import DEVICE, PROCESSES, SHARDS, THREADS
from tailwise.run.geometry import Geometry, Task, choose_geometry
from tailwise.run.health.config import HealthConfig
from tailwise.run.notify import NotifyConfig
from tailwise.run.presets import Source, load_source, with_full_paths

LARGEST_ROLLOUT = 2**24  # rows; at 64 quantiles and two critics already tens of gigabytes
GEOMETRY = {"run": ("environments", "rollout_steps"), "learner": ("epochs", "minibatches")}  # what is chosen


class Words(NamedTuple):
    """What steps and rewards of an environment are called.

    step: one of them; reward: what a step earns; percent: rewards are log-returns, told in percent.
    """

    step: str
    reward: str
    percent: bool

    def amount(self, value: float, digits: int = 3) -> str:
        """A return or a tail with its unit: log-returns in percent, other rewards as they are."""
        return f"{100 * value:.{digits}g}%" if self.percent else f"{value:.{digits}g} reward"

    def difference(self, value: float, digits: int = 2) -> str:
        """The distance between two amounts, with its unit."""
        return f"{100 * value:.{digits}g} percentage points" if self.percent else f"{value:.{digits}g} reward"


class EnvSection(Section):
    """What every kind of environment says of itself; a new kind is a section here and a `World` in `run/worlds.py`.

    words          for steps and rewards
    noisy          whether chance decides most of a reward, so that rollouts must be long
    judged_whole  whether it is judged by playing fixed windows whole, once, and not by a number of episodes
    """

    words: ClassVar[Words] = Words("step", "reward", percent=False)
    noisy: ClassVar[bool] = False
    judged_whole: ClassVar[bool] = False

    @property
    def gym_id(self) -> str | None:
        """The Gymnasium id that it is built by; None where there is none."""
        return None

    @property
    def from_python(self) -> bool:
        """Whether Python has to pass the environment."""
        return False

    @property
    def market(self) -> MarketEnvSection | None:
        """The account and its rules; None outside a market."""
        return None


class GymEnv(EnvSection):
    """Any Gymnasium environment, and what is changed about it."""

    kind: Literal["gym"] = "gym"
    id: str | None = Field(None, description="Gymnasium id, e.g. CartPole-v1; null when Python passes an environment")
    kwargs: dict[str, JsonValue] = Field(default_factory=dict, description="keyword arguments of the environment")
    hide: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="indices of observation entries that the agent does not see (flat Box observations)"
    )
    time_limit: int | None = Field(
        None, ge=1, description="truncate episodes after this many steps; null keeps its own"
    )
    processes: int = Field(1, ge=1, le=256, description=PROCESSES)

    @property
    def gym_id(self) -> str | None:
        return self.id

    @property
    def from_python(self) -> bool:
        return self.id is None


class MarketEnvSection(MarketEnvConfig, EnvSection):
    """The market of the sections data, features and costs."""

    words: ClassVar[Words] = Words("bar", "log-return", percent=True)
    noisy: ClassVar[bool] = True
    judged_whole: ClassVar[bool] = True
    kind: Literal["market"] = "market"

    @property
    def market(self) -> MarketEnvSection:
        return self

    @model_validator(mode="after")
    def _reports_by_itself(self) -> MarketEnvSection:
        if self.report:
            raise ValueError("report is for MarketEnv in Python; a run reports where it reads the parts, leave it out")
        return self


Env = Annotated[GymEnv | MarketEnvSection, Field(discriminator="kind")]


def _with_chosen(section: SectionType, values: Mapping[str, int]) -> SectionType:
    """A copy of a section with `chosen` values that do not count as set, so that another budget may choose again.

    Written to a file they do count: a run that is resumed keeps its geometry.
    """
    copied = section.model_copy()
    copied.__dict__.update(values)
    return copied


class RunConfig(Section):
    """How long, how wide, and what is kept."""

    total_steps: int = Field(1_000_000, ge=1, le=10**15, description="environment steps over all environments")
    geometry: Literal["auto", "fixed"] = Field(
        "auto",
        description="what is left out of environments, rollout_steps, learner.epochs and learner.minibatches: fits "
        "total_steps and the task, or is 64, 128, 4 and 4 whatever they are",
    )
    environments: int = Field(
        64, ge=1, le=65_536, description="environments side by side", json_schema_extra=CHOSEN_BY_GEOMETRY
    )
    rollout_steps: int = Field(
        128, ge=1, le=65_536, description="steps per environment and update", json_schema_extra=CHOSEN_BY_GEOMETRY
    )
    checkpoint_every: int = Field(10, ge=1, description="updates between checkpoints")
    keep: int = Field(3, ge=1, le=1000, description="newest checkpoints that are kept, beside the best one")
    seeds: int = Field(1, ge=1, le=100, description="policies to train: seed, seed + 1, ...; several decide as one")
    threads: int = Field(1, ge=1, le=256, description=THREADS)
    shards: int = Field(1, ge=1, le=256, description=SHARDS)
    device: Literal["cpu", "cuda", "auto"] = Field("cpu", description=DEVICE)
    tensorboard: bool = Field(True, description="write TensorBoard events beside metrics.jsonl")
    max_refused: int = Field(5, ge=1, description="stop after this many updates in a row were refused or rolled back")


class EvaluateConfig(Section):
    """Evaluation during and after training, always on the same seeded episodes."""

    every: int | None = Field(None, ge=1, description="updates between evaluations during training; null: none")
    episodes: int = Field(20, ge=1, le=100_000, description="episodes per evaluation")
    deterministic: bool | None = Field(
        None,
        description="the most likely action instead of a sampled one; null: the policy that a limit speaks of, sampled "
        "for discrete actions under risk.mode constraint, else the most likely action",
    )
    patience: int | None = Field(
        None, ge=1, description="stop after this many evaluations without a better mean return; null: never"
    )
    min_delta: float = Field(0.0, ge=0, description="improvement of the mean return that counts, reward units")

    @model_validator(mode="after")
    def _patience_needs_evaluations(self) -> EvaluateConfig:
        if self.patience is not None and self.every is None:
            raise ValueError("patience counts evaluations but every is null; set evaluate.every, e.g. 10")
        return self


class Config(Section):
    """The configuration of a run; `dump_yaml` writes it complete."""

    seed: int = Field(0, ge=0, lt=2**63, description="seed of every random stream")
    backend: Literal["auto", "torch", "fused"] = Field(
        "auto", description="implementation of the learner; auto: fused where it covers all options, else torch"
    )
    data: DataConfig | None = Field(None, discriminator="kind", description="bars, for env.kind market")
    features: FeaturesConfig | None = Field(None, description="what is observed of the bars, for env.kind market")
    env: Env = Field(default=GymEnv(), description="environment")
    costs: CostConfig | None = Field(None, description="costs of trading, for env.kind market")
    model: ModelConfig = Field(default=ModelConfig(), description="networks")
    learner: LearnerConfig = Field(default=LearnerConfig(), description="mathematics of the update")
    risk: RiskConfig = Field(default=RiskReport(), description="tail risk")
    run: RunConfig = Field(default=RunConfig(), description="length, width, files")
    health: HealthConfig = Field(default=HealthConfig(), description="audit of the run")
    evaluate: EvaluateConfig = Field(default=EvaluateConfig(), description="evaluation")
    notify: NotifyConfig = Field(default=NotifyConfig(), description="who is told about alerts")

    @model_validator(mode="before")
    @classmethod
    def _market_has_its_sections(cls, data: Any) -> Any:
        """With env.kind market, features and costs are there with their defaults."""
        if not isinstance(data, dict) or not isinstance(env := data.get("env"), dict) or env.get("kind") != "market":
            return data
        return {**data, **{name: {} for name in ("features", "costs") if data.get(name) is None}}

    @model_validator(mode="after")
    def _combination(self) -> Config:
        self._check_market()
        self.__dict__.update(self._sections_for(self.run.total_steps, None))
        reason = why_not_configured(self.model, self.learner) if self.backend == "fused" else None
        if reason is not None:
            raise ValueError(f"backend fused: {reason}")
        self._check_sizes()
        self._check_risk()
        return self

    def fitted(self, *, total_steps: int, environments: int | None = None) -> Config:
        """The same configuration with the geometry for another budget; values that were set explicitly stay.

        environments: how many an environment that Python built brings; None: as many as are wanted.
        """
        fitted = self.model_copy()
        fitted.__dict__.update(self._sections_for(total_steps, environments))
        try:
            fitted._check_sizes()
        except ValueError as error:
            raise ConfigError(f"config: {error}.") from error
        return fitted

    def with_geometry_of(self, stored: Config) -> Config:
        """The same configuration with the geometry of another one; values that were set explicitly stay."""
        adopted = self.model_copy()
        for name in ("run", "learner"):
            section, other = getattr(self, name), getattr(stored, name)
            values = {key: getattr(other, key) for key in GEOMETRY[name] if key not in section.model_fields_set}
            adopted.__dict__[name] = _with_chosen(section, values)
        return adopted

    @property
    def geometry(self) -> Geometry:
        """How a rollout is made and learnt from."""
        run, learner = self.run, self.learner
        return Geometry(run.environments, run.rollout_steps, learner.epochs, learner.minibatches)

    def _sections_for(self, total_steps: int, environments: int | None) -> dict[str, Section]:
        """The sections run and learner with the geometry for a budget; `environments` counts like an explicit value."""
        explicit = {
            key: getattr(section, key)
            for name, section in (("run", self.run), ("learner", self.learner))
            for key in GEOMETRY[name]
            if key in section.model_fields_set
        }
        if environments is not None:
            explicit.setdefault("environments", environments)
        if self.run.geometry == "auto":
            task = Task(
                recurrent=not isinstance(self.model.core, NoCore),
                noisy=self.env.noisy or self.acting_risk is not None,
            )
            explicit = dataclasses.asdict(choose_geometry(task, total_steps=total_steps, **explicit))
        return {
            name: _with_chosen(section, {key: explicit[key] for key in GEOMETRY[name] if key in explicit})
            for name, section in (("run", self.run), ("learner", self.learner))
        }

    def _check_sizes(self) -> None:
        run, learner = self.run, self.learner
        recurrent = not isinstance(self.model.core, NoCore)
        units = run.environments if recurrent else run.environments * run.rollout_steps
        if units % learner.minibatches:
            what = "environments" if recurrent else "environments x rollout_steps"
            fitting = [k for k in range(1, min(units, 4096) + 1) if units % k == 0]
            near = min(fitting, key=lambda k: abs(k - learner.minibatches))
            raise ValueError(
                f"learner.minibatches {learner.minibatches} does not divide the {units} {what} of a rollout"
                f"{' (recurrent minibatches hold whole environments)' if recurrent else ''}; use {near}"
            )
        self._check_shards(units)
        if run.environments * run.rollout_steps > LARGEST_ROLLOUT:
            raise ValueError(
                f"a rollout of run.environments {run.environments} x run.rollout_steps {run.rollout_steps} has more "
                f"than {LARGEST_ROLLOUT:,} rows and would not fit into memory; lower one of them"
            )

    def _check_shards(self, units: int) -> None:
        """units: what minibatches are cut from, environments or rows."""
        run, learner = self.run, self.learner
        if run.shards == 1:
            return
        if run.environments % run.shards or (units // run.shards) % learner.minibatches:
            raise ValueError(
                f"run.shards {run.shards} cannot share {run.environments} environments and {learner.minibatches} "
                "minibatches: each shard needs as many environments, and an equal part of every minibatch; set "
                f"run.environments to a multiple of {run.shards * learner.minibatches}, or fewer shards"
            )
        if run.device != "cpu":
            raise ValueError(
                f"run.shards {run.shards} exchange gradients between CPUs and run.device is {run.device}; leave one out"
            )
        if learner.variance_scaling.kind == "on":
            raise ValueError(
                "learner.variance_scaling compares the gradients of microbatches in one process and run.shards is "
                f"{run.shards}; switch one of them off"
            )
        if learner.adversary.kind == "path":
            raise ValueError(
                "learner.adversary.kind path replaces the bars of environments in one process and run.shards is "
                f"{run.shards}; leave one of them out"
            )

    def _check_market(self) -> None:
        market = self.env.market
        if market is not None:
            if self.data is None:
                raise ValueError(
                    "env.kind market trades the bars of the section data, which is missing; write for instance "
                    "data: {kind: builtin, names: [sp500]} or data: {kind: files, paths: [bars.csv]}"
                )
            assert self.costs is not None
            market.check_with(self.costs)
            self._check_pool()
            if self.evaluate.episodes != EvaluateConfig.model_fields["episodes"].default:
                raise ValueError(
                    f"evaluate.episodes is {self.evaluate.episodes}, but a market's windows are played whole, "
                    "once; leave it out"
                )
            if self.evaluate.every is not None and not self.data.split.select:
                raise ValueError(
                    "evaluate.every asks for evaluations on the select window, and data.split has none; name one, or "
                    "set evaluate.every to null"
                )
            return
        given = [name for name in ("data", "features", "costs") if getattr(self, name) is not None]
        if given:
            raise ValueError(
                f"the section {given[0]} belongs to the market and env.kind is gym, which would not read it; set "
                f"env.kind to market or remove {' and '.join(given)}"
            )

    def _check_pool(self) -> None:
        """Refuse what cannot be done to symbols, or would do nothing."""
        data, market = self.data, self.env.market
        assert data is not None and market is not None and self.features is not None
        weights = isinstance(market.action, WeightsAction)
        if weights and (data.pool is not None or data.resample is not None or self.features.instrument):
            key = "data.pool" if data.pool is not None else "data.resample" if data.resample is not None else ""
            raise ValueError(
                f"{key or 'features.instrument'} is for accounts that trade one symbol each, and env.action weights "
                "holds all of them in one account; remove one of the two"
            )
        if data.pool is not None and data.pool.units is not None and not isinstance(self.risk, RiskConstraint):
            raise ValueError("data.pool.units are the tails behind risk.mode constraint; set it, or remove the units")

    def _check_risk(self) -> None:
        if isinstance(self.risk, RiskOff):
            return
        critic, mode = self.model.critic, self.risk.mode
        missing = critic.no_tail
        if missing is not None:
            raise ValueError(
                f"risk.mode {mode} reads CVaR from the law of the return, but {missing.setting}: {missing.because}; "
                f"{missing.use}, or risk.mode off"
            )
        if critic.tail_levels is not None:
            check_resolution(self.risk.alpha, critic.tail_levels)

    @property
    def tail_alpha(self) -> float | None:
        """Tail probability that is reported, None when risk is off."""
        return None if isinstance(self.risk, RiskOff) else self.risk.alpha

    @property
    def acting_risk(self) -> RiskPenalty | RiskConstraint | None:
        """The section risk where it acts on the policy, else None."""
        return self.risk if isinstance(self.risk, RiskPenalty | RiskConstraint) else None

    def plays_most_likely(self, *, discrete: bool) -> bool:
        """Whether evaluations play the most likely action; discrete: the kind of the policy's actions."""
        if self.evaluate.deterministic is not None:
            return self.evaluate.deterministic
        return not (discrete and isinstance(self.risk, RiskConstraint))

    @property
    def narrowing(self) -> NarrowingExploration | None:
        """How the width of Box actions falls over the run; None where it is only learnt."""
        exploration = self.learner.exploration
        if isinstance(exploration, AutoExploration):
            return NarrowingExploration() if isinstance(self.risk, RiskConstraint) else None
        return exploration if isinstance(exploration, NarrowingExploration) else None

    @property
    def prior(self) -> Prior | None:
        """The law that the policy starts from and is pulled to; None without one."""
        prior = self.learner.prior
        if isinstance(prior, AutoPrior):
            market = self.env.market
            return None if market is None or market.base is None else BasePrior()
        return None if isinstance(prior, NoPrior) else prior

    @property
    def initial_log_std(self) -> float:
        """ln(standard deviation) of Box actions that training begins with, in units of half the range."""
        prior = self.prior
        return math.log(prior.std) if isinstance(prior, BasePrior) else self.model.actor.log_std

    @property
    def risk_settings(self) -> RiskSettings | None:
        """What the learner has to measure for a risk that acts."""
        acting = self.acting_risk
        return None if acting is None else RiskSettings(acting.measure, acting.alpha)


def parse_config(data: dict[str, Any], *, source: str) -> Config:
    """Validate a configuration tree; errors are sentences that start with `source`."""
    return parse(Config, data, source=source)


def warnings_of(config: Config) -> list[str]:
    """Sentences about settings that work but are likely not meant."""
    sentences = []
    critic = config.model.critic
    if not isinstance(config.risk, RiskOff) and critic.tail_levels is not None:
        sentence = check_resolution(config.risk.alpha, critic.tail_levels)
        if sentence is not None:
            sentences.append(sentence)
    steps, gamma = config.run.rollout_steps, config.learner.gamma
    if isinstance(config.risk, RiskConstraint) and steps * (1 - gamma) < 1:
        needed = math.ceil(round(1 / (1 - gamma), 6))
        sentences.append(
            f"run.rollout_steps {steps} are few against the {tail_horizon(gamma):,} steps that learner.gamma {gamma:g} "
            "looks ahead: the tail that steers risk.limit is then mostly what the critics predict; use at least "
            f"{needed}, better {tail_horizon(gamma):,}"
        )
    per_update = config.run.environments * config.run.rollout_steps
    if config.run.total_steps < per_update:
        sentences.append(
            f"run.total_steps {config.run.total_steps} is less than one rollout "
            f"({config.run.environments} x {config.run.rollout_steps} = {per_update}); exactly one update will be made"
        )
    return sentences


ConfigLike = Config | Mapping[str, Any] | str | Path  # a YAML file or the name of a preset is a text


@dataclass(frozen=True)
class Effective:
    """A configuration with every default. label: begins the sentences about it; name: names its runs."""

    label: str
    name: str
    config: Config


def effective_config(config: ConfigLike, overrides: Sequence[str] = ()) -> Effective:
    """Read and check a configuration.

    config      a `Config`, a nested dictionary of what differs from the defaults, the path of a YAML file, or the name
                of a preset
    overrides   "learner.clip=0.1" and the like, changes of it
    """
    if isinstance(config, Config):
        if not overrides:
            return Effective("config", "config", config)
        config = config.model_dump(mode="json")
    source = Source("config", "config", dict(config)) if isinstance(config, Mapping) else load_source(str(config))
    label = source.label if not overrides else f"{source.label} with -s"
    # Paths of a file are full by now; those on the command line, or in Python, are meant from here.
    data = with_full_paths(apply_overrides(source.data, list(overrides)), Path.cwd())
    return Effective(source.label, source.name, parse_config(data, source=label))


def require_environment(effective: Effective) -> None:
    """Raise for a configuration without environment, which can be used by `tailwise.PPO(env)` only."""
    if effective.config.env.from_python:
        raise ConfigError(
            f"{effective.label}: env.id is not set; write the id of an environment, e.g. -s env.id=CartPole-v1"
        )
