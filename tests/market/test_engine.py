"""The order of events in a bar, by hand: fills, stops, margin, ruin, latency, sizes; a coin flip that cannot win."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwise.market.action_kinds import allow_positions
from tailwise.market.costs import NO_COSTS, CostConfig
from tailwise.market.env_config import MarketEnvConfig, PositionsAction
from tailwise.market.orders import target_units
from tailwise.market.records import (
    EVENTS,
    LIQUIDATION,
    NO_EVENT,
    STOP_LOSS,
    TAKE_PROFIT,
    identity_error,
    make_rules,
    total_cost,
)
from tailwise.market.simulator import Simulator
from tailwise.market.tables import SymbolTable
from tests.market.worlds import exposure_config, flat_bars, play, random_walk, table_of


def test_fill_is_at_the_next_open_and_mark_at_its_close() -> None:
    """Rejects a fill at the observed close: it would earn (120 - 100) / 100 instead of (120 - 110) / 110."""
    table = table_of([100, 110], [100, 121], [100, 109], [100, 120])
    (step,) = play(table, exposure_config(), NO_COSTS, [1.0])
    assert step["order_price"] == 110.0
    assert step["equity"] == pytest.approx(100_000 * 120 / 110, rel=1e-12)
    (optimist,) = play(table, exposure_config(fill="close"), NO_COSTS, [1.0])
    assert optimist["equity"] == pytest.approx(100_000 * 120 / 100, rel=1e-12)


def test_a_step_depends_on_nothing_after_its_bar() -> None:
    table = random_walk(12, seed=3)
    config = exposure_config(stop_loss=0.02, take_profit=0.02)
    changed = random_walk(12, seed=4)
    cut = 6
    fields = {}
    for name in ("open", "high", "low", "close", "volume", "features"):
        fields[name] = np.concatenate([getattr(table, name)[:cut], getattr(changed, name)[cut:] * 2])
    other = SymbolTable(
        symbol="TEST", feature_names=table.feature_names, periods_per_year=table.periods_per_year, **fields
    )
    targets = [1.0, -1.0, 0.5, 2.0, -2.0, 1.0, 1.0]
    past, altered = play(table, config, CostConfig(), targets), play(other, config, CostConfig(), targets)
    assert [step.tolist() for step in past[: cut - 1]] == [step.tolist() for step in altered[: cut - 1]]
    assert past[cut - 1]["equity"] != altered[cut - 1]["equity"]


def test_latency_delays_the_fill_by_that_many_bars() -> None:
    table = flat_bars([100, 101, 102, 103, 104])
    prices = []
    for latency in (0, 1, 2):
        steps = play(table, exposure_config(), NO_COSTS.model_copy(update={"latency": latency}), [1.0, 0.0, 0.0, 0.0])
        prices.append([step["order_price"] for step in steps])
    assert prices == [[101, 102, 0, 0], [0, 102, 103, 0], [0, 0, 103, 104]]


# ---------------------------------------------------------------------- stops
@pytest.mark.parametrize(
    ("bar", "event", "price"),
    [
        ((100, 101, 97, 99), NO_EVENT, 0.0),
        ((100, 101, 95, 99), STOP_LOSS, 95.0),  # touched: fills at the level
        ((90, 92, 88, 91), STOP_LOSS, 90.0),  # gap through the stop: the open, not 95
        ((100, 111, 94, 100), STOP_LOSS, 95.0),  # both inside one bar: the stop comes first
        ((100, 110, 99, 100), NO_EVENT, 0.0),  # a limit that is only touched need not be filled
        ((100, 111, 99, 100), TAKE_PROFIT, 110.0),
        ((115, 116, 94, 100), TAKE_PROFIT, 115.0),  # the open is beyond the limit before anything else can happen
    ],
)
def test_exits_of_a_long_from_100(bar: tuple[float, ...], event: int, price: float) -> None:
    """Stop at 95, take-profit at 110. Rejects stop-price fills through gaps and take-profit before stop."""
    columns = np.array([(100, 100, 100, 100), (100, 100, 100, 100), bar], dtype=float).T
    steps = play(table_of(*columns), exposure_config(stop_loss=0.05, take_profit=0.1), NO_COSTS, [1.0, 1.0])
    assert EVENTS[steps[1]["event"]] == EVENTS[event]
    assert steps[1]["exit_price"] == pytest.approx(price, rel=1e-12)
    assert (steps[1]["units"] == 0.0) == (event != NO_EVENT)


@pytest.mark.parametrize(
    ("bar", "event", "price"),
    [
        ((100, 105, 99, 100), STOP_LOSS, 105.0),
        ((112, 113, 111, 112), STOP_LOSS, 112.0),
        ((100, 106, 89, 100), STOP_LOSS, 105.0),
        ((100, 101, 89, 100), TAKE_PROFIT, 90.0),
        ((85, 86, 84, 85), TAKE_PROFIT, 85.0),
    ],
)
def test_exits_of_a_short_from_100(bar: tuple[float, ...], event: int, price: float) -> None:
    columns = np.array([(100, 100, 100, 100), (100, 100, 100, 100), bar], dtype=float).T
    steps = play(table_of(*columns), exposure_config(stop_loss=0.05, take_profit=0.1), NO_COSTS, [-0.5, -0.5])
    # The target is met again at the open, so the entry may have moved: hold instead, by a tolerance.
    held = play(
        table_of(*columns), exposure_config(stop_loss=0.05, take_profit=0.1, tolerance=0.9), NO_COSTS, [-1.0, -1.0]
    )
    assert EVENTS[held[1]["event"]] == EVENTS[event]
    assert held[1]["exit_price"] == pytest.approx(price, rel=1e-12)
    assert steps[0]["units"] == -500.0


# ---------------------------------------------------------------------- margin and ruin
def test_margin_call_inside_a_bar_and_through_a_gap() -> None:
    """2.5 x long from 100 with 25% maintenance: 100k + 2500 (p - 100) = .25 x 2500 p, p = 80.  Rejects: no margin call,
    and liquidation at 80 when the market opens at 70."""
    costs = NO_COSTS.model_copy(update={"liquidation_bps": 100.0})
    config = exposure_config(tolerance=1.0)
    inside = table_of([100, 100, 99], [100, 100, 99], [100, 100, 75], [100, 100, 90])
    step = play(inside, config, costs, [2.5, 2.5])[1]
    assert step["event"] == LIQUIDATION
    assert step["exit_price"] == pytest.approx(80.0, rel=1e-12)
    assert step["liquidation"] == pytest.approx(0.01 * 2500 * 80, rel=1e-12)
    assert step["equity"] == pytest.approx(100_000 - 2500 * 20 - 2000, rel=1e-12)
    gap = table_of([100, 100, 70], [100, 100, 90], [100, 100, 70], [100, 100, 90])
    step = play(gap, config, costs, [2.5, 0.0])[1]
    assert step["exit_price"] == 70.0
    assert step["order_units"] == 0.0, "the margin call cancels the order to close"
    assert step["equity"] == pytest.approx(100_000 - 2500 * 30 - 0.01 * 2500 * 70, rel=1e-12)


def test_margin_call_of_a_short() -> None:
    """2 x short from 100: 300k - 2000 p = .25 x 2000 p, p = 120."""
    table = table_of([100, 100, 101], [100, 100, 130], [100, 100, 101], [100, 100, 105])
    step = play(table, exposure_config(tolerance=1.0), NO_COSTS, [-2.0, -2.0])[1]
    assert (EVENTS[step["event"]], step["exit_price"]) == ("liquidation", pytest.approx(120.0, rel=1e-12))


def test_nearer_level_wins_between_stop_and_margin_call() -> None:
    table = table_of([100, 100, 99], [100, 100, 99], [100, 100, 60], [100, 100, 90])
    for stop, event, price in ((0.1, STOP_LOSS, 90.0), (0.3, LIQUIDATION, 80.0)):
        step = play(table, exposure_config(tolerance=1.0, stop_loss=stop), NO_COSTS, [2.5, 2.5])[1]
        assert (step["event"], step["exit_price"]) == (event, pytest.approx(price, rel=1e-12))


def test_ruin_terminates_with_a_bounded_reward_and_reports_the_shortfall() -> None:
    """2.5 x long, the market opens 50% lower: equity -25k. Rejects ln of a negative number and a hidden shortfall."""
    config = exposure_config(start="first", report=True, tolerance=1.0)
    simulator = Simulator([flat_bars([100, 100, 50, 50])], config, NO_COSTS, accounts=1)
    simulator.seed(0)
    simulator.reset()
    simulator.step(np.array([2.5]), autoreset=False)
    step = simulator.step(np.array([2.5]), autoreset=False)
    assert step.ledger is not None
    assert step.terminated[0] and not step.truncated[0]
    assert step.reward[0] == pytest.approx(np.log(0.01), rel=1e-12)
    assert step.ledger["equity"][0] == pytest.approx(-25_000.0)
    assert step.ledger["shortfall"][0] == pytest.approx(26_000.0)
    assert np.isfinite(step.obs).all()


def test_one_percent_of_the_start_is_ruin() -> None:
    """Unlevered, the market falls to a half percent: equity 500, above 0. Rejects ruin at 0 alone, after which an
    account of next to nothing would trade on while its reward is cut off."""
    config = exposure_config(start="first", report=True)
    simulator = Simulator([flat_bars([100, 100, 0.5, 0.5])], config, NO_COSTS, accounts=1)
    simulator.seed(0)
    simulator.reset()
    simulator.step(np.array([1.0]), autoreset=False)
    step = simulator.step(np.array([1.0]), autoreset=False)
    assert step.ledger is not None and step.ledger["equity"][0] == pytest.approx(500.0)
    assert step.terminated[0] and step.ledger["shortfall"][0] == pytest.approx(500.0)


def test_a_liquidation_pays_its_penalty_and_another_exit_does_not() -> None:
    """2,500 units at 80 and 50 bps: 1,000. Rejects a penalty that is forgotten, or charged for every exit."""
    costs = NO_COSTS.model_copy(update={"liquidation_bps": 50.0})
    table = table_of([100, 100, 99], [100, 100, 99], [100, 100, 60], [100, 100, 90])
    for stop, penalty in ((0.3, 1000.0), (0.1, 0.0)):
        step = play(table, exposure_config(tolerance=1.0, stop_loss=stop), costs, [2.5, 2.5])[1]
        assert step["liquidation"] == pytest.approx(penalty, rel=1e-12)
    rising = table_of([100, 100, 101], [100, 100, 130], [100, 100, 101], [100, 100, 120])
    step = play(rising, exposure_config(tolerance=1.0, take_profit=0.1), costs, [2.5, 2.5])[1]
    assert step["event"] == TAKE_PROFIT and step["liquidation"] == 0.0


def test_orders_on_their_way_end_with_their_episode() -> None:
    """Rejects an order of the old episode that is filled in the new one."""
    config = exposure_config(start="first", report=True, episode_length=2)
    costs = NO_COSTS.model_copy(update={"latency": 1})
    simulator = Simulator([flat_bars([100] * 8)], config, costs, accounts=1)
    simulator.seed(0)
    simulator.reset()
    assert simulator.step(np.array([1.0]), autoreset=True).obs[0, -1] == 1.0  # waiting for the next bar
    ended = simulator.step(np.array([2.0]), autoreset=True)
    assert ended.truncated[0] and ended.obs[0, -1] == 0.0
    first = simulator.step(np.array([1.0]), autoreset=True)
    assert first.ledger is not None and first.ledger["order_units"][0] == 0.0


# ---------------------------------------------------------------------- sizes
@given(
    target=st.floats(-5, 5),
    equity=st.floats(1, 1e9),
    price=st.floats(1e-4, 1e6),
    exposure=st.floats(-5, 5),
    fee=st.floats(0, 500),
    lot=st.sampled_from([0.0, 1e-3, 1.0, 100.0]),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_order_size_never_exceeds_target_times_equity_over_price(
    target: float, equity: float, price: float, exposure: float, fee: float, lot: float
) -> None:
    """LEDGER L6; rejects units taken for lots, and sizing that forgets the order's own costs."""
    costs = NO_COSTS.model_copy(update={"taker_fee_bps": fee, "lot_size": lot})
    rules = make_rules(exposure_config(), costs)[0]
    units = exposure * equity / price
    wanted = target_units(target, equity, price, units, rules)
    assert abs(wanted) <= abs(target) * equity / price * (1 + 1e-12) + 1e-9 * lot
    assert wanted * target >= 0
    if lot == 0:
        after = equity - fee * 1e-4 * abs(wanted - units) * price
        assert wanted * price == pytest.approx(target * after, rel=1e-9, abs=1e-9 * equity)
    else:
        assert wanted / lot == pytest.approx(round(wanted / lot), abs=1e-6)


