"""A limit in terms people have, measured on the train bars before training begins.

A relative limit becomes a number: a share of the tail that a rule had on the train bars. And the base rule is scaled to
the limit, so that the untrained policy already uses its budget and the constraint only refines it.

With `data.pool.tails: symbol` every symbol has a limit of its own, in proportion to its own tail: `risk.limit` is their
mean, and `data.pool.units` says what multiple of it belongs to each (docs/pooling.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from tailwise.bars.bars import Bars
from tailwise.bars.data_config import PoolUnit
from tailwise.core.errors import ConfigError, DataError
from tailwise.core.numerics import known_forward_returns, tail_horizon
from tailwise.learner.risk import utility_at
from tailwise.learner.risk_config import RelativeLimit, RiskConstraint
from tailwise.market.action_kinds import action_kind
from tailwise.market.base import base_exposures
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
    """The configuration with its limit, the scale of its base rule and the units of its symbols as numbers; as it was
    where they are."""
    risk, settings, data = config.risk, config.env.market, config.data
    if not isinstance(risk, RiskConstraint) or settings is None or config.costs is None or data is None:
        return config
    pool = data.pool if data.pool is not None and data.pool.tails == "symbol" else None
    tail = _Tail(config, risk, settings, config.costs, dataset)
    units = None
    if pool is not None:
        units = tail.units(risk.limit) if pool.units is None else pool.units
        _check_units(units, dataset)
    if isinstance(risk.limit, RelativeLimit):
        risk = risk.model_copy(update={"limit": tail.limit(risk.limit, units)})
        config = config.model_copy(update={"risk": risk})
    if settings.base is not None and settings.base.scale is None:
        if units is None:
            scale = tail.scale(risk.level)
        else:
            own = {symbol: tail.scale(risk.level * one.unit, symbol) for symbol, one in units.items()}
            scale = float(np.mean(list(own.values())))
            units = {symbol: one.model_copy(update={"scale": own[symbol] / scale}) for symbol, one in units.items()}
        base = settings.base.model_copy(update={"scale": scale})
        config = config.model_copy(update={"env": config.env.model_copy(update={"base": base})})
    if pool is not None:
        data = data.model_copy(update={"pool": pool.model_copy(update={"units": units})})
        config = config.model_copy(update={"data": data})
    return config


def with_numbers_of(config: Config, run: Config) -> Config:
    """The configuration with what a run of it has found: the scale of its base rule and the units of its symbols."""
    market, theirs = config.env.market, run.env.market
    own, found = (None if one is None else one.base for one in (market, theirs))
    if market is not None and own is not None and own.scale is None and found is not None:
        market = market.model_copy(update={"base": own.model_copy(update={"scale": found.scale})})
        config = config.model_copy(update={"env": market})
    data = config.data
    if data is not None and data.pool is not None and data.pool.units is None and run.data is not None:
        config = config.model_copy(update={"data": data.model_copy(update={"pool": run.data.pool})})
    return config


def units_of(config: Config) -> dict[str, PoolUnit]:
    """What each symbol is measured in, of a configuration with numbers; empty where all are measured in the same."""
    pool = None if config.data is None else config.data.pool
    return {} if pool is None or pool.units is None else dict(pool.units)


def in_units(config: Config, tables: Sequence[SymbolTable]) -> list[SymbolTable]:
    """The tables with what the rewards of their symbols are divided by in training."""
    units = units_of(config)
    return [replace(table, unit=units[table.symbol].unit) for table in tables] if units else list(tables)


def scales_of(config: Config) -> dict[str, float]:
    """What the base rule of each symbol is multiplied by; empty where all have the same."""
    return {symbol: one.scale for symbol, one in units_of(config).items() if one.scale is not None}


def limit_of(config: Config, symbol: str) -> float | None:
    """The limit of the account that trades a symbol, of a configuration with numbers; None without a constraint."""
    if not isinstance(config.risk, RiskConstraint):
        return None
    own = units_of(config).get(symbol)
    return config.risk.level * (1.0 if own is None else own.unit)


def _check_units(units: Mapping[str, PoolUnit], dataset: Dataset) -> None:
    known = [bars.symbol for part in dataset.parts for bars in part.bars]
    missing, foreign = [one for one in known if one not in units], [one for one in units if one not in known]
    if foreign:
        raise ConfigError(
            f"data.pool.units names {foreign[0]}, and the bars are of {', '.join(known)}; remove it, or set units to "
            "null to have all of them measured."
        )
    if missing:
        raise ConfigError(
            f"data.pool.units names {', '.join(units)} and not {missing[0]}; add it, or set units to null to have all "
            "of them measured."
        )


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


def _train_tables(dataset: Dataset, *, together: bool) -> list[tuple[SymbolTable, Bars, int]]:
    """Every table that training sees, with all bars of its symbol and the row at which the table begins in them."""
    found = []
    for part in dataset.parts:
        bars = {one.symbol: one for one in part.bars}
        for table in part.tables("train", together=together):
            own = bars[table.symbol]
            assert table.time is not None
            found.append((table, own, int(np.searchsorted(own.time, table.time[0]))))
    return found


class _Tail:
    """What rules lose on the train bars, by the measure of the limit, all symbols pooled."""

    def __init__(
        self, config: Config, risk: RiskConstraint, settings: MarketEnvConfig, costs: CostConfig, dataset: Dataset
    ) -> None:
        self.gamma, self.risk = config.learner.gamma, risk
        self.settings, self.costs, self.dataset = settings, costs, dataset
        self._train = _train_tables(dataset, together=action_kind(settings.action).portfolio)

    def limit(self, relative: RelativeLimit, units: Mapping[str, PoolUnit] | None = None) -> float:
        """The number that a relative limit stands for; units: the mean over symbols, each with its own tail."""
        base = self._named(relative)
        if units is None:
            tail = self._measured(base, 1.0)
            if tail >= 0:
                raise DataError(
                    f"risk.limit is relative to {relative.of}, whose tail on the train bars is a gain ({tail:.4g}); "
                    "give the limit as a number."
                )
        else:
            tail = float(np.mean([self._measured(base, 1.0, symbol) / one.unit for symbol, one in units.items()]))
        return relative.share * tail

    def units(self, limit: float | RelativeLimit) -> dict[str, PoolUnit]:
        """Each symbol's tail as a multiple of the mean one: that of the rule which the limit is relative to, else of
        env.base, else of buy and hold."""
        base = self._named(limit) if isinstance(limit, RelativeLimit) else self.settings.base
        base = base or BuyAndHoldBase(kind="buy_and_hold")
        symbols = [bars.symbol for part in self.dataset.parts for bars in part.bars]
        tails = {symbol: self._measured(base, 1.0, symbol) for symbol in symbols}
        gains = [symbol for symbol, tail in tails.items() if tail >= 0]
        if gains:
            raise DataError(
                f"data.pool.tails is symbol, and the tail of {gains[0]} on the train bars is a gain "
                f"({tails[gains[0]]:.4g}), which nothing can be measured in; use tails pooled, or leave it out."
            )
        mean = float(np.mean(list(tails.values())))
        return {symbol: PoolUnit(unit=tail / mean) for symbol, tail in tails.items()}

    def _named(self, relative: RelativeLimit) -> Base:
        """The rule that a limit is relative to."""
        if relative.of == "buy_and_hold":
            return BuyAndHoldBase(kind="buy_and_hold")
        if self.settings.base is None:
            raise ConfigError("risk.limit.of is base and env.base is not set; set env.base, or use of: buy_and_hold.")
        return self.settings.base

    def scale(self, limit: float, symbol: str | None = None) -> float:
        """The factor that brings the base rule to the limit: its tail is nearly proportional to it. symbol: on the
        bars of this one alone.

        Where even the largest exposures stay within the limit, the budget cannot be used up, and the factor ends at
        LARGEST_SCALE.
        """
        assert self.settings.base is not None
        scale = 1.0
        for _ in range(_MOST_TRIALS):
            tail = self._measured(self.settings.base, scale, symbol)
            if abs(tail - limit) <= _CLOSE_ENOUGH * abs(limit) or (scale == LARGEST_SCALE and tail > limit):
                break
            if limit >= 0:
                raise DataError(f"risk.limit is {limit:g}; a base rule is scaled to a loss: give a limit below 0.")
            scale = min(scale * limit / tail, LARGEST_SCALE) if tail < 0 else LARGEST_SCALE
        return float(scale)

    def _measured(self, base: Base, scale: float, symbol: str | None = None) -> float:
        """The measure of the rule at this scale, all symbols pooled or one alone."""
        scaled = base.model_copy(update={"scale": scale})
        tables = [
            replace(table, base=base_exposures(scaled, bars)[first : first + len(table.close)])
            for table, bars, first in self._train
            if symbol is None or table.symbol == symbol
        ]
        returns = rule_returns(tables, self.settings, self.costs)
        forward = np.concatenate([known_forward_returns(one, self.gamma, over=over) for one, over in returns])
        if not len(forward):
            mend = (
                "give more bars or lower gamma."
                if symbol is None
                else "leave the symbol out of data.paths, name windows under data.split in which it trains for longer, "
                "use data.pool.tails pooled, or lower gamma."
            )
            raise DataError(
                f"the train bars{'' if symbol is None else f' of {symbol}'} are shorter than the "
                f"{tail_horizon(self.gamma)} bars over which learner.gamma {self.gamma:g} discounts, so the tail of a "
                f"rule cannot be measured; {mend}"
            )
        return utility_at(self.risk.measure, torch.from_numpy(forward), self.risk.alpha).value
