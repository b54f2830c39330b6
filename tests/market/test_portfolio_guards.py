"""Guards before the orders of several assets: the engine equals the decimal reference, and each guard by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tailwise.market.costs import NO_COSTS, CostConfig
from tailwise.market.env import MarketEnv
from tailwise.market.env_config import GuardsConfig, WeightsAction
from tailwise.market.guard_arrays import GUARDS, guard_names
from tailwise.market.tables import SymbolTable
from tests.market.portfolio_reference_guards import GuardedPortfolioReference
from tests.market.portfolio_worlds import HOUR, START, World, asset_of, first_disagreement, portfolio_of, weights_config
from tests.market.reference import ZERO, Bar
from tests.market.strategies import bars_from
from tests.market.test_portfolio_reference import worlds
from tests.market.test_portfolio_single import largest_difference
from tests.market.test_reference import worlds as single_worlds
from tests.market.worlds import RELATIVE, TOO_CLOSE, flat_bars
from tests.market.worlds import first_disagreement as single_disagreement


def slower(assets: Sequence[SymbolTable], hours: int = 6) -> tuple[SymbolTable, ...]:
    """Bars of `hours` instead of one, so that a few of them are a day."""
    return tuple(replace(one, time=START + (one.time - START) * hours, bar=hours * HOUR) for one in assets)


@st.composite
def guarded_worlds(draw: Any) -> World:
    def maybe(*values: Any) -> Any:
        return draw(st.sampled_from([None, *values]))

    world = draw(worlds())
    guards = GuardsConfig(
        max_exposure=maybe(0.4, 1.3),
        order_fraction=maybe(0.07, 0.6),
        order_units=maybe(3.3, 700.3),
        order_notional=maybe(900.0, 39_500.0),
        daily_turnover=maybe(0.3, 1.7),
        daily_loss=maybe(0.003, 0.02),
        drawdown=maybe(0.01, 0.05),
        on_halt=draw(st.sampled_from(["reduce_only", "flatten"])),
        stale_bars=maybe(1.5),
        absurd_gap=maybe(0.02),
        absurd_move=maybe(0.03),
        absurd_volatility=maybe(1.5),
        volatility_bars=draw(st.sampled_from([2, 5])),
        absurd_flat_bars=maybe(1),
    )
    return world.changed(assets=slower(world.assets), config=world.config.model_copy(update={"guards": guards}))


@given(guarded_worlds())
@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_engine_equals_the_guarded_reference(world: World) -> None:
    """Everything that is compared without guards, and which guards acted, at every step."""
    difference, narrowest, _ = first_disagreement(world)
    assume(narrowest > TOO_CLOSE)
    assert difference is None, difference


def scripted(seed: int) -> World:
    """Three assets with gaps, a late beginning and an early end, everything switched on; seeds were never selected."""
    rng = np.random.default_rng(seed)
    clock = 24
    assets = []
    for a, hours in enumerate((range(clock), np.flatnonzero(rng.random(clock) < 0.7), range(3, clock - 3))):
        moves = [(g, b, abs(u), abs(d)) for g, b, u, d in rng.normal(0, 0.015, (len(hours), 4)).tolist()]
        volumes = rng.uniform(1e4, 1e6, len(hours)).tolist()
        assets.append(asset_of(bars_from(moves, volumes, 4, price=40.0 + 30 * a), f"S{a}", list(hours)))
    guards = GuardsConfig(
        max_exposure=2.1 if seed % 3 else 0.45,
        order_fraction=None if seed % 3 else 0.9,
        order_units=None if seed % 3 else 200.3,
        daily_turnover=4.5,
        daily_loss=0.03,
        drawdown=0.12,
        on_halt="reduce_only" if seed % 2 else "flatten",
        stale_bars=1.5,
        absurd_volatility=2.5,
        volatility_bars=6,
        absurd_gap=0.04,
    )
    config = weights_config(stop_loss=0.05, tolerance=0.01, guards=guards)
    costs = CostConfig(latency=seed % 2, lot_size=0.5 * (seed % 2))
    weights = rng.choice([-2.0, -1.0, 0.0, 0.5, 1.0, 1.7], (clock - 1, 3)).tolist()
    return World(slower(assets), config, costs, weights)


def test_scripted_worlds_exercise_every_guard_and_agree() -> None:
    acted: set[str] = set()
    for seed in range(24):
        world = scripted(seed)
        difference, narrowest, _ = first_disagreement(world)
        assert difference is None, f"seed {seed}: {difference}"
        assert narrowest > TOO_CLOSE
        simulator = portfolio_of(world.assets, world.config, world.costs)
        for weights in world.weights:
            step = simulator.step(np.array([weights]), autoreset=False)
            if step.terminated[0] or step.truncated[0]:
                break
        acted |= {name for name, count in simulator.guard_counts().items() if count}
    assert acted == set(GUARDS)


# ---------------------------------------------------------------------- guards that people really write
class HaltsForget(GuardedPortfolioReference):
    """Lifts the halt as soon as the loss is made good."""

    def watch(self, equity: Decimal) -> None:
        self.halted.clear()
        super().watch(equity)


class ExitsAreNoTurnover(GuardedPortfolioReference):
    """Counts only the policy's own orders."""

    def leave(self, a: int, event: str, price: Decimal, bar: Bar) -> None:
        before = self.turnover
        super().leave(a, event, price, bar)
        self.turnover = before


