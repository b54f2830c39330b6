"""Several ranges per purpose: nothing of what lies between them reaches the training, and no episode crosses a gap."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailwise.bars.bars import Bars, data_hash_of, save_bars
from tailwise.bars.data_config import FilesData, RangesSplit, SyntheticData, TimesSplit
from tailwise.bars.synthetic import random_walk
from tailwise.core.config import parse
from tailwise.core.errors import ConfigError, DataError, NotBuiltError
from tailwise.features.config import FeaturesConfig
from tailwise.features.spec import FeatureSpec
from tailwise.market.dataset import Dataset, build_dataset
from tailwise.market.env import MarketEnv
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.split import Window
from tailwise.market.tables import SymbolTable

SHORT = FeaturesConfig(include=("return_1", "volatility_20"))
BEGIN = random_walk(seed=0, length=2).time[0].astype("datetime64[us]").astype(datetime).replace(tzinfo=UTC)
TRAIN, TEST = [(0, 150), (290, 400), (500, 600)], [(180, 260), (420, 470)]


def moments(first: int, end: int) -> tuple[datetime, datetime]:
    """Hourly bars."""
    return BEGIN + timedelta(hours=first), BEGIN + timedelta(hours=end)


def split(train: list[tuple[int, int]], test: list[tuple[int, int]] = TEST) -> RangesSplit:
    return RangesSplit(train=tuple(moments(*one) for one in train), test=tuple(moments(*one) for one in test))


def walk(parts: RangesSplit | TimesSplit, *, seeds: tuple[int, ...] = (0, 1)) -> Dataset:
    return build_dataset(
        SyntheticData(market="random_walk", seeds=seeds, parameters={"length": 600}, split=parts), SHORT
    )


def test_each_train_range_is_a_table_of_its_own_bars() -> None:
    """Symbol by symbol and range by range; the warm-up lies inside the range. Rejects tables that reach back to bars
    before their range, which may be test bars, as those of a single window do."""
    dataset = walk(split(TRAIN))
    tables = dataset.tables("train")
    assert [(one.symbol[-1], len(one.close), one.first_valid) for one in tables] == [
        *(("0", 150, 20), ("0", 110, 20), ("0", 100, 20)),
        *(("1", 150, 20), ("1", 110, 20), ("1", 100, 20)),
    ]
    for table, (first, end) in zip(tables[3:], TRAIN, strict=True):
        bars = dataset.bars[1].slice(first, end)
        assert table.time is not None and np.array_equal(table.time, bars.time)
        assert np.array_equal(table.close, bars.close)
        assert np.array_equal(table.features, dataset.spec.table(bars).values, equal_nan=True)
    sentence = dataset.describe()[0]
    assert sentence.count("train ") == 3 and sentence.count("test ") == 2 and "(110)" in sentence


def test_features_are_fitted_on_all_train_ranges_and_nothing_else() -> None:
    """Mean and deviation by hand, over the valid rows of all ranges and symbols. Rejects bars that are joined as if
    the gap were one bar: its jump is in their deviation."""
    dataset = walk(split(TRAIN))
    returns, jumping = [], []
    for bars in dataset.bars:
        log = np.log(bars.close)
        returns += [np.diff(log[first:end])[19:] for first, end in TRAIN]
        jumping.append(np.diff(np.concatenate([log[first:end] for first, end in TRAIN]))[19:])
    scale = dataset.spec.scales[0]
    rows = np.concatenate(returns)
    assert len(rows) == 2 * (130 + 90 + 80)
    assert scale.mean == pytest.approx(rows.mean(), rel=1e-12) and scale.scale == pytest.approx(rows.std(), rel=1e-12)
    assert abs(np.concatenate(jumping).std() / scale.scale - 1) > 0.01
    window = dataset.spec.windows[dataset.bars[0].symbol]
    parts = [dataset.bars[0].slice(*one) for one in TRAIN]
    assert (window.rows, window.data_hash) == (360, data_hash_of(parts))
    assert dataset.hashes()["train"][dataset.bars[0].symbol] == window.data_hash
    dataset.check_train_bars(dataset.spec)
    with pytest.raises(DataError, match="the train window now holds other bars"):
        walk(split([(0, 150), (290, 400), (500, 599)])).check_train_bars(dataset.spec)


def test_a_fitted_feature_sees_no_jump_over_a_gap() -> None:
    """GARCH on two calm ranges with prices a factor of 3 apart: the volatility of either. Rejects the plain
    concatenation, in which the jump of 110% is the largest shock by far."""
    bars = random_walk(seed=3, length=1500, sigma=0.01)
    garch = FeaturesConfig(include=("garch",))
    later = bars.slice(800, 1500)
    later = replace(later, **{name: getattr(later, name) * 3 for name in ("open", "high", "low", "close")})
    fitted = FeatureSpec.fit_ranges(garch, [[bars.slice(0, 700), later]]).fitted["garch"][bars.symbol]
    assert np.sqrt(fitted["variance"]) == pytest.approx(0.01, rel=0.1)
    columns = ("time", "open", "high", "low", "close", "volume")
    joined = {name: np.concatenate([getattr(bars.slice(0, 700), name), getattr(later, name)]) for name in columns}
    wrong = FeatureSpec.fit(garch, [replace(bars, **joined)]).fitted["garch"][bars.symbol]
    assert np.sqrt(wrong["variance"]) > 0.015


def test_one_range_fits_as_one_window_does() -> None:
    plain = walk(TimesSplit(train=moments(0, 300), test=moments(330, 600)))
    alone = walk(split([(0, 300)], [(330, 600)]))
    assert alone.spec.to_json() == plain.spec.to_json()
    assert plain.ranges == {} and plain.hashes() == alone.hashes() and plain.describe() == alone.describe()
    assert plain.all_ranges()["train"] == ((Window(0, 300),), (Window(0, 300),))
    for one, other in zip(plain.tables("train"), alone.tables("train"), strict=True):
        assert np.array_equal(one.features, other.features, equal_nan=True) and one.first_valid == other.first_valid
    assert plain.each_test_range() == [plain]


def starts_and_ends(tables: list[SymbolTable], *, steps: int, length: int, seed: int) -> list[tuple[Any, Any]]:
    """Open times of the first and last bar that each of many episodes traded."""
    env = MarketEnv(tables, MarketEnvConfig(episode_length=length, report=True), num_envs=8)
    env.spread_first_episodes()
    env.reset(seed=seed)
    time = env.simulator.table.time
    begun: list[Any] = [None] * 8
    episodes = []
    for _ in range(steps):
        *_, terminated, truncated, infos = env.step(np.ones(8, dtype=np.int64))
        for i, row in enumerate(infos["parts"]["row"].tolist()):
            begun[i] = time[row] if begun[i] is None else begun[i]
            if terminated[i] or truncated[i]:
                episodes.append((begun[i], time[row]))
                begun[i] = None
    return episodes


def outside(episodes: list[tuple[Any, Any]], bars: Bars) -> int:
    """Episodes that do not lie in one train range."""
    ranges = [(bars.time[first], bars.time[end - 1]) for first, end in TRAIN]
    return sum(not any(first <= a <= b <= last for first, last in ranges) for a, b in episodes)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), length=st.integers(1, 120))
def test_no_episode_spans_two_ranges(seed: int, length: int) -> None:
    dataset = walk(split(TRAIN), seeds=(0,))
    episodes = starts_and_ends(dataset.tables("train"), steps=250, length=length, seed=seed)
    assert len(episodes) >= 8 and outside(episodes, dataset.bars[0]) == 0


def test_ranges_joined_to_one_table_are_told_apart() -> None:
    """The wrong implementation: one table from the first train bar to the last, which ignores the gaps. Its episodes
    trade test bars; the same count finds them."""
    dataset = walk(split(TRAIN), seeds=(0,))
    wrong = replace(dataset, ranges={}, windows={"train": (Window(0, 600),)}).tables("train")
    assert outside(starts_and_ends(wrong, steps=250, length=60, seed=1), dataset.bars[0]) > 5


def test_no_bar_outside_the_train_ranges_reaches_the_training(tmp_path: Path) -> None:
    """Every other bar is changed: what was fitted and every table that trains stay as they were, bit for bit."""
    bars, tables, specs = replace(random_walk(seed=4, length=600), symbol="X"), [], []
    kept = np.zeros(600, dtype=bool)
    for first, end in TRAIN:
        kept[first:end] = True
    for name, factor in (("as_it_was", 1.0), ("other", 1.7)):
        prices = {key: getattr(bars, key) * np.where(kept, 1.0, factor) for key in ("open", "high", "low", "close")}
        (tmp_path / name).mkdir()
        file = tmp_path / name / "X.csv"
        save_bars(replace(bars, **prices), file)
        dataset = build_dataset(FilesData(paths=(str(file),), split=split(TRAIN)), SHORT)
        specs.append(dataset.spec.to_json())
        tables.append(dataset.tables("train"))
    assert specs[0] == specs[1]
    for one, other in zip(*tables, strict=True):
        assert np.array_equal(one.features, other.features, equal_nan=True) and np.array_equal(one.close, other.close)


def test_each_test_range_is_a_window_with_the_bars_before_it_as_warm_up() -> None:
    dataset = walk(split(TRAIN))
    with pytest.raises(DataError, match=r"data\.split\.kind is ranges and test has 2 of them, not one window"):
        dataset.tables("test")
    first, second = dataset.each_test_range()
    assert first.window("test") == (Window(180, 260),) * 2 and second.window("test") == (Window(420, 470),) * 2
    table = second.tables("test")[1]
    assert (len(table.close), table.first_valid) == (470, 419)  # the first bar that is traded is 420
    assert len(second.tables("train")) == 6


def test_extra_columns_are_scaled_by_the_train_ranges() -> None:
    data = SyntheticData(market="leak", parameters={"length": 600}, split=split(TRAIN))
    dataset = build_dataset(data, SHORT)
    (name, values), *_ = dataset.loaded[0].columns.items()
    deviation = np.concatenate([values[first:end] for first, end in TRAIN]).std()
    table = dataset.tables("train")[1]
    assert table.feature_names[-1] == name
    assert table.features[:, -1] == pytest.approx(values[290:400] / deviation, rel=1e-6)


def test_what_cannot_be_ranges_is_a_sentence() -> None:
    day = "2020-01-0{}T00:00:00".format

    def parsed(**parts: Any) -> None:
        parse(RangesSplit, {"kind": "ranges", **parts}, source="test")

    with pytest.raises(ConfigError, match=r"test begins on .* and train ends before .* without overlap"):
        parsed(train=[[day(1), day(4)]], test=[[day(3), day(5)]])
    with pytest.raises(ConfigError, match="the ranges of train are not in the order of time; sort them"):
        parsed(train=[[day(4), day(5)], [day(1), day(2)]])
    with pytest.raises(ConfigError, match="must not be empty"):
        parsed(train=[[day(4), day(4)]])
    with pytest.raises(NotBuiltError, match="accounts with one asset"):
        walk(split(TRAIN)).tables("train", together=True)
    with pytest.raises(DataError, match="end within the warm-up"):
        walk(split([(0, 150), (290, 305)]))
