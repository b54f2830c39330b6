"""Players for stress tests: rules, fixed targets and trained policies, each as bars and costs -> path of an account."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from tailwise.bars.bars import Bars
from tailwise.core.errors import ConfigError, DataError
from tailwise.evaluate.backtest import play_rule
from tailwise.evaluate.ensemble import Trader
from tailwise.evaluate.stress import ManyPlayer, Player
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
        return play_rule(rule(bars), bars, costs, config=config, first=first, last=last)

    return play


def policy_player(
    policy: Trader,
    *,
    purpose: Literal["select", "test"] = "test",
    symbol: int = 0,
    deterministic: bool = True,
    seed: int | None = None,
    market: MarketWorld | None = None,
    base: AccountPath | None = None,
) -> PolicyPlayer:
    """A trained policy on the window of `purpose`, with the bars and costs of the market that it was trained for.

    On changed bars it sees features computed from them, with what was fitted on its train window. Its observation has
    a place for every waiting order, so more latency is played with the decisions that it took without it, later.
    deterministic, seed, market: as in `Policy.trade`; base: its path without any change, if it was played before.
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

    def play_many(changed: Sequence[Bars], costs: CostConfig) -> list[AccountPath]:
        return policy.trade(
            purpose, deterministic=deterministic, seed=seed, market=_world_on(world, changed, costs, symbol)
        )

    def play(bars: Bars, costs: CostConfig) -> AccountPath:
        own = costs.model_copy(update={"latency": world.costs.latency})
        known = bars is item.bars and own == world.costs and base is not None
        path = base if known and base is not None else play_many([bars], own)[0]
        return path if costs == own else _later(path, bars, costs, world.settings)

    # Sampled actions depend on the place of an account in its batch: those are played one by one.
    return PolicyPlayer(play, play_many if deterministic else None, item.bars, world.costs)


@dataclass(frozen=True)
class PolicyPlayer:
    """How a policy plays, and what: the bars and costs of the market that it was trained for."""

    play: Player
    play_many: ManyPlayer | None  # several versions of the bars at once; the same paths in a fraction of the time
    bars: Bars
    costs: CostConfig


def _world_on(world: MarketWorld, versions: Sequence[Bars], costs: CostConfig, symbol: int) -> MarketWorld:
    """A market with versions of the bars of one symbol, each an account, its windows cut at the same times."""
    data = world.dataset
    old = data.bars[symbol].time
    windows = {}
    for purpose, cut in data.windows.items():
        found = []
        for bars in versions:
            first = int(np.searchsorted(bars.time, old[cut[symbol].first]))
            end = int(np.searchsorted(bars.time, old[cut[symbol].end - 1], side="right"))
            if end <= first:
                raise DataError(f"{bars.symbol}: no bar is left in the {purpose} window after the change.")
            found.append(Window(first, end))
        windows[purpose] = tuple(found)
    changed = copy.copy(world)
    features = tuple(data.spec.table(bars) for bars in versions)
    changed.dataset = Dataset(tuple(Loaded(bars, {}) for bars in versions), data.spec, features, windows)
    changed.costs = costs
    return changed


def _later(path: AccountPath, bars: Bars, costs: CostConfig, config: MarketEnvConfig) -> AccountPath:
    """The decisions of a path again, with the latency of `costs`."""
    first = int(np.searchsorted(bars.time, path.time[0])) - 1
    targets = np.zeros(len(bars))
    targets[first : first + len(path)] = path.target[:, 0]
    played = play_rule(targets, bars, costs, config=config, first=first, last=first + len(path))
    return replace(played, planned=path.planned)
