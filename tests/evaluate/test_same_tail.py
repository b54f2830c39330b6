"""Rules held at the tail of a policy, and what chance alone gives."""

from __future__ import annotations

import numpy as np
import pytest

import tailwise
from tailwise.bars.builtin import sp500
from tailwise.evaluate.backtest import play_rule, play_side_by_side, random_matched, random_targets
from tailwise.evaluate.draws import DRAWS, Draws, median_draw, random_draws
from tailwise.evaluate.same_tail import Scalable, factor_for, same_tail
from tailwise.evaluate.statistics import empirical_cvar, forward_returns, path_statistics
from tailwise.market.base import momentum
from tailwise.market.costs import CostConfig
from tailwise.market.env_config import MarketEnvConfig
from tests.evaluate.paths import path_of

BARS = sp500().slice(3000, 4000)
COSTS = CostConfig()


def test_half_of_a_market_is_matched_by_half_of_it() -> None:
    """Rejects a comparison as it is, where holding half of a rising market is worse than holding all of it."""
    held = path_of(0.0008 + 0.008 * np.random.default_rng(0).standard_t(5, 2000))
    half = path_of(Scalable.of(held, 0.0).held(0.5))
    found = same_tail({"policy": half, "buy and hold": held}, "policy", alpha=0.05, gamma=0.97, repetitions=200)
    match = found["buy and hold"]
    assert match.factor == pytest.approx(0.5, abs=1e-6) and match.tail == "horizon" and match.verdict == "no evidence"
    assert match.per_year == pytest.approx(252 * half.log_returns.mean(), rel=1e-5)
    assert match.per_year < 0.7 * 252 * held.log_returns.mean()
    better = path_of(half.log_returns + 0.0004)
    above = same_tail({"policy": better, "buy and hold": held}, "policy", alpha=0.05, gamma=0.97, repetitions=200)
    assert above["buy and hold"].verdict == "better"
    below = same_tail(
        {"policy": path_of(half.log_returns - 0.0004), "b": held}, "policy", alpha=0.05, gamma=0.97, repetitions=200
    )
    assert below["b"].verdict == "worse"


def test_what_is_scaled_is_what_is_held() -> None:
    """Half of the exposure through the simulator has the tail that scaling predicts, to 2%."""
    whole = play_rule(np.ones(len(BARS)), BARS, COSTS)
    half = play_rule(np.full(len(BARS), 0.5), BARS, COSTS)
    wanted = path_statistics(half, alpha=0.05, gamma=0.97).cvar_return
    assert wanted is not None and wanted < 0
    assert factor_for(Scalable.of(whole, 0.0), wanted, alpha=0.05, gamma=0.97) == pytest.approx(0.5, rel=0.02)


def test_what_is_held_twice_borrows_as_the_account_does() -> None:
    """Twice the market through the simulator pays 5% a year on its loan, and so does what is scaled: their mean returns
    agree to 0.4% a year. Rejects a free loan, which is 5% a year better."""
    config = MarketEnvConfig(maintenance_margin=0.1)
    whole = play_rule(np.ones(len(BARS)), BARS, COSTS, config=config)
    twice = play_rule(np.full(len(BARS), 2.0), BARS, COSTS, config=config)
    year = 252 * (twice.log_returns - Scalable.of(whole, COSTS.loan_rate).held(2.0)).mean()
    free = 252 * (twice.log_returns - Scalable.of(whole, 0.0).held(2.0)).mean()
    assert abs(year) < 0.004 and free < -0.04
    np.testing.assert_allclose(Scalable.of(whole, 0.05).held(0.9), Scalable.of(whole, 0.0).held(0.9), atol=1e-6)


def test_a_policy_that_loses_nothing_over_the_horizon_is_matched_by_bars() -> None:
    """Its tail over the horizon is a gain, which no scale of a market has; flat and random rules are not scaled."""
    rng = np.random.default_rng(1)
    policy = path_of(0.004 + 0.002 * rng.standard_normal(800))
    held = path_of(0.001 + 0.01 * rng.standard_normal(800))
    paths = {"policy": policy, "buy and hold": held, "flat": path_of(np.zeros(800)), "policy, sampled": policy}
    found = same_tail(paths, "policy", alpha=0.05, gamma=0.97, repetitions=50)
    assert list(found) == ["buy and hold"] and found["buy and hold"].tail == "bar"
    assert empirical_cvar(forward_returns(policy, 0.97), 0.05) > 0
    tail = empirical_cvar(Scalable.of(held, 0.0).held(found["buy and hold"].factor), 0.05)
    assert tail == pytest.approx(empirical_cvar(policy.log_returns, 0.05), rel=1e-6)


def test_accounts_side_by_side_are_those_played_alone() -> None:
    """Every draw to the last bit or so, and the first of many is the one of `random_matched`."""
    path = tailwise.backtest(momentum(BARS, look_back=50), BARS, COSTS)
    targets = random_targets(BARS, path, seed=3, count=5)
    assert np.array_equal(targets[0], random_matched(BARS, path, seed=3))
    assert len({tuple(one) for one in targets.tolist()}) == 5
    together = play_side_by_side(targets, BARS, COSTS, first=100, last=900)
    for wealth, one in zip(together, targets, strict=True):
        alone = play_rule(one, BARS, COSTS, first=100, last=900)
        np.testing.assert_allclose(wealth, alone.wealth, rtol=1e-12)


def test_percentiles_of_the_draws_place_the_policy() -> None:
    """A policy that knows the next bar is above every draw, its opposite below all."""
    knows = np.sign(np.append(np.diff(BARS.open)[1:], [0.0, 0.0]))  # filled at the next open, held to the one after
    places = {}
    for name, targets in (("knows", knows), ("wrong", -knows)):
        path = play_rule(targets, BARS, COSTS)
        _, wealth = random_draws(BARS, path, COSTS, None, first=0, last=len(BARS) - 1, seed=0)
        places[name] = Draws.of("random positions", wealth[:, -1] - 1, float(path.wealth[-1]) - 1)
    assert places["knows"].count == DRAWS and places["knows"].above == 1.0 and places["wrong"].above == 0.0
    ends = np.array([0.1, -0.2, 0.3, 0.05])
    assert Draws.of("x", ends, 0.1).above == 0.625  # above two, equal to one
    assert median_draw(1 + np.stack([np.zeros(3), ends[1:]], axis=1)) == 2
    told = Draws.of("x", np.linspace(-1, 1, 201), 0.0).sentence
    assert "median returned 0.0%" in told and "between -90.0% and 90.0%" in told and "above 50% of them" in told
