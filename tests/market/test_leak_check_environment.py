"""The leak-check of environments finds each planted leak and passes the market environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tailwise.bars.bars import Bars
from tailwise.bars.builtin import nasdaq, sp500
from tailwise.bars.synthetic import make
from tailwise.core.errors import ConfigError, DataError, EnvironmentContractError
from tailwise.features.table import FeatureTable
from tailwise.market.costs import CostConfig
from tailwise.market.env import ExposureAction, MarketEnv, MarketEnvConfig, SingleMarketEnv
from tailwise.market.env_config import WeightsAction
from tailwise.market.leaks.environment import check_environment
from tailwise.market.tables import SymbolTable

Column = Callable[[Bars], Any]


def past_return(bars: Bars) -> Any:
    return np.diff(np.log(bars.close), prepend=np.log(bars.open[0]))


def weekday(bars: Bars) -> Any:
    return (bars.time.astype("datetime64[D]").astype(np.int64) + 3) % 7


def next_return(bars: Bars) -> Any:
    return np.append(past_return(bars)[1:], 0.0)


def next_range(bars: Bars) -> Any:
    return np.append(np.log(bars.high / bars.low)[1:], 0.0)


def next_open(bars: Bars) -> Any:
    return np.append(bars.open[1:], bars.close[-1]) / bars.close - 1


def table_of(bars: Bars, **columns: Column) -> SymbolTable:
    chosen = {"past_return": past_return, "weekday": weekday, **columns}
    values = np.stack([np.asarray(column(bars), dtype=np.float32) for column in chosen.values()], axis=1)
    return SymbolTable.from_bars(bars, FeatureTable(values, tuple(chosen), 3))


def build_of(
    config: MarketEnvConfig | None = None, costs: CostConfig | None = None, **columns: Column
) -> Callable[[Sequence[Bars]], MarketEnv]:
    return lambda bars: MarketEnv([table_of(one, **columns) for one in bars], config, costs, num_envs=2)


@pytest.fixture(scope="module")
def bars() -> Bars:
    return sp500().slice(0, 600)


# --- silence -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "costs"),
    [
        (MarketEnvConfig(), CostConfig()),
        (MarketEnvConfig(action=ExposureAction(low=-2, high=2), stop_loss=0.01, take_profit=0.02), CostConfig()),
        (MarketEnvConfig(report=True, episode_length=20), CostConfig(latency=2, lot_size=30.0)),
        (MarketEnvConfig(fill="close", report=True), CostConfig(impact_bps=10.0)),
    ],
)
def test_the_market_environment_passes(config: MarketEnvConfig, costs: CostConfig, bars: Bars) -> None:
    report = check_environment(build_of(config, costs), bars, cuts=6)
    assert report.passed, report.sentences()
    assert report.comparisons == 2 * len(report.cuts)
    assert report.values > 10_000


def test_several_symbols_of_unequal_length_pass(bars: Bars) -> None:
    report = check_environment(build_of(), [bars, nasdaq().slice(0, 300)], cuts=3)
    assert report.passed, report.sentences()
    assert min(report.cuts) == 4
    assert max(report.cuts) == 599


def test_the_single_environment_passes(bars: Bars) -> None:
    report = check_environment(lambda given: SingleMarketEnv([table_of(one) for one in given]), bars, cuts=3)
    assert report.passed, report.sentences()


def portfolio_of(given: Sequence[Bars], column: Column = past_return) -> MarketEnv:
    tables = []
    for one in given:
        values = np.asarray(column(one), dtype=np.float32)[:, None]
        tables.append(SymbolTable.from_bars(one, FeatureTable(values, ("feature",), 2)))
    config = MarketEnvConfig().model_copy(update={"action": WeightsAction()})
    return MarketEnv(tables, config, CostConfig(), num_envs=2)


def test_the_portfolio_passes_and_its_leak_is_found(bars: Bars) -> None:
    given = [bars.slice(0, 300), nasdaq().slice(50, 350)]
    report = check_environment(portfolio_of, given, cuts=3)
    assert report.passed, report.sentences()
    leaky = check_environment(lambda other: portfolio_of(other, next_return), given, cuts=3)
    assert len([finding for finding in leaky.findings if "feature" in finding.name]) == 2


# --- planted leaks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leak", [next_return, next_range, next_open])
def test_a_feature_that_knows_the_next_bar_is_found(leak: Column, bars: Bars) -> None:
    report = check_environment(build_of(leak=leak), bars, cuts=4)
    assert [(finding.name, finding.reach) for finding in report.findings] == [("observation 'leak'", 1)]


def test_the_next_return_of_the_leak_market_is_not_passed() -> None:
    """The column comes ready-made with the bars and does not move with them: it is reported all the same."""
    series, columns = make("leak", seed=2, length=400)
    foretold = columns["next_log_return"]
    report = check_environment(build_of(told=lambda b: foretold[: len(b)]), series, cuts=4)
    assert report.unjudged == ("observation 'told'",)
    assert not report.passed
    computed = check_environment(build_of(told=next_return), series, cuts=4)
    assert [finding.name for finding in computed.findings] == ["observation 'told'"]


class PeekingWrapper(gym.ObservationWrapper):  # type: ignore[type-arg]
    """Appends the gap to the next open."""

    def observation(self, observation: Any) -> Any:
        simulator = self.unwrapped.simulator  # type: ignore[attr-defined]
        row, table = simulator.state.records["row"][0], simulator.table.bars
        following = table["open"][min(row + 1, len(table) - 1)]
        return np.append(observation, np.float32(following / table["close"][row] - 1))


def test_a_wrapper_that_peeks_at_the_next_open_is_found(bars: Bars) -> None:
    report = check_environment(lambda given: PeekingWrapper(SingleMarketEnv([table_of(given[0])])), bars, cuts=3)
    assert [finding.name for finding in report.findings] == ["observation 6"]


def test_fills_at_the_price_of_a_later_bar_are_found_in_rewards(bars: Bars) -> None:
    """The order is filled at the open of bar t+2, which is not known when the account is marked at the close of t+1."""

    def build(given: Sequence[Bars]) -> MarketEnv:
        table = table_of(given[0])
        late = np.append(table.open[1:], table.close[-1])
        high, low = np.maximum(table.high, late), np.minimum(table.low, late)
        return MarketEnv([replace(table, open=late, high=high, low=low)], MarketEnvConfig(report=True))

    report = check_environment(build, bars, cuts=4)
    names = {finding.name for finding in report.findings}
    assert {"reward", "info.parts.order_price", "info.parts.equity"} <= names
    assert "observation 'past_return'" not in names


def test_a_mask_that_knows_the_next_bar_is_found(bars: Bars) -> None:
    class Hinting(SingleMarketEnv):
        def _info(self, info: dict[str, Any]) -> dict[str, Any]:
            row, table = self.simulator.state.records["row"][0], self.simulator.table.bars
            rises = table["close"][min(row + 1, len(table) - 1)] > table["close"][row]
            return {**info, "action_mask": np.array([1, 1, rises], dtype=np.int8)}

    report = check_environment(lambda given: Hinting([table_of(given[0])]), bars, cuts=6)
    assert [finding.name for finding in report.findings] == ["info.action_mask"]


def test_random_starts_that_depend_on_prices_are_found(bars: Bars) -> None:
    """Episodes that begin only before rises are a leak, though every single observation is honest."""

    class Lucky(MarketEnv):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            if options is None:
                gains = np.diff(self.simulator.table.bars["close"])[3:]
                options = {"start": 3 + int(np.argmax(gains))}
            return super().reset(seed=seed, options=options)

    report = check_environment(lambda given: Lucky([table_of(given[0])]), bars, cuts=4)
    assert [finding.name for finding in report.findings] == ["random start (row)"]


def test_a_warm_up_that_depends_on_the_future_is_found(bars: Bars) -> None:
    def build(given: Sequence[Bars]) -> MarketEnv:
        table = table_of(given[0])
        return MarketEnv([replace(table, first_valid=3 + int(table.close[-1] > 10_000))])

    report = check_environment(build, bars, cuts=6)
    assert [finding.name for finding in report.findings] == ["the first valid bar"]


def test_a_symbol_that_knows_the_future_of_another_is_found(bars: Bars) -> None:
    other = replace(nasdaq().slice(0, 600), symbol="OTHER")

    def build(given: Sequence[Bars]) -> MarketEnv:
        ahead, same_time = next_return(given[1]), np.searchsorted(given[1].time, given[0].time)
        told = ahead[np.minimum(same_time, len(ahead) - 1)]
        return MarketEnv([table_of(given[0], other=lambda _: told), table_of(given[1], other=past_return)])

    report = check_environment(build, [bars, other], cuts=3)
    assert [(finding.name, finding.symbol) for finding in report.findings] == [("observation 'other'", "SP500")]


# --- each probe is needed, and what the verdict rests on -----------------------------------------------------------


@pytest.mark.parametrize(
    ("needed", "other", "leak"), [("shuffle", "scale", next_range), ("scale", "shuffle", next_open)]
)
def test_without_this_probe_a_leak_would_be_missed(needed: Any, other: Any, leak: Column) -> None:
    """A bar's range does not know its scale, and a market without gaps has none after shuffling either."""
    series, _ = make("random_walk", seed=4, length=300)

    def gapless(given: Bars) -> Any:
        return leak(given) + past_return(given)  # varies, so that it is no constant on the real bars

    assert check_environment(build_of(leak=gapless), series, cuts=4, probes=(other,)).passed
    assert not check_environment(build_of(leak=gapless), series, cuts=4, probes=(needed,)).passed


