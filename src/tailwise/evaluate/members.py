"""The members of an ensemble, each trading by itself: how far apart they are is the chance in training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tailwise.evaluate.judgement import POLICY, Judgement
from tailwise.evaluate.statistics import PathStatistics, path_statistics
from tailwise.evaluate.words import percent, plain
from tailwise.run.policy import Trader
from tailwise.run.risk_words import share
from tailwise.run.worlds import MarketWorld

ENSEMBLE = "all together"
MOST_BARS = 20_000  # of a test window that every member plays again: more would take minutes
SPREAD = "spread"


@dataclass(frozen=True)
class Members:
    """One account of the test window. statistics: by name, the ensemble first; limit: of the tail, None: none."""

    statistics: Mapping[str, PathStatistics]
    limit: float | None

    def use(self, name: str) -> float | None:
        """Budget use: the realised tail as a share of the limit, 0 where it is no loss."""
        tail = self.statistics[name].cvar_return
        return None if tail is None or self.limit is None or self.limit >= 0 else max(tail / self.limit, 0.0)

    def log_return(self, name: str) -> float | None:
        """Per year; None for a ruined account."""
        one = self.statistics[name]
        return math.log1p(one.total_return) / one.years if one.total_return > -1 else None

    @property
    def heads(self) -> tuple[str, ...]:
        return ("test bars, after all costs", *(name for name, _, _ in self._columns()))

    def rows(self) -> list[tuple[str, ...]]:
        """The ensemble, every member, and the standard deviation between the members."""
        columns = self._columns()
        rows = [(name, *(show(value(name)) for _, value, show in columns)) for name in self.statistics]
        return [*rows, (SPREAD, *(show(self._spread(value)) for _, value, show in columns))]

    @property
    def sentence(self) -> str:
        """How often the ensemble is better than one of its members."""
        own = self.statistics[ENSEMBLE].sharpe
        others = [one.sharpe for name, one in self.statistics.items() if name != ENSEMBLE and one.sharpe is not None]
        if own is None or not others:
            return f"{SPREAD}: standard deviation between the members."
        beaten = sum(own > other for other in others)
        return (
            f"{SPREAD}: standard deviation between the members. Together their Sharpe ratio is {plain(own)}, above "
            f"that of {beaten} of {len(others)} members, whose mean is {plain(float(np.mean(others)))}."
        )

    def to_json(self) -> dict[str, Any]:
        """Statistics and budget use by name, and the standard deviation of each number between the members."""
        return {
            "members": {
                name: {**asdict(one), "budget_use": self.use(name)}
                for name, one in self.statistics.items()
                if name != ENSEMBLE
            },
            "spread": {
                label: self._spread(value)
                for label, value in (
                    ("log_return", self.log_return),
                    ("sharpe", lambda name: self.statistics[name].sharpe),
                    ("cvar_return", lambda name: self.statistics[name].cvar_return),
                    ("net_exposure", lambda name: self.statistics[name].net_exposure),
                    ("budget_use", self.use),
                )
            },
        }

    def _columns(self) -> list[tuple[str, Callable[[str], float | None], Callable[[float | None], str]]]:
        """(heading, number of a member, how it is written)."""
        known, first = self.statistics, self.statistics[ENSEMBLE]
        columns: list[tuple[str, Callable[[str], float | None], Callable[[float | None], str]]] = [
            ("log-return/year", self.log_return, percent),
            ("Sharpe", lambda name: known[name].sharpe, plain),
            (f"CVaR {share(first.alpha)}, {first.horizon} bars", lambda name: known[name].cvar_return, percent),
            ("net exposure", lambda name: known[name].net_exposure, plain),
        ]
        if self.limit is not None:
            columns.append(("budget use", self.use, lambda use: percent(use, 0)))
        return columns

    def _spread(self, value: Callable[[str], float | None]) -> float | None:
        """Standard deviation between the members that have a number; None with fewer than two."""
        numbers = [number for name in self.statistics if name != ENSEMBLE and (number := value(name)) is not None]
        return float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None


def play_members(
    policies: Mapping[str, Trader],
    accounts: Sequence[Judgement],
    *,
    market: MarketWorld,
    deterministic: bool,
    seed: int,
) -> list[Members]:
    """Play the test window with every member by itself: one record for each account; none for one policy alone, or
    where the window has more than MOST_BARS bars.

    accounts: what came of the ensemble.
    """
    if not policies or max(one.paths[POLICY].planned for one in accounts) > MOST_BARS:
        return []
    played = {
        name: one.trade("test", deterministic=deterministic, seed=seed, market=market) for name, one in policies.items()
    }
    gamma = market.config.learner.gamma
    members = []
    for number, judged in enumerate(accounts):
        alpha = judged.statistics[POLICY].alpha
        verdict = judged.limits.get(POLICY)
        statistics = {ENSEMBLE: judged.statistics[POLICY]} | {
            name: path_statistics(paths[number], alpha=alpha, gamma=gamma) for name, paths in played.items()
        }
        members.append(Members(statistics, None if verdict is None else verdict.limit))
    return members
