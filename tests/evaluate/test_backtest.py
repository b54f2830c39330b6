"""Rules and targets through the simulator: causal, cost-true, and the same as a policy would get."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from tailwise import backtest
from tailwise.bars.bars import Bars, load_bars
from tailwise.bars.builtin import sp500
from tailwise.bars.synthetic import ar1, random_walk
from tailwise.cli.main import main
from tailwise.core.config import load_yaml
from tailwise.core.errors import ConfigWarning, DataError, ShapeError
from tailwise.market.base import buy_and_hold, flat, volatility_target
from tailwise.market.costs import NO_COSTS, CostConfig
from tailwise.market.records import identity_error
from tailwise.run.config import parse_config


def test_targets_of_bar_t_earn_the_return_of_bar_t_plus_1() -> None:
    """Without costs, full exposure to the known sign of the next bar earns its absolute return. Rejects a fill at the
    price just seen, or one bar late."""
    bars = random_walk(seed=1, length=300)
    returns = np.log(bars.close / bars.open)
    oracle = np.append(returns[1:] > 0, False).astype(float)
    path = backtest(oracle, bars, NO_COSTS)
    assert path.log_returns.sum() == pytest.approx(np.maximum(returns[1:], 0).sum(), rel=1e-9)
    late = np.roll(oracle, 1)
    assert backtest(late, bars, NO_COSTS).log_returns.sum() < 0.5 * path.log_returns.sum()


def test_a_rule_sees_the_past_only_and_equals_its_targets() -> None:
    """The rule's decision at bar t gets t + 1 bars, and gives the same path as its decisions given as a list."""
    bars = ar1(seed=2, length=200, phi=0.3)
    seen = []

    def follow(history: Bars) -> float:
        seen.append(len(history))
        return 1.0 if history.close[-1] > history.open[-1] else 0.0

    by_rule = backtest(follow, bars)
    targets = (bars.close > bars.open).astype(float)
    assert seen == list(range(1, 200))
    by_targets = backtest(targets, bars)
    assert all(np.array_equal(by_rule.ledger[name], by_targets.ledger[name]) for name in by_rule.ledger)
    changed = replace(bars, close=np.append(bars.close[:150], bars.close[150:] * 1.0), volume=bars.volume.copy())
    assert np.array_equal(backtest(follow, changed).ledger["equity"][:149], by_rule.ledger["equity"][:149])


def test_every_step_adds_up_and_costs_are_paid_once() -> None:
    bars = sp500()
    targets = np.tile([1.0, 0.0, -1.0, 0.5], len(bars) // 4 + 1)[: len(bars)]
    path = backtest(targets, bars, CostConfig(taker_fee_bps=1, half_spread_bps=0.5, slippage_bps=0, impact_bps=0))
    assert float(np.abs(identity_error(path.ledger)).max()) < 1e-9
    free = backtest(targets, bars, NO_COSTS)
    charged = (path.ledger["fee"] + path.ledger["spread"]) / path.ledger["equity_before"]
    assert np.allclose(charged, 0.00015 * path.traded, rtol=1e-12, atol=0)
    # What was lost against the free path is what was charged (borrowing too), compounded.
    lost = free.log_returns.sum() - path.log_returns.sum()
    assert lost == pytest.approx(-np.log1p(-path.costs).sum(), rel=0.02)


def test_baselines() -> None:
    bars = sp500()
    assert flat(bars).sum() == 0 and (buy_and_hold(bars) == 1).all()
    targets = volatility_target(bars, target=0.10)
    assert len(targets) == len(bars) and (targets[:20] == 0).all() and (targets[20:] > 0).all() and targets.max() <= 1
    path = backtest(targets, bars, first=20)
    realised = path.log_returns.std() * np.sqrt(252)
    assert 0.07 < realised < 0.12
    crisis = (bars.time >= np.datetime64("2008-10-01")) & (bars.time < np.datetime64("2009-04-01"))
    assert targets[crisis].mean() < 0.5 * targets[20:].mean()
    # Causal: other bars after a day change no target up to it.
    shorter = volatility_target(bars.slice(0, 3000))
    assert np.array_equal(shorter, targets[:3000])


def test_window_and_hostile_input() -> None:
    bars = random_walk(seed=0, length=100)
    part = backtest(buy_and_hold(bars), bars, first=40, last=60)
    assert len(part) == 20 and part.time[0] == bars.time[41] and part.time[-1] == bars.time[60]
    with pytest.raises(DataError, match="is empty or outside"):
        backtest(buy_and_hold(bars), bars, first=99)
    with pytest.raises(DataError, match="is empty or outside"):
        backtest(buy_and_hold(bars), bars, last=100)
    with pytest.raises(ShapeError, match="one for each bar"):
        backtest([1.0, 0.0], bars)
    with pytest.raises(DataError, match="the target at bar 7 is nan"):
        backtest(np.where(np.arange(100) == 7, np.nan, 1.0), bars)


def test_ruin_ends_the_path() -> None:
    """A short squeezed a hundredfold: the path ends with the account, and says what lies below the floor."""
    bars = random_walk(seed=0, length=50)
    jump = np.where(np.arange(50) >= 20, 100.0, 1.0)
    hurt = replace(bars, **{name: getattr(bars, name) * jump for name in ("open", "high", "low", "close")})
    path = backtest(-np.ones(50), hurt)
    assert len(path) == 20 and path.ledger["shortfall"][-1] > 0 and path.wealth[-1] == 0.0


def test_impact_on_ticks_is_warned_of() -> None:
    """Rejects a backtest that loses the account to impact without a word, and one that warns of every impact."""
    bars = random_walk(seed=4, length=300, sigma=0.001)
    turning = np.where(np.arange(300) % 10 < 5, 1.0, -1.0)
    with pytest.warns(ConfigWarning, match="Impact is the largest cost of SYNTHETIC-RANDOM-WALK: ") as caught:
        path = backtest(turning, replace(bars, volume=np.full(300, 20.0)))
    paid = float(path.ledger["impact"].sum())
    assert paid > 3 * float(path.ledger["fee"].sum())
    assert f"{paid:,.0f}, which is {100 * paid / 1e5:.1f}% of the account at the start" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backtest(turning, bars)
        backtest(turning, replace(bars, volume=np.full(300, 20.0)), CostConfig(impact_bps=0.0))


def test_currencies_with_the_costs_that_init_writes(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hourly EURUSD with tick volume. Rejects impact on ticks, which took most of the account in ten months."""
    samples = pytest.importorskip("backtesting.test", reason="backtesting, which brings EURUSD, is not installed")
    monkeypatch.chdir(tmp_path)
    samples.EURUSD.to_csv("EURUSD.csv", index_label="time")
    assert main(["init", "EURUSD.csv"]) == 0
    config = parse_config(load_yaml(tmp_path / "tailwise.yaml"), source="tailwise.yaml")
    assert config.costs is not None and config.costs.impact_bps == 0
    bars = load_bars("EURUSD.csv")
    monthly = np.where(np.arange(len(bars)) % 200 < 100, 1.0, -1.0)
    path = backtest(monthly, bars, config.costs)
    assert path.ledger["impact"].sum() == 0.0 and path.costs.sum() < 0.05
    with pytest.warns(ConfigWarning, match="Impact is the largest cost of EURUSD"):
        dear = backtest(monthly, bars)
    assert dear.costs.sum() > 0.5
