"""Changed costs, latency and bars: what each change is, and that it bites."""

from __future__ import annotations

import numpy as np
import pytest

import tailwise
from tailwise import backtest
from tailwise.bars.bars import Bars
from tailwise.bars.synthetic import ar1, random_walk
from tailwise.core.errors import ConfigError
from tailwise.evaluate.stress import (
    cost_scenario,
    crash_scenario,
    crashed,
    default_scenarios,
    latency_scenario,
    missing_scenario,
    policy_player,
    rule_player,
    scaled_costs,
    stress,
    volatility_scenario,
    with_latency,
    with_volatility,
    without_bars,
)
from tailwise.market.base import buy_and_hold
from tailwise.market.costs import NO_COSTS, CostConfig

WALK = random_walk(seed=4, length=1500, drift=0.0004, bar="1d")


def follow(bars: Bars) -> np.ndarray:
    """Hold the sign of the bar just closed."""
    return np.sign(bars.close - bars.open)


def test_scaled_costs_scale_what_is_paid_and_nothing_else() -> None:
    """Rejects a scaled latency, lot, interest on own cash or funding, and costs below zero."""
    costs = CostConfig(latency=2, lot_size=0.5, cash_rate=0.03, funding_bps=-1.0)
    twice = scaled_costs(costs, 2.0)
    assert (twice.taker_fee_bps, twice.half_spread_bps, twice.impact_bps, twice.loan_rate) == (4.0, 2.0, 20.0, 0.10)
    assert (twice.latency, twice.lot_size, twice.cash_rate, twice.funding_bps) == (2, 0.5, 0.03, -1.0)
    free = scaled_costs(CostConfig(), 0.0)
    assert free == NO_COSTS
    assert scaled_costs(costs, 1.0) == costs
    with pytest.raises(ConfigError, match="at least 0"):
        scaled_costs(costs, -1.0)
    with pytest.raises(ConfigError, match="costs x 400"):
        scaled_costs(costs, 400.0)


def test_a_crash_is_a_gap_that_stays() -> None:
    """Rejects a fall within the bar, which a stop could leave, and one that recovers."""
    hurt = crashed(WALK, 700, 0.3)
    assert hurt.open[700] / hurt.close[699] == pytest.approx(0.7 * WALK.open[700] / WALK.close[699])
    assert np.array_equal(hurt.close[:700], WALK.close[:700]) and np.allclose(hurt.close[700:], 0.7 * WALK.close[700:])
    assert hurt.label.startswith("synthetic: crash of 0.3 at bar 700") and hurt.data_hash() != WALK.data_hash()
    held = backtest(buy_and_hold(hurt), hurt, NO_COSTS)
    assert held.log_returns[699] == pytest.approx(np.log(0.7 * WALK.close[700] / WALK.close[699]), rel=1e-6)
    with pytest.raises(ConfigError, match="at bar 0"):
        crashed(WALK, 0, 0.1)


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_the_crash_hits_the_largest_position(side: float) -> None:
    """Long or short, it goes against the account, in the bar after the position was reached."""
    targets = np.zeros(1500)
    targets[400:420], targets[900:910] = 0.3 * side, 1.0 * side
    play = rule_player(lambda bars: targets)
    rows = stress(play, WALK, NO_COSTS, [crash_scenario(0.2)])
    lost = rows[1].statistics.total_return - rows[0].statistics.total_return
    assert rows[1].statistics.max_drawdown > 0.17 and lost < -0.15


def test_doubled_volatility_keeps_the_mean() -> None:
    """Rejects a doubled drift, and highs and lows that no longer hold open and close."""
    wide = with_volatility(WALK, 2.0)
    before, after = np.diff(np.log(WALK.close)), np.diff(np.log(wide.close))
    assert after.std() == pytest.approx(2 * before.std(), rel=1e-9)
    assert np.log(wide.close[-1] / WALK.open[0]) == pytest.approx(np.log(WALK.close[-1] / WALK.open[0]), abs=1e-9)
    assert (wide.high >= np.maximum(wide.open, wide.close) * (1 - 1e-12)).all()
    assert (wide.low <= np.minimum(wide.open, wide.close) * (1 + 1e-12)).all()
    assert with_volatility(WALK, 1.0).close == pytest.approx(WALK.close, rel=1e-12)


def test_missing_bars_are_gone_and_seeded() -> None:
    gone = without_bars(WALK, 0.1, seed=1)
    assert 0.87 * 1500 < len(gone) < 0.93 * 1500
    assert gone.time[0] == WALK.time[0] and gone.time[-1] == WALK.time[-1]
    rows = np.searchsorted(WALK.time, gone.time)
    assert np.array_equal(gone.close, WALK.close[rows]) and gone.frequency == WALK.frequency
    assert np.array_equal(without_bars(WALK, 0.1, seed=1).time, gone.time)
    assert not np.array_equal(without_bars(WALK, 0.1, seed=2).time, gone.time)
    with pytest.raises(ConfigError, match="cannot be missing"):
        without_bars(WALK, 1.0, seed=0)