class TurnoverForEachAsset(GuardedPortfolioReference):
    """Lets every asset use all of the turnover."""

    def share_of_additions(self, reduced: Decimal, added: Decimal, after: Decimal, held_back: bool) -> Decimal:
        return super().share_of_additions(ZERO, added / len(self.assets), after, held_back)


class InvestedTwice(GuardedPortfolioReference):
    """Buys one asset with what the sale of another will bring, although its size holds the sale back."""

    def share_of_additions(self, reduced: Decimal, added: Decimal, after: Decimal, held_back: bool) -> Decimal:
        return super().share_of_additions(reduced, added, after, False)


class ExposureOfEachAsset(GuardedPortfolioReference):
    """Limits each asset instead of their sum."""

    def limited(self, weights: Sequence[Decimal], now: int) -> list[Decimal]:
        limit = self.guards.max_exposure
        assert limit is not None
        self.guards = replace(self.guards, max_exposure=None)
        allowed = super().limited(weights, now)
        self.guards = replace(self.guards, max_exposure=limit)
        return [min(max(weight, -limit), limit) for weight in allowed]


class BelievesEverything(GuardedPortfolioReference):
    """Trades at prices that cannot be."""

    def wrong_with(self, a: int) -> set[str]:
        return set()


class OneBadBarStopsAll(GuardedPortfolioReference):
    """Sends no order at all while one asset has a bar that is not believed."""

    def wrong_with(self, a: int) -> set[str]:
        return set.union(*(super(OneBadBarStopsAll, self).wrong_with(b) for b in range(len(self.assets))))


class DaysNeverEnd(GuardedPortfolioReference):
    """Never gives the turnover free again."""

    def enter_day(self, last_equity: Decimal) -> None:
        return


WRONG = (
    HaltsForget,
    ExitsAreNoTurnover,
    TurnoverForEachAsset,
    InvestedTwice,
    ExposureOfEachAsset,
    BelievesEverything,
    OneBadBarStopsAll,
    DaysNeverEnd,
)


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_wrong_guards_are_told_apart(kind: type[GuardedPortfolioReference]) -> None:
    assert any(first_disagreement(scripted(seed), kind)[0] is not None for seed in range(24))


# ---------------------------------------------------------------------- by hand
def flat_assets(*prices: Sequence[float]) -> list[SymbolTable]:
    return list(slower([asset_of(flat_bars(list(one)), f"S{a}") for a, one in enumerate(prices)]))


