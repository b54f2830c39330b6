"""A market of the newest bars, with the features, costs and account that a policy was trained with."""

from __future__ import annotations

from collections.abc import Sequence

from tailwise.bars.bars import Bars
from tailwise.core.errors import ConfigError
from tailwise.market.dataset import Dataset, Loaded
from tailwise.market.split import Window
from tailwise.run.decide import Decider, market_of
from tailwise.run.limits import scales_of
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
