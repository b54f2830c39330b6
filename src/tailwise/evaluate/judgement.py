"""A trained policy on bars that it never saw, beside rules that anybody could have followed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tailwise.evaluate.backtest import backtest, backtest_portfolio
from tailwise.evaluate.baselines import buy_and_hold, flat, momentum, random_matched, volatility_target
from tailwise.evaluate.statistics import PathStatistics, path_statistics
from tailwise.market.bars import Bars
from tailwise.market.path import AccountPath
from tailwise.run.agent import Policy
from tailwise.run.worlds import MarketWorld

POLICY = "policy"
BASELINES: Mapping[str, Callable[[Bars], npt.NDArray[np.float64]]] = {
    "buy and hold": buy_and_hold,
    "flat": flat,
    "volatility target 10%": volatility_target,
    "momentum": momentum,
}
RANDOM = "random, same turnover"
DEFAULT_ALPHA = 0.05  # of the tails that are printed when the run itself does not report one


@dataclass(frozen=True)
class Judgement:
    """One symbol: paths and statistics by name, the policy first."""

    symbol: str
    label: str
    paths: Mapping[str, AccountPath]
    statistics: Mapping[str, PathStatistics]

    @property
    def time(self) -> npt.NDArray[np.datetime64]:
        """Open times of the bars of the window (a ruined account has fewer)."""
        return max((path.time for path in self.paths.values()), key=len)

    def to_json(self) -> dict[str, Any]:
        time = self.time
        return {
            "symbol": self.symbol,
            "label": self.label,
            "first_bar": str(time[0]),
            "last_bar": str(time[-1]),
            "statistics": {name: asdict(numbers) for name, numbers in self.statistics.items()},
        }


def judge(
    policy: Policy,
    purpose: Literal["select", "test"] = "test",
    *,
    deterministic: bool = True,
    seed: int | None = None,
    market: MarketWorld | None = None,
) -> list[Judgement]:
    """Play the window of `purpose`, every symbol whole, and the baselines over the same bars with the same costs.

    The baselines have the same account, costs, stops and margin; only their targets differ. seed and market: as in
    `Policy.trade`.
    """
    world = policy.market() if market is None else market
    played = policy.trade(purpose, deterministic=deterministic, seed=seed, market=world)
    alpha = policy.config.tail_alpha or DEFAULT_ALPHA
    gamma = policy.config.learner.gamma
    found = []
    for path, others in zip(played, _baselines(world, purpose, played), strict=True):
        paths = {POLICY: path} | others
        numbers = {name: path_statistics(p, alpha=alpha, gamma=gamma) for name, p in paths.items()}
        found.append(Judgement(path.symbol, path.label, paths, numbers))
    return found


def _baselines(
    world: MarketWorld, purpose: Literal["select", "test"], played: Sequence[AccountPath]
) -> list[dict[str, AccountPath]]:
    """Paths of the rules by name, for each account that a policy has in this window; played: its own paths."""
    tables = world.dataset.tables(purpose, together=world.portfolio)
    if world.portfolio:
        count, label = len(tables), world.dataset.label
        weights = {"equal weights": np.full(count, 1.0 / count), "flat": np.zeros(count)}
        return [
            {
                name: backtest_portfolio(w, tables, world.costs, config=world.settings, label=label)
                for name, w in weights.items()
            }
        ]
    found = []
    for bars, table, path in zip(world.dataset.bars, tables, played, strict=True):
        targets = {name: rule(bars) for name, rule in BASELINES.items()}
        targets[RANDOM] = random_matched(bars, path, seed=world.config.seed)
        window = {"first": table.first_valid, "last": len(table.close) - 1}
        found.append(
            {name: backtest(t, bars, world.costs, config=world.settings, **window) for name, t in targets.items()}
        )
    return found
