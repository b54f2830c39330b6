"""Laws that every honest portfolio obeys: the identity, units of money, names of assets, coin flips, sizing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tailwise.market.costs import NO_COSTS, CostConfig
from tailwise.market.env_config import WeightsAction
from tailwise.market.orders import equity_after_orders
from tailwise.market.records import EVENTS, HOLDING, PLAN, identity_error, total_cost
from tailwise.market.simulator import Simulator
from tailwise.market.tables import SymbolTable
from tests.market.portfolio_worlds import asset_of, portfolio_of, weights_config
from tests.market.worlds import random_walk, table_of

ALL_COSTS = CostConfig(cash_rate=0.03, funding_bps=0.3, latency=1)


def three_assets(bars: int = 80) -> list[SymbolTable]:
    """Different calendars: always, with holes, and late beginning with early end."""
    rng = np.random.default_rng(5)
    holes = sorted(rng.choice(bars, bars * 3 // 4, replace=False).tolist())
    calendars = [list(range(bars)), holes, list(range(bars // 8, bars * 7 // 8))]
    return [
        asset_of(random_walk(len(hours), seed, gap=0.02, inside=0.02), f"S{seed}", hours)
        for seed, hours in enumerate(calendars)
    ]


def run(assets: list[SymbolTable], actions: Any, costs: CostConfig = ALL_COSTS, **changes: Any) -> tuple[Any, Any, Any]:
    """(ledgers [steps, N], observations [steps, N, D], rewards [steps, N]) under actions [steps, N, A], from the first
    time of the clock, with a new episode after each end."""
    settings = {"stop_loss": 0.04, "take_profit": 0.05, "maintenance_margin": 0.3, **changes}
    simulator = Simulator(assets, weights_config(**settings), costs, accounts=actions.shape[1])
    simulator.seed(0)
    simulator.reset()
    steps = [simulator.step(np.ascontiguousarray(action), autoreset=True) for action in actions]
    return tuple(np.array([getattr(step, name) for step in steps]) for name in ("ledger", "obs", "reward"))  # type: ignore[return-value]


def wild_actions(steps: int, accounts: int, assets: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).choice([-2.5, -1.0, 0.0, 0.3, 1.0, 2.5], (steps, accounts, assets))


def test_equity_changes_by_the_sum_of_its_components() -> None:
    """With every event among 4000 steps. Rejects costs taken twice or never, and gains that are booked to nobody."""
    ledger, obs, _ = run(three_assets(), wild_actions(79 * 2, 26, 3))
    assert identity_error(ledger).max() < 1e-9
    assert set(np.unique(ledger["event"])) == set(range(len(EVENTS)))
    assert ledger["margin_call"].any()
    assert np.isfinite(obs).all()
    spoilt = ledger.copy()
    spoilt["fee"] *= 2
    assert identity_error(spoilt).max() > 1e-6


@pytest.mark.parametrize("factor", [1000.0, 1e-3])
def test_the_unit_of_money_does_not_matter(factor: float) -> None:
    """Prices, dividends and cash x 1000: same observations and rewards. Rejects an amount in an observation."""
    assets = three_assets()
    actions = wild_actions(79, 4, 3)
    scaled = [
        replace(a, open=a.open * factor, high=a.high * factor, low=a.low * factor, close=a.close * factor)
        for a in assets
    ]
    _, obs, reward = run(assets, actions)
    _, obs_scaled, reward_scaled = run(scaled, actions, initial_cash=100_000.0 * factor)
    assert np.abs(reward_scaled - reward).max() < 1e-9
    assert np.allclose(obs_scaled, obs, rtol=1e-5, atol=1e-6)


def test_the_order_of_the_assets_does_not_matter() -> None:
    """Permuted assets and weights: same money, permuted positions. Rejects spending cash on the first asset first."""
    assets, order = three_assets(), [2, 0, 1]
    actions = wild_actions(79, 8, 3)
    costs = ALL_COSTS.model_copy(update={"lot_size": 0.1, "minimum_notional": 500.0})
    ledger, _, reward = run(assets, actions, costs)
    permuted, _, reward_permuted = run([assets[a] for a in order], actions[:, :, order], costs)
    assert np.abs(reward_permuted - reward).max() < 1e-9
    assert (permuted["event"] == ledger["event"][..., order]).all()
    assert np.allclose(permuted["units"], ledger["units"][..., order], rtol=1e-9, atol=1e-9)
    assert np.allclose(permuted["fee"], ledger["fee"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("stops", [False, True])
def test_a_coin_flip_loses_its_costs(stops: bool) -> None:
    """Weights of heads and tails on random walks: the mean of dE + costs is 0 within 4 standard errors, and the mean of
    dE is minus the costs within the same. Rejects free stops: LEDGER L1."""
    assets = [asset_of(random_walk(1500, seed), f"S{seed}") for seed in range(4)]
    actions = np.random.default_rng(1).choice([-0.5, 0.5], (1499, 40, 4))
    level = 0.02 if stops else None
    costs = CostConfig(borrow_rate=0.0, loan_rate=0.0)
    changes: dict[str, Any] = {"stop_loss": level, "take_profit": level, "start": "random", "episode_length": 20}
    ledger, _, _ = run(assets, actions, costs, **changes)
    returns = (ledger["equity"] - ledger["equity_before"]) / ledger["equity_before"]
    paid = total_cost(ledger) / ledger["equity_before"]
    assert stops == bool((ledger["event"] == 1).any())
    # Accounts that live through the same bar share its prices, so bars and not rows are the sample.
    bars = np.unique(ledger["row"])
    before_costs = np.array([(returns + paid)[ledger["row"] == row].mean() for row in bars])
    error = before_costs.std() / np.sqrt(len(bars))
    assert abs(before_costs.mean()) < 4 * error
    assert paid.mean() > 8 * error  # so the costs are seen: the mean below is not 0 by the same measure
    assert abs(returns.mean() + paid.mean()) < 4 * error


def test_exposures_equal_the_weights_after_costs() -> None:
    """The defining property of sizing: u P = w E' with E' after fee, spread and slippage. Rejects weights of the equity
    before costs, whose gross exposure exceeds the limit."""
    walk = random_walk(3, 0)
    flat = table_of(*([np.full(3, 100.0)] * 4), features=walk.features)
    assets = [asset_of(flat, f"S{a}") for a in range(3)]
    costs = NO_COSTS.model_copy(update={"taker_fee_bps": 100.0, "half_spread_bps": 50.0})
    config = weights_config(WeightsAction(low=-2.0, high=2.0, gross=3.0))
    simulator = portfolio_of(assets, config, costs)
    for weights in ([1.0, -1.0, 0.5], [-0.7, 0.9, 0.0]):
        ledger = simulator.step(np.array([weights]), autoreset=False).ledger
        assert ledger is not None
        exposure = ledger["units"][0] * 100.0 / ledger["equity"][0]
        assert exposure.tolist() == pytest.approx(weights, abs=1e-12)


def test_the_equity_equation_is_solved_exactly() -> None:
    """E' + c sum |w E' - n| = E to 1e-14 of the equity, for 2000 random accounts of 8 assets. Rejects one Newton step,
    that is signs taken at the equity before costs."""
    rng = np.random.default_rng(0)
    worst, worst_once = 0.0, 0.0
    for _ in range(2000):
        holdings, plans = np.zeros(8, dtype=HOLDING), np.zeros(8, dtype=PLAN)
        holdings["mark"] = rng.uniform(1, 100, 8)
        targets = rng.normal(0, 0.4, 8)
        held = targets * 1000 * rng.uniform(0.9, 1.0, 8)  # near the targets, so that costs turn orders around
        holdings["units"], plans["target"], plans["sends"] = held / holdings["mark"], targets, rng.random(8) < 0.9
        rate, sends = 0.03, plans["sends"] == 1

        def rest(after: float, rate: float = rate, sends: Any = sends, w: Any = targets, n: Any = held) -> float:
            return abs(after + rate * np.abs(w * after - n)[sends].sum() - 1000.0) / 1000.0

        signs = np.sign(targets * 1000.0 - held)[sends]
        once = (1000.0 + rate * (signs * held[sends]).sum()) / (1.0 + rate * (signs * targets[sends]).sum())
        worst = max(worst, rest(equity_after_orders(1000.0, holdings, plans, rate)))
        worst_once = max(worst_once, rest(once))
    assert worst < 1e-14
    assert worst_once > 1e-6


def test_weights_are_clipped_and_then_scaled_to_the_gross_limit() -> None:
    """[5, -5, 0.5] -> clipped to [1, -0.5, 0.5] -> gross 2 scaled to 1: [0.5, -0.25, 0.25]. Rejects scaling first."""
    walk = random_walk(3, 0)
    flat = table_of(*([np.full(3, 100.0)] * 4), features=walk.features)
    config = weights_config(WeightsAction(low=(-1.0, -0.5, -1.0), high=1.0, gross=1.0))
    simulator = portfolio_of([asset_of(flat, f"S{a}") for a in range(3)], config, NO_COSTS)
    ledger = simulator.step(np.array([[5.0, -5.0, 0.5]]), autoreset=False).ledger
    assert ledger is not None
    assert (ledger["units"][0] * 100.0 / ledger["equity"][0]).tolist() == pytest.approx([0.5, -0.25, 0.25], abs=1e-12)


def test_a_shared_margin_is_called_by_the_sum_of_small_losses() -> None:
    """Two longs of 1.5 x 1000 each at 100 (equity 1000, loan 2000), maintenance 25%: both fall to 70 inside the bar.

    Along the common fall to p, equity 30 p - 2000 meets 0.25 x 30 p at p = 88.889: both are sold there, equity 666.67.
    The margin of one position alone is half of that: rejects a margin asset by asset, which sells at 76.19."""
    columns = ([100.0, 100.0, 100.0], [100.0] * 3, [100.0, 100.0, 70.0], [100.0] * 3)
    assets = [asset_of(table_of(*columns), f"S{a}") for a in range(2)]
    config = weights_config(initial_cash=1000.0, maintenance_margin=0.25)
    simulator = portfolio_of(assets, config, NO_COSTS)
    simulator.step(np.array([[1.5, 1.5]]), autoreset=False)
    ledger = simulator.step(np.array([[1.5, 1.5]]), autoreset=False).ledger
    assert ledger is not None
    assert ledger["margin_call"][0] == 1 and ledger["event"][0].tolist() == [3, 3]
    assert ledger["exit_price"][0].tolist() == pytest.approx([800 / 9] * 2, abs=1e-9)
    assert ledger["equity"][0] == pytest.approx(2000 / 3, abs=1e-9)


def test_bankruptcy_terminates_with_a_shortfall() -> None:
    """All in twice over 3 x, and the market opens at a third: equity is -1000 x, far below the floor of 1%."""
    columns = [[100.0, 100.0, 30.0, 30.0]] * 4
    assets = [asset_of(table_of(*columns), f"S{a}") for a in range(2)]
    simulator = portfolio_of(assets, weights_config(initial_cash=1000.0), NO_COSTS)
    simulator.step(np.array([[1.5, 1.5]]), autoreset=False)
    step = simulator.step(np.array([[1.5, 1.5]]), autoreset=False)
    assert step.ledger is not None and bool(step.terminated[0])
    assert step.ledger["equity"][0] == pytest.approx(-1100.0)
    assert step.ledger["shortfall"][0] == pytest.approx(1110.0)
    assert step.reward[0] == pytest.approx(np.log(0.01))
    assert np.isfinite(step.obs).all()


def test_a_stop_that_cannot_be_paid_for_is_a_margin_call_at_that_moment() -> None:
    """Longs of 45 units each at 100, cash -8000, 5% fee, no maintenance margin; A falls 12% and B 10.5% together.

    A stops at 90, 5/6 of the way, where B stands at 91.25: cash -8000 + 4050 - 202.5, equity -46.25. The call comes at
    once and B is sold at 91.25 for another 205.3125. Rejects a call dated back to 92.28, where equity without A would
    have been 0 before A was even stopped."""
    lows = (88.0, 89.5)
    assets = [asset_of(table_of([100.0] * 3, [100.0] * 3, [100.0, 100.0, low], [100.0] * 3), f"S{low}") for low in lows]
    action = WeightsAction(low=0.0, high=9.0, gross=9.0)
    changes: dict[str, Any] = {"initial_cash": 1450.0, "maintenance_margin": 0.0, "stop_loss": 0.1, "tolerance": 0.01}
    costs = NO_COSTS.model_copy(update={"taker_fee_bps": 500.0})
    simulator = portfolio_of(assets, weights_config(action, **changes), costs)
    simulator.step(np.array([[4.5, 4.5]]), autoreset=False)
    step = simulator.step(np.array([[4.5, 4.5]]), autoreset=False)
    assert step.ledger is not None and bool(step.terminated[0])
    assert step.ledger["event"][0].tolist() == [1, 3]
    assert step.ledger["exit_price"][0].tolist() == pytest.approx([90.0, 91.25], abs=1e-9)
    assert step.ledger["equity"][0] == pytest.approx(-251.5625, abs=1e-9)
