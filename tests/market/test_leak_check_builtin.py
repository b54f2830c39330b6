"""No built-in feature leaks: on daily and hourly bars, on longer timeframes, after saving and loading the spec."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from tailwise.bars.bars import Bars
from tailwise.bars.builtin import sp500
from tailwise.bars.synthetic import make
from tailwise.features.config import FeaturesConfig
from tailwise.features.registry import BUILTIN
from tailwise.features.spec import FeatureSpec
from tailwise.market.leaks.features import check_features, check_fit


def column_names() -> tuple[str, ...]:
    """Every built-in once, with windows of about a week and a month."""
    names = []
    for one in BUILTIN.values():
        numbers = [max(least, length) for least, length in zip(one.smallest, (5, 21, 42), strict=False)]
        names.append(one.name + "".join(f"_{number}" for number in numbers))
    return tuple(names)


@pytest.fixture(scope="module")
def daily() -> Bars:
    return sp500().slice(0, 1500)


@pytest.fixture(scope="module")
def hourly() -> Bars:
    return make("heston", seed=11, length=1500)[0]


def long_enough(names: Sequence[str]) -> tuple[str, ...]:
    """On longer bars the fitted features would want more history than a quick test has."""
    return tuple(name for name in names if BUILTIN[name.rstrip("_0123456789")].fit is None)


def test_all_built_ins_stay_silent_on_real_daily_bars(daily: Bars) -> None:
    config = FeaturesConfig(include=column_names(), timeframes={"1W": long_enough(column_names())})
    spec = FeatureSpec.fit(config, [daily.slice(0, 1000)])
    assert len(spec.names) > len(BUILTIN) >= 24
    report = check_features(spec.table, daily)
    assert report.passed, report.sentences()
    assert report.cuts[0] == spec.table(daily).first_valid + 1


def test_all_built_ins_stay_silent_on_hourly_bars_with_longer_timeframes(hourly: Bars) -> None:
    few = ("return_1", "volatility_20", "rsi_14")
    config = FeaturesConfig(include=column_names(), timeframes={"4h": few, "1D": few})
    spec = FeatureSpec.from_json(FeatureSpec.fit(config, [hourly.slice(0, 1000)]).to_json())
    report = check_features(spec.table, hourly)
    assert report.passed, report.sentences()


def test_a_spec_fitted_on_train_rows_passes_and_one_fitted_on_all_rows_is_found(daily: Bars) -> None:
    config = FeaturesConfig(include=("return_1", "volatility_20"))
    end = "2003-01-01"
    honest = check_fit(
        lambda given: FeatureSpec.fit(config, [one.between(None, end) for one in given]), daily, train_end=end
    )
    assert honest.passed, honest.sentences()
    assert honest.notes == ()
    leaky = check_fit(lambda given: FeatureSpec.fit(config, given), daily, train_end=end)
    names = {finding.name for finding in leaky.findings}
    assert {"spec.columns[0].mean", "spec.columns[1].scale"} <= names, names


def test_garch_is_fitted_on_train_rows_only(daily: Bars) -> None:
    config, end = FeaturesConfig(include=("garch",)), "2003-01-01"
    honest = check_fit(
        lambda given: FeatureSpec.fit(config, [one.between(None, end) for one in given]), daily, train_end=end
    )
    assert honest.passed, honest.sentences()
    leaky = check_fit(lambda given: FeatureSpec.fit(config, given), daily, train_end=end, probes=("truncate",))
    names = {finding.name for finding in leaky.findings}
    assert any(name.startswith("spec.fitted.garch.SP500") for name in names), names


def test_refitting_on_whatever_bars_are_given_is_a_leak_of_every_column(daily: Bars) -> None:
    """The normaliser that saw the test rows, at the level of the feature table."""
    config = FeaturesConfig(include=("return_1", "volatility_20"))
    report = check_features(lambda given: FeatureSpec.fit(config, [given]).table(given), daily, cuts=4)
    found = {finding.name for finding in report.findings}
    assert {"feature 'return_1'", "feature 'volatility_20'"} <= found


def test_32_features_on_5000_bars_take_seconds() -> None:
    bars = sp500().slice(0, 5000)
    names = tuple(f"return_{k}" for k in range(1, 17)) + tuple(f"volatility_{k}" for k in range(10, 26))
    spec = FeatureSpec.fit(FeaturesConfig(include=names), [bars.slice(0, 2500)])
    spec.table(bars)  # compiled
    begun = time.process_time()
    report = check_features(spec.table, bars)
    assert report.passed
    assert len(report.cuts) >= 24
    assert time.process_time() - begun < 20