def test_the_table_of_a_rule_that_trades_every_bar() -> None:
    """On a market that follows its last bar, costs and delay each eat the edge, the more the worse."""
    bars = ar1(seed=1, length=1500, phi=0.4, bar="1d")
    scenarios = [cost_scenario(f) for f in (0.0, 1.0, 5.0)] + [latency_scenario(k) for k in (1, 3)]
    rows = stress(rule_player(follow), bars, CostConfig(), scenarios)
    assert [row.label for row in rows][1::2] == ["costs x 0", "costs x 5", "3 bars later"]
    base, free, same, dear, late, later = (row.statistics for row in rows)
    assert same == base and free.total_return > base.total_return > dear.total_return
    assert free.costs == 0.0 and dear.costs > 4 * base.costs
    assert base.sharpe is not None and late.sharpe is not None and later.sharpe is not None
    assert late.sharpe < 0.5 * base.sharpe and later.sharpe < 0.5 * base.sharpe


def test_default_scenarios_cover_every_group() -> None:
    scenarios = default_scenarios()
    assert {s.group for s in scenarios} == {"costs", "latency", "crash", "volatility", "missing bars"}
    assert [s.value for s in scenarios if s.group == "costs"] == [0.0, 0.5, 2.0, 3.0, 5.0]
    assert len({s.label for s in scenarios}) == len(scenarios)


def test_a_rule_keeps_its_window_when_bars_are_missing() -> None:
    start, end = WALK.time[500], WALK.time[1000]
    play = rule_player(buy_and_hold, start=start, end=end)
    whole, gone = play(WALK, NO_COSTS), play(without_bars(WALK, 0.1, seed=3), NO_COSTS)
    assert whole.time[0] == WALK.time[501] and whole.time[-1] == WALK.time[999]
    assert start <= gone.time[0] and gone.time[-1] < end and 0.8 < len(gone) / len(whole) < 0.95


def test_a_policy_is_replayed_on_changed_bars_with_features_of_those() -> None:
    """A barely trained policy: the unchanged play is `trade` itself; more costs cost more; doubled volatility doubles
    what it lives through; more latency is its own decisions, later."""
    config = {
        "data": {"kind": "synthetic", "market": "ar1", "seeds": [3], "parameters": {"length": 900}},
        "env": {"kind": "market"},
        "run": {"environments": 4, "rollout_steps": 16, "total_steps": 64, "tensorboard": False},
        "learner": {"epochs": 1, "minibatches": 2},
        "evaluate": {"every": None},
    }
    agent = tailwise.PPO(config=config)
    agent.learn(64)
    player = policy_player(agent)
    play, bars, costs = player.play, player.bars, player.costs
    base = play(bars, costs)
    assert np.array_equal(base.ledger["equity"], agent.trade("test")[0].ledger["equity"])
    later = play(bars, with_latency(costs, 2))
    assert len(later) == len(base) and np.array_equal(later.target, base.target)
    assert np.array_equal(np.sign(later.ledger["units"][2:]), np.sign(base.ledger["units"][:-2]))
    wide = volatility_scenario(2.0).bars
    gone = missing_scenario(0.1).bars
    assert wide is not None and gone is not None
    # All versions of the bars at once are the same paths as one by one.
    assert player.play_many is not None
    versions = [wide(bars, base), gone(bars, base)]
    for at_once, version in zip(player.play_many(versions, costs), versions, strict=True):
        assert np.array_equal(at_once.ledger["equity"], play(version, costs).ledger["equity"])
    assert policy_player(agent, deterministic=False).play_many is None
    assert np.diff(np.log(play(wide(bars, base), costs).close[:, 0])).std() == pytest.approx(
        2 * np.diff(np.log(base.close[:, 0])).std(), rel=1e-6
    )
    short = play(gone(bars, base), costs)
    assert short.time[-1] == base.time[-1] and 0.8 < len(short) / len(base) < 0.97
    assert play(bars, scaled_costs(costs, 5.0)).costs.sum() >= base.costs.sum()


def test_a_market_with_columns_of_its_own_is_refused() -> None:
    agent = tailwise.PPO(
        config={
            "data": {"kind": "synthetic", "market": "leak", "parameters": {"length": 600}},
            "env": {"kind": "market"},
            "run": {"environments": 4, "rollout_steps": 16, "total_steps": 64, "tensorboard": False},
            "learner": {"minibatches": 2},
            "evaluate": {"every": None},
        }
    )
    with pytest.raises(ConfigError, match="next_log_return"):
        policy_player(agent)
