"""Each guard by hand: what it cuts, what it lets through, how long it lasts, and what the agent sees of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwise.bars.builtin import sp500
from tailwise.core.errors import CheckpointError, ConfigError, DataError, ShapeError
from tailwise.core.streams import Streams
from tailwise.features.table import FeatureTable
from tailwise.market.account_guards import AccountGuards, GuardedOrder, Money, Units
from tailwise.market.costs import NO_COSTS, CostConfig
from tailwise.market.env import ExposureAction, MarketEnv, MarketEnvConfig
from tailwise.market.env_config import NO_GUARDS, GuardsConfig
from tailwise.market.guard_arrays import GUARD, GUARDS, guard_names, make_limits
from tailwise.market.guards import guarded_order
from tailwise.market.records import LEDGER, make_rules
from tailwise.market.tables import SymbolTable
from tailwise.run.envs import EnvDriver
from tests.market.worlds import exposure_config, flat_bars, play, random_walk, table_of

HOUR = np.timedelta64(3600 * 10**9, "ns")


def timed(table: SymbolTable, hours: Any) -> SymbolTable:
    """6-hour bars that open at the given hours, counted from midnight of 2024-03-01."""
    start = np.datetime64("2024-03-01", "ns")
    return replace(table, time=start + np.asarray(hours) * HOUR, bar=6 * HOUR)


def guarded(**limits: Any) -> MarketEnvConfig:
    return exposure_config(guards=GuardsConfig(**limits))


def acted(steps: list[Any]) -> list[tuple[str, ...]]:
    return [guard_names(int(step["guard"])) for step in steps]


def units(steps: list[Any]) -> list[float]:
    return [float(step["units"]) for step in steps]


def test_all_off_by_default() -> None:
    """Observation, infos and ledger of a market without guards are those of a market that has none."""
    assert not NO_GUARDS.active and MarketEnvConfig().guards == NO_GUARDS
    env = MarketEnv([random_walk(30, seed=0)], num_envs=2)
    assert "halted" not in env.observation_names and env.guard_counts() == {}
    assert env.reset()[1] == {}
    assert not any(name.startswith("guard_") for name in env.get_state())
    assert GuardsConfig(on_halt="flatten", volatility_bars=9).active is False
    assert GuardsConfig(order_units=5.0).active is True


# ---------------------------------------------------------------------- exposure and size
def test_exposure_is_clipped() -> None:
    steps = play(flat_bars([100.0] * 4), guarded(max_exposure=0.5), NO_COSTS, [2.0, -2.0, 0.3])
    assert units(steps) == pytest.approx([500.0, -500.0, 300.0])
    assert acted(steps) == [("exposure",), ("exposure",), ()]


def test_a_position_that_grew_beyond_the_limit_is_brought_back() -> None:
    """Long 0.5 from 100, price 300: exposure 150 / 200 = 0.75. Target 0.7 is cut to 0.5."""
    steps = play(flat_bars([100.0, 100.0, 300.0, 300.0]), guarded(max_exposure=0.5), NO_COSTS, [0.5, 0.7])
    assert steps[1]["units"] == pytest.approx(0.5 * 200_000 / 300)


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [
        ({"order_units": 300.0}, [300, 600, 900, 1000, 700]),
        ({"order_notional": 40_000.0}, [400, 800, 1000, 1000, 600]),
        ({"order_fraction": 0.25}, [250, 500, 750, 1000, 750]),
    ],
    ids=["units", "notional", "fraction"],
)
def test_large_orders_are_cut_whichever_way_they_go(limit: dict[str, float], sizes: list[float]) -> None:
    """Rejects a limit that only knows one unit, and one that forgets orders that reduce."""
    steps = play(flat_bars([100.0] * 7), guarded(**limit), NO_COSTS, [1.0, 1.0, 1.0, 1.0, 0.0])
    assert units(steps) == pytest.approx(sizes)
    assert acted(steps)[0] == acted(steps)[4] == ("order_size",)


@given(
    target=st.floats(-5, 5),
    equity=st.floats(100, 1e8),
    price=st.floats(1e-2, 1e5),
    lots=st.integers(-500, 500),
    lot=st.sampled_from([0.0, 1e-3, 0.1, 1.0, 100.0]),
    fraction=st.one_of(st.none(), st.floats(0.01, 2)),
    most_units=st.one_of(st.none(), st.floats(0.1, 1e6)),
    notional=st.one_of(st.none(), st.floats(10, 1e6)),
    fee=st.floats(0, 100),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_no_order_exceeds_its_limit_in_any_unit(
    target: float,
    equity: float,
    price: float,
    lots: int,
    lot: float,
    fraction: float | None,
    most_units: float | None,
    notional: float | None,
    fee: float,
) -> None:
    """LEDGER L6. Rejects units taken for lots; `SizeInLots` in test_guards_reference.py is that simulator."""
    config = guarded(order_fraction=fraction, order_units=most_units, order_notional=notional)
    costs = NO_COSTS.model_copy(update={"lot_size": lot, "taker_fee_bps": fee})
    held = lots * (lot or 0.37)
    wanted, code = guarded_order(
        target,
        held,
        equity,
        price,
        np.zeros(1, dtype=GUARD)[0],
        make_limits(config.guards)[0],
        0,
        make_rules(config, costs)[0],
    )
    order = GuardedOrder(Units(wanted - held), Money(price), Units(lot), guard_names(code))
    slack = 1 + 1e-9
    rounding = 1e-12 * abs(held) + 1e-9 * lot  # of units: `wanted - held` is a difference of two floats
    if most_units is not None:
        assert abs(order.units) <= most_units * slack + rounding
    if notional is not None:
        assert order.notional <= notional * slack + rounding * price
    if fraction is not None:
        assert order.notional <= fraction * equity * slack + rounding * price
    if lot > 0:
        assert order.lots * lot == pytest.approx(order.units, rel=1e-12, abs=1e-6 * lot + rounding)
    elif order.units != 0.0:
        with pytest.raises(ConfigError, match="no lot size"):
            _ = order.lots
    if (fraction, most_units, notional) == (None, None, None):
        assert code == 0


# ---------------------------------------------------------------------- turnover
def test_turnover_of_a_day_is_used_up_and_free_the_next_day() -> None:
    """Limit 1 x 100k a day. Rejects a limit that locks a position in: closing always passes."""
    table = timed(flat_bars([100.0] * 8), 6 * np.arange(8))  # bars 0-3 on day one, 4-7 on day two
    steps = play(table, guarded(daily_turnover=1.0), NO_COSTS, [0.7, -1.0, 0.0, 0.5, 0.5, 0.5, -2.0])
    # Day one: 700; sells 700 and has nothing left for the short; flat. Bar 4 is a new day.
    assert units(steps) == pytest.approx([700.0, 0.0, 0.0, 500.0, 500.0, 500.0, -0.0])
    assert acted(steps)[:3] == [(), ("turnover",), ()]
    assert acted(steps)[6] == ("turnover",), "500 bought, 500 sold, nothing left for the short"
    days = play(table, guarded(daily_turnover=1.0), NO_COSTS, [0.7, 0.7, 0.9, 1.4, 1.4, 1.4, 1.4])
    assert units(days) == pytest.approx([700.0, 700.0, 900.0, 1400.0, 1400.0, 1400.0, 1400.0])


def test_exits_use_up_turnover() -> None:
    """Bought 600, stopped out of 600: of 1.5 x 100k, 300 less are left than a simulator thinks that forgets exits."""
    table = timed(
        table_of([100] * 5, [100, 100, 100, 100, 100], [100, 100, 90, 100, 100], [100, 100, 95, 100, 100]),
        [0, 6, 12, 18, 23],
    )
    config = exposure_config(guards=GuardsConfig(daily_turnover=1.5), stop_loss=0.05)
    steps = play(table, config, NO_COSTS, [0.6, 0.6, 0.9])
    assert steps[1]["exit_units"] == pytest.approx(-600.0)
    assert steps[2]["units"] == pytest.approx((150_000 - 60_000 - 600 * 95) / 100)


# ---------------------------------------------------------------------- losses
def test_daily_loss_lets_only_reductions_pass_until_the_next_day() -> None:
    """Long 1000 at 100; 97 is a loss of 3%: halted. Rejects a halt that is lifted when the price comes back."""
    prices = [100.0, 100.0, 97.0, 100.0, 100.0, 100.0]
    table = timed(flat_bars(prices), 6 * np.arange(6))
    config = guarded(daily_loss=0.02)
    steps = play(table, config, NO_COSTS, [1.0, 1.0, 2.0, 2.0, 2.0])
    # Bar 2 opens at 97, which halts the day; the decisions at the closes of bars 2 and 3 are held. At the close of
    # bar 4, a new day, 2.0 passes.
    assert units(steps)[:4] == pytest.approx([1000.0] * 4)
    assert units(steps)[4] == pytest.approx(2000.0)
    assert acted(steps) == [(), (), ("daily_loss",), ("daily_loss",), ()]
    reducing = play(table, config, NO_COSTS, [1.0, 1.0, 0.5, -1.0, -1.0])
    assert units(reducing)[2:] == pytest.approx([500.0, 0.0, -1000.0]), "never through zero on the halted day"


def test_flatten_closes_at_once_whatever_its_size() -> None:
    """1000 units bought by orders of 500; a loss of 4% sells them in one order."""
    table = timed(flat_bars([100.0, 100.0, 100.0, 96.0]), 5 * np.arange(4))
    config = guarded(daily_loss=0.02, on_halt="flatten", order_units=500.0)
    steps = play(table, config, NO_COSTS, [1.0, 1.0, 1.0])
    assert units(steps) == pytest.approx([500.0, 1000.0, 0.0])
    assert acted(steps)[2] == ("daily_loss",)
    assert units(play(table, guarded(daily_loss=0.02), NO_COSTS, [1.0, 1.0, 1.0]))[2] == pytest.approx(1000.0)


def test_drawdown_halts_the_rest_of_the_episode_and_not_the_next_one() -> None:
    table = flat_bars([100.0, 100.0, 80.0, 120.0, 120.0, 120.0])
    steps = play(table, guarded(drawdown=0.1), NO_COSTS, [1.0, 1.0, 0.5, 1.0, 1.0])
    halted = steps[1]["units"]
    assert halted == pytest.approx(1000.0)
    assert steps[2]["units"] < halted and steps[4]["units"] <= steps[2]["units"]
    config = guarded(drawdown=0.1).model_copy(update={"start": "first", "episode_length": 3})
    env = MarketEnv([table], config, NO_COSTS, num_envs=1)
    env.reset()
    halts = [float(env.step(np.array([[1.0]]))[0][0, -1]) for _ in range(4)]
    assert env.observation_names[-1] == "halted"
    assert halts == [0.0, 1.0, 0.0, 0.0], "the third step ends the episode; the fourth is the first of the next"


# ---------------------------------------------------------------------- bars
def test_no_order_on_a_stale_bar() -> None:
    """Bar 2 opens 24 hours after bar 1: what was decided before is not filled there, nor what is decided on it."""
    table = timed(flat_bars([100.0] * 6), [0, 6, 30, 36, 42, 48])
    steps = play(table, guarded(stale_bars=3.0), NO_COSTS, [0.5, 1.0, 1.0, 1.0, 1.0])
    assert units(steps) == pytest.approx([500.0, 500.0, 500.0, 1000.0, 1000.0])
    assert acted(steps) == [(), ("stale_bar",), ("stale_bar",), (), ()]
    assert acted(play(table, guarded(stale_bars=4.0), NO_COSTS, [0.5, 1.0, 1.0])) == [(), (), ()]


@pytest.mark.parametrize(
    ("limits", "bar", "at_open"),
    [
        ({"absurd_gap": 0.2}, (130, 130, 100, 100), True),
        ({"absurd_move": 0.2}, (100, 130, 100, 130), False),
        ({"absurd_flat_bars": 1}, (100, 100, 100, 100), False),
    ],
    ids=["gap", "move", "flat"],
)
def test_no_order_on_an_absurd_bar(limits: dict[str, Any], bar: tuple[float, ...], at_open: bool) -> None:
    """Rejects a guard that knows the close of a bar at its open: only a gap stops the order that is filled there."""
    quiet = (100, 101, 99, 100)
    columns = np.array([quiet, quiet, bar, quiet, quiet], dtype=float).T
    steps = play(table_of(*columns), guarded(**limits), NO_COSTS, [0.0, 0.5, 1.0, 1.0])
    assert (acted(steps)[1] == ("absurd_bar",)) == at_open
    assert acted(steps)[2] == ("absurd_bar",)
    assert steps[2]["units"] == steps[1]["units"] == pytest.approx(0.0 if at_open else 500.0)


def test_stops_work_on_a_bar_that_is_not_believed() -> None:
    """A guard must never keep a stop from closing a position."""
    columns = np.array([(100, 100, 100, 100), (100, 100, 100, 100), (70, 71, 69, 70), (70, 71, 69, 70)], float).T
    config = exposure_config(guards=GuardsConfig(absurd_gap=0.2), stop_loss=0.1)
    steps = play(table_of(*columns), config, NO_COSTS, [1.0, 1.0])
    assert steps[1]["exit_price"] == 70.0 and steps[1]["units"] == 0.0


def test_a_market_that_became_wilder_is_believed_again() -> None:
    """Limit 6 x volatility, which was 0.1% and is 2% from bar 60 on; one bad price alone stays flagged."""
    rng = np.random.default_rng(0)
    moves = np.concatenate([rng.choice([-1e-3, 1e-3], 60), rng.choice([-0.02, 0.02], 60)])
    close = 100 * np.exp(np.cumsum(moves))
    table = table_of(close, close * 1.001, close * 0.999, close)
    config = exposure_config(guards=GuardsConfig(absurd_volatility=6.0, volatility_bars=20), tolerance=0.0)
    steps = play(table, config, NO_COSTS, [0.5, 0.6] * 59)
    flagged = [number for number, names in enumerate(acted(steps)) if "absurd_bar" in names]
    assert flagged and flagged[0] == 60 and flagged[-1] < 66


# ---------------------------------------------------------------------- what is missing gets a sentence
@pytest.mark.parametrize("limit", [{"daily_turnover": 1.0}, {"daily_loss": 0.1}, {"stale_bars": 3.0}])
def test_guards_that_need_time_refuse_bars_without(limit: dict[str, float]) -> None:
    with pytest.raises(
        ConfigError, match=rf"env\.guards\.{next(iter(limit))} needs the time of each bar, and TEST has"
    ):
        play(flat_bars([100.0] * 3), guarded(**limit), NO_COSTS, [0.0])


def test_times_are_checked() -> None:
    bars = flat_bars([100.0] * 3)
    with pytest.raises(DataError, match=r"row 2: opens at 2024-03-01T06.*sort"):
        play(timed(bars, [0, 6, 6]), exposure_config(), NO_COSTS, [0.0])
    with pytest.raises(ShapeError, match=r"time has shape \(2,\)"):
        play(timed(bars, [0, 6]), exposure_config(), NO_COSTS, [0.0])
    with pytest.raises(DataError, match="time was given without bar"):
        play(replace(timed(bars, [0, 6, 12]), bar=None), exposure_config(), NO_COSTS, [0.0])


def test_a_live_feed_out_of_order_is_refused() -> None:
    config, now = guarded(max_exposure=1.0), np.datetime64("2024-03-01", "ns")
    equity = Money(1e5)
    live = AccountGuards(config, NO_COSTS, bar=6 * HOUR, time=now, equity=equity)
    live.close_bar(now, 1.0, 1.0, 1.0, 1.0, equity=equity, peak=equity)
    with pytest.raises(DataError, match="out of order"):
        live.open_bar(now, 1.0, last_equity=equity, equity=equity, peak=equity)
    with pytest.raises(ConfigError, match="next_open"):
        AccountGuards(exposure_config(fill="close"), NO_COSTS, bar=6 * HOUR, time=now, equity=equity)


def test_bars_bring_their_own_time_and_the_driver_trains_on_guards() -> None:
    """Real daily bars: a day is a bar, so a loss of the day holds the decision made at its close."""
    bars = sp500().slice(0, 300)
    features = FeatureTable(np.zeros((300, 1), dtype=np.float32), ("nothing",), 0)
    table = SymbolTable.from_bars(bars, features)
    assert table.time is not None and table.bar == np.timedelta64(1, "D")
    config = MarketEnvConfig(guards=GuardsConfig(daily_loss=0.01, max_exposure=0.9), start="first", report=True)
    env = MarketEnv([table], config, CostConfig(), num_envs=2)
    driver = EnvDriver(env, Streams(1), name="environment/train")
    driver.reset()
    for number in range(250):
        result = driver.step(np.array([number // 3 % 2, 1]) * 2)
        assert result.mask is not None and result.mask.any(axis=1).all() and result.anomalies == 0
    counts = env.guard_counts()
    assert counts["daily_loss"] > 0 and counts["exposure"] > 0 and counts["stale_bar"] == 0


# ---------------------------------------------------------------------- state and report
def market(seed: int = 0, latency: int = 0) -> MarketEnv:
    walk = random_walk(300, seed=2, gap=0.02, inside=0.02)
    guards = GuardsConfig(max_exposure=1.2, order_fraction=0.8, daily_turnover=1.5, daily_loss=0.02, drawdown=0.15)
    action = ExposureAction(low=-2.0, high=2.0)
    config = MarketEnvConfig(episode_length=30, report=True, guards=guards, action=action)
    costs = CostConfig(latency=latency)
    return MarketEnv([timed(walk, 6 * np.arange(300))], config, costs, num_envs=16, seed=seed)


def roll(env: MarketEnv, steps: int) -> list[Any]:
    actions = np.random.default_rng(5).uniform(-2, 2, (steps, 16, 1)).astype(np.float32)
    return [env.step(action) for action in actions]


@pytest.mark.parametrize("forgotten", [None, "guard_day_equity", "guard_turnover", "guard_halted"])
def test_saved_and_restored_guards_continue_bit_for_bit(forgotten: str | None) -> None:
    """Also the other way round: a state without one of its parts gives another path."""
    env = market(latency=1)
    env.reset(seed=3)
    roll(env, 43)
    state = env.get_state()
    path = roll(env, 50)
    if forgotten is not None:
        state[forgotten] = np.zeros_like(state[forgotten])
    fresh = market(seed=9, latency=1)
    fresh.set_state(state)
    again = roll(fresh, 50)
    same = all(np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1]) for a, b in zip(path, again, strict=True))
    assert same == (forgotten is None)
    if forgotten is None:
        assert env.guard_counts() == fresh.guard_counts()


def test_a_state_without_guards_is_refused() -> None:
    env = market()
    env.reset()
    state = {name: value for name, value in env.get_state().items() if not name.startswith("guard_")}
    with pytest.raises(CheckpointError, match="no guards, this market has guards"):
        env.set_state(state)


def test_interventions_are_counted_and_reported() -> None:
    env = market()
    env.reset(seed=1)
    codes = np.stack([step[4]["parts"]["guard"] for step in roll(env, 80)])
    counted = {name: int((codes >> k & 1).sum()) for k, name in enumerate(GUARDS)}
    assert env.guard_counts() == counted
    assert min(counted[name] for name in ("exposure", "order_size", "turnover", "daily_loss", "drawdown")) > 0
    assert "guard" in (LEDGER.names or ())
    assert env.observation_names[-2:] == ("halted", "turnover_left")
    obs = roll(env, 40)[-1][0]
    assert set(np.unique(obs[:, -2])) <= {0.0, 1.0} and (obs[:, -1] >= 0).all() and (obs[:, -1] <= 1).all()
