"""FeatureSpec: fitted on train rows only, exact in JSON, and loud when something does not fit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tailwise.bars.bars import Bars
from tailwise.bars.builtin import sp500
from tailwise.core.config import dump_yaml, parse
from tailwise.core.errors import CheckpointError, ConfigError, DataError, ShapeError
from tailwise.features.config import FeaturesConfig
from tailwise.features.spec import FeatureSpec
from tailwise.features.table import FeatureTable
from tests.features.example_bars import (
    KINDS,
    PLAIN,
    assert_stream_equals_table,
    changed_after,
    config,
    random_bars,
    raw,
    scaled,
    streamed,
)

USER_FILE = Path(__file__).parent / "user_features.py"
ALL = config(*PLAIN, timeframes={"1D": ("return_2", "volume_zscore_3")})


def _same_spec(one: FeatureSpec, two: FeatureSpec) -> bool:
    """Equal in all that makes values: scales and fitted numbers."""
    return one.scales == two.scales and one.fitted == two.fitted


def test_fitted_on_train_rows_only() -> None:
    """Changing test rows changes nothing; a normaliser that was fitted on all rows fails the same check."""
    bars = random_bars(600, seed=3)
    other = changed_after(bars, 400)
    train = [FeatureSpec.fit(ALL, [b.slice(0, 400)]) for b in (bars, other)]
    assert _same_spec(*train)
    np.testing.assert_array_equal(train[0].table(bars).values[:400], train[1].table(other).values[:400])
    everything = [FeatureSpec.fit(ALL, [b]) for b in (bars, other)]
    assert not _same_spec(*everything)
    assert not np.array_equal(everything[0].table(bars).values[200:400], everything[1].table(other).values[200:400])


def test_scales_are_mean_and_deviation_of_the_valid_train_rows_of_all_symbols() -> None:
    """Rejects scales per symbol, rows of the warm-up inside them, and a sample deviation."""
    one, two = random_bars(300, seed=1), random_bars(100, seed=2, sigma=0.05, symbol="OTHER")
    spec = FeatureSpec.fit(config("return_1", "volatility_20"), [one, two])
    for place, name in enumerate(spec.names):
        rows = np.concatenate([raw(name, bars)[20:] for bars in (one, two)])  # 20: when all columns are valid
        assert spec.scales[place].mean == pytest.approx(rows.mean(), rel=1e-12)
        assert spec.scales[place].scale == pytest.approx(rows.std(), rel=1e-12)
    values = np.concatenate([spec.table(bars).values[20:] for bars in (one, two)]).astype(np.float64)
    np.testing.assert_allclose(values.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(values.std(axis=0), 1, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_streaming_equals_batch_through_the_spec(kind: str) -> None:
    bars = random_bars(300, seed=21, kind=kind, gaps=True)
    spec = FeatureSpec.fit(ALL, [bars.slice(0, 200)])
    table = assert_stream_equals_table(spec, bars)
    assert table.names == (*PLAIN, "1D:return_2", "1D:volume_zscore_3")


def test_warm_up_rows_are_nan_and_excluded() -> None:
    """Rejects back-filling: rows before first_valid hold nothing that could pass for a value."""
    table = FeatureSpec.fit(config("return_1", "zscore_20"), [random_bars(100, seed=1)]).table(random_bars(50, seed=2))
    assert table.first_valid == 19
    assert np.isnan(table.values[:19]).all()
    assert np.isfinite(table.values[19:]).all()


def test_warm_up_is_that_of_the_slowest_column() -> None:
    assert FeatureSpec.fit(config("gap", "return_30", "zscore_31"), [random_bars(99, seed=1)]).warm_up == 30


def test_values_are_clipped_at_so_many_deviations() -> None:
    bars = random_bars(200, seed=5)
    spec = FeatureSpec.fit(config("return_1", clip=3), [bars])
    wild = spec.table(random_bars(200, seed=5, kind="jumps")).values[1:]
    assert np.abs(wild).max() == 3.0
    assert (np.abs(wild) < 3.0).any()
    assert_stream_equals_table(spec, random_bars(200, seed=5, kind="jumps"))


def test_without_standardising_values_are_raw_and_not_clipped() -> None:
    bars = random_bars(200, seed=5, kind="jumps")
    spec = FeatureSpec.fit(config("return_1", standardise=False, clip=0.5), [bars])
    np.testing.assert_array_equal(spec.table(bars).values[1:, 0], raw("return_1", bars)[1:].astype(np.float32))
    assert np.abs(spec.table(bars).values[1:]).max() > 0.5
    assert_stream_equals_table(spec, bars)


def test_a_constant_column_is_scaled_by_one_and_noted() -> None:
    """Rejects a division by zero, or by the rounding error of a mean."""
    days = random_bars(100, seed=1, step="1D")
    spec = FeatureSpec.fit(config("hour_cos", "return_1"), [days])
    assert spec.scales[0].scale == 1.0
    constant = "feature 'hour_cos' is constant in the train rows: a policy can learn nothing from it; leave it out."
    assert spec.notes == (constant,) and spec.constant == ("hour_cos",)
    assert (spec.table(days).values[1:, 0] == 0).all()


def test_another_unit_of_price_or_volume_changes_no_row() -> None:
    """Ledger L4."""
    bars = random_bars(300, seed=7)
    spec = FeatureSpec.fit(ALL, [bars])
    first = spec.table(bars).first_valid
    for price, volume in ((1000.0, 1.0), (1.0, 1000.0)):
        other = spec.table(scaled(bars, price, volume)).values[first:]
        np.testing.assert_allclose(other, spec.table(bars).values[first:], rtol=1e-6, atol=1e-6)


def test_saved_and_restored_in_the_middle() -> None:
    bars = random_bars(200, seed=31)
    spec = FeatureSpec.fit(ALL, [bars])
    straight = streamed(spec, bars)
    first, second = spec.stream("TEST"), spec.stream("TEST")
    streamed(spec, bars, range(120), first)
    state = first.get_state()
    assert all(array.dtype in (np.float64, np.int64) and array.ndim == 1 for array in state.values())
    streamed(spec, bars, range(120, 130), first)  # going on does not reach into what was saved
    second.set_state(state)
    for got, expected in zip(streamed(spec, bars, range(120, 200), second), straight[120:], strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_state_of_other_features_is_refused_and_changes_nothing() -> None:
    bars = random_bars(60, seed=1)
    one, two = (FeatureSpec.fit(config(name), [bars]).stream("TEST") for name in ("return_5", "return_6"))
    with pytest.raises(CheckpointError, match="'column:return_5' is in one of the two only"):
        two.set_state(one.get_state())
    state = one.get_state()
    state["column:return_5"] = state["column:return_5"][:-1]
    with pytest.raises(CheckpointError, match=r"'column:return_5' is float64 \(\d+,\); float64 \(\d+,\) is needed"):
        one.set_state(state)
    assert len(one.get_state()["column:return_5"]) == len(state["column:return_5"]) + 1


def test_json_round_trip_is_exact() -> None:
    bars = random_bars(300, seed=8)
    spec = FeatureSpec.fit(ALL, [bars])
    text = json.dumps(spec.to_json())
    again = FeatureSpec.from_json(json.loads(text))
    assert json.dumps(again.to_json()) == text
    again.check_same(spec)
    np.testing.assert_array_equal(again.table(bars).values, spec.table(bars).values)
    stored = spec.to_json()
    assert stored["windows"]["TEST"]["data_hash"] == bars.data_hash()
    assert stored["windows"]["TEST"]["first"] == "2020-01-06T00:00:00.000000000Z"
    assert stored["format"] == 1


def _damaged(data: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**data, **changes}


def test_json_that_does_not_fit_gets_a_sentence() -> None:
    data = FeatureSpec.fit(config("return_1", "gap"), [random_bars(50, seed=1)]).to_json()
    with pytest.raises(CheckpointError, match="has format 2; this version of Tailwise reads format 1"):
        FeatureSpec.from_json(_damaged(data, format=2))
    with pytest.raises(CheckpointError, match="has format None"):
        FeatureSpec.from_json({})
    with pytest.raises(CheckpointError, match="key 'fitted' is required"):
        FeatureSpec.from_json({key: value for key, value in data.items() if key != "fitted"})
    with pytest.raises(CheckpointError, match="its columns are not those of its configuration"):
        FeatureSpec.from_json(_damaged(data, columns=data["columns"][:1]))
    with pytest.raises(ConfigError, match=r"feature spec: .*is unknown"):
        FeatureSpec.from_json(_damaged(data, config={**data["config"], "clipp": 3}))
    old = [{**data["columns"][0], "identity": "built-in, version 0"}, data["columns"][1]]
    with pytest.raises(CheckpointError, match=r"'return_1' is no longer the one that the spec was fitted with"):
        FeatureSpec.from_json(_damaged(data, columns=old))


def test_a_users_feature_that_changed_is_noticed(tmp_path: Path) -> None:
    """Ledger L3: the same name over other code would give the policy features that it was never trained on."""
    shutil.copy(USER_FILE, tmp_path / "mine.py")
    wanted = config("up_run_4", modules=("mine.py",))
    data = FeatureSpec.fit(wanted, [random_bars(50, seed=1)], folder=tmp_path).to_json()
    FeatureSpec.from_json(data, folder=tmp_path)
    text = (tmp_path / "mine.py").read_text()
    (tmp_path / "mine.py").write_text(text.replace("bar[CLOSE] > bar[OPEN]", "bar[CLOSE] < bar[OPEN]"))
    with pytest.raises(CheckpointError, match="feature 'up_run_4' is no longer the one that the spec was fitted with"):
        FeatureSpec.from_json(data, folder=tmp_path)


def test_check_same_names_what_differs() -> None:
    bars = random_bars(100, seed=1)
    spec = FeatureSpec.fit(config("return_1", "gap"), [bars])
    spec.check_same(FeatureSpec.fit(config("return_1", "gap"), [bars]))
    with pytest.raises(CheckpointError, match=r"differ in config.include\[1\]: 'gap' here, 'intraday' there"):
        spec.check_same(FeatureSpec.fit(config("return_1", "intraday"), [bars]))
    with pytest.raises(CheckpointError, match=r"differ in config.clip: 10.0 here, 5.0 there"):
        spec.check_same(FeatureSpec.fit(config("return_1", "gap", clip=5), [bars]))
    with pytest.raises(CheckpointError, match=r"differ in columns\[return_1\].mean"):
        spec.check_same(FeatureSpec.fit(config("return_1", "gap"), [random_bars(100, seed=2)]))


def test_bars_of_another_step_are_refused() -> None:
    spec = FeatureSpec.fit(config("return_1"), [random_bars(100, seed=1, step="1D")])
    hourly = random_bars(100, seed=1)
    with pytest.raises(DataError, match="TEST have a step of 1 hour, but the features were fitted on bars of 1 day"):
        spec.table(hourly)
    with pytest.raises(DataError, match="have a step of 1 hour"):
        spec.stream("TEST", hourly.frequency)


def test_a_symbol_without_fitted_numbers_needs_no_training() -> None:
    bars = random_bars(100, seed=1)
    spec = FeatureSpec.fit(config("return_1"), [bars])
    stranger = replace(bars, symbol="NEW")
    np.testing.assert_array_equal(spec.table(stranger).values, spec.table(bars).values)
    assert spec.stream("NEW", stranger.frequency).names == ("return_1",)
    with pytest.raises(DataError, match=r"'NEW' was not among the train symbols \(TEST\); pass frequency="):
        spec.stream("NEW")


def test_bars_that_cannot_be_fitted_get_a_sentence() -> None:
    bars = random_bars(50, seed=1)
    with pytest.raises(DataError, match="cannot be fitted on no bars"):
        FeatureSpec.fit(config("gap"), [])
    with pytest.raises(DataError, match="TEST, TEST: one symbol occurs twice"):
        FeatureSpec.fit(config("gap"), [bars, bars])
    with pytest.raises(DataError, match="one of 1 hour; features need one step for all symbols"):
        FeatureSpec.fit(config("gap"), [bars, random_bars(50, seed=1, step="1D", symbol="DAILY")])
    with pytest.raises(DataError, match="the 50 bars end within the warm-up of feature 'return_50'"):
        FeatureSpec.fit(config("return_50"), [bars])
    assert FeatureSpec.fit(config("return_49"), [bars]).table(bars).first_valid == 49


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"time": np.datetime64("2020-01-06T00:00", "ns")}, "does not open after the one before"),
        ({"close": np.nan}, "prices must be positive, volume at least 0 and all numbers finite"),
        ({"low": -1.0}, "prices must be positive"),
        ({"volume": -1.0}, "volume at least 0"),
        ({"close": 3.0}, r"open 1.5 and close 3.0 do not lie within low 1.0 and high 2.0"),
    ],
)
def test_a_bad_bar_is_refused_and_changes_nothing(change: dict[str, Any], sentence: str) -> None:
    spec = FeatureSpec.fit(config("return_1"), [random_bars(50, seed=1)])
    stream = spec.stream("TEST")
    good = {"time": np.datetime64("2020-01-06T01:00", "ns"), "open": 1.5, "high": 2.0, "low": 1.0, "close": 1.5}
    good["volume"] = 1.0
    stream.update(**{**good, "time": np.datetime64("2020-01-06T00:00", "ns")})  # type: ignore[arg-type]
    before = stream.get_state()
    with pytest.raises(DataError, match=sentence):
        stream.update(**{**good, **change})  # type: ignore[arg-type]
    after = stream.get_state()
    assert all(np.array_equal(before[key], after[key], equal_nan=True) for key in before)


def test_a_stream_takes_times_in_any_dress() -> None:
    spec = FeatureSpec.fit(config("hour_sin"), [random_bars(50, seed=1)])
    dresses = (
        np.datetime64("2020-01-06T05:00"),
        datetime(2020, 1, 6, 5, tzinfo=UTC),
        datetime(2020, 1, 6, 7, tzinfo=timezone(timedelta(hours=2))),
        pd.Timestamp("2020-01-06T05:00Z"),
        pd.Timestamp("2020-01-06T06:00+01:00"),
        int(np.datetime64("2020-01-06T05:00", "ns").astype(np.int64)),
    )
    rows = [spec.stream("TEST").update(time, 1.0, 1.0, 1.0, 1.0, 0.0) for time in dresses]
    assert {float(row[0]) for row in rows if row is not None} == {float(rows[0][0])}  # type: ignore[index]
    assert None not in rows


def test_the_default_works_on_real_daily_and_on_hourly_bars() -> None:
    for bars in (sp500(), random_bars(3000, seed=1)):
        spec = FeatureSpec.fit(FeaturesConfig(), [bars.slice(0, 2000)])
        table = spec.table(bars)
        assert spec.notes == ()
        assert table.first_valid == spec.warm_up == 60
        assert table.values[60:].std(axis=0).min() > 0.3


def test_the_section_survives_yaml_and_needs_no_numba() -> None:
    wanted = config("gap", timeframes={"1D": ("return_1",)}, clip=4)
    import yaml

    assert parse(FeaturesConfig, yaml.safe_load(dump_yaml(wanted)), source="x") == wanted
    assert all(field.description for field in FeaturesConfig.model_fields.values())
    code = "import sys, tailwise.features.config as c; c.FeaturesConfig(); print('numba' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_a_table_checks_itself() -> None:
    values = np.zeros((3, 1), dtype=np.float32)
    with pytest.raises(ShapeError, match="one name per column"):
        FeatureTable(values, ("a", "b"), 0)
    with pytest.raises(DataError, match="of 3 bars has 3 of warm-up: no bar is left"):
        FeatureTable(values, ("a",), 3)
    bad = values.copy()
    bad[2] = np.inf
    with pytest.raises(DataError, match="feature 'a' is inf in row 2"):
        FeatureTable(bad, ("a",), 1)
    with pytest.raises(ValueError, match="read-only"):
        FeatureTable(values, ("a",), 0).values[0] = 1


def test_fit_and_table_do_not_touch_the_bars() -> None:
    bars = random_bars(100, seed=1)
    before = bars.data_hash()
    copy = Bars(**vars(bars))
    spec = FeatureSpec.fit(ALL, [bars])
    one, two = spec.table(bars), spec.table(copy)
    assert bars.data_hash() == before
    np.testing.assert_array_equal(one.values, two.values)  # deterministic
