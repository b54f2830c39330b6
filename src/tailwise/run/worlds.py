"""Where a configuration trains, is selected and is tested: a Gymnasium environment or the market."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

from tailwise.bars.bars import Bars
from tailwise.bars.frequency import Frequency
from tailwise.core.errors import CheckpointError, ConfigError, DataError, NotBuiltError
from tailwise.core.streams import Streams
from tailwise.features.spec import FeatureSpec
from tailwise.learner.adversary import Entries
from tailwise.learner.config import PathAdversary
from tailwise.market.action_kinds import action_kind
from tailwise.market.dataset import Dataset, build_dataset
from tailwise.market.env import MarketEnv
from tailwise.market.env_config import RewardConfig
from tailwise.market.leaks.features import LeakVerdict, check_own_features
from tailwise.market.path import AccountPath
from tailwise.market.resample import Resampler
from tailwise.model.actor_critic import ROWS
from tailwise.run.config import Config, GymEnv, MarketEnvSection
from tailwise.run.disturbed import entries_of, moves_of_features
from tailwise.run.envs import Driver, EnvDriver
from tailwise.run.leak_check import LEAK_CHECK, check_own_reward
from tailwise.run.limits import in_units, units_of, with_numbers
from tailwise.run.make_env import make_driver
from tailwise.run.market_words import describe_market, warn_of_market
from tailwise.run.play import Played, Player, episodes_played_by, windows_played_by

Environment = str | Callable[..., Any] | gym.Env[Any, Any] | VectorEnv  # type: ignore[type-arg]


def copies_of(env: Environment | None) -> int | None:
    """How many environments one that is built already brings; None where as many are built as are wanted."""
    if isinstance(env, VectorEnv):
        return int(env.num_envs)
    return 1 if isinstance(env, gym.Env) else None


def builder_of(env: Environment) -> str | Callable[..., Any] | None:
    """What builds an environment like the one that Python passed, for evaluations: an id, a function, or None.

    One that `gymnasium.make` or `make_vec` built knows how, with its wrappers; any other is a single thing that trains.
    """
    if isinstance(env, str) or not isinstance(env, gym.Env | VectorEnv):
        return env
    spec = env.spec
    return None if spec is None else partial(gym.make, spec)


class World:
    """Builds the environments of one configuration. What is said here of data holds outside the market: there are none.

    copies   environments that Python passed, built already; None where `run.environments` are built
    """

    config: Config
    copies: int | None = None

    @property
    def name(self) -> str:
        """What is printed: the id of an environment, the symbols of a market."""
        raise NotImplementedError

    @property
    def features(self) -> FeatureSpec | None:
        """What was fitted on the train bars and belongs to the policy."""
        return None

    def with_config(self, config: Config) -> World:
        """The same world for a configuration that differs in its geometry."""
        same = copy.copy(self)  # the bars and their features are not read again
        same.config = config
        return same

    def training(self, environments: range | None = None) -> EnvDriver:
        """`run.environments` environments to train in; environments: the ids of those that are wanted, all without."""
        raise NotImplementedError

    def without_terms(self) -> World:
        """The same world whose training pays the log-return alone, and so calls no function of `env.reward`."""
        return self

    def eval_env(
        self, purpose: Literal["train", "select", "test"], *, episodes: int, seed: int, report: bool = False
    ) -> EnvDriver:
        """Environments for playback over fixed episodes. report: whether the steps of a market report every component,
        which paths of accounts are made of, and which takes time.

        "select" serves early stopping and the best checkpoint, "test" the evaluation afterwards: no policy is judged
        on the episodes that it was selected by.
        """
        raise NotImplementedError

    def episodes(self, wanted: int) -> int:
        """How many episodes a playback has: as many as wanted, or one per account of a market."""
        return wanted

    def reward_units(self) -> npt.NDArray[np.float64] | None:
        """What the returns of the episodes of a selection [E] are divided by; None: they are taken as they are."""
        return None

    def facts(self) -> dict[str, Any]:
        """What the manifest of a run keeps."""
        return {}

    def check_before_training(self) -> dict[str, Any]:
        """Refuse what must not be trained on; what was checked, for the manifest."""
        return {}

    def warnings(self) -> list[str]:
        """Sentences about data and costs that work but are likely not meant."""
        return []

    def describe(self) -> list[str]:
        """Sentences about the data."""
        return []

    def data_hash(self) -> str | None:
        """Of the bars, under which trials are counted."""
        return None

    def all_bars(self) -> Sequence[Bars]:
        """Of every symbol, whole: train, select and test."""
        return ()

    def frequency(self) -> Frequency | None:
        """Of the bars."""
        return None

    def label(self) -> str:
        """Where the data come from."""
        return ""

    def leak_verdict(self) -> LeakVerdict | None:
        """Leak-check of the user's own features."""
        return None

    def check_same_bars(self, manifest: Mapping[str, Any], *, run: str) -> None:
        """Raise when the bars that train or select are not those that a run began with."""

    def check_tail(self, horizon: int) -> None:
        """Raise when the test window is too short for a tail that looks `horizon` steps ahead."""

    def base_action(self) -> Sequence[float] | None:
        """The action that follows the base rule, in units of the environment; None without such a rule."""
        return None

    @property
    def path_adversary(self) -> PathAdversary | None:
        """The adversary that shifts the train bars; None without one. Raises where it cannot do so."""
        if not isinstance(self.config.learner.adversary, PathAdversary):
            return None
        raise ConfigError(
            f"learner.adversary.kind path shifts the bars of a market, and {self.name} is not one; use sa_ppo or none"
        )

    def entries(self, driver: Driver) -> Entries:
        """The entries of its observations, and which of them an adversary may move; driver: of this world."""
        return entries_of(driver.spaces.observation)

    def moves_of_prices(self, bps: float) -> Sequence[float]:
        """How far the entries [D] of an observation move, raw, where each price of the bars is off by so much."""
        raise ConfigError(f"a budget in basis points is one of prices, and {self.name} is not a market; use kind std")

    def market(self) -> MarketWorld:
        """This world if it is a market; raises otherwise."""
        raise ConfigError(f"{self.name} is not a market (env.kind is gym); use evaluate")