def played(assets: Sequence[SymbolTable], guards: GuardsConfig, weights: Sequence[Sequence[float]]) -> list[Any]:
    """Ledgers of the steps, without costs, with an equity of 1000 at the start and weights up to 3 in sum."""
    simulator = portfolio_of(assets, weights_config(initial_cash=1000.0, guards=guards), NO_COSTS)
    steps = [simulator.step(np.array([row]), autoreset=False).ledger for row in weights]
    return [step[0] for step in steps if step is not None]


def acted(ledger: Any) -> tuple[str, ...]:
    return guard_names(int(ledger["guard"]))


def test_the_exposure_limit_holds_for_the_sum_of_the_assets() -> None:
    """Weights of 1.5 and -0.5 are 2 in sum, and 1 is allowed: 0.75 and -0.25 of 1000 at a price of 100."""
    (ledger,) = played(flat_assets([100.0] * 3, [100.0] * 3), GuardsConfig(max_exposure=1.0), [[1.5, -0.5]])
    assert ledger["units"].tolist() == pytest.approx([7.5, -2.5])
    assert acted(ledger) == ("exposure",)


def test_turnover_is_shared_by_what_adds_risk_and_never_stops_what_reduces_it() -> None:
    """Turnover of 1000 a day. The first orders, 900 and 600, share it: 600 and 400. Then the first is to be closed,
    which always passes, and the second to be doubled, which does not."""
    first, second = played(
        flat_assets([100.0] * 4, [100.0] * 4), GuardsConfig(daily_turnover=1.0), [[0.9, 0.6], [0.0, 0.8]]
    )
    assert first["units"].tolist() == pytest.approx([6.0, 4.0])
    assert second["units"].tolist() == pytest.approx([0.0, 4.0])
    assert acted(first) == acted(second) == ("turnover",)


def test_what_cannot_be_sold_at_once_is_not_spent_twice() -> None:
    """2400 in the first asset, 30 units at 80, of 3000 that are allowed. Moved to the second with orders of at most 10
    units: 10 are sold, so 1600 stay, and the second gets 1400 / 140 = 10 units, not 3000 / 140 = 21."""
    assets = flat_assets([80.0] * 6, [140.0] * 6)
    guards = GuardsConfig(order_units=10.0)
    steps = played(assets, guards, [[2.4, 0.0]] * 3 + [[0.0, 3.0]])
    assert steps[2]["units"].tolist() == pytest.approx([30.0, 0.0])
    assert steps[3]["units"].tolist() == pytest.approx([20.0, 10.0])
    assert acted(steps[3]) == ("order_size",)


def test_a_bar_that_is_not_believed_stops_its_asset_alone_and_its_position_uses_up_the_room() -> None:
    """The second asset jumps from 100 to 200, which ends its part of the orders: 10 units stay, worth 2000 of an equity
    of 2000. A gross of 3 leaves 2 for the first: 40 units at 100, where 2.5 was wanted."""
    assets = flat_assets([100.0] * 5, [100.0, 100.0, 200.0, 200.0, 200.0])
    steps = played(assets, GuardsConfig(absurd_move=0.5), [[0.0, 1.0], [0.0, 1.0], [2.5, 0.0]])
    assert steps[2]["units"].tolist() == pytest.approx([40.0, 10.0])
    assert acted(steps[2]) == ("absurd_bar",)


@pytest.mark.parametrize(("on_halt", "units"), [("reduce_only", [5.0, -1.9]), ("flatten", [0.0, 0.0])])
def test_a_halt_holds_every_asset(on_halt: Any, units: list[float]) -> None:
    """The first asset falls by a tenth, which costs 5% of the equity: 950 are left. From that open on the position of 5
    units may not grow, and the short, of which a weight of -0.2 leaves 1.9 units, may not either."""
    assets = flat_assets([100.0, 100.0, 90.0, 90.0, 90.0], [100.0] * 5)
    guards = GuardsConfig(drawdown=0.04, on_halt=on_halt)
    steps = played(assets, guards, [[0.5, -0.2], [0.5, -0.2], [1.0, -1.0]])
    assert steps[2]["units"].tolist() == pytest.approx(units)
    assert acted(steps[2]) == ("drawdown",)


