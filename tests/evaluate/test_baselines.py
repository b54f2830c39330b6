"""Rules to be compared with: what they hold, and that none of them knows the future."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tailwise import backtest
from tailwise.bars.bars import Bars
from tailwise.bars.builtin import sp500
from tailwise.bars.synthetic import random_walk
from tailwise.core.errors import ConfigError, DataError, ShapeError
from tailwise.evaluate.backtest import (
    backtest_portfolio,
    equal_weights,
    min_cvar_weights,
    random_matched,
)
from tailwise.evaluate.statistics import empirical_cvar
from tailwise.market.base import buy_and_hold, flat, momentum, volatility_target
from tailwise.market.costs import NO_COSTS, CostConfig
from tailwise.market.tables import SymbolTable


def with_other_future(bars: Bars, row: int) -> Bars:
    """The same bars up to and including `row`, three times the price after it."""
    factor = np.where(np.arange(len(bars)) > row, 3.0, 1.0)
    return replace(bars, **{name: getattr(bars, name) * factor for name in ("open", "high", "low", "close")})


def imitate(bars: Bars) -> np.ndarray:
    path = backtest(np.tile([1.0, 1.0, 0.0, -1.0], len(WALK) // 4), WALK, NO_COSTS)
    return random_matched(bars, path, seed=0)


WALK = random_walk(seed=5, length=2000, bar="1d")
RULES = [flat, buy_and_hold, volatility_target, momentum, lambda b: momentum(b, look_back=20), imitate]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("row", [0, 30, 700, 1500])
def test_no_rule_knows_the_future(rule: Callable[[Bars], np.ndarray], row: int) -> None:
    """Other bars after t, or none at all, change no target up to t."""
    targets = rule(WALK)
    assert targets.shape == (2000,) and np.isfinite(targets).all()
    assert np.array_equal(rule(with_other_future(WALK, row))[: row + 1], targets[: row + 1])
    if row > 30:
        assert np.array_equal(rule(WALK.slice(0, row + 1)), targets[: row + 1])


def test_a_planted_look_ahead_fails_that_check() -> None:
    def cheats(bars: Bars) -> np.ndarray:
        return np.sign(np.append(np.diff(bars.close), 0.0))  # the move after t, at t

    assert not np.array_equal(cheats(with_other_future(WALK, 700))[:701], cheats(WALK)[:701])


def test_momentum_by_hand() -> None:
    """Long when the close is above that of `look_back` bars before. Rejects a comparison with an
    open, or with the bar in between."""
    prices, opens = np.array([10.0, 11, 12, 11, 10, 10, 12, 9]), np.full(8, 11.5)
    limits = {"high": np.full(8, 13.0), "low": np.full(8, 8.0)}
    bars = replace(WALK.slice(0, 8), open=opens, **limits, close=prices, volume=np.ones(8))
    assert momentum(bars, look_back=3).tolist() == [0, 0, 0, 1, -1, -1, 1, -1]
    assert momentum(bars, look_back=9).tolist() == [0] * 8
    assert (momentum(sp500())[:252] == 0).all() and (momentum(sp500())[252:] != 0).mean() > 0.99  # a year of days
    hours = random_walk(seed=1, length=2000)
    assert (momentum(hours)[:730] == 0).all() and (momentum(hours)[730:] != 0).all()  # a month of hours
    with pytest.raises(DataError, match="at least one"):
        momentum(bars, look_back=0)


@pytest.mark.parametrize("holding", [2, 10, 60])
def test_random_trades_as_much_as_the_policy(holding: int) -> None:
    """Turnover and exposure of a policy that draws from -1, 0 and 1 every so many bars. Rejects a coin at every bar."""
    bars = random_walk(seed=3, length=4000, bar="1d")
    levels = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], 4000 // holding + 1, p=[0.2, 0.3, 0.5])
    policy = backtest(np.repeat(levels, holding)[:4000], bars, NO_COSTS)
    found = [backtest(random_matched(bars, policy, seed=s), bars, NO_COSTS) for s in range(2)]
    turnover = np.mean([path.traded.mean() for path in found])
    assert turnover == pytest.approx(policy.traded.mean(), rel=0.2)
    exposure = np.mean([np.abs(path.exposures).mean() for path in found])
    assert exposure == pytest.approx(np.abs(policy.exposures).mean(), rel=0.2)
    coin = backtest(np.random.default_rng(1).choice(policy.target[:, 0], 4000), bars, NO_COSTS)
    assert coin.traded.mean() > 1.5 * policy.traded.mean()


def test_random_is_seeded_and_imitates_a_constant() -> None:
    policy = backtest(np.tile([1.0, 0.0], 1000), WALK, NO_COSTS)
    first, again, other = (random_matched(WALK, policy, seed=s) for s in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert set(np.unique(first)) == {0.0, 1.0}
    holder = backtest(np.full(2000, 0.7), WALK, NO_COSTS)
    assert (random_matched(WALK, holder, seed=0) == 0.7).all()


def table(bars: Bars, *, first: int = 0) -> SymbolTable:
    class Nothing:
        values, names, first_valid = np.zeros((len(bars), 0), dtype=np.float32), (), first

    return SymbolTable.from_bars(bars, Nothing())


def calm_and_wild() -> list[SymbolTable]:
    """Two independent walks, one with a fifth of the other's volatility."""
    calm = replace(random_walk(seed=1, length=700, sigma=0.004, bar="1d"), symbol="CALM")
    wild = replace(random_walk(seed=2, length=700, sigma=0.02, bar="1d"), symbol="WILD")
    return [table(calm, first=300), table(wild, first=300)]


