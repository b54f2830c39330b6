"""A limit in terms people have, measured on the train bars before training begins.

A relative limit becomes a number: a share of the tail that a rule had on the train bars. And the base rule is scaled to
the limit, so that the untrained policy already uses its budget and the constraint only refines it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from tailwise.core.errors import ConfigError, DataError
from tailwise.core.numerics import known_forward_returns, tail_horizon
from tailwise.learner.risk import utility_at
from tailwise.learner.risk_config import RelativeLimit, RiskConstraint
from tailwise.market.action_kinds import action_kind
from tailwise.market.costs import CostConfig
from tailwise.market.dataset import Dataset
from tailwise.market.env_config import Base, BuyAndHoldBase, MarketEnvConfig
from tailwise.market.simulator import Simulator
from tailwise.market.tables import SymbolTable
from tailwise.run.config import Config

Floats = npt.NDArray[np.float64]
LARGEST_SCALE = 4.0
_CLOSE_ENOUGH = 0.002  # of the limit
_MOST_TRIALS = 8


def with_numbers(config: Config, dataset: Dataset) -> Config:
    """The configuration with its limit and the scale of its base rule as numbers; as it was where they are."""
    risk, settings = config.risk, config.env.market
    if not isinstance(risk, RiskConstraint) or settings is None or config.costs is None:
        return config
    tail = _Tail(config, risk, settings, config.costs, dataset)
    if isinstance(risk.limit, RelativeLimit):
        risk = risk.model_copy(update={"limit": tail.limit(risk.limit)})
        config = config.model_copy(update={"risk": risk})
    if settings.base is not None and settings.base.scale is None:
        base = settings.base.model_copy(update={"scale": tail.scale(risk.level)})
        config = config.model_copy(update={"env": config.env.model_copy(update={"base": base})})
    return config


def with_numbers_of(config: Config, run: Config) -> Config:
    """The configuration with the scale of its base rule as a run of it has found it; as it was where it is a number."""
    market, theirs = config.env.market, run.env.market
    if market is None or market.base is None or market.base.scale is not None:
        return config
    if theirs is None or theirs.base is None:
        return config
    base = market.base.model_copy(update={"scale": theirs.base.scale})
    return config.model_copy(update={"env": config.env.model_copy(update={"base": base})})


def rule_returns(
    tables: Sequence[SymbolTable], settings: MarketEnvConfig, costs: CostConfig
) -> list[tuple[Floats, bool]]:
    """Log-returns [n] of an account that follows the base of its table, and whether it was ruined: one for each symbol,
    or one for a portfolio."""
    portfolio = action_kind(settings.action).portfolio
    update = {"report": False, "base": settings.base or BuyAndHoldBase(kind="buy_and_hold")}
    whole = settings.whole_window().model_copy(update=update)
    simulator = Simulator(tables, whole, costs, accounts=1 if portfolio else len(tables))
    simulator.seed(0)
    simulator.reset()
    records, base = simulator.state.records, simulator.table.base
    lengths = simulator.table.last_rows - simulator.table.first_rows
    rewards = np.zeros((int(lengths.max()), simulator.accounts))
    lives, ruined = np.zeros(simulator.accounts, dtype=np.int64), np.zeros(simulator.accounts, dtype=np.bool_)
    alive = np.ones(simulator.accounts, dtype=np.bool_)
    for reward in rewards:
        step = simulator.step(base[records["row"]], autoreset=True)  # who has ended begins again, unread
        reward[:] = step.reward
        lives += alive
        ruined |= alive & step.terminated
        alive &= ~(step.terminated | step.truncated)
    return [(rewards[:n, i], bool(ruined[i])) for i, n in enumerate(lives)]


class _Tail:
    """What rules lose on the train bars, by the measure of the limit, all symbols pooled."""

    def __init__(
        self, config: Config, risk: RiskConstraint, settings: MarketEnvConfig, costs: CostConfig, dataset: Dataset
    ) -> None:
        self.gamma, self.risk = config.learner.gamma, risk
        self.settings, self.costs, self.dataset = settings, costs, dataset

    def limit(self, relative: RelativeLimit) -> float:
        """The number that a relative limit stands for."""
        base = BuyAndHoldBase(kind="buy_and_hold") if relative.of == "buy_and_hold" else self.settings.base
        if base is None:
            raise ConfigError("risk.limit.of is base and env.base is not set; set env.base, or use of: buy_and_hold.")
        tail = self._measured(base, 1.0)
        if tail >= 0:
            raise DataError(
                f"risk.limit is relative to {relative.of}, whose tail on the train bars is a gain ({tail:.4g}); give "
                "the limit as a number."
            )
        return relative.share * tail

    def scale(self, limit: float) -> float:
        """The factor that brings the base rule to the limit: its tail is nearly proportional to it.

        Where even the largest exposures stay within the limit, the budget cannot be used up, and the factor ends at
        LARGEST_SCALE.
        """
        assert self.settings.base is not None
        scale = 1.0
        for _ in range(_MOST_TRIALS):
            tail = self._measured(self.settings.base, scale)
            if abs(tail - limit) <= _CLOSE_ENOUGH * abs(limit) or (scale == LARGEST_SCALE and tail > limit):
                break
            if limit >= 0:
                raise DataError(f"risk.limit is {limit:g}; a base rule is scaled to a loss: give a limit below 0.")
            scale = min(scale * limit / tail, LARGEST_SCALE) if tail < 0 else LARGEST_SCALE
        return float(scale)

    def _measured(self, base: Base, scale: float) -> float:
        """The measure of the rule at this scale, all symbols pooled."""
        dataset = self.dataset.with_base(base.model_copy(update={"scale": scale}))
        tables = dataset.tables("train", together=action_kind(self.settings.action).portfolio)
        returns = rule_returns(tables, self.settings, self.costs)
        forward = np.concatenate([known_forward_returns(one, self.gamma, over=over) for one, over in returns])
        if not len(forward):
            raise DataError(
                f"the train bars are shorter than the {tail_horizon(self.gamma)} bars over which learner.gamma "
                f"{self.gamma:g} discounts, so the tail of a rule cannot be measured; give more bars or lower gamma."
            )
        return utility_at(self.risk.measure, torch.from_numpy(forward), self.risk.alpha).value