def play_world(player: Player, world: World, *, episodes: int, seed: int) -> Played:
    """Seeded episodes of the test, none of which served a selection; on a market its test window, whole."""
    driver = world.eval_env("test", episodes=episodes, seed=seed)
    try:
        return episodes_played_by(player, driver, episodes=world.episodes(episodes))
    finally:
        driver.close()


def trade_window(
    player: Player, world: MarketWorld, purpose: Literal["train", "select", "test"], *, seed: int
) -> list[AccountPath]:
    """A window of a market, whole: one path per account."""
    driver = world.eval_env(purpose, episodes=1, seed=seed, report=True)
    try:
        return windows_played_by(player, driver, world.dataset.bars)
    finally:
        driver.close()


def make_world(config: Config, env: Environment | None = None, *, features: FeatureSpec | None = None) -> World:
    """The world of `config`; `env` is an environment passed from Python, `features` what a policy was trained with."""
    match config.env:
        case GymEnv():
            return GymWorld(config, env)
        case MarketEnvSection():
            if env is not None:
                raise ConfigError(
                    "env.kind is market and an environment was passed from Python too; leave one of them out"
                )
            return MarketWorld(config, features=features)


class GymWorld(World):
    """Any Gymnasium environment, by its id or passed from Python."""

    def __init__(self, config: Config, env: Environment | None = None) -> None:
        assert isinstance(config.env, GymEnv)
        self.config, self.settings, self.env = config, config.env, env
        self.copies = copies_of(env)
        if env is None and config.env.id is None:
            raise ConfigError("env.id is not set; write the id of an environment, e.g. env: {id: CartPole-v1}")

    @property
    def name(self) -> str:
        return self.settings.id or type(self.env).__name__

    def training(self, environments: range | None = None) -> EnvDriver:
        """As many environments as `run.environments`; a built environment brings its own number, which must agree."""
        config = self.config
        if environments is not None and self.copies is not None:
            raise ConfigError(
                f"run.shards is {config.run.shards} and the environment passed is built already, so it cannot be cut "
                "into shards; pass a function that builds one environment, or leave run.shards out"
            )
        wanted = range(config.run.environments) if environments is None else environments
        driver = self._driver(
            self.env if self.env is not None else str(self.settings.id),
            len(wanted) if self.copies is None else None,
            config.seed,
            "train",
            first=wanted.start,
            processes=self.settings.processes,
        )
        if environments is not None:
            return driver
        if driver.num_envs != config.run.environments:
            count = driver.num_envs
            driver.close()
            raise ConfigError(
                f"the environment passed has {count} copies and run.environments is {config.run.environments}; "
                f"leave run.environments out, or set it to {count} (learner.minibatches must divide the rollout)"
            )
        return driver

    def eval_env(
        self, purpose: Literal["train", "select", "test"], *, episodes: int, seed: int, report: bool = False
    ) -> EnvDriver:
        env = self.settings.id if self.env is None else builder_of(self.env)
        if env is None:
            raise ConfigError(
                "this policy was trained on an environment that was passed from Python, and nothing tells how to build "
                "another one like it; pass a function that builds it to PPO, or call tailwise.evaluate_policy(policy, "
                "env)"
            )
        return self._driver(env, min(episodes, ROWS), seed, purpose)

    def _driver(
        self,
        env: Environment,
        count: int | None,
        seed: int,
        purpose: Literal["train", "select", "test"],
        first: int = 0,
        processes: int = 1,
    ) -> EnvDriver:
        return make_driver(
            env,
            num_envs=count,
            streams=Streams(seed),
            env_kwargs=self.settings.kwargs,
            purpose=purpose,
            hide=self.settings.hide,
            time_limit=self.settings.time_limit,
            first_environment=first,
            processes=processes,
        )