def test_lots_minimum_notional_and_tolerance_stop_small_orders() -> None:
    table = flat_bars([100.0] * 4)
    costs = NO_COSTS.model_copy(update={"lot_size": 30.0, "minimum_notional": 9_500.0})
    steps = play(table, exposure_config(), costs, [0.5, 0.58, 0.0])
    # 500 units -> 480 in lots of 30; then 580 -> 570 is an order of 9000, too small; closing is always possible.
    assert [step["units"] for step in steps] == [480.0, 480.0, 0.0]
    steps = play(table, exposure_config(tolerance=0.1), NO_COSTS, [0.5, 0.59, 0.61])
    assert [step["units"] for step in steps] == pytest.approx([500.0, 500.0, 610.0])


@pytest.mark.parametrize(("last", "left"), [(0.0, 0.0), (0.02, 500.0)])
def test_a_position_that_is_worth_less_than_the_minimum_can_be_closed(last: float, left: float) -> None:
    """500 units bought at 100 are worth 5000 at 10: less than the smallest order, and sold all the same; a part of them
    is not. Rejects a position that nobody gets rid of any more."""
    costs = NO_COSTS.model_copy(update={"minimum_notional": 9_500.0})
    steps = play(flat_bars([100.0, 100.0, 10.0, 10.0, 10.0]), exposure_config(), costs, [0.5, 0.0909, last])
    assert [step["units"] for step in steps] == [500.0, 500.0, left]


