"""An account that follows a feed is one row of the simulator, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tailwise.core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    EnvironmentContractError,
    ShapeError,
)
from tailwise.market.account import Account, FeedBar
from tailwise.market.costs import NO_COSTS, CostConfig
from tailwise.market.env import ExposureAction, MarketEnvConfig, PositionsAction, WeightsAction
from tailwise.market.env_config import GuardsConfig
from tailwise.market.simulator import Simulator
from tailwise.market.tables import SymbolTable
from tests.market.portfolio_worlds import HOUR, START, asset_of
from tests.market.strategies import bars_from

BARS = 60
GUARDS = GuardsConfig(
    max_exposure=1.4,
    order_fraction=0.9,
    daily_turnover=2.5,
    daily_loss=0.03,
    drawdown=0.3,
    stale_bars=1.5,
    absurd_volatility=2.0,
    volatility_bars=6,
)
ALL_COSTS = CostConfig(cash_rate=0.03, funding_bps=0.4, latency=1)


def asset(seed: int, hours: Sequence[int] = range(BARS), *, first_valid: int = 4) -> SymbolTable:
    """Bars of six hours at some of the times of a clock, with dividends and funding."""
    rng = np.random.default_rng(seed)
    moves = [(g, b, abs(u), abs(d)) for g, b, u, d in rng.normal(0, 0.02, (len(hours), 4)).tolist()]
    table = bars_from(moves, rng.uniform(1e3, 1e6, len(hours)).tolist(), 5, first_valid=first_valid)
    features = rng.normal(size=(len(hours), 2)).astype(np.float32)
    timed = asset_of(table, f"S{seed}", [6 * hour for hour in hours])
    return replace(timed, bar=6 * HOUR, features=features, feature_names=("a", "b"))


def feed_of(assets: Sequence[SymbolTable]) -> list[tuple[np.datetime64, list[FeedBar | None]]]:
    """The bars of all assets in the order in which they open: (time, a bar or None for each asset)."""
    clock = np.unique(np.concatenate([one.time for one in assets if one.time is not None]))
    feed = []
    for time in clock:
        bars: list[FeedBar | None] = []
        for one in assets:
            assert one.time is not None and one.dividends is not None and one.funding is not None
            t = int(np.searchsorted(one.time, time))
            if t == len(one.time) or one.time[t] != time:
                bars.append(None)
                continue
            bars.append(
                FeedBar(
                    open=float(one.open[t]),
                    high=float(one.high[t]),
                    low=float(one.low[t]),
                    close=float(one.close[t]),
                    volume=float(one.volume[t]),
                    features=one.features[t],
                    dividend=float(one.dividends[t]),
                    funding=float(one.funding[t]),
                    available=t >= one.first_valid,
                    ends=t == len(one.time) - 1 and time < clock[-1],
                )
            )
        feed.append((time, bars))
    return feed


def account_of(simulator: Simulator, assets: Sequence[SymbolTable]) -> Account:
    table = simulator.table
    return Account(
        table.symbols,
        table.feature_names,
        simulator.config,
        simulator.costs,
        periods_per_year=assets[0].periods_per_year,
        clock_per_year=table.clock_per_year or None,
        bar=assets[0].bar,
    )


THREE = [
    asset(0),
    asset(1, sorted(np.random.default_rng(1).choice(BARS, 40, replace=False).tolist())),
    asset(2, range(8, BARS - 9)),
]
EXPOSURE, WEIGHTS = ExposureAction(low=-2.0, high=2.0), WeightsAction(low=-2.0, high=2.0, gross=2.5)
CASES = {
    "positions": ([asset(0)], MarketEnvConfig(action=PositionsAction(), stop_loss=0.03), CostConfig()),
    "stops": ([asset(0)], MarketEnvConfig(action=EXPOSURE, stop_loss=0.03, take_profit=0.04), ALL_COSTS),
    "close": ([asset(3)], MarketEnvConfig(action=EXPOSURE, fill="close"), CostConfig(lot_size=3.0, latency=2)),
    "guards": ([asset(0)], MarketEnvConfig(action=EXPOSURE, stop_loss=0.05, guards=GUARDS), CostConfig()),
    "late guards": ([THREE[1]], MarketEnvConfig(action=EXPOSURE, fill="close", guards=GUARDS), ALL_COSTS),
    "portfolio": (THREE, MarketEnvConfig(action=WEIGHTS, stop_loss=0.03, maintenance_margin=0.35), ALL_COSTS),
    "portfolio guards": (THREE, MarketEnvConfig(action=WEIGHTS, stop_loss=0.03, guards=GUARDS), CostConfig()),
    "portfolio close": (THREE, MarketEnvConfig(action=WEIGHTS, fill="close", guards=GUARDS), ALL_COSTS),
}


@pytest.mark.parametrize("name", CASES)
def test_an_account_is_a_row_of_the_simulator_bit_for_bit(name: str) -> None:
    """Observations, masks, rewards, every entry of the ledger and the counts of guards, of three accounts that begin at
    different bars; saved and restored in between by another object. Rejects an account with rules of its own."""
    assets, config, costs = CASES[name]
    config = config.model_copy(update={"report": True})
    simulator = Simulator(assets, config, costs, accounts=3)
    simulator.seed(0)
    starts = np.array([10, 17, 30])
    expected = simulator.reset(rows=starts)
    feed = feed_of(assets)
    accounts = [account_of(simulator, assets) for _ in starts]
    for account, start in zip(accounts, starts, strict=True):
        for time, bars in feed[: start + 1]:
            account.feed(bars, time)
        account.begin()
        assert account.names == simulator.names
    rng = np.random.default_rng(7)
    space = simulator.kind.space(simulator.assets)
    steps = len(feed) - 1 - int(starts.max())
    events = 0
    for k in range(steps):
        mask = simulator.mask() if simulator.has_mask else None
        if isinstance(config.action, PositionsAction):
            actions = rng.integers(0, 3, 3)
        else:
            actions = rng.uniform(-2.2, 2.2, (3, *(space.shape or ())))
        result = simulator.step(simulator.targets(actions), autoreset=False)
        assert result.ledger is not None
        for i, start in enumerate(starts):
            account = accounts[i]
            assert np.array_equal(account.observe(), expected[i])
            if mask is not None:
                assert np.array_equal(account.mask(), mask[i])
            account.order(actions[i])
            if k == steps // 2:
                accounts[i] = account_of(simulator, assets)
                accounts[i].set_state(account.get_state())
                account = accounts[i]
            time, bars = feed[start + 1 + k]
            step = account.step(bars, time)
            assert np.array_equal(step.obs, result.obs[i])
            assert (step.reward, step.ruined) == (result.reward[i], result.terminated[i])
            for field, value in step.ledger.items():
                assert np.array_equal(value, result.ledger[field][i]), field
            assert account.equity == result.ledger["equity"][i]
            assert np.array_equal(account.units, np.atleast_1d(result.ledger["units"][i]))
        events += int(np.count_nonzero(result.ledger["event"])) + int(np.count_nonzero(result.ledger["order_units"]))
        expected = result.obs
    assert events > steps
    counts = [account.guard_counts() for account in accounts]
    assert simulator.guard_counts() == {guard: sum(one[guard] for one in counts) for guard in counts[0]}


def bar_at(price: float, **changes: Any) -> FeedBar:
    return replace(FeedBar(price, price, price, price, 1e6, np.zeros(1, dtype=np.float32)), **changes)


def small(config: MarketEnvConfig | None = None, symbols: Sequence[str] = ("A",), **changes: Any) -> Account:
    settings = config or MarketEnvConfig(action=EXPOSURE, initial_cash=1000.0)
    return Account(symbols, ["x"], settings, NO_COSTS, periods_per_year=252.0, **changes)


def test_a_decision_at_the_close_is_filled_when_the_next_bar_opens() -> None:
    """By hand: half of 1000 at an open of 110, not at the close of 100 that the decision saw, then a close of 121."""
    account = small()
    account.feed(bar_at(100.0))
    assert account.begin()[1] == 0.0  # exposure
    assert account.order([0.5]).tolist() == [0.5]
    assert account.units.tolist() == [0.0]  # it waits
    step = account.step(bar_at(110.0, high=121.0, close=121.0))
    units = 500.0 / 110.0
    assert step.ledger["order_price"] == 110.0
    assert account.units.tolist() == pytest.approx([units])
    assert account.equity == pytest.approx(1000.0 + units * 11.0)


def test_what_cannot_be_is_refused_with_a_sentence() -> None:
    account = small()
    with pytest.raises(EnvironmentContractError, match="has not begun"):
        account.observe()
    with pytest.raises(EnvironmentContractError, match="feed it the bars"):
        account.begin()
    account.feed(bar_at(100.0, available=False))
    with pytest.raises(EnvironmentContractError, match="feed it the bars"):
        account.begin()
    account.feed(bar_at(100.0))
    account.begin()
    with pytest.raises(EnvironmentContractError, match="step"):
        account.feed(bar_at(100.0))
    with pytest.raises(EnvironmentContractError, match="call order before step"):
        account.step(bar_at(100.0))
    account.order([1.0])
    with pytest.raises(DataError, match="A row 0: open is -1"):
        account.step(bar_at(-1.0))
    with pytest.raises(DataError, match="without valid features"):
        account.step(bar_at(100.0, available=False))
    with pytest.raises(ShapeError, match="2 bars came"):
        account.step([bar_at(100.0), None])
    with pytest.raises(ShapeError, match="features"):
        account.step(bar_at(100.0, features=np.zeros(3, dtype=np.float32)))
    account.step(bar_at(100.0))  # nothing of this has moved it
    with pytest.raises(ConfigError, match="holds one asset, and 2 symbols"):
        small(symbols=("A", "B"))
    with pytest.raises(ConfigError, match="daily_loss needs the length of a bar"):
        small(MarketEnvConfig(guards=GuardsConfig(daily_loss=0.1)))
    timed = small(bar=HOUR)
    timed.feed(bar_at(100.0), START)
    with pytest.raises(DataError, match="out of order"):
        timed.feed(bar_at(100.0), START)
    with pytest.raises(DataError, match="without its open time"):
        timed.feed(bar_at(100.0))
    with pytest.raises(CheckpointError, match="same assets"):
        small(MarketEnvConfig(action=EXPOSURE, guards=GuardsConfig(max_exposure=1.0))).set_state(account.get_state())


def test_a_ruined_account_has_to_begin_again() -> None:
    account = small(MarketEnvConfig(action=EXPOSURE, initial_cash=1000.0, maintenance_margin=0.0))
    account.feed(bar_at(100.0))
    account.begin()
    account.order([2.0])
    account.step(bar_at(100.0))
    account.order([2.0])
    assert account.step(bar_at(40.0)).ruined
    account.order([0.0])
    with pytest.raises(EnvironmentContractError, match="ruined"):
        account.step(bar_at(40.0))
    account.begin()
    assert account.equity == 1000.0