class MarketWorld(World):
    """Accounts on the bars of the configuration; windows of selection and test are played whole, once per symbol (or
    once for all of them in one account).

    draws   accounts of each symbol in a window that is played: more than one where actions are sampled
    """

    draws: int = 1

    def __init__(self, config: Config, *, features: FeatureSpec | None = None) -> None:
        settings = config.env.market
        assert settings is not None and config.data is not None
        assert config.features is not None and config.costs is not None
        self.config, self.settings, self.costs = config, settings, config.costs
        self.dataset: Dataset = build_dataset(config.data, config.features, spec=features)
        self.config = config = with_numbers(config, self.dataset)
        assert config.env.market is not None
        self.settings = config.env.market
        self.dataset = self.dataset.with_base(self.settings.base, self.scales)
        if features is not None:
            self.dataset.check_train_bars(features)

    @property
    def name(self) -> str:
        return f"market {', '.join(bars.symbol for bars in self.dataset.bars)}"

    @property
    def features(self) -> FeatureSpec:
        return self.dataset.spec

    def training(self, environments: range | None = None) -> EnvDriver:
        wanted = range(self.config.run.environments) if environments is None else environments
        settings = self.settings.model_copy(update={"report": False})
        tables = self.dataset.train_tables(together=self.portfolio)
        assert self.config.data is not None
        resample = self.config.data.resample
        if resample is not None:
            resampler = Resampler(self.dataset, resample, seed=self.config.seed)
            tables += resampler.tables(base=self.settings.base, scales=self.scales, together=self.portfolio)
        adversary = self.path_adversary
        if adversary is not None:
            tables += [replace(table, resampled=True) for table in self.dataset.tables("train")]
        tables = in_units(self.config, tables)
        worlds = resample or adversary
        env = MarketEnv(
            tables,
            settings,
            self.costs,
            num_envs=len(wanted),
            first_environment=wanted.start,
            resampled=0.0 if worlds is None else worlds.share,
        )
        env.spread_first_episodes()
        return EnvDriver(env, Streams(self.config.seed), name="environment/train")

    def eval_env(
        self, purpose: Literal["train", "select", "test"], *, episodes: int, seed: int, report: bool = False
    ) -> EnvDriver:
        tables = self.dataset.tables(purpose, together=self.portfolio)
        settings = self.settings.whole_window().model_copy(update={"report": report})
        env = MarketEnv(tables, settings, self.costs, num_envs=self.episodes(episodes))
        return EnvDriver(env, Streams(seed), name=f"environment/{purpose}")

    def in_pieces(self, purpose: Literal["train", "select", "test"], length: int) -> MarketWorld:
        """The same market with the window of `purpose` cut into pieces of `length` bars, each traded by an account of
        its own, side by side.

        A policy knows accounts as old as its training episodes. In one account over years, what it sees of its account
        (the gain since the position was opened, the drawdown) leaves that range; pieces of `env.episode_length` do not.
        """
        if self.portfolio:
            raise ConfigError("pieces of a window are traded by accounts with one asset; this one holds several.")
        pieces = copy.copy(self)
        pieces.dataset = self.dataset.in_pieces(purpose, length)
        return pieces

    def without_terms(self) -> MarketWorld:
        world = copy.copy(self)
        world.settings = self.settings.model_copy(update={"reward": RewardConfig()})
        return world

    def side_by_side(self, draws: int) -> MarketWorld:
        """The same market with so many accounts of each symbol in every window that is played, one after the other for
        all symbols: account d * symbols + s is draw d of symbol s."""
        world = copy.copy(self)
        world.draws = draws
        return world

    def each_test_range(self) -> list[MarketWorld]:
        """The same market once for each test range, with that one as its test window."""
        worlds = []
        for dataset in self.dataset.each_test_range():
            world = copy.copy(self)
            world.dataset = dataset
            worlds.append(world)
        return worlds

    @property
    def scales(self) -> dict[str, float]:
        """Factors of symbols on the exposures of the base rule."""
        return {symbol: one.scale for symbol, one in units_of(self.config).items()}

    @property
    def path_adversary(self) -> PathAdversary | None:
        adversary = self.config.learner.adversary
        if not isinstance(adversary, PathAdversary):
            return None
        why = "learner.adversary.kind path shifts the train bars and does not go with"
        assert self.config.data is not None
        if self.portfolio:
            raise NotBuiltError(f"{why} env.action.kind weights, an account of several assets; leave one of them out.")
        if self.config.data.resample is not None:
            raise NotBuiltError(f"{why} data.resample, which has a share of the episodes too; leave one of them out.")
        if self.config.data.split.kind == "ranges":
            raise NotBuiltError(f"{why} data.split.kind ranges, which has several train windows; use another split.")
        return adversary

    def reward_units(self) -> npt.NDArray[np.float64] | None:
        """What returns of each judged symbol are divided by where they are averaged; None: they are taken as they
        are."""
        units = units_of(self.config)
        return np.array([units[bars.symbol].unit for bars in self.dataset.bars]) if units else None

    @property
    def portfolio(self) -> bool:
        """Whether each account holds all symbols."""
        return action_kind(self.settings.action).portfolio

    def episodes(self, wanted: int) -> int:
        return self.draws * (1 if self.portfolio else len(self.dataset.bars))

    def facts(self) -> dict[str, Any]:
        helpers = self.dataset.helpers
        return {
            "data": self.dataset.hashes(),
            "data_hash": self.data_hash(),
            "label": self.label(),
            **({} if helpers is None else {"train_only": [bars.symbol for bars in helpers.bars]}),
        }

    def check_before_training(self) -> dict[str, Any]:
        checked = {LEAK_CHECK: self.leak_verdict().model_dump(mode="json")}
        if self.settings.reward.function is not None:
            check_own_reward(self.config, self.dataset)
        return checked

    def leak_verdict(self) -> LeakVerdict:
        """Leak-check of the user's own features, kept by content; raises where one looks ahead."""
        assert self.config.features is not None
        return check_own_features(self.dataset, skip=self.config.features.leak_check == "skip")

    def warnings(self) -> list[str]:
        return warn_of_market(self.config, self.dataset, self.settings, self.costs)

    def describe(self) -> list[str]:
        return describe_market(self.config, self.dataset)

    def data_hash(self) -> str:
        return self.dataset.data_hash()

    def all_bars(self) -> Sequence[Bars]:
        return self.dataset.bars

    def frequency(self) -> Frequency:
        return self.dataset.bars[0].frequency  # that of all symbols

    def label(self) -> str:
        return self.dataset.label

    def base_action(self) -> Sequence[float] | None:
        if self.settings.base is None:
            return None
        return action_kind(self.settings.action).base_action(len(self.dataset.bars) if self.portfolio else 1)

    def entries(self, driver: Driver) -> Entries:
        names = driver.venv.observation_names  # type: ignore[attr-defined]
        features = len(self.features.names) * (len(self.dataset.bars) if self.portfolio else 1)
        return Entries(names, tuple(place < features for place in range(len(names))))

    def moves_of_prices(self, bps: float) -> Sequence[float]:
        driver = self.eval_env("train", episodes=1, seed=self.config.seed)
        try:
            size = driver.spaces.observation.size
        finally:
            driver.close()
        moves = moves_of_features(self.dataset, bps, seed=self.config.seed)
        moves = moves * (len(self.dataset.bars) if self.portfolio else 1)
        return [*moves, *([0.0] * (size - len(moves)))]

    def market(self) -> MarketWorld:
        return self

    def check_tail(self, horizon: int) -> None:
        tables = self.dataset.tables("test", together=self.portfolio)
        longest = max(len(table.close) - 1 - table.first_valid for table in tables)
        if longest < horizon:
            raise DataError(
                f"the test window has {longest} bars, and the tail of learner.gamma {self.config.learner.gamma:g} "
                f"looks {horizon} bars ahead, so the realised CVaR could not be measured; widen the test window or "
                "lower learner.gamma."
            )

    def check_same_bars(self, manifest: Mapping[str, Any], *, run: str) -> None:
        now = self.dataset.hashes()
        for purpose in ("train", "select"):
            before = manifest.get("data", {}).get(purpose)
            if before != now.get(purpose):
                raise CheckpointError(
                    f"{run}: the bars of the {purpose} window are not those that the run began with; restore them, or "
                    "train again into another folder."
                )