def test_mask_forbids_positions_that_are_less_than_an_order() -> None:
    def mask(positions: list[float], equity: float, exposure: float, minimum: float) -> list[int]:
        rules = make_rules(exposure_config(), CostConfig(lot_size=1.0, minimum_notional=minimum))[0]
        allowed = np.zeros(len(positions), dtype=np.int8)
        allow_positions(np.array(positions), 1.0, equity, 100.0, exposure, -np.inf, np.inf, False, rules, allowed)
        return list(allowed.tolist())

    assert mask([-1.0, 0.0, 0.1, 1.0], 1000.0, 0.0, 200.0) == [1, 1, 0, 1]
    assert mask([-1.0, 0.0, 0.1, 1.0], 50.0, 0.0, 200.0) == [0, 1, 0, 0]
    assert mask([-1.0, 1.0], 50.0, 0.4, 0.0) == [0, 1], "the choice nearest to the present exposure stays allowed"


# ---------------------------------------------------------------------- a coin flip cannot win
@pytest.mark.parametrize("stops", [False, True], ids=["no stops", "stops"])
def test_a_coin_flip_on_a_random_walk_loses_its_costs(stops: bool) -> None:
    """LEDGER L1: rejects stops that fill at their level through gaps, which earn what the gap has already taken."""
    accounts, bars = 1500, 120
    tables = [random_walk(bars, seed=seed, gap=0.01, inside=0.01, features=1) for seed in range(accounts)]
    levels = {"stop_loss": 0.01, "take_profit": 0.03} if stops else {}
    config = MarketEnvConfig(start="first", symbol="fixed", report=True, action=PositionsAction(), **levels)
    simulator = Simulator(tables, config, CostConfig(borrow_rate=0.0), accounts=accounts)
    simulator.seed(0)
    simulator.reset()
    rng = np.random.default_rng(1)
    gained, cost, wrong = np.zeros(accounts), np.zeros(accounts), np.zeros(accounts)
    target = rng.integers(0, 3, accounts)
    for _ in range(bars - 2):
        flip = rng.random(accounts) < 0.3  # positions must live long enough to meet their stops
        target = np.where(flip, rng.integers(0, 3, accounts), target)
        before = simulator.state.records["entry"].copy()
        step = simulator.step(simulator.targets(target), autoreset=False)
        assert step.ledger is not None
        ledger = step.ledger
        gained += ledger["price_pnl"]
        cost += total_cost(ledger)
        # What a simulator that fills at the stop price would have paid out on top.
        side = -np.sign(ledger["exit_units"])
        stop = before * (1 - side * 0.01)
        stopped = (ledger["event"] == STOP_LOSS) & (ledger["order_units"] == 0)
        gapped = stopped & (side * (ledger["exit_price"] - stop) < 0)
        wrong += np.where(gapped, -ledger["exit_units"] * (stop - ledger["exit_price"]), 0.0)
        assert identity_error(ledger).max() < 1e-9
    standard_error = gained.std() / np.sqrt(accounts)
    change = (simulator.state.records["equity"] - 100_000).mean()
    assert abs(gained.mean()) < 4 * standard_error
    assert cost.mean() > 4 * standard_error  # otherwise the next line would say nothing
    assert change == pytest.approx(-cost.mean(), abs=4 * standard_error)
    if stops:
        assert (gained + wrong).mean() > 4 * standard_error, "the wrong simulator fails the same check"


