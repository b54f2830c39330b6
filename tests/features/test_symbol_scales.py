"""Scales of each symbol, and columns that tell symbols apart."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tailwise.bars.bars import Bars
from tailwise.core.config import parse
from tailwise.core.errors import CheckpointError, ConfigError, DataError
from tailwise.features.config import FeaturesConfig
from tailwise.features.spec import FeatureSpec
from tests.features.example_bars import assert_stream_equals_table, random_bars

COLUMNS = ("return_1", "volatility_20", "rsi_14")


def symbols() -> list[Bars]:
    return [random_bars(400, seed=1, symbol="CALM"), random_bars(400, seed=2, sigma=0.05, symbol="WILD")]


def test_a_symbol_in_its_own_scales_has_mean_0_and_deviation_1() -> None:
    """Shared, the volatile symbol fills the scale: the returns of the calm one are a small part of a deviation."""
    bars = symbols()
    deviations = {}
    for scales in ("shared", "symbol"):
        spec = FeatureSpec.fit(FeaturesConfig(include=COLUMNS, scales=scales), bars)  # type: ignore[arg-type]
        tables = [spec.table(one) for one in bars]
        deviations[scales] = [table.values[table.first_valid :, 0].std() for table in tables]
        if scales == "symbol":
            for table in tables:
                rows = table.values[table.first_valid :].astype(np.float64)
                np.testing.assert_allclose(rows.mean(0), 0, atol=1e-5)
                np.testing.assert_allclose(rows.std(0), 1, atol=1e-4)
    assert deviations["symbol"] == pytest.approx([1, 1], abs=1e-4)
    assert deviations["shared"][0] < 0.4 < 1.2 < deviations["shared"][1]


def test_scales_of_a_symbol_are_those_it_would_have_alone() -> None:
    bars = symbols()
    pooled = FeatureSpec.fit(FeaturesConfig(include=COLUMNS, scales="symbol"), bars)
    for one in bars:
        alone = FeatureSpec.fit(FeaturesConfig(include=COLUMNS), [one])
        assert pooled.scales_for(one.symbol) == alone.scales
        assert np.array_equal(pooled.table(one).values, alone.table(one).values, equal_nan=True)
    with pytest.raises(DataError, match="'NEW' was not among the train symbols"):
        pooled.table(random_bars(100, seed=3, symbol="NEW"))
    with pytest.raises(ConfigError, match="nothing is scaled"):
        parse(FeaturesConfig, {"scales": "symbol", "standardise": False}, source="test")


@pytest.mark.parametrize("scales", ["shared", "symbol"])
@pytest.mark.parametrize("instrument", [False, True])
def test_specs_are_stored_and_streamed(scales: str, instrument: bool) -> None:
    bars = symbols()
    config = FeaturesConfig(include=COLUMNS, scales=scales, instrument=instrument)  # type: ignore[arg-type]
    spec = FeatureSpec.fit(config, bars)
    again = FeatureSpec.from_json(json.loads(json.dumps(spec.to_json())))
    spec.check_same(again)
    for one in bars:
        assert np.array_equal(spec.table(one).values, again.table(one).values, equal_nan=True)
        assert_stream_equals_table(again, one)
    if scales == "symbol":
        damaged = spec.to_json()
        del damaged["symbol_scales"]["WILD"]
        with pytest.raises(CheckpointError, match="scales of its symbols"):
            FeatureSpec.from_json(damaged)
    older = FeatureSpec.fit(FeaturesConfig(include=COLUMNS), bars).to_json()
    del older["symbol_scales"]
    assert FeatureSpec.from_json(older).scales_for("CALM") == FeatureSpec.from_json(older).scales


def test_instrument_columns_tell_symbols_apart() -> None:
    bars = symbols()
    spec = FeatureSpec.fit(FeaturesConfig(include=COLUMNS, instrument=True), bars)
    assert spec.names == (*COLUMNS, "instrument.CALM", "instrument.WILD")
    for place, one in enumerate(bars):
        table = spec.table(one)
        assert np.array_equal(
            table.values[table.first_valid :, 3:], np.tile(np.eye(2)[place], (400 - table.first_valid, 1))
        )
        assert np.isnan(table.values[: table.first_valid]).all()
    with pytest.raises(DataError, match="which of them it trades"):
        spec.table(random_bars(100, seed=3, symbol="NEW"))
