"""What hypothesis draws for every simulator: moves of bars, the bars that they make, rules and costs."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tailwise.market.costs import CostConfig
from tailwise.market.tables import SymbolTable
from tests.market.worlds import table_of

Move = tuple[float, float, float, float]  # gap, body, upper wick, lower wick, in logarithms


def number(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False, allow_subnormal=False)


def moves_of(bars: int, size: float) -> st.SearchStrategy[list[Move]]:
    """`bars` moves of at most `size`."""
    move = st.tuples(number(-size, size), number(-size, size), number(0, size), number(0, size))
    return st.lists(move, min_size=bars, max_size=bars)


def volumes_of(bars: int) -> st.SearchStrategy[list[float]]:
    return st.lists(st.sampled_from([0.0, 300.0, 1e4, 1e7]), min_size=bars, max_size=bars)


def exposures() -> st.SearchStrategy[float]:
    """Targets; thousandths, because a target of 1e-129 exceeds even fifty digits."""
    return st.one_of(st.sampled_from([-1.0, 0.0, 1.0, 2.5]), st.integers(-3000, 3000).map(lambda n: n / 1000))


def bars_from(
    moves: list[Move], volumes: list[float], dividend_every: int, *, price: float = 50.0, first_valid: int = 0
) -> SymbolTable:
    """Bars that make these moves from `price` on, with dividends and funding."""
    gap, body, up, down = np.array(moves).T
    log_close = np.log(price) + np.cumsum(gap + body)
    open_, close = np.exp(log_close - body), np.exp(log_close)
    high, low = np.maximum(open_, close) * np.exp(up), np.minimum(open_, close) * np.exp(-down)
    rows = np.arange(len(moves))
    return table_of(
        open_,
        high,
        low,
        close,
        volumes,
        dividends=np.where(rows % dividend_every == 1, 0.4, 0.0),
        funding=np.where(rows % 3 == 0, 3e-4, -1e-4),
        periods_per_year=365.0,
        first_valid=first_valid,
    )


def drawn_rules(draw: Any) -> dict[str, Any]:
    """Fills, tolerance, stops, margin and cash: arguments of a market configuration."""
    level = st.one_of(st.none(), number(0.01, 0.25))
    return {
        "fill": draw(st.sampled_from(["next_open", "close"])),
        "tolerance": draw(st.sampled_from([0.0, 0.05, 0.5])),
        "stop_loss": draw(level),
        "take_profit": draw(level),
        "maintenance_margin": draw(st.sampled_from([0.0, 0.125, 0.3])),
        "initial_cash": draw(st.sampled_from([1e3, 1e5])),
    }


def drawn_costs(draw: Any, *, latencies: list[int]) -> CostConfig:
    """Every cost, with one of `latencies`."""
    bps = number(0, 50)
    return CostConfig(
        taker_fee_bps=draw(bps),
        maker_fee_bps=draw(bps),
        half_spread_bps=draw(bps),
        slippage_bps=draw(bps),
        impact_bps=draw(bps),
        borrow_rate=draw(number(0, 1)),
        loan_rate=draw(number(0, 1)),
        cash_rate=draw(number(0, 1)),
        funding_bps=draw(number(-20, 20)),
        liquidation_bps=draw(number(0, 500)),
        latency=draw(st.sampled_from(latencies)),
        lot_size=draw(st.sampled_from([0.0, 0.0, 0.01, 1.0])),
        minimum_notional=draw(st.sampled_from([0.0, 0.0, 50.0, 5000.0])),
    )