def test_an_environment_that_ignores_its_bars_is_not_passed(bars: Bars) -> None:
    """Rejects a check that takes a closure over other data for a causal environment."""
    table = table_of(bars)
    report = check_environment(lambda _: MarketEnv([table]), bars, cuts=3)
    assert not report.findings
    assert {"reward", "observation 'past_return'"} <= set(report.unjudged)


def test_an_environment_that_its_seed_does_not_decide_is_refused(bars: Bars) -> None:
    rng = np.random.default_rng(0)

    class Noisy(SingleMarketEnv):
        def _info(self, info: dict[str, Any]) -> dict[str, Any]:
            return {**info, "noise": rng.random()}

    with pytest.raises(EnvironmentContractError, match=r"info\.noise differs"):
        check_environment(lambda given: Noisy([table_of(given[0])]), bars, cuts=3)


def test_truncation_and_bars_that_cannot_be_cut_are_errors(bars: Bars) -> None:
    with pytest.raises(ConfigError, match="'truncate' is not one of them"):
        check_environment(build_of(), bars, probes=("truncate",))
    with pytest.raises(DataError, match="no value can be compared"):
        check_environment(build_of(), bars, first_start=599)
    with pytest.raises(ConfigError, match="lead is 0"):
        check_environment(build_of(), bars, lead=0)
