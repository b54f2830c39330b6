"""Small markets for tests, and the bridge between the engine and the reference simulator."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from tailwise.market.costs import COMPONENTS, CostConfig
from tailwise.market.env_config import ExposureAction, MarketEnvConfig
from tailwise.market.guard_arrays import guard_names
from tailwise.market.records import EVENTS
from tailwise.market.simulator import Simulator
from tailwise.market.tables import SymbolTable
from tests.market.reference import BPS, INFINITY, ZERO, Bar, Reference, Result, Settings, exact
from tests.market.reference_guards import GuardedReference, GuardSettings

Floats = npt.NDArray[np.float64]

RELATIVE = 1e-9  # agreement that is demanded of engine and reference
TOO_CLOSE = Decimal("1e-10")  # two floats this near one another may compare differently than the decimals


def table_of(
    open_: Any, high: Any, low: Any, close: Any, volume: Any = None, *, features: Any = None, **more: Any
) -> SymbolTable:
    """A symbol with one feature, the log-return of the bar, unless others are given."""
    prices = [np.asarray(values, dtype=np.float64) for values in (open_, high, low, close)]
    rows = len(prices[3])
    if features is None:
        features = np.diff(np.log(prices[3]), prepend=np.log(prices[0][0]))[:, None].astype(np.float32)
    return SymbolTable(
        symbol=more.pop("symbol", "TEST"),
        open=prices[0],
        high=prices[1],
        low=prices[2],
        close=prices[3],
        volume=np.full(rows, 1e6) if volume is None else np.asarray(volume, dtype=np.float64),
        features=features,
        feature_names=tuple(f"feature_{k}" for k in range(features.shape[1])),
        periods_per_year=more.pop("periods_per_year", 252.0),
        **more,
    )


def flat_bars(prices: Sequence[float], **more: Any) -> SymbolTable:
    """Bars whose open, high, low and close are all the given price: nothing happens inside a bar, all in the gaps."""
    return table_of(prices, prices, prices, prices, **more)


def random_walk(bars: int, seed: int, *, gap: float = 0.01, inside: float = 0.01, features: int = 2) -> SymbolTable:
    """A martingale with overnight gaps. High and low follow the law of a continuous path between open and close, so
    that a stop inside a bar is really touched at its level and leaves the martingale a martingale."""
    rng = np.random.default_rng(seed)
    gaps = gap * rng.standard_normal(bars) - gap**2 / 2
    moves = inside * rng.standard_normal(bars) - inside**2 / 2
    log_close = np.log(100.0) + np.cumsum(gaps + moves)
    log_open = log_close - moves

    def excursion() -> Floats:  # of a Brownian bridge above max(open, close)
        return (np.sqrt(moves**2 - 2 * inside**2 * np.log(rng.random(bars))) - np.abs(moves)) / 2

    high = np.exp(np.maximum(log_open, log_close) + excursion())
    low = np.exp(np.minimum(log_open, log_close) - excursion())
    volume = rng.uniform(5e5, 2e6, bars)
    values = rng.standard_normal((bars, features)).astype(np.float32)
    open_, close = np.exp(log_open), np.exp(log_close)
    high, low = np.maximum(high, np.maximum(open_, close)), np.minimum(low, np.minimum(open_, close))
    return table_of(open_, high, low, close, volume, features=values)


def simulator_of(table: SymbolTable, config: MarketEnvConfig, costs: CostConfig) -> Simulator:
    """One account that starts at the first bar and reports everything."""
    simulator = Simulator([table], config.model_copy(update={"start": "first", "report": True}), costs, accounts=1)
    simulator.seed(0)
    simulator.reset()
    return simulator


def exposure_config(**changes: Any) -> MarketEnvConfig:
    """Box actions without tolerance, so that every decision is an order."""
    return MarketEnvConfig(**{"action": ExposureAction(low=-3.0, high=3.0), "tolerance": 0.0, **changes})


def play(table: SymbolTable, config: MarketEnvConfig, costs: CostConfig, targets: Sequence[float]) -> list[Any]:
    """Ledger records of the engine, one per step, until the targets, the data or the account end."""
    simulator = simulator_of(table, config, costs)
    ledgers = []
    for target in targets:
        step = simulator.step(np.array([float(target)]), autoreset=False)
        assert step.ledger is not None
        ledgers.append(step.ledger[0])
        if step.terminated[0] or step.truncated[0]:
            break
    return ledgers


def reference_bars(table: SymbolTable) -> list[Bar]:
    zeros = np.zeros(len(table.close))
    dividends = zeros if table.dividends is None else table.dividends
    funding = zeros if table.funding is None else table.funding
    columns = (table.open, table.high, table.low, table.close, table.volume, dividends, funding)
    return [Bar(*(exact(value) for value in row)) for row in zip(*columns, strict=True)]


def reference_settings(table: SymbolTable, config: MarketEnvConfig, costs: CostConfig) -> Settings:
    return Settings(
        taker=exact(costs.taker_fee_bps) * BPS,
        maker=exact(costs.maker_fee_bps) * BPS,
        half_spread=exact(costs.half_spread_bps) * BPS,
        slippage=exact(costs.slippage_bps) * BPS,
        impact=exact(costs.impact_bps) * BPS,
        borrow=exact(costs.borrow_rate),
        loan=exact(costs.loan_rate),
        cash_rate=exact(costs.cash_rate),
        funding=exact(costs.funding_bps) * BPS,
        liquidation=exact(costs.liquidation_bps) * BPS,
        periods_per_year=exact(table.periods_per_year),
        latency=costs.latency,
        lot=exact(costs.lot_size),
        minimum_notional=exact(costs.minimum_notional),
        tolerance=exact(config.tolerance),
        fill_at_open=config.fill == "next_open",
        stop_loss=INFINITY if config.stop_loss is None else exact(config.stop_loss),
        take_profit=INFINITY if config.take_profit is None else exact(config.take_profit),
        maintenance=exact(config.maintenance_margin),
        initial_cash=exact(config.initial_cash),
    )


def disagreement(ledger: Any, reward: float, terminated: bool, expected: Result, scale: float) -> str | None:
    """The first number in which engine and reference differ by more than RELATIVE, as a sentence; None if none does.

    Amounts that cancel (a price gain of nearly nothing) are compared on a millionth of the equity instead.
    """
    amounts = {name: (ledger[name], getattr(expected.parts, name)) for name in COMPONENTS}
    amounts["equity"] = (ledger["equity"], expected.equity)
    amounts["shortfall"] = (ledger["shortfall"], expected.shortfall)
    for name, (got, wanted) in amounts.items():
        if abs(float(got) - float(wanted)) > RELATIVE * max(abs(float(wanted)), 1e-6 * scale):
            return f"{name}: engine {got!r}, reference {wanted:.15g}"
    for name, got, wanted in (
        ("units", ledger["units"], expected.units),
        ("order", ledger["order_units"], expected.order_units),
    ):
        price_like = max(abs(float(wanted)), 1e-6 * max(abs(float(ledger["units"])), 1.0))
        if abs(float(got) - float(wanted)) > RELATIVE * price_like:
            return f"{name}: engine {got!r}, reference {wanted:.15g}"
    if abs(reward - float(expected.reward)) > RELATIVE * max(abs(float(expected.reward)), 1e-3):
        return f"reward: engine {reward!r}, reference {expected.reward:.15g}"
    if EVENTS[int(ledger["event"])] != expected.event:
        return f"event: engine {EVENTS[int(ledger['event'])]}, reference {expected.event}"
    if terminated != expected.terminated:
        return f"terminated: engine {terminated}, reference {expected.terminated}"
    if frozenset(guard_names(int(ledger["guard"]))) != expected.guards:
        return f"guards: engine {guard_names(int(ledger['guard']))}, reference {sorted(expected.guards)}"
    return None


def reference_guards(table: SymbolTable, config: MarketEnvConfig) -> GuardSettings:
    """Every field of `GuardsConfig` under its own name, as decimals."""
    values: dict[str, Any] = {}
    for name, value in config.guards:
        if name != "on_halt":
            values[name] = exact(value) if isinstance(value, float) else value
    if table.time is not None and table.bar is not None:
        values["times"] = table.time.astype("datetime64[ns]").astype(np.int64).tolist()
        values["bar_ns"] = int(table.bar.astype("timedelta64[ns]").astype(np.int64))
    return GuardSettings(**values, flatten=config.guards.on_halt == "flatten")


def reference_of(
    table: SymbolTable, config: MarketEnvConfig, costs: CostConfig, kind: type[Reference] = Reference
) -> Reference:
    """A reference account, with guards where the configuration has some."""
    bars, rules = reference_bars(table), reference_settings(table, config, costs)
    if not config.guards.active:
        return kind(bars, rules)
    guarded = kind if issubclass(kind, GuardedReference) else GuardedReference
    return guarded(bars, rules, guards=reference_guards(table, config))


def first_disagreement(
    table: SymbolTable,
    config: MarketEnvConfig,
    costs: CostConfig,
    targets: Sequence[float],
    kind: type[Reference] = Reference,
) -> tuple[str | None, Decimal]:
    """Both simulators side by side: (what differs first or None, how close the closest comparison was)."""
    simulator = simulator_of(table, config, costs)
    reference = reference_of(table, config, costs, kind)
    for number, target in enumerate(targets):
        step = simulator.step(np.array([float(target)]), autoreset=False)
        expected = reference.step(exact(target))
        if reference.narrowest < TOO_CLOSE:
            break
        assert step.ledger is not None
        difference = disagreement(
            step.ledger[0], float(step.reward[0]), bool(step.terminated[0]), expected, config.initial_cash
        )
        if difference is not None:
            return f"step {number}: {difference}", reference.narrowest
        if step.terminated[0] or step.truncated[0]:
            break
    return None, reference.narrowest


__all__ = [
    "RELATIVE",
    "ZERO",
    "exposure_config",
    "first_disagreement",
    "flat_bars",
    "play",
    "random_walk",
    "reference_bars",
    "reference_guards",
    "reference_of",
    "reference_settings",
    "simulator_of",
    "table_of",
]
