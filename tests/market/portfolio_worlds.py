"""Small portfolios for tests, and the bridge between the portfolio engine and its reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np

from tailwise.market.costs import COMPONENTS, CostConfig
from tailwise.market.env_config import MarketEnvConfig, WeightsAction
from tailwise.market.guard_arrays import guard_names
from tailwise.market.records import EVENTS
from tailwise.market.simulator import Simulator
from tailwise.market.tables import SymbolTable
from tests.market.portfolio_reference import Asset, PortfolioReference, PortfolioResult
from tests.market.portfolio_reference_guards import GuardedPortfolioReference
from tests.market.reference import exact
from tests.market.worlds import RELATIVE, TOO_CLOSE, reference_bars, reference_guards, reference_settings

HOUR = np.timedelta64(1, "h")
START = np.datetime64("2020-01-06T00:00", "ns")


def asset_of(table: SymbolTable, symbol: str, hours: Sequence[int] | None = None) -> SymbolTable:
    """The table with hourly times; `hours` [T] counts them from START, one after the other unless given."""
    counted = np.arange(len(table.close)) if hours is None else np.asarray(hours)
    return replace(table, symbol=symbol, time=START + counted * HOUR, bar=HOUR)


def weights_config(action: WeightsAction | None = None, **changes: Any) -> MarketEnvConfig:
    """Weights without tolerance, so that every decision is an order; everything is reported, from the first bar."""
    config = MarketEnvConfig(**{"tolerance": 0.0, "start": "first", "report": True, **changes})
    return config.model_copy(update={"action": action or WeightsAction(low=-3.0, high=3.0, gross=3.0)})


def portfolio_of(assets: Sequence[SymbolTable], config: MarketEnvConfig, costs: CostConfig) -> Simulator:
    """One account that starts at the first time with valid features."""
    simulator = Simulator(assets, config, costs, accounts=1)
    simulator.seed(0)
    simulator.reset()
    return simulator


@dataclass(frozen=True)
class World:
    assets: tuple[SymbolTable, ...]
    config: MarketEnvConfig
    costs: CostConfig
    weights: list[list[float]]  # [steps][A]

    def changed(self, **changes: Any) -> World:
        return replace(self, **changes)


def reference_of(world: World, kind: type[PortfolioReference] = PortfolioReference) -> PortfolioReference:
    """The reference account of a world, from the tables and not from the engine's clock."""
    simulator = Simulator(world.assets, world.config, world.costs, accounts=1)
    assets = []
    for table in world.assets:
        hours = [int((time - START) / HOUR) for time in table.time]
        bars = dict(zip(hours, reference_bars(table), strict=True))
        assets.append(Asset(bars, hours[table.first_valid], exact(table.periods_per_year)))
    settings = reference_settings(world.assets[0], world.config, world.costs)
    action: Any = world.config.action
    bounds = [(exact(low), exact(high)) for low, high in zip(*action.bounds(len(assets)), strict=True)]
    clock = sorted({time for asset in assets for time in asset.bars})
    first = clock.index(min(asset.first_valid for asset in assets))
    per_year = exact(simulator.table.clock_per_year)
    arguments = (assets, settings, per_year, bounds, exact(action.gross), first)
    if not world.config.guards.active:
        return kind(*arguments)
    guarded = kind if issubclass(kind, GuardedPortfolioReference) else GuardedPortfolioReference
    start = int(START.astype(np.int64))
    guards = reference_guards(world.assets[0], world.config)
    return guarded(*arguments, guards=guards, nanoseconds=lambda hour: start + hour * 3600 * 10**9)


def disagreement(
    ledger: Any, reward: float, terminated: bool, expected: PortfolioResult, scale: float, largest: list[float]
) -> str | None:
    """The first number in which engine and reference differ by more than RELATIVE, as a sentence; None if none does.

    largest: of each asset, the largest position or order so far; those of this step are put in.
    """
    amounts = {name: (ledger[name], getattr(expected.parts, name)) for name in COMPONENTS}
    amounts["equity"] = (ledger["equity"], expected.equity)
    amounts["shortfall"] = (ledger["shortfall"], expected.shortfall)
    for name, (got, wanted) in amounts.items():
        if abs(float(got) - float(wanted)) > RELATIVE * max(abs(float(wanted)), 1e-6 * scale):
            return f"{name}: engine {got!r}, reference {wanted:.15g}"
    # An order is the difference of two positions: a small one has their rounding, a thousandth of them is its measure.
    # A position is the sum of all orders so far: one that is nearly closed has the rounding of the largest of them.
    for name, found, listed, floor in (
        ("units", "units", expected.units, 1e-5),
        ("order", "order_units", expected.orders, 1e-3),
    ):
        for a, wanted in enumerate(listed):
            largest[a] = max(abs(float(expected.units[a])), abs(float(expected.orders[a])), largest[a])
            size = max(abs(float(wanted)), floor * largest[a])
            if abs(float(ledger[found][a]) - float(wanted)) > RELATIVE * size:
                return f"{name} of asset {a}: engine {ledger[found][a]!r}, reference {wanted:.15g}"
    if abs(reward - float(expected.reward)) > RELATIVE * max(abs(float(expected.reward)), 1e-3):
        return f"reward: engine {reward!r}, reference {expected.reward:.15g}"
    acted = set(guard_names(int(ledger["guard"])))
    if acted != expected.guards:
        return f"guards: engine {sorted(acted)}, reference {sorted(expected.guards)}"
    events = [EVENTS[event] for event in ledger["event"]]
    if events != expected.events or bool(ledger["margin_call"]) != expected.margin_call:
        return f"events: engine {events}, reference {expected.events}"
    if terminated != expected.terminated:
        return f"terminated: engine {terminated}, reference {expected.terminated}"
    return None


def first_disagreement(
    world: World, kind: type[PortfolioReference] = PortfolioReference
) -> tuple[str | None, Decimal, set[str]]:
    """Both side by side: (what differs first or None, how close the closest comparison was, events that were seen)."""
    simulator = portfolio_of(world.assets, world.config, world.costs)
    reference = reference_of(world, kind)
    seen: set[str] = set()
    largest = [1.0] * len(world.assets)
    for number, weights in enumerate(world.weights):
        step = simulator.step(np.array([weights]), autoreset=False)
        expected = reference.step([exact(weight) for weight in weights])
        if reference.narrowest < TOO_CLOSE:
            break
        assert step.ledger is not None
        seen |= set(expected.events)
        difference = disagreement(
            step.ledger[0],
            float(step.reward[0]),
            bool(step.terminated[0]),
            expected,
            world.config.initial_cash,
            largest,
        )
        if difference is not None:
            return f"step {number}: {difference}", reference.narrowest, seen
        if step.terminated[0] or step.truncated[0]:
            break
    return None, reference.narrowest, seen
