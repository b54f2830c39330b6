"""What `tailwise.backtest` gives to who knows backtesting.py: statistics, trades, a picture, from a DataFrame."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tailwise as tw
from tailwise.bars.bars import load_bars
from tailwise.core.errors import ConfigError
from tailwise.evaluate.backtest import play_rule
from tailwise.market.costs import CostConfig
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.path import AccountPath

FREE = CostConfig(taker_fee_bps=0, half_spread_bps=0, slippage_bps=0, impact_bps=0, borrow_rate=0)


def frame(closes: list[float]) -> pd.DataFrame:
    """Hourly bars that open where the one before closed."""
    close = np.array(closes)
    opened = np.concatenate([close[:1], close[:-1]])
    data = {"Open": opened, "High": np.maximum(opened, close), "Low": np.minimum(opened, close), "Close": close}
    index = pd.date_range("2024-01-01", periods=len(close), freq="h", tz="UTC")
    return pd.DataFrame(data | {"Volume": 1e6}, index=index)


def test_trades_have_entry_exit_prices_and_return() -> None:
    """By hand: in at the open of bar 3 (110), out at the open of bar 5 (132), nothing else. Rejects prices of the
    decision's close and a return on equity instead of on what was paid."""
    bars = frame([100.0, 105.0, 110.0, 121.0, 132.0, 99.0, 99.0, 99.0])
    targets = [0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0]
    played = tw.backtest(targets, bars, FREE, config=MarketEnvConfig(tolerance=0.2))
    (trade,) = played.trades.to_dict("records")
    assert (trade["side"], trade["closed"]) == (1, True)
    assert trade["entry_price"] == pytest.approx(110) and trade["exit_price"] == pytest.approx(132)
    assert trade["return"] == pytest.approx(0.2)
    assert str(trade["first_time"]) == "2024-01-01 03:00:00+00:00"
    assert trade["profit"] == pytest.approx(0.2 * trade["entered"] * 110)
    assert played.equity[-1] - played.equity[0] == pytest.approx(trade["profit"])


def test_what_is_open_counts_at_the_last_close_and_additions_are_averaged() -> None:
    bars = frame([100.0, 100.0, 100.0, 200.0, 200.0, 300.0])
    played = tw.backtest([0.0, -0.2, -0.2, -0.6, -0.6, -0.6], bars, FREE)
    (trade,) = played.trades.to_dict("records")
    assert (trade["side"], trade["closed"]) == (-1, False)
    assert 100 < trade["entry_price"] < 200 and trade["exit_price"] == pytest.approx(300)
    assert trade["return"] == pytest.approx(1 - 300 / trade["entry_price"])
    assert trade["profit"] == pytest.approx(trade["entered"] * (trade["entry_price"] - 300))


def test_costs_and_account_may_be_dictionaries() -> None:
    bars = frame([100.0, 101.0, 102.0, 103.0, 104.0])
    dear = tw.backtest([1.0] * 5, bars, {"taker_fee_bps": 100}, config={"initial_cash": 1000}, symbol="UP")
    assert dear.symbol == "UP" and dear.equity[0] == 1000 and dear.ledger["fee"].sum() == pytest.approx(10, rel=0.05)
    with pytest.raises(ConfigError, match=r"costs: .*taker_fee_bps"):
        tw.backtest([1.0] * 5, bars, {"taker_fee_bp": 1})


def test_statistics_repr_and_plot(tmp_path: Path) -> None:
    bars = frame([100 * 1.01**i for i in range(60)])
    bars.to_csv(tmp_path / "up.csv")
    played = tw.backtest(lambda past: 1.0, bars, FREE, first=5, last=40)
    assert len(played) == 35 and repr(played).startswith("<Backtest of") and len(repr(played)) < 160
    assert played.stats["total_return"] == pytest.approx(played.statistics().total_return)
    assert played.stats["total_return"] == pytest.approx(np.prod([1.01] * 34) - 1, rel=0.05)
    figure = played.plot(tmp_path / "up.html")
    drawn = {trace.name: np.asarray(trace.y) for trace in figure.data}
    assert np.allclose(drawn["account"], played.wealth) and np.allclose(drawn["exposure"], played.exposure)
    assert (tmp_path / "up.html").stat().st_size > 1000
    again = tw.backtest(lambda past: 1.0, tmp_path / "up.csv", FREE, first=5, last=40)
    assert np.array_equal(again.equity, played.equity)


def test_the_path_of_a_policy_is_asked_the_same() -> None:
    """What `trade` gives is a plain path; it gets statistics, trades and a picture without being played again."""
    bars = load_bars(frame([100 * 1.01**i for i in range(60)]))
    path = play_rule(lambda past: 1.0, bars, FREE, first=5, last=40)
    assert type(path) is AccountPath
    asked = tw.Backtest.of(path)
    assert np.array_equal(asked.equity, path.equity)
    assert asked.stats["total_return"] == asked.statistics().total_return > 0.3
    assert len(asked.trades) == 1 and len(asked.plot().data) > 2