def test_what_is_observed_masked_counted_and_kept() -> None:
    """Names at the end of the observation, bounds under a halt, totals, and a state that continues bit for bit."""
    assets = [
        asset_of(bars_from([(0.0, b, 0.01, 0.01) for b in rng], [1e6] * 60, 9), f"S{a}")
        for a, rng in enumerate(np.random.default_rng(3).normal(0, 0.03, (2, 60)).tolist())
    ]
    guards = GuardsConfig(daily_turnover=3.0, drawdown=0.05, max_exposure=0.8)
    config = weights_config(WeightsAction(low=-1.0, high=1.0, gross=1.0), guards=guards, start="random")

    def env() -> MarketEnv:
        return MarketEnv(slower(assets), config, CostConfig(), num_envs=4)

    one = env()
    obs, infos = one.reset(seed=1)
    assert one.observation_names[-3:] == ("S0.halted", "S1.halted", "turnover_left")
    assert infos["action_mask"][0].tolist() == np.float32([[-0.8, 0.8]] * 2).tolist()
    assert obs[:, -3:].tolist() == [[0.0, 0.0, 1.0]] * 4
    rng = np.random.default_rng(0)
    halted = False
    for _ in range(30):
        obs, _, _, _, infos = one.step(rng.uniform(-1, 1, (4, 2)))
        assert (obs[:, -1] >= 0).all() and (obs[:, -1] <= 1).all()
        for i in np.flatnonzero(obs[:, -3] == 1.0):
            halted = True
            exposure = [obs[i, one.observation_names.index(f"S{a}.exposure")] for a in range(2)]
            bounds = [[min(e, 0.0), max(e, 0.0)] for e in exposure]
            assert infos["action_mask"][i].tolist() == pytest.approx(np.clip(bounds, -0.8, 0.8), abs=1e-6)
    assert halted
    assert one.guard_counts()["exposure"] > 0 and one.guard_counts()["drawdown"] > 0
    other = env()
    other.set_state(one.get_state())
    for _ in range(20):
        actions = rng.uniform(-1, 1, (4, 2))
        left, right = one.step(actions), other.step(actions)
        assert all(np.array_equal(x, y) for x, y in zip(left[:4], right[:4], strict=True))
    assert one.guard_counts() == other.guard_counts()


@given(single_worlds(), st.sampled_from([0.7, 1.3]), st.sampled_from([0.25, 0.9]))
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_one_asset_reproduces_the_guards_of_the_single_asset_simulator(world: Any, most: float, size: float) -> None:
    """With latency, where both know as much at the decision: sizes, exposure and halts lead to the same path."""
    table, config, costs, targets = world
    guards = GuardsConfig(max_exposure=most, order_fraction=size, daily_turnover=1.9, drawdown=0.04)
    config = config.model_copy(update={"guards": guards})
    guarded = (asset_of(table, "ONE"), config, costs.model_copy(update={"latency": 1}), targets)
    assume(single_disagreement(*guarded)[1] > TOO_CLOSE)
    assert largest_difference(guarded) < RELATIVE


def test_no_guards_is_the_same_as_guards_that_never_act() -> None:
    """A sum of limits beyond reach changes no number of an account. Rejects guards that cost a last bit."""
    world = scripted(3)
    wide = GuardsConfig(max_exposure=90.0, order_fraction=150.0, daily_turnover=5000.0, drawdown=0.99)
    rewards = []
    for guards in (GuardsConfig(), wide):
        simulator = portfolio_of(world.assets, world.config.model_copy(update={"guards": guards}), world.costs)
        rewards.append([simulator.step(np.array([w]), autoreset=False).reward[0] for w in world.weights])
    assert rewards[0] == rewards[1] and any(rewards[0])