def test_min_cvar_holds_what_is_calm_and_has_the_smaller_tail() -> None:
    """Rejects equal weights, and weights of the largest CVaR; compared with the best of a grid on the past window."""
    tables = calm_and_wild()
    weights = min_cvar_weights(tables, window=252, every=21)
    assert weights.shape == (399, 2) and np.allclose(weights.sum(axis=1), 1.0) and weights.min() >= -1e-9
    assert weights[:, 0].min() > 0.75
    returns = np.stack([np.diff(t.close[48:301]) / t.close[48:300] for t in tables], axis=1)  # up to row 300
    grid = np.linspace(0, 1, 1001)
    best = grid[np.argmax([empirical_cvar(returns @ [w, 1 - w], 0.05) for w in grid])]
    assert weights[0, 0] == pytest.approx(best, abs=0.02)
    path = backtest_portfolio(weights, tables, CostConfig(), label="synthetic")
    even = backtest_portfolio(equal_weights(tables), tables, CostConfig(), label="synthetic")
    assert empirical_cvar(path.log_returns, 0.05) > 0.7 * empirical_cvar(even.log_returns, 0.05)
    assert np.array_equal(path.target, weights)


def test_min_cvar_knows_no_future_and_waits_for_a_window() -> None:
    tables = calm_and_wild()
    weights = min_cvar_weights(tables, window=252, every=50)
    factor = np.where(np.arange(700) > 450, 3.0, 1.0)
    changed = [
        replace(t, **{name: getattr(t, name) * (factor if i else 1.0) for name in ("open", "high", "low", "close")})
        for i, t in enumerate(tables)
    ]
    other = min_cvar_weights(changed, window=252, every=50)
    assert np.array_equal(other[:151], weights[:151]) and not np.array_equal(other[201:], weights[201:])
    early = min_cvar_weights([replace(t, first_valid=100) for t in tables], window=252, every=50)
    assert (early[:200] == 0).all() and (early[200:].sum(axis=1) > 0.99).all()  # row 252 is decision 152
    with pytest.raises(ConfigError, match="has no tail"):
        min_cvar_weights(tables, window=10)


def test_an_asset_that_begins_later_is_left_out_until_its_window_is_full() -> None:
    """The calm asset has 50 bars before the first decision: nothing of it for 50 more, then most of the account."""
    calm, wild = calm_and_wild()
    names = ("open", "high", "low", "close", "volume", "time", "features")
    late = replace(calm, **{name: getattr(calm, name)[250:] for name in names}, first_valid=50)
    weights = min_cvar_weights([late, wild], window=100, every=10)
    assert (weights[:50, 0] == 0).all() and (weights[:50, 1] == 1).all() and weights[50:, 0].min() > 0.7


def test_weights_that_do_not_fit_are_sentences() -> None:
    tables = calm_and_wild()
    with pytest.raises(ShapeError, match="weights for 10 decisions were given; the window has 399"):
        backtest_portfolio(np.zeros((10, 2)), tables, label="synthetic")
    with pytest.raises(ShapeError, match=r"shape \(3,\)"):
        backtest_portfolio(np.zeros(3), tables, label="synthetic")
