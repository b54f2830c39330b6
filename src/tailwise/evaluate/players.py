"""Players for stress tests: rules, fixed targets and trained policies, each as bars and costs -> path of an account."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from tailwise.core.errors import ConfigError, DataError
from tailwise.evaluate.backtest import backtest
from tailwise.evaluate.ensemble import Trader
from tailwise.evaluate.stress import Player
from tailwise.market.bars import Bars
from tailwise.market.costs import CostConfig
from tailwise.market.dataset import Dataset, Loaded, Window
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.path import AccountPath
from tailwise.run.worlds import MarketWorld

Floats = npt.NDArray[np.float64]


def rule_player(
    rule: Callable[[Bars], Floats],
    *,
    config: MarketEnvConfig | None = None,
    start: np.datetime64 | None = None,
    end: np.datetime64 | None = None,
) -> Player:
    """A rule that gives a target for every bar (baselines.py), deciding at the closes of the bars that open in
    [start, end); it is asked anew about changed bars."""

    def play(bars: Bars, costs: CostConfig) -> AccountPath:
        first = 0 if start is None else int(np.searchsorted(bars.time, start))
        last = len(bars) - 1 if end is None else int(np.searchsorted(bars.time, end)) - 1
        return backtest(rule(bars), bars, costs, config=config, first=first, last=last)

    return play


def policy_player(
    policy: Trader,
    *,
    purpose: Literal["select", "test"] = "test",
    symbol: int = 0,
    deterministic: bool = True,
    seed: int | None = None,
    market: MarketWorld | None = None,
) -> tuple[Player, Bars, CostConfig]:
    """A trained policy on the window of `purpose`, with the bars and costs of the market that it was trained for.

    On changed bars it sees features computed from them, with what was fitted on its train window. Its observation has
    a place for every waiting order, so more latency is played with the decisions that it took without it, later.
    deterministic, seed, market: as in `Policy.trade`.
    """
    world = policy.market() if market is None else market
    if world.portfolio:
        raise ConfigError("stress tests play accounts with one asset; this policy holds several in one account.")
    item = world.dataset.loaded[symbol]
    if item.columns:
        raise ConfigError(
            f"{item.bars.symbol} comes with columns beside its bars ({', '.join(item.columns)}); nobody knows what "
            "they would be on changed bars."
        )

    def play(bars: Bars, costs: CostConfig) -> AccountPath:
        own = costs.model_copy(update={"latency": world.costs.latency})
        changed = _world_on(world, bars, own, symbol)
        path = policy.trade(purpose, deterministic=deterministic, seed=seed, market=changed)[symbol]
        return path if costs == own else _later(path, bars, costs, world.settings)

    return play, item.bars, world.costs


def _world_on(world: MarketWorld, bars: Bars, costs: CostConfig, symbol: int) -> MarketWorld:
    """The same market with other bars of one symbol, its windows cut at the same times."""
    data = world.dataset
    old = data.bars[symbol].time
    loaded, features = list(data.loaded), list(data.features)
    loaded[symbol] = Loaded(bars, {})
    features[symbol] = data.spec.table(bars)
    windows = {}
    for purpose, cut in data.windows.items():
        first = int(np.searchsorted(bars.time, old[cut[symbol].first]))
        end = int(np.searchsorted(bars.time, old[cut[symbol].end - 1], side="right"))
        if end <= first:
            raise DataError(f"{bars.symbol}: no bar is left in the {purpose} window after the change.")
        windows[purpose] = (*cut[:symbol], Window(first, end), *cut[symbol + 1 :])
    changed = copy.copy(world)
    changed.dataset = Dataset(tuple(loaded), data.spec, tuple(features), windows)
    changed.costs = costs
    return changed


def _later(path: AccountPath, bars: Bars, costs: CostConfig, config: MarketEnvConfig) -> AccountPath:
    """The decisions of a path again, with the latency of `costs`."""
    first = int(np.searchsorted(bars.time, path.time[0])) - 1
    targets = np.zeros(len(bars))
    targets[first : first + len(path)] = path.target[:, 0]
    played = backtest(targets, bars, costs, config=config, first=first, last=first + len(path))
    return replace(played, planned=path.planned)