# ---------------------------------------------------------------------- units of measurement
@pytest.mark.parametrize("what", ["prices", "volumes", "volumes without impact"])
def test_scale_of_prices_and_volumes_changes_nothing(what: str) -> None:
    """LEDGER L4. Prices x 1000 with cash x 1000; volumes x 1000 with cash and lots x 1000, or without impact."""
    k = 1000.0
    base = random_walk(60, seed=5)
    fields = {name: getattr(base, name) for name in ("open", "high", "low", "close", "volume")}
    costs, cash = CostConfig(lot_size=1.0, minimum_notional=500.0), 100_000.0
    if what == "volumes without impact":
        costs = costs.model_copy(update={"impact_bps": 0.0})
    scaled_costs, scaled_cash = costs, cash
    if what == "prices":
        fields |= {name: fields[name] * k for name in ("open", "high", "low", "close")}
        scaled_cash = cash * k
        scaled_costs = costs.model_copy(update={"minimum_notional": 500.0 * k})
    else:
        fields["volume"] = fields["volume"] * k
        if what == "volumes":
            scaled_cash = cash * k
            scaled_costs = costs.model_copy(update={"lot_size": k, "minimum_notional": 500.0 * k})
    other = table_of(*[fields[n] for n in ("open", "high", "low", "close", "volume")], features=base.features)
    rng = np.random.default_rng(0)
    targets = rng.uniform(-2, 2, 58)
    results = []
    for table, cost, money in ((base, costs, cash), (other, scaled_costs, scaled_cash)):
        config = exposure_config(stop_loss=0.02, take_profit=0.03, start="first", initial_cash=money)
        simulator = Simulator([table], config, cost, accounts=1)
        simulator.seed(0)
        simulator.reset()
        steps = [simulator.step(np.array([target]), autoreset=False) for target in targets]
        results.append((np.array([s.reward[0] for s in steps]), np.array([s.obs[0] for s in steps])))
    (reward, obs), (scaled_reward, scaled_obs) = results
    assert np.abs(reward).max() > 1e-3
    assert scaled_reward == pytest.approx(reward, rel=1e-9, abs=1e-12)
    assert scaled_obs == pytest.approx(obs, rel=1e-6, abs=1e-7)  # observations are float32
