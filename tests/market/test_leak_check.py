"""The leak-check finds each planted leak of features and of fits, and stays silent where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from scipy.signal import butter, filtfilt, lfilter

from tailwise.bars.bars import Bars, completion_index, resample
from tailwise.bars.builtin import sp500
from tailwise.bars.synthetic import make
from tailwise.core.errors import ConfigError, DataError, ShapeError
from tailwise.features.table import FeatureTable
from tailwise.market.leaks.features import BATCH_TOLERANCE, check_features, check_fit
from tailwise.market.leaks.report import PROBES, LeakReport

Feature = Callable[[Bars, pd.DataFrame], Any]


@dataclass(frozen=True)
class Table:
    """A feature table that lets NaN pass at its end, as a user's own code would."""

    values: npt.NDArray[np.float32]
    names: tuple[str, ...]
    first_valid: int


def compute_of(**features: Feature) -> Callable[[Bars], Table]:
    def compute(bars: Bars) -> Table:
        frame = bars.to_frame()
        columns = [np.asarray(feature(bars, frame), dtype=np.float32) for feature in features.values()]
        values = np.stack(columns, axis=1)
        usable = np.isfinite(values).all(axis=1)
        return Table(values, tuple(features), int(np.argmax(usable)))

    return compute


@pytest.fixture(scope="module")
def bars() -> Bars:
    """Real daily bars, made harder: one in fifty has no volume."""
    real = sp500().slice(0, 1200)
    quiet = np.arange(len(real)) % 50 == 17
    return replace(real, volume=np.where(quiet, 0.0, real.volume))


def log_return(frame: pd.DataFrame) -> pd.Series:
    return np.log(frame["close"]).diff()


def weekly_by_open(bars: Bars, frame: pd.DataFrame) -> Any:
    """The return of the week that is running: on Monday it tells Friday's close."""
    if len(bars) < 14:
        return np.full(len(bars), np.nan)
    weeks = resample(bars, "1W")
    change = np.log(weeks.close / weeks.open)
    index = np.searchsorted(weeks.time, bars.time, side="right") - 1
    return np.where(index >= 0, change[index], np.nan)


def weekly_when_complete(bars: Bars, frame: pd.DataFrame) -> Any:
    if len(bars) < 14:
        return np.full(len(bars), np.nan)
    weeks = resample(bars, "1W")
    change = np.log(weeks.close / weeks.open)
    index = completion_index(bars, weeks)
    return np.where(index >= 0, change[index], np.nan)


def interpolated_volume(bars: Bars, frame: pd.DataFrame) -> Any:
    return np.log(frame["volume"].where(frame["volume"] > 0)).interpolate()


def both_ways(bars: Bars, frame: pd.DataFrame) -> Any:
    return filtfilt(*butter(2, 0.2), np.log(frame["close"].to_numpy()), padlen=0)


# name: (the leak, the least and the largest number of bars that it can be seen to look ahead)
LEAKS: dict[str, tuple[Feature, int, int]] = {
    "centred_window": (lambda _, f: log_return(f).rolling(5, center=True).mean(), 2, 2),
    "bfill": (lambda _, f: log_return(f).rolling(20).std().bfill(), 1, 20),
    "whole_z_score": (lambda _, f: (log_return(f) - log_return(f).mean()) / log_return(f).std(), 100, 1200),
    "weekly_by_open_time": (weekly_by_open, 4, 13),
    "next_open": (lambda _, f: f["open"].shift(-1) / f["close"] - 1, 1, 1),
    "shift_back": (lambda _, f: log_return(f).shift(-1), 1, 1),
    "whole_rank": (lambda _, f: f["close"].rank(pct=True), 100, 1200),
    "whole_min_max": (lambda _, f: (f["close"] - f["close"].min()) / (f["close"].max() - f["close"].min()), 100, 1200),
    "forward_and_backward_filter": (both_ways, 3, 1200),
    "interpolated_gaps": (interpolated_volume, 1, 1),
    "next_pause": (lambda b, _: np.append(np.diff(b.time).astype(np.int64), 0) / 1e14, 1, 1),
    "share_of_the_series": (lambda b, _: np.arange(len(b)) / len(b), 100, 1200),
    "next_day_falls_by_3_percent": (lambda _, f: log_return(f).shift(-1).fillna(0) < -0.03, 1, 1),
}

