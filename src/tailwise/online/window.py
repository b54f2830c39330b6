"""A market of the newest bars, with the features, costs and account that a policy was trained with."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

from tailwise.bars.bars import Bars
from tailwise.core.errors import ConfigError
from tailwise.core.streams import Streams
from tailwise.market.dataset import Dataset, Loaded
from tailwise.market.env import MarketEnv
from tailwise.market.split import Window
from tailwise.run.config import Config
from tailwise.run.decide import Decider, market_of
from tailwise.run.envs import EnvDriver
from tailwise.run.limits import in_units, scales_of
from tailwise.run.worlds import MarketWorld


class NewestBars(MarketWorld):
    """Bars of every symbol, all of them train bars. Nothing is fitted: the policy keeps its own statistics, so that a
    feature means the same to it before and after."""

    def __init__(self, trader: Decider, bars: Sequence[Bars]) -> None:
        _, spec = market_of(trader)
        config = trader.config
        market = config.env.market
        if market is None or config.costs is None:
            raise ConfigError("this policy was not trained on a market, so there are no bars for it to learn from.")
        loaded = tuple(Loaded(one, {}) for one in bars)
        tables = tuple(spec.table(one) for one in bars)
        windows = tuple(Window(0, len(one)) for one in bars)
        dataset = Dataset(loaded, spec, tables, {"train": windows})
        self.config, self.settings, self.costs = config, market, config.costs
        self.dataset = dataset.with_base(market.base, scales_of(config))

    def with_config(self, config: Config) -> NewestBars:
        """The same bars for another configuration, whose account they are traded with."""
        assert config.env.market is not None
        same = copy.copy(self)
        same.config, same.settings = config, config.env.market
        return same

    def eval_env(
        self, purpose: Literal["train", "select", "test"], *, episodes: int, seed: int, report: bool = False
    ) -> EnvDriver:
        """As in every market, and with the rewards of training: those of pooled symbols are in their units."""
        tables = in_units(self.config, self.dataset.tables(purpose, together=self.portfolio))
        settings = self.settings.whole_window().model_copy(update={"report": report})
        env = MarketEnv(tables, settings, self.costs, num_envs=self.episodes(episodes))
        return EnvDriver(env, Streams(seed), name=f"environment/{purpose}")
