"""Names of columns, users' features, and the sentences for what cannot be."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tailwise.core.config import parse
from tailwise.core.errors import ConfigError, DataError
from tailwise.features import feature
from tailwise.features.config import DEFAULT_COLUMNS, FeaturesConfig
from tailwise.features.registry import Registry, load_registry
from tailwise.features.spec import FeatureSpec, columns_of
from tests.features import user_features
from tests.features.example_bars import assert_stream_equals_table, config, random_bars, streamed

USER_FILE = str(Path(__file__).parent / "user_features.py")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("retrun_5", "feature 'retrun_5' is unknown; did you mean 'return_5'?"),
        ("volatilty_ratio", "feature 'volatilty_ratio' is unknown; did you mean 'volatility_ratio_SHORT_LONG'?"),
        ("xyz", "feature 'xyz' is unknown; see docs/features.md."),
        ("return", "feature 'return' must be written as return_WINDOW, with window in bars."),
        ("return_5_6", "feature 'return_5_6' must be written as return_WINDOW, with window in bars."),
        ("gap_3", "feature 'gap_3' must be written as gap, without a number."),
        ("return_05", "feature 'return_05' must be written as return_WINDOW, with numbers that do not begin with 0."),
        ("kurtosis_3", "feature 'kurtosis_3': window is 3; it must be from 4 to 10000 bars."),
        ("return_0", "feature 'return_0': window is 0; it must be from 1 to 10000 bars."),
        ("return_10001", "feature 'return_10001': window is 10001; it must be from 1 to 10000 bars."),
        ("macd_26_12", "feature 'macd_26_12': fast must be below slow, but they are (26, 12)."),
        ("", "feature '' is unknown; see docs/features.md."),
    ],
)
def test_a_wrong_name_gets_this_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Registry().column(text)
    assert str(caught.value) == sentence
    with pytest.raises(ConfigError, match=r"run.yaml: .*feature"):
        parse(FeaturesConfig, {"include": [text]}, source="run.yaml")


def test_the_default_columns_exist_and_are_distinct() -> None:
    """The section skips the check of its own default, so that it needs no numba; it is made here."""
    columns = columns_of(FeaturesConfig())
    assert tuple(column.name for column in columns) == DEFAULT_COLUMNS
    assert len({(column.feature.name, column.parameters) for column in columns}) == len(DEFAULT_COLUMNS) >= 14


def test_double_or_missing_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="feature 'gap' is listed twice under 'include'"):
        config("gap", "return_1", "gap")
    with pytest.raises(ValueError, match="no feature is named"):
        config()


def test_user_features_stream_and_are_found_in_their_file() -> None:
    spec = FeatureSpec.fit(config("up_run_4", "halving_3", "return_1", modules=(USER_FILE,)), [random_bars(80, seed=1)])
    table = assert_stream_equals_table(spec, random_bars(80, seed=2))
    assert table.first_valid == 1
    bars, raw = random_bars(80, seed=2), []
    length = 0
    for open_, close in zip(bars.open, bars.close, strict=True):
        length = length + 1 if close > open_ else 0
        raw.append(min(length / 4, 1))
    scale = spec.scales[0]
    np.testing.assert_allclose(table.values[1:, 0], (np.array(raw[1:]) - scale.mean) / scale.scale, rtol=1e-6)


def test_a_module_by_name_and_a_path_relative_to_the_configuration(tmp_path: Path) -> None:
    by_name = load_registry(["tests.features.user_features"])
    assert by_name.features["up_run"] is user_features.up_run
    shutil.copy(USER_FILE, tmp_path / "mine.py")
    wanted = config("up_run_4", modules=("mine.py",))
    assert columns_of(wanted, tmp_path)[0].name == "up_run_4"
    with pytest.raises(ConfigError, match=r"there is no file '.*mine.py'; paths are relative to the configuration"):
        columns_of(wanted, tmp_path / "elsewhere")


def test_loading_twice_is_harmless_and_an_edited_file_is_new(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    shutil.copy(USER_FILE, path)
    one, two = load_registry([str(path), str(path)]), load_registry([str(path)])
    assert one.features["up_run"] is two.features["up_run"]
    path.write_text(path.read_text().replace("state[1] / state[0]", "state[1] / (2 * state[0])"))
    assert load_registry([str(path)]).features["up_run"] is not one.features["up_run"]


def test_a_users_feature_never_shadows(tmp_path: Path) -> None:
    def declare(name: str) -> object:
        return feature(name, meaning="m", unit="1", warm_up=0, state_size=1)(lambda state, bar: 0.0)

    with pytest.raises(ConfigError, match="feature 'gap' has the name of a built-in feature; choose another name"):
        Registry([declare("gap")])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="two features are named 'mine'; rename one"):
        Registry([declare("mine"), declare("mine")])  # type: ignore[list-item]
    (tmp_path / "copy.py").write_text(Path(USER_FILE).read_text())
    with pytest.raises(ConfigError, match="two features are named"):
        load_registry([USER_FILE, str(tmp_path / "copy.py")])


def test_one_registry_knows_nothing_of_another() -> None:
    """Rejects a registry in a module variable, which would depend on what was imported before."""
    assert "up_run" in load_registry([USER_FILE]).features
    assert "up_run" not in Registry().features
    with pytest.raises(ConfigError, match="feature 'up_run_4' is unknown"):
        Registry().column("up_run_4")


def test_modules_that_do_not_help_get_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(ConfigError, match=r"'.*empty.py' declares no feature"):
        load_registry([str(tmp_path / "empty.py")])
    with pytest.raises(ConfigError, match=r"'no.such.module' cannot be imported"):
        load_registry(["no.such.module"])


def test_a_pandas_function_is_batch_only() -> None:
    bars = random_bars(100, seed=3)
    spec = FeatureSpec.fit(config("pandas_return_5", "return_5", modules=(USER_FILE,)), [bars])
    table = spec.table(bars)
    assert table.first_valid == 5
    np.testing.assert_allclose(table.values[5:, 0], table.values[5:, 1], rtol=1e-6)
    assert "batch only" in spec.to_json()["columns"][0]["identity"]
    with pytest.raises(ConfigError, match=r"feature 'pandas_return_5' is batch only .* and cannot be streamed"):
        spec.stream("TEST")


def test_a_pandas_function_on_longer_bars_gets_their_times() -> None:
    bars = random_bars(24 * 20, seed=3)
    both = ("pandas_return_2", "return_2")
    spec = FeatureSpec.fit(FeaturesConfig(include=(), timeframes={"1D": both}, modules=(USER_FILE,)), [bars])
    table = spec.table(bars)
    np.testing.assert_allclose(*table.values[table.first_valid :].T, rtol=1e-5)


def test_values_that_are_not_finite_get_a_sentence() -> None:
    bars = random_bars(40, seed=1)
    wanted = config("broken", modules=(USER_FILE,))
    with pytest.raises(DataError, match=r"feature 'broken' of TEST is nan at the bar of 2020-01-06T10.*row 10"):
        FeatureSpec.fit(wanted, [bars])
    spec = FeatureSpec.fit(wanted, [bars.slice(0, 9)])
    with pytest.raises(DataError, match="feature 'broken' of TEST is nan at the bar of 2020-01-06T10"):
        streamed(spec, bars)
    with pytest.raises(DataError, match=r"batch feature 'array' returned a ndarray .*; return a Series"):
        FeatureSpec.fit(config("array", modules=(USER_FILE,)), [bars])