CAUSAL: dict[str, Feature] = {
    "return": lambda _, f: log_return(f),
    "rolling_mean": lambda _, f: log_return(f).rolling(20).mean(),
    "rolling_deviation": lambda _, f: log_return(f).rolling(20).std(),
    "exponential_mean": lambda _, f: log_return(f).ewm(span=12).mean(),
    "expanding_z_score": lambda _, f: (f["close"] - f["close"].expanding().mean()) / f["close"].expanding().std(),
    "expanding_rank": lambda _, f: f["close"].expanding().rank(pct=True),
    "filled_forward": lambda _, f: np.log(f["volume"].where(f["volume"] > 0)).ffill(),
    "one_way_filter": lambda _, f: lfilter(*butter(2, 0.2), np.log(f["close"].to_numpy())),
    "week_when_complete": weekly_when_complete,
    "weekday": lambda _, f: f.index.dayofweek,
    "gap_from_yesterday": lambda _, f: f["open"] / f["close"].shift(1) - 1,
    "true_range": lambda _, f: f["high"] / f["low"] - 1,
    "days_since_the_last_bar": lambda _, f: f.index.to_series().diff().dt.days,
    "always_zero": lambda b, _: np.zeros(len(b)),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_planted_leak_is_found_with_its_name_bar_and_reach(name: str, bars: Bars) -> None:
    leak, least, most = LEAKS[name]
    report = check_features(compute_of(harmless=CAUSAL["return"], leak=leak), bars)
    assert not report.passed
    assert {finding.name for finding in report.findings} - {"the first valid bar"} == {"feature 'leak'"}
    finding = report.findings[-1]
    assert least <= finding.reach <= most
    assert finding.bar < finding.cut
    assert finding.before != finding.after


def test_causal_features_pass_and_every_value_was_compared(bars: Bars) -> None:
    report = check_features(compute_of(**CAUSAL), bars)
    assert report.passed, report.sentences()
    assert report.comparisons == len(report.cuts) * len(PROBES) > 100
    first_valid = compute_of(**CAUSAL)(bars).first_valid
    assert report.values == sum((cut - first_valid) * len(CAUSAL) * len(PROBES) for cut in report.cuts)


def test_each_weekday_of_a_week_joined_by_its_open_time_is_caught(bars: Bars) -> None:
    """Rejects cuts that all fall on the last day of a week, where the open-time join happens to be right."""
    report = check_features(compute_of(week=weekly_by_open), bars, cuts=1)
    weekdays = {(int(bars.time[cut].astype("datetime64[D]").astype(int)) + 3) % 7 for cut in report.cuts}
    assert weekdays == {0, 1, 2, 3, 4}
    assert not report.passed


# --- each probe is needed ------------------------------------------------------------------------------------------


def scaled_by_the_length(_: Bars, frame: pd.DataFrame) -> Any:
    """Knows how many bars will follow, and nothing else of them."""
    return log_return(frame) * np.sqrt(len(frame))


def next_open_or_close(_: Bars, frame: pd.DataFrame) -> Any:
    """Without a next bar it falls back to the close, which equals the next open in a market without gaps."""
    return (frame["open"].shift(-1).fillna(frame["close"]) / frame["close"].shift(1)) - 1


def direction_one_period_ahead(_: Bars, frame: pd.DataFrame) -> Any:
    """Without a future it falls back to the present, which is the same in a periodic market; prices do not matter."""
    direction = (frame["close"] > frame["open"]).astype(float)
    return direction.shift(-40).fillna(direction)


@pytest.mark.parametrize(
    ("needed", "leak", "market"),
    [
        ("truncate", scaled_by_the_length, {"kind": "random_walk"}),
        ("shuffle", direction_one_period_ahead, {"kind": "sine", "period": 40.0}),
        ("scale", next_open_or_close, {"kind": "random_walk"}),
    ],
)
def test_without_this_probe_a_leak_would_be_missed(needed: str, leak: Feature, market: dict[str, Any]) -> None:
    series, _ = make(**market, seed=3, length=800)
    others = tuple(probe for probe in PROBES if probe != needed)
    assert check_features(compute_of(leak=leak), series, probes=others).passed
    found = check_features(compute_of(leak=leak), series)
    assert [finding.probes for finding in found.findings] == [(needed,)]


# --- what the verdict rests on -------------------------------------------------------------------------------------


def test_a_column_from_elsewhere_is_not_passed() -> None:
    """The next return, computed beforehand, never moves when bars change: silence would be taken for innocence."""
    series, columns = make("leak", seed=5, length=600)
    foretold = columns["next_log_return"]
    report = check_features(compute_of(r=CAUSAL["return"], told=lambda b, _: foretold[: len(b)]), series)
    assert not report.findings
    assert report.unjudged == ("feature 'told'",)
    assert not report.passed
    assert any("'told' varies but does not depend on the bars" in line for line in report.sentences())


def test_bars_of_which_all_are_warm_up_are_an_error(bars: Bars) -> None:
    with pytest.raises(DataError, match="no value can be compared"):
        check_features(compute_of(mean=lambda _, f: f["close"].rolling(50).mean()), bars.slice(0, 50))


def test_bars_that_never_move_are_an_error_without_truncation(bars: Bars) -> None:
    still = np.full(300, 7.0)
    flat = replace(bars.slice(0, 300), open=still, high=still, low=still, close=still, volume=still)
    with pytest.raises(DataError, match="every changed future equals the real one"):
        check_features(compute_of(price=lambda _, f: f["close"]), flat, probes=("shuffle",))


def test_features_with_hidden_randomness_are_refused(bars: Bars) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(DataError, match="computed twice"):
        check_features(compute_of(noise=lambda b, _: rng.normal(size=len(b))), bars)


def test_a_table_that_exists_only_with_the_real_future_is_a_finding(bars: Bars) -> None:
    """FeatureTable refuses NaN, so a back-filled table cannot be made of bars that end within its warm-up."""

    def compute(given: Bars) -> FeatureTable:
        table = compute_of(filled=LEAKS["bfill"][0])(given)
        return FeatureTable(table.values, table.names, table.first_valid)

    report = check_features(compute, bars)
    refused = [finding for finding in report.findings if finding.name == "the feature table"]
    assert len(refused) == 1
    assert refused[0].probes == ("truncate",)
    assert "an error: feature 'filled' is nan" in refused[0].sentence()


def test_a_warm_up_that_depends_on_the_future_is_a_finding(bars: Bars) -> None:
    def compute(given: Bars) -> Table:
        table = compute_of(r=CAUSAL["return"])(given)
        return replace(table, first_valid=int(given.close.argmin() > 600) + 1)

    report = check_features(compute, bars)
    assert "the first valid bar" in {finding.name for finding in report.findings}


def test_rows_and_names_must_fit(bars: Bars) -> None:
    with pytest.raises(ShapeError, match="one row per bar"):
        check_features(lambda given: Table(np.zeros((3, 1), np.float32), ("a",), 0), bars)
    with pytest.raises(ConfigError, match="'bend' is not one of them"):
        check_features(compute_of(r=CAUSAL["return"]), bars, probes=("bend",))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no such feature"):
        check_features(compute_of(r=CAUSAL["return"]), bars, tolerance={"x": 1e-9})


def test_tolerance_forgives_rounding_of_batch_features_and_no_leak(bars: Bars) -> None:
    """A moving sum from cumulative sums that run from the end: causal in exact arithmetic, not in floats."""

    def from_the_end(_: Bars, frame: pd.DataFrame) -> Any:
        price = 100 + np.log(frame["close"].to_numpy())  # large sums, small differences
        rest = np.append(np.cumsum(price[::-1])[::-1], 0.0)
        sums = rest[:-11] - rest[10:-1] if len(rest) > 11 else np.zeros(0)  # of the ten prices before the present one
        head = np.full(len(price) - len(sums), np.nan)
        return np.concatenate([head, sums - 10 * price[len(head) :]])

    compute = compute_of(sum=from_the_end)
    assert not check_features(compute, bars).passed
    assert check_features(compute, bars, tolerance=BATCH_TOLERANCE).passed
    assert check_features(compute, bars, tolerance={"sum": BATCH_TOLERANCE}).passed
    leaky = compute_of(sum=from_the_end, leak=LEAKS["whole_z_score"][0])
    for tolerance in (BATCH_TOLERANCE, {"sum": BATCH_TOLERANCE}):
        found = check_features(leaky, bars, tolerance=tolerance).findings
        assert [finding.name for finding in found] == ["feature 'leak'"]


# --- the report ----------------------------------------------------------------------------------------------------


def test_the_report_says_it_in_sentences_and_in_json(bars: Bars) -> None:
    report = check_features(compute_of(rank=LEAKS["whole_rank"][0], next=LEAKS["next_open"][0]), bars)
    sizes = [finding.deviations for finding in report.findings]
    assert None not in sizes
    assert sizes == sorted(sizes, reverse=True)  # type: ignore[type-var]
    worst = report.findings[0]
    sentence = worst.sentence()
    assert f"{worst.name} at bar {worst.bar} of {bars.symbol} (" in sentence
    assert str(bars.time[worst.bar].astype("datetime64[D]")) in sentence
    assert "standard deviations" in sentence
    text = json.dumps(report.to_json(), allow_nan=False)
    assert json.loads(text)["findings"][0]["bar"] == worst.bar
    assert json.loads(text)["passed"] is False
    assert report.sentences()[-1] == "features: 2 of the values fail the check"


def test_the_size_of_a_change_is_measured_in_deviations_of_the_feature(bars: Bars) -> None:
    compute = compute_of(rank=LEAKS["whole_rank"][0])
    finding = check_features(compute, bars).findings[0]
    assert finding.change == pytest.approx(abs(finding.after - finding.before))  # type: ignore[operator]
    values = compute(bars).values[:, 0].astype(np.float64)
    assert finding.deviations == pytest.approx(finding.change / values.std())
    assert finding.before == values[finding.bar]


def test_long_series_are_checked_in_a_stated_share() -> None:
    series, _ = make("random_walk", seed=1, length=3000)
    rows = 0

    def compute(given: Bars) -> Table:
        nonlocal rows
        rows += len(given)
        return compute_of(r=CAUSAL["return"])(given)

    report = check_features(compute, series, longest=2000, work=60_000)
    assert (report.bars, report.bars_given) == (2000, 3000)
    assert len(report.cuts) == 10
    assert report.cuts_left_out > 0
    assert rows <= 60_000 + 3 * 2000
    assert "only the first 2000 of 3000 bars used" in report.sentences()[-2]


# --- what is fitted ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Normaliser:
    mean: float
    deviation: float

    def to_json(self) -> dict[str, Any]:
        return {"version": 1, "columns": [{"name": "return", "mean": self.mean, "deviation": self.deviation}]}


TRAIN_END = "2002-01-01"


def normaliser_of(rows: Sequence[Bars]) -> Normaliser:
    returns = np.concatenate([np.diff(np.log(one.close)) for one in rows])
    return Normaliser(float(returns.mean()), float(returns.std()))


def test_a_normaliser_fitted_on_train_rows_passes(bars: Bars) -> None:
    report = check_fit(
        lambda given: normaliser_of([one.between(None, TRAIN_END) for one in given]), bars, train_end=TRAIN_END
    )
    assert report.passed
    assert (report.comparisons, report.values) == (3, 12)
    assert report.notes == ()


@pytest.mark.parametrize("probe", PROBES)
def test_a_normaliser_fitted_on_test_rows_is_found_by_each_probe(probe: Any, bars: Bars) -> None:
    report = check_fit(normaliser_of, [bars], train_end=TRAIN_END, probes=(probe,))
    assert {finding.name for finding in report.findings} == {"spec.columns[0].mean", "spec.columns[0].deviation"}


def test_one_row_too_many_is_found(bars: Bars) -> None:
    """Rejects a check that changes the future only in the large: the first test row alone is in the fit."""

    def fit(given: Sequence[Bars]) -> Normaliser:
        return normaliser_of([one.slice(0, len(one.between(None, TRAIN_END)) + 1) for one in given])

    report = check_fit(fit, bars, train_end=TRAIN_END, probes=("shuffle", "scale"))
    assert len(report.findings) == 2


def test_a_text_in_the_spec_counts_and_nothing_fitted_is_said(bars: Bars) -> None:
    hashed = check_fit(lambda given: {"data": given[0].data_hash()}, bars, train_end=TRAIN_END)
    assert [finding.name for finding in hashed.findings] == ["spec.data"]
    constant = check_fit(lambda given: {"window": 20}, bars, train_end=TRAIN_END)
    assert constant.passed
    assert constant.notes == ("nothing in the spec depends on the bars: nothing is fitted",)


def test_a_train_end_outside_the_data_is_an_error(bars: Bars) -> None:
    for end, said in (("1990-01-01", "none open"), ("2050-01-01", "no future to change")):
        with pytest.raises(DataError, match=said):
            check_fit(normaliser_of, bars, train_end=end)
    with pytest.raises(DataError, match="nothing can be compared"):
        check_fit(lambda given: {}, bars, train_end=TRAIN_END)


def test_the_report_is_not_passed_by_an_unjudged_name_alone() -> None:
    report = LeakReport("features", (), ("feature 'x'",), PROBES, (1,), 1, 1, 2, 2)
    assert not report.passed
    assert report.to_json()["passed"] is False
