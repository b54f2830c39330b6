"""Each cost alone, by hand, and nothing else charged with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tailwise.core.config import parse
from tailwise.core.errors import ConfigError, DataError
from tailwise.market.costs import (
    COMPONENTS,
    COSTS,
    NO_COSTS,
    CostConfig,
    components_of,
    cost_words,
    guessed_costs,
)
from tailwise.market.env_config import ExposureAction, MarketEnvConfig
from tailwise.market.records import make_rules
from tailwise.market.tables import MarketTable
from tests.market.worlds import exposure_config, flat_bars, play, table_of

TWO_BARS = flat_bars([100.0, 100.0], volume=[40_000.0, 40_000.0])

# name of the component, cost settings, target, amount by hand; equity 100k, price 100, 252 bars a year
ALONE: list[tuple[str, dict[str, Any], float, float]] = [
    ("fee", {"taker_fee_bps": 10.0}, 1.0, 100_000 / 1.001 * 0.001),
    ("spread", {"half_spread_bps": 10.0}, 1.0, 100_000 / 1.001 * 0.001),
    ("slippage", {"slippage_bps": 10.0}, -1.0, 100_000 / 1.001 * 0.001),  # after costs the short is 1 x equity
    ("impact", {"impact_bps": 20.0}, 1.0, 100_000 * 0.002 * np.sqrt(1000 / 40_000)),
    ("borrow", {"borrow_rate": 0.252}, -1.0, 100_000 * 0.001),
    ("interest", {"cash_rate": 0.252}, 0.0, 100_000 * 0.001),
    ("interest", {"cash_rate": 0.252}, -1.0, 100_000 * 0.001),  # the proceeds of the short earn nothing
    ("interest", {"cash_rate": 0.252}, 0.5, 50_000 * 0.001),
    ("interest", {"loan_rate": 0.252}, 3.0, -200_000 * 0.001),
    ("funding", {"funding_bps": 10.0}, 2.0, 200_000 * 0.001),
    ("funding", {"funding_bps": 10.0}, -2.0, -200_000 * 0.001),
]


@pytest.mark.parametrize(("name", "settings", "target", "amount"), ALONE)
def test_each_cost_alone(name: str, settings: dict[str, Any], target: float, amount: float) -> None:
    """Rejects a cost charged twice, under another name, or on the wrong amount."""
    (step,) = play(TWO_BARS, exposure_config(), NO_COSTS.model_copy(update=settings), [target])
    assert step[name] == pytest.approx(amount, rel=1e-12)
    assert [other for other in COMPONENTS if step[other] != 0] == [name]
    assert step["equity"] == pytest.approx(100_000 + COMPONENTS[name] * amount, rel=1e-14)


@pytest.mark.parametrize(("fill", "expected"), [("next_open", [0.0, 1000.0]), ("close", [1000.0, 0.0])])
def test_dividends_go_to_whoever_held_over_the_gap(fill: str, expected: list[float]) -> None:
    """1000 units, 1 per unit at each open; a position bought at the open of the ex-day gets nothing, one sold at it
    still does. A short pays."""
    table = flat_bars([100.0, 100.0, 100.0], dividends=np.array([0.0, 1.0, 1.0]))
    steps = play(table, exposure_config(fill=fill), NO_COSTS, [1.0, 0.0])
    assert [step["dividends"] for step in steps] == pytest.approx(expected)
    steps = play(table, exposure_config(fill=fill), NO_COSTS, [-1.0, 0.0])
    assert [step["dividends"] for step in steps] == pytest.approx([-amount for amount in expected])


def test_take_profit_is_a_resting_order_and_a_stop_is_not() -> None:
    """Take-profit: maker fee only. Stop: taker fee, spread, slippage and impact."""
    costs = CostConfig(taker_fee_bps=7.0, maker_fee_bps=3.0, borrow_rate=0.0, loan_rate=0.0)
    config = exposure_config(stop_loss=0.05, take_profit=0.05, tolerance=0.4)
    up = table_of([100, 100, 100], [100, 100, 106], [100, 100, 100], [100, 100, 100])
    step = play(up, config, costs, [0.5, 0.5])[1]
    assert step["exit_units"] == pytest.approx(-500, rel=1e-2)
    assert step["fee"] == pytest.approx(abs(step["exit_units"]) * 105 * 3e-4, rel=1e-12)
    assert step["spread"] == step["slippage"] == step["impact"] == 0.0
    down = table_of([100, 100, 100], [100, 100, 100], [100, 100, 94], [100, 100, 100])
    step = play(down, config, costs, [0.5, 0.5])[1]
    assert step["fee"] == pytest.approx(abs(step["exit_units"]) * 95 * 7e-4, rel=1e-12)
    assert step["spread"] > 0 and step["slippage"] > 0 and step["impact"] > 0


def test_a_bar_without_volume_counts_as_if_the_order_were_all_of_it() -> None:
    table = flat_bars([100.0, 100.0, 100.0], volume=[1e6, 0.0, 1e6])
    (step, _) = play(table, exposure_config(), NO_COSTS.model_copy(update={"impact_bps": 20.0}), [1.0, 1.0])
    assert step["impact"] == pytest.approx(100_000 * 0.002, rel=1e-12)


def test_impact_without_any_volume_is_refused() -> None:
    table = flat_bars([100.0, 100.0], volume=[0.0, 0.0])
    with pytest.raises(DataError, match=r"TEST has no volume, so costs\.impact_bps 10\.0"):
        MarketTable.build([table], CostConfig())
    assert MarketTable.build([table], NO_COSTS).symbols == ("TEST",)


def test_every_field_says_what_it_means_and_bad_values_get_a_sentence() -> None:
    for model in (CostConfig, MarketEnvConfig):
        assert all(field.description for field in model.model_fields.values())
    with pytest.raises(ConfigError, match=r"costs: .*taker_fee_bps.*-1"):
        parse(CostConfig, {"taker_fee_bps": -1}, source="costs")
    with pytest.raises(ConfigError, match="low must be below high"):
        parse(MarketEnvConfig, {"action": {"kind": "exposure", "low": 1.0, "high": 0.5}}, source="env")
    with pytest.raises(ConfigError, match="may occur once"):
        parse(MarketEnvConfig, {"action": {"positions": [0.0, 0.0]}}, source="env")


def test_exposures_that_cannot_be_held_are_refused() -> None:
    config = MarketEnvConfig(action=ExposureAction(low=0.0, high=5.0))
    with pytest.raises(ConfigError, match=r"exposure of 5.0, but env.maintenance_margin 0.25 liquidates from 4"):
        config.check_with(CostConfig())
    dear = CostConfig(taker_fee_bps=500.0, half_spread_bps=500.0, slippage_bps=500.0)
    with pytest.raises(ConfigError, match="half of the equity"):
        MarketEnvConfig(action=ExposureAction(low=0.0, high=3.9)).check_with(dear)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"close": [100.0, np.nan]}, "row 1: close is nan"),
        ({"open": [100.0, -1.0]}, "row 1: open is -1.0"),
        ({"high": [100.0, 90.0]}, "row 1: open 100.0 and close 100.0 do not lie within"),
        ({"volume": [1.0]}, r"volume has shape \(1,\), expected \(2,\)"),
    ],
)
def test_bad_bars_are_refused_with_row_and_value(change: dict[str, Any], sentence: str) -> None:
    columns = {name: [100.0, 100.0] for name in ("open", "high", "low", "close", "volume")}
    columns |= change
    features = np.zeros((2, 1), dtype=np.float32)
    table = table_of(*columns.values(), features=features)
    with pytest.raises(ValueError, match=sentence):
        MarketTable.build([table], CostConfig())


def test_every_setting_is_in_the_table_or_known_to_reach_the_engine_otherwise() -> None:
    """A setting without an entry would be read by nobody: funding is added to the bars, latency delays targets."""
    assert set(CostConfig.model_fields) - set(COSTS) == {"funding_bps", "latency"}
    assert len({cost.rule for cost in COSTS.values()}) == len(COSTS)


def test_rules_are_fractions_of_the_settings() -> None:
    costs = CostConfig(taker_fee_bps=3.0, half_spread_bps=2.0, slippage_bps=1.0, borrow_rate=0.03, lot_size=7.0)
    rules = make_rules(MarketEnvConfig(), costs)[0]
    assert (rules["taker"], rules["half_spread"], rules["borrow"], rules["lot"]) == (3.0 * 1e-4, 2.0 * 1e-4, 0.03, 7.0)
    assert rules["linear"] == costs.taker_rate == (3.0 + 2.0 + 1.0) * 1e-4
    assert costs.linear == {"fee": 3.0, "half-spread": 2.0, "slippage": 1.0}


def test_no_costs_are_those_that_a_stress_test_scales_times_zero() -> None:
    """What is received, and what is no money, stays."""
    costs = CostConfig(cash_rate=0.02, lot_size=3.0)
    scaled = costs.scaled(2.0)
    assert scaled["taker_fee_bps"] == 4.0 and scaled["liquidation_bps"] == 100.0
    assert not {"cash_rate", "lot_size", "minimum_notional", "funding_bps", "latency"} & set(scaled)
    assert set(scaled) == {name for name, value in NO_COSTS if value != getattr(CostConfig(), name)}
    assert not any(getattr(NO_COSTS, name) for name in scaled)


def test_components_by_their_cause() -> None:
    assert components_of("fills", sign=-1) == ("fee", "spread", "slippage", "impact", "liquidation")
    assert components_of("holding", sign=-1) == ("borrow", "funding")
    assert components_of("holding", sign=1) == ("dividends",)
    assert cost_words() == "fees, spread, slippage, impact, borrow, funding, liquidations"


def test_guesses_for_a_new_configuration_are_settings() -> None:
    """Crypto is dearer to trade and to borrow; a pair at a broker has no fee, its spread is the price."""
    session, crypto, pair = guessed_costs("session"), guessed_costs("round_the_clock"), guessed_costs("pair")
    assert (session["taker_fee_bps"], crypto["taker_fee_bps"], pair["taker_fee_bps"]) == (1.0, 5.0, 0.0)
    assert (session["borrow_rate"], crypto["borrow_rate"], pair["borrow_rate"]) == (0.01, 0.1, 0.01)
    assert CostConfig.model_validate(session).impact_bps == 10.0
