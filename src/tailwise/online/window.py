"""The newest bars of a session, and a market of them with the features, costs and account of a policy."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Literal

import numpy as np

from tailwise.bars.bars import COLUMNS, Bars
from tailwise.bars.frequency import Frequency
from tailwise.core.errors import ConfigError
from tailwise.core.streams import Streams
from tailwise.live.lines import RawBar
from tailwise.live.settings import LiveGuards
from tailwise.market.dataset import Dataset, Loaded
from tailwise.market.env import MarketEnv
from tailwise.market.split import Window
from tailwise.run.config import Config
from tailwise.run.decide import Decider, market_of
from tailwise.run.envs import EnvDriver
from tailwise.run.limits import in_units, scales_of
from tailwise.run.worlds import MarketWorld


class RecentBars:
    """The newest `length` bars of one symbol; before: what to begin with, as far as it opens before `begin`, ns,
    and adjoins it."""

    def __init__(self, before: Bars, begin: int, length: int, frequency: Frequency) -> None:
        self._like, self._length = before, length
        times = before.time.astype("int64")
        end = int(np.searchsorted(times, begin))
        first, after = end, begin
        while first > max(end - length, 0):  # back to a hole: bars from before it would stand beside those after it
            if LiveGuards().missing(int(times[first - 1]), after, frequency.bar_ns, frequency.calendar):
                break
            first, after = first - 1, int(times[first - 1])
        rows = slice(first, end)
        self._times = deque(before.time[rows].astype("int64").tolist(), maxlen=length)
        columns = np.stack([getattr(before, name)[rows] for name in COLUMNS], axis=1)
        self._rows = deque(columns.tolist(), maxlen=length)

    def __len__(self) -> int:
        return len(self._times)

    @property
    def full(self) -> bool:
        return len(self._times) == self._length

    def add(self, bar: RawBar) -> None:
        """One more bar."""
        self._times.append(bar.time)
        self._rows.append(bar.to_list()[: len(COLUMNS)])

    def since(self, time: int) -> int:
        """How many of them opened at `time`, ns, or later."""
        return sum(1 for _ in takewhile(lambda one: one >= time, reversed(self._times)))

    def bars(self, newest: int | None = None) -> Bars:
        """All of them, or the newest so many."""
        begin = 0 if newest is None else max(len(self) - newest, 0)
        columns = np.array(list(self._rows)[begin:], dtype=np.float64)
        time = np.array(list(self._times)[begin:], dtype=np.int64).astype("datetime64[ns]")
        opens, high, low, close, volume = (columns[:, k].copy() for k in range(len(COLUMNS)))
        return replace(
            self._like,
            time=time,
            open=opens,
            high=high,
            low=low,
            close=close,
            volume=volume,
            dividends=None,
            notes=(),
            source="newest bars of the session",
        )


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
