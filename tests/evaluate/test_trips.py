"""What single positions earned: by hand, and adding up to the account."""

from __future__ import annotations

import numpy as np
import pytest

from tailwise import backtest
from tailwise.bars.builtin import nasdaq, sp500
from tailwise.evaluate.backtest import backtest_portfolio
from tailwise.evaluate.statistics import cost_share, path_statistics
from tailwise.market.costs import NO_COSTS, CostConfig
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.path import AccountPath, hit_rate, profit_factor, round_trips, trips_frame
from tailwise.market.tables import SymbolTable
from tests.evaluate.paths import path_of


def column(*values: float) -> np.ndarray:
    return np.array(values)[:, None]


def turned() -> AccountPath:
    """Buy 10 at 5, add 5 at 6, turn to -10 at 8 (25 sold), stopped out at 9: +45 before costs, then -10.

    Bar 2 costs 25 x 8 x 1% = 2, of which the closed 15 pay 1.2 and the opened 10 pay 0.8.
    """
    return path_of(
        np.zeros(4),
        order_units=column(10, 5, -25, 0),
        order_price=column(5, 6, 8, 0),
        exit_units=column(0, 0, 0, 10),
        exit_price=column(0, 0, 0, 9),
        units=column(10, 15, -10, 0),
        fee=np.array([0.5, 0.3, 2.0, 0.0]),
        liquidation=np.array([0.0, 0.0, 0.0, 0.4]),
        borrow=np.array([0.0, 0.0, 0.05, 0.05]),
        dividends=np.array([0.0, 0.2, 0.0, 0.0]),
        close=column(5.5, 7, 8, 9),
    )


def test_trips_by_hand() -> None:
    """Rejects costs that are forgotten, or paid by the wrong side of a turn, and a turn taken for one trip."""
    long, short = round_trips(turned())
    assert (long.side, long.first, long.last, long.closed, long.largest, long.bars) == (1, 0, 2, True, 15.0, 3)
    assert long.costs == pytest.approx(0.5 + 0.3 + 1.2) and long.carry == pytest.approx(0.2)
    assert long.profit == pytest.approx((8 - 5) * 10 + (8 - 6) * 5 - 2.0 + 0.2)
    assert (short.side, short.first, short.last, short.closed, short.largest) == (-1, 2, 3, True, 10.0)
    assert short.costs == pytest.approx(0.8 + 0.4) and short.carry == pytest.approx(-0.1)
    assert short.profit == pytest.approx((8 - 9) * 10 - 1.2 - 0.1)
    assert hit_rate([long, short]) == 0.5
    assert profit_factor([long, short]) == pytest.approx(38.2 / 11.3)
    assert profit_factor([long]) is None and hit_rate([]) is None


def test_an_open_position_is_valued_at_the_last_close() -> None:
    path = path_of(
        np.zeros(3), order_units=column(2, 0, 0), order_price=column(10, 0, 0), units=column(2, 2, 2),
        close=column(10, 11, 13),
    )  # fmt: skip
    (trip,) = round_trips(path)
    assert trip.profit == pytest.approx(6.0) and not trip.closed and trip.last == 2
    frame = trips_frame(path, [trip])
    assert len(frame) == 1 and frame["last_time"].iloc[0].tz_localize(None) == path.time[2]
    assert len(trips_frame(path, [])) == 0


@pytest.mark.parametrize("fill", ["next_open", "close"])
def test_trips_add_up_to_the_account(fill: str) -> None:
    """Turns, stops, costs, borrow and funding on real bars: trip profits and interest are the change of equity."""
    bars = sp500().slice(0, 1500)
    targets = np.random.default_rng(0).choice([-1.0, 0.0, 0.5, 1.2], len(bars), p=[0.2, 0.3, 0.3, 0.2])
    costs = CostConfig(funding_bps=0.3, cash_rate=0.02)
    config = MarketEnvConfig(fill=fill, stop_loss=0.02, take_profit=0.03)  # type: ignore[arg-type]
    path = backtest(targets, bars, costs, config=config)
    trips = round_trips(path)
    assert len(trips) > 300 and (path.ledger["exit_units"] != 0).sum() > 20
    change = path.equity[-1] - path.equity[0]
    assert sum(t.profit for t in trips) + path.ledger["interest"].sum() == pytest.approx(change, rel=1e-9)
    found = path_statistics(path, alpha=0.05, gamma=0.99)
    assert found.round_trips == len(trips) and found.hit_rate == hit_rate(trips)
    assert found.profit_factor == profit_factor(trips)
    before_costs = [t.profit + t.costs for t in trips]
    assert sum(p > 0 for p in before_costs) / len(trips) > found.hit_rate + 0.01  # costs turn winners into losers


def test_trips_of_a_portfolio_add_up() -> None:
    tables = []
    for bars in (sp500().slice(0, 600), nasdaq().slice(0, 600)):
        none = np.zeros((len(bars), 0), dtype=np.float32)
        tables.append(
            SymbolTable(bars.symbol, bars.open, bars.high, bars.low, bars.close, bars.volume, none, (), 252.0,
                        time=bars.time, bar=bars.frequency.bar)
        )  # fmt: skip
    path = backtest_portfolio(np.array([0.6, -0.4]), tables, CostConfig(), label="real")
    trips = round_trips(path)
    assert [(t.asset, t.side) for t in trips] == [(path.assets[0], 1), (path.assets[1], -1)]
    change = path.equity[-1] - path.equity[0]
    assert sum(t.profit for t in trips) + path.ledger["interest"].sum() == pytest.approx(change, rel=1e-9)


def test_cost_share_by_hand() -> None:
    """Ended 4 higher after paying 1: a fifth of what was earned. Nothing earned: undefined, not negative."""
    rising = path_of(np.log([1.02, 1.04 / 1.02]), fee=np.array([0.7, 0.3]))
    assert cost_share(rising) == pytest.approx(1.0 / 5.0)
    assert cost_share(path_of(np.log([0.9, 1.0]), fee=np.array([0.7, 0.3]))) is None


def test_exposure_of_a_ruined_account_counts_the_whole_window() -> None:
    """Rejects an exposure averaged over the bars that were lived through only."""
    bars = sp500().slice(0, 300)
    path = backtest(np.full(len(bars), 3.0), bars, NO_COSTS, config=MarketEnvConfig(maintenance_margin=0.1))
    half = AccountPath(
        path.symbol, path.label, path.assets, path.periods_per_year, path.time, path.ledger, path.target, path.close,
        2 * len(path),
    )  # fmt: skip
    whole, cut = (path_statistics(p, alpha=0.05, gamma=0.9) for p in (path, half))
    assert cut.mean_exposure == pytest.approx(whole.mean_exposure / 2)
    assert cut.time_in_market == pytest.approx(whole.time_in_market / 2)
