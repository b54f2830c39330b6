"""Several calendars on one clock: what is present, available, shown and refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tailwise.bars.builtin import nasdaq, sp500
from tailwise.core.errors import ConfigError, DataError
from tailwise.market.costs import NO_COSTS, CostConfig
from tailwise.market.env import MarketEnv
from tailwise.market.env_config import WeightsAction
from tailwise.market.tables import MarketTable, SymbolTable
from tests.market.portfolio_worlds import HOUR, START, asset_of, portfolio_of, weights_config
from tests.market.worlds import flat_bars, random_walk


def prices(values: list[float], hours: list[int], symbol: str, first_valid: int = 0) -> SymbolTable:
    """Flat bars whose feature is the price itself, so that a row of the clock can be read off."""
    features = np.array(values, dtype=np.float32)[:, None]
    return asset_of(flat_bars(values, features=features, first_valid=first_valid), symbol, hours)


def test_clock_is_the_union_and_prices_wait_for_their_next_bar() -> None:
    """Rejects: dropping the times that one asset lacks, and filling an absent bar from the future."""
    table = MarketTable.on_one_clock(
        [prices([1.0, 2.0, 3.0, 4.0], [0, 1, 3, 4], "A"), prices([10.0, 20.0, 30.0], [1, 2, 4], "B", first_valid=1)],
        CostConfig(funding_bps=1.0),
    )
    assert ((table.time - START) / HOUR).tolist() == [0, 1, 2, 3, 4]
    assert table.bars["close"].T.tolist() == [[1, 2, 2, 3, 4], [1, 10, 20, 20, 30]]
    assert table.bars["present"].T.tolist() == [[1, 1, 0, 1, 1], [0, 1, 1, 0, 1]]
    assert table.bars["available"].T.tolist() == [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]
    assert table.features.T.tolist() == [[1, 2, 2, 3, 4], [0, 0, 20, 20, 30]]
    for name in ("volume", "dividend", "funding", "year_fraction"):  # where there is no bar, nothing is charged
        assert (table.bars[name][table.bars["present"] == 0] == 0).all()
    assert (table.bars["year_fraction"][table.bars["present"] == 1] == 1 / 252).all()
    # Of A, whose span is the longest: 252 bars a year, 4 clock times in 3 of its steps.
    assert table.clock_per_year == pytest.approx(252 * 4 / 3)


def test_an_asset_that_ends_is_settled_and_then_masked() -> None:
    """Flat bars 10, 10, 20; B ends there while A goes on: its 5 units of 10 become 100 in cash, less nothing."""
    a, b = prices([1.0] * 6, [0, 1, 2, 3, 4, 5], "A"), prices([10.0, 10.0, 20.0], [0, 1, 2], "B")
    config = weights_config(WeightsAction(low=0.0, high=1.0), initial_cash=100.0)
    simulator = portfolio_of([a, b], config, NO_COSTS)
    assert simulator.mask()[0].tolist() == [[0, 1], [0, 1]]
    first = simulator.step(np.array([[0.0, 0.5]]), autoreset=False).ledger
    assert first is not None and first["units"][0].tolist() == [0, 5]
    ledger = simulator.step(np.array([[0.0, 2 / 3]]), autoreset=False).ledger
    assert ledger is not None
    assert ledger["event"][0].tolist() == [0, 4] and ledger["units"][0].tolist() == [0, 0]
    assert ledger["exit_price"][0].tolist() == [0, 20] and ledger["equity"][0] == pytest.approx(150.0)
    assert simulator.mask()[0].tolist() == [[0, 1], [0, 0]]
    ledger = simulator.step(np.array([[0.0, 1.0]]), autoreset=False).ledger
    assert ledger is not None and ledger["units"][0].tolist() == [0, 0] and ledger["equity"][0] == pytest.approx(150.0)


def test_no_order_without_a_bar_and_the_mark_stays() -> None:
    """B has no bar at hour 2: the order to sell it is not filled before hour 3, at 8 and not at the stale 10."""
    a, b = prices([1.0] * 5, [0, 1, 2, 3, 4], "A"), prices([10.0, 10.0, 8.0, 8.0], [0, 1, 3, 4], "B")
    config = weights_config(WeightsAction(low=0.0, high=1.0), initial_cash=100.0)
    simulator = portfolio_of([a, b], config, NO_COSTS)
    steps = [simulator.step(np.array([weights]), autoreset=False).ledger for weights in ([0, 1.0], [0, 0], [0, 0])]
    assert all(step is not None for step in steps)
    equities = [float(step["equity"][0]) for step in steps if step is not None]
    units = [step["units"][0].tolist() for step in steps if step is not None]
    assert equities == pytest.approx([100.0, 100.0, 80.0]) and units == [[0, 10], [0, 10], [0, 0]]


def test_stuck_exposure_uses_up_the_gross_limit() -> None:
    """Everything is in B, which has no bar now; A may not be bought on top. Rejects an account of twice the limit."""
    a, b = prices([1.0] * 4, [0, 1, 2, 3], "A"), prices([10.0] * 3, [0, 1, 3], "B")
    config = weights_config(WeightsAction(low=0.0, high=1.0), initial_cash=100.0)
    simulator = portfolio_of([a, b], config, NO_COSTS)
    simulator.step(np.array([[0.0, 1.0]]), autoreset=False)
    ledger = simulator.step(np.array([[1.0, 0.0]]), autoreset=False).ledger
    assert ledger is not None and ledger["units"][0].tolist() == [0, 10]
    ledger = simulator.step(np.array([[1.0, 0.0]]), autoreset=False).ledger
    assert ledger is not None and ledger["units"][0].tolist() == [100, 0]


def test_starts_begin_where_the_first_asset_is_available() -> None:
    a = prices([1.0] * 8, list(range(8)), "A", first_valid=3)
    b = prices([2.0] * 6, list(range(2, 8)), "B", first_valid=3)
    env = MarketEnv([a, b], weights_config(start="random", episode_length=2), num_envs=200)
    env.reset(seed=0)
    assert set(env.simulator.state.records["row"].tolist()) == {3, 4, 5}
    _, infos = env.reset(options={"start": 4})
    assert infos["action_mask"][0].tolist() == [[-3, 3], [0, 0]]
    with pytest.raises(ConfigError, match=r"time 7 of the clock cannot be a start; choose from 3 .* to 6"):
        env.reset(options={"start": 7})
    with pytest.raises(ConfigError, match="'symbol'"):
        env.reset(options={"symbol": 1})


def test_the_past_does_not_know_the_future() -> None:
    """Cutting the data off changes no row of the clock before an asset's end: rejects a mask that tells in advance that
    an asset will be delisted."""
    rng = np.random.default_rng(0)
    hours = [sorted(rng.choice(60, 45, replace=False).tolist()) for _ in range(3)]
    assets = [asset_of(random_walk(45, seed), f"S{seed}", hours[seed]) for seed in range(3)]
    whole = MarketTable.on_one_clock(assets, CostConfig())
    cut = START + 40 * HOUR
    early = MarketTable.on_one_clock([_until(asset, cut) for asset in assets], CostConfig())
    rows = min(int(np.flatnonzero(early.bars["present"][:, a])[-1]) for a in range(3))  # before the first end
    assert rows > 30
    assert (early.time[:rows] == whole.time[:rows]).all()
    assert (early.features[:rows] == whole.features[:rows]).all()
    for name in early.bars.dtype.names or ():
        assert (early.bars[name][:rows] == whole.bars[name][:rows]).all()


def _until(asset: SymbolTable, cut: np.datetime64) -> SymbolTable:
    assert asset.time is not None
    rows = int(np.searchsorted(asset.time, cut))
    columns: dict[str, Any] = {
        name: getattr(asset, name)[:rows] for name in ("open", "high", "low", "close", "volume", "features", "time")
    }
    return replace(asset, **columns)


def test_real_bars_of_two_indices_share_a_clock() -> None:
    class Table:
        def __init__(self, rows: int) -> None:
            self.values, self.names, self.first_valid = np.zeros((rows, 1), dtype=np.float32), ("zero",), 5

    assets = [SymbolTable.from_bars(bars, Table(len(bars))) for bars in (sp500(), nasdaq())]
    table = MarketTable.on_one_clock(assets, CostConfig())
    assert len(table.time) == 5031 and table.bars["present"].all() and table.clock_per_year == 252.0
    assert table.bars["available"].sum() == 2 * (5031 - 5)


def test_clocks_that_would_look_ahead_are_refused() -> None:
    """Hourly bars at :00 and :30 overlap: a decision at the close of the first would be filled before that close."""
    a = asset_of(random_walk(10, 0), "A")
    assert a.time is not None
    shifted = replace(a, symbol="B", time=a.time + np.timedelta64(30, "m"))
    with pytest.raises(DataError, match=r"B opens a bar at 2020-01-06T00:30 UTC while the bar of A .* same open times"):
        MarketTable.on_one_clock([a, shifted], CostConfig())
    longer = replace(a, symbol="B", time=START + np.arange(10) * 24 * HOUR, bar=24 * HOUR)
    with pytest.raises(DataError, match=r"differ in length \(A 1 hour, B 1 day\); resample"):
        MarketTable.on_one_clock([a, longer], CostConfig())
    with pytest.raises(DataError, match="each asset may occur once"):
        MarketTable.on_one_clock([a, a], CostConfig())
    with pytest.raises(DataError, match="A has no times"):
        MarketTable.on_one_clock([replace(a, time=None, bar=None)], CostConfig())
    with pytest.raises(DataError, match="no symbols"):
        MarketTable.on_one_clock([], CostConfig())


def test_other_features_are_refused() -> None:
    a, b = asset_of(random_walk(10, 0), "A"), asset_of(random_walk(10, 1, features=3), "B")
    with pytest.raises(DataError, match="same features"):
        MarketTable.on_one_clock([a, b], CostConfig())
