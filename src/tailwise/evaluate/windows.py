"""The policy on its train, select and test bars side by side: what was learnt by heart shows in the difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tailwise.bars.data_config import Purpose
from tailwise.evaluate.statistics import PathStatistics
from tailwise.evaluate.words import columns, plain
from tailwise.market.path import AccountPath
from tailwise.run.policy import Trader
from tailwise.run.worlds import MarketWorld

MOST_BARS = 20_000  # of a train or select window that is played for the comparison: more would take minutes
FALL = 2.0  # standard errors by which the Sharpe ratio may fall from train to test bars
LITTLE_USED = 0.5  # of the budget, on the train bars
SHOWN = ("per year", "volatility", "Sharpe", "worst drawdown", "CVaR", "turnover/year", "long", "short", "net")


@dataclass(frozen=True)
class Windows:
    """Statistics of one account in each window that was played, oldest bars first. limit: of the tail; None: none."""

    statistics: Mapping[Purpose, PathStatistics]
    limit: float | None

    def use(self, purpose: Purpose) -> float | None:
        """Budget use: the realised tail as a share of the limit, 0 where it is no loss."""
        tail = self.statistics[purpose].cvar_return
        return None if tail is None or self.limit is None or self.limit >= 0 else max(tail / self.limit, 0.0)

    @property
    def fall(self) -> tuple[float, float] | None:
        """Sharpe ratio on the train bars minus that on the test bars, and its standard error (Lo 2002, independent
        bars); None where one is not known."""
        train, test = self.statistics.get("train"), self.statistics.get("test")
        if train is None or test is None or train.sharpe is None or test.sharpe is None:
            return None
        error = math.sqrt(sum((1 + 0.5 * one.sharpe**2) / one.years for one in (train, test) if one.sharpe is not None))
        return train.sharpe - test.sharpe, error

    @property
    def overfit(self) -> bool:
        """Whether the Sharpe ratio fell beyond noise from the train to the test bars."""
        return self.fall is not None and self.fall[0] > FALL * self.fall[1]

    def sentences(self) -> list[str]:
        """What the windows say about learning by heart and about an unused budget."""
        found = []
        if self.overfit and self.fall is not None:
            train, test = (self.statistics[purpose].sharpe for purpose in ("train", "test"))
            found.append(
                f"overfit: its Sharpe ratio is {plain(train)} on the train bars and {plain(test)} on the test bars, a "
                f"fall of more than {FALL:g} standard errors ({self.fall[1]:.2f}); train on more bars or symbols, for "
                "fewer steps, or with a stronger learner.prior."
            )
        used = self.use("train") if "train" in self.statistics else None
        if used is not None and used < LITTLE_USED:
            found.append(
                f"unused budget: its tail on the train bars is {used:.0%} of the limit; a base rule (env.base) is "
                "scaled to the limit, and a weaker learner.prior or more steps let the policy hold more."
            )
        return found

    def rows(self) -> list[tuple[str, ...]]:
        """A row per number: its name, then one cell per window."""
        windows = self.statistics
        rows = [
            (name, *(show(one) for one in windows.values()))
            for name, show in columns(next(iter(windows.values())))
            if name.startswith(SHOWN)
        ]
        if self.limit is not None:
            uses = (self.use(purpose) for purpose in windows)
            rows.append(("budget use", *("-" if use is None else f"{use:.0%}" for use in uses)))
        return rows

    def to_json(self) -> dict[str, Any]:
        """Statistics and budget use by window, and whether it is overfit."""
        return {
            "windows": {
                purpose: {**asdict(one), "budget_use": self.use(purpose)} for purpose, one in self.statistics.items()
            },
            "overfit": self.overfit,
        }


def play_other_windows(
    policy: Trader, world: MarketWorld, *, accounts: int, deterministic: bool, seed: int
) -> list[dict[Purpose, AccountPath]]:
    """Paths of the train and select windows, for each account of the test window. A window that is longer than
    MOST_BARS is left out, and so is one that consists of several pieces."""
    found: list[dict[Purpose, AccountPath]] = [{} for _ in range(accounts)]
    purposes: Sequence[Purpose] = ("train", "select")
    for purpose in purposes:
        if not world.dataset.windows.get(purpose):
            continue
        tables = world.dataset.tables(purpose, together=world.portfolio)
        if max(len(table.close) - table.first_valid for table in tables) > MOST_BARS:
            continue
        paths = policy.trade(purpose, deterministic=deterministic, seed=seed, market=world)
        if len(paths) == accounts:
            for one, path in zip(found, paths, strict=True):
                one[purpose] = path
    return found
