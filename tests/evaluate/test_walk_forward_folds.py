"""Folds of a configuration: windows, gaps, and the mistakes that must not go through."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tailwise
from tailwise.bars.bars import Bars, save_bars
from tailwise.bars.synthetic import random_walk
from tailwise.core.errors import ConfigError, DataError, NotBuiltError
from tailwise.evaluate.splits import Range
from tailwise.evaluate.walk_forward_folds import (
    CombinatorialSettings,
    Plan,
    Settings,
    check_fitted,
    check_world,
    fold_config,
    make_plan,
    windows_of_account,
)
from tailwise.features.spec import FeatureSpec
from tailwise.market.split import Window
from tailwise.run.config import Config, parse_config
from tailwise.run.presets import load_source
from tailwise.run.worlds import MarketWorld
from tests.support import merged

MARKET: dict[str, Any] = {
    "data": {"kind": "synthetic", "market": "random_walk", "seeds": [0, 1], "parameters": {"length": 600}},
    "features": {"include": ["return_1", "volatility_20"]},
    "env": {"kind": "market", "episode_length": 32},
    "run": {"environments": 4, "rollout_steps": 16, "total_steps": 64, "tensorboard": False},
    "model": {"encoder": {"hidden": [8]}},
    "evaluate": {"every": 1},
}


def config(**changes: Any) -> Config:
    return parse_config(merged(MARKET, changes), source="test")


def world_of(base: Config, plan: Plan, fold: int) -> MarketWorld:
    return MarketWorld(fold_config(base, plan, plan.folds[fold], seed=0))


@pytest.mark.parametrize("kind", ["anchored", "rolling"])
def test_the_windows_of_a_run_are_those_of_its_fold(kind: Any) -> None:
    """Of hourly bars, so that cuts lie inside days; purge by itself as long as the features look back."""
    base = config()
    plan = make_plan(base, Settings(folds=3, kind=kind, embargo=4))
    assert plan.look_back == plan.purge == 20 and plan.label_horizon == 1
    ends = []
    for fold in plan.folds:
        world = world_of(base, plan, fold.number)
        check_world(world, plan, fold)
        train, select, test = (world.dataset.window(name)[0] for name in ("train", "select", "test"))
        assert (train.first, train.end) == (fold.train[0].first, fold.train[0].end)
        assert select.first - train.end == test.first - select.end == 24
        assert select.end - select.first == 90  # 15% of 600
        ends.append(test.end)
    assert ends == [400, 500, 600] and (plan.folds[2].train[0].first == 0) == (kind == "anchored")
    spans = plan.windows(plan.folds[0])
    assert spans.test.bars == 100
    opened = world_of(base, plan, 0).dataset.bars[0].time[300]
    assert spans.test.first_bar == f"{opened.astype('datetime64[s]')}Z"


def test_windows_are_named_by_the_days_of_their_bars() -> None:
    """Rejects windows by the ends of their bars, which put every daily window one day late: a bar of the 4th would be
    said to be of the 5th, and a Friday's of a Saturday."""
    base = parse_config(load_source("sp500").data, source="sp500")
    plan = make_plan(base, Settings(folds=2))
    world = world_of(base, plan, 0)
    (bars,) = world.dataset.bars
    test = world.dataset.window("test")[0]
    for spans in (plan.windows(plan.folds[0]), windows_of_account(world, bars.symbol)):
        assert spans.train.first_bar == "1999-01-04T00:00:00Z"
        assert spans.test.first_bar[:10] == str(bars.time[test.first])[:10]
        assert spans.test.last_bar[:10] == str(bars.time[test.end - 1])[:10]


def test_test_rows_in_the_normaliser_fit_are_caught() -> None:
    """The planted mistake: features fitted on all bars, or on one bar of the test too many."""
    base = config()
    plan = make_plan(base, Settings(folds=3))
    fold = plan.folds[1]
    world = world_of(base, plan, 1)
    bars = world.dataset.bars
    assert base.features is not None
    check_fitted(world.features, bars, plan, fold)
    end = fold.train[0].end
    for wrong in (600, end + 1, end - 1):
        spec = FeatureSpec.fit(base.features, [one.slice(0, wrong) for one in bars])
        with pytest.raises(DataError, match=r"fold 2: the features of .* were fitted on .* nothing else"):
            check_fitted(spec, bars, plan, fold)
        world.dataset = replace(world.dataset, spec=spec)
        with pytest.raises(DataError, match="nothing else"):
            check_world(world, plan, fold)


def test_a_fold_that_overlaps_its_purge_window_is_caught() -> None:
    """By the plan, and by the market that a run was built on, whatever the plan says."""
    base = config()
    plan = make_plan(base, Settings(folds=3))
    fold = plan.folds[0]
    train = Range(0, fold.train[0].end + 1)
    with pytest.raises(DataError, match="only 19 rows lie between the train rows"):
        check_world(world_of(base, plan, 0), plan, replace(fold, train=(train,)))
    world = world_of(base, plan, 0)
    moved = {**world.dataset.windows, "train": (Window(0, train.end), world.dataset.windows["train"][1])}
    world.dataset = replace(world.dataset, windows=moved)
    with pytest.raises(DataError, match="the run was built on another cut"):
        check_world(world, plan, fold)
    with pytest.raises(DataError, match="its purge of 5 bars is shorter than the label horizon 1 or the look-back 20"):
        make_plan(base, Settings(folds=3, purge=5))


def test_nothing_after_the_train_window_reaches_the_training(tmp_path: Path) -> None:
    """Two worlds that differ in every bar after the train window: the same weights and normalisers bit for bit.

    Without selection, which may look at the select window. Rejects any fit, scale or episode that reaches further.
    """
    bars = random_walk(seed=7, length=600)
    files = []
    plan = None
    for name, factor in (("as_it_was", 1.0), ("other", 3.0)):
        folder = tmp_path / name
        folder.mkdir()
        changed = bars if plan is None else _after(bars, plan.folds[0].train[0].end, factor)
        save_bars(replace(changed, symbol="X"), folder / "X.csv")
        data = {"kind": "files", "paths": [str(folder / "X.csv")]}
        full = {**MARKET, "data": data, "evaluate": {}}
        base = parse_config(full, source="test")
        plan = make_plan(base, Settings(folds=3))
        agent = tailwise.PPO(config=fold_config(base, plan, plan.folds[0], seed=0))
        agent.learn()
        files.append({key: value.numpy().tobytes() for key, value in agent.model.state_dict().items()})
    assert files[0] == files[1] and len(files[0]) > 5


def _after(bars: Bars, row: int, factor: float) -> Bars:
    prices = {}
    for name in ("open", "high", "low", "close"):
        values = getattr(bars, name).copy()
        values[row:] *= factor
        prices[name] = values
    return replace(bars, **prices)


@pytest.mark.parametrize(
    ("changes", "settings", "sentence"),
    [
        ({"evaluate": {"every": None}}, Settings(select=0.1), "nothing would be selected on it"),
        ({}, Settings(select=0.0), "--select 0 leaves none"),
        ({}, Settings(folds=400), "rows are too few for 400 folds"),
        ({}, Settings(tested=0.9), "are left to train on; use fewer folds, smaller gaps or more bars"),
    ],
)
def test_what_cannot_be_cut_is_a_sentence(changes: dict[str, Any], settings: Settings, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_plan(config(**changes), settings)


def test_walk_forward_needs_bars() -> None:
    with pytest.raises(ConfigError, match=r"walk-forward cuts bars into folds, and env\.kind is gym"):
        make_plan(parse_config({"env": {"id": "CartPole-v1"}}, source="test"), Settings())


@settings(max_examples=8, deadline=None)
@given(
    folds=st.integers(2, 5),
    test_folds=st.integers(1, 3),
    embargo=st.integers(0, 15),
    select=st.sampled_from([0.0, 0.1]),
)
def test_no_training_bar_lies_within_the_purge_of_a_test_bar(
    folds: int, test_folds: int, embargo: int, select: float
) -> None:
    """By the times of the bars in the tables that train, of the market that each run is built on."""
    base = config(evaluate={"every": 1 if select else None})
    try:
        plan = make_plan(base, CombinatorialSettings(folds, test_folds, embargo=embargo, select=select))
    except ConfigError:
        assume(False)
        return
    assert plan.purge == 20
    for fold in plan.folds:
        world = world_of(base, plan, fold.number)
        check_world(world, plan, fold)
        ranges = world.each_test_range()
        assert len(ranges) == test_folds
        trained = np.unique(np.concatenate([one.time for one in world.dataset.tables("train")]))
        hour = np.timedelta64(1, "h")
        for one in ranges:
            window, bars = one.dataset.window("test")[0], world.dataset.bars[0]
            first, last = bars.time[window.first], bars.time[window.end - 1]
            before, after = trained[trained < first], trained[trained > last]
            assert len(before) + len(after) == len(trained)
            assert not len(before) or first - before[-1] > plan.purge * hour
            assert not len(after) or after[0] - last > (plan.purge + embargo) * hour


def test_a_combinatorial_run_that_was_built_on_other_bars_is_caught() -> None:
    """The planted mistakes: train ranges of another fold, features fitted on one of several train ranges."""
    base = config(data={"parameters": {"length": 1200}})
    plan = make_plan(base, CombinatorialSettings(4, 2))
    with pytest.raises(DataError, match=r"fold 2: the train window of .* on another cut"):
        check_world(world_of(base, plan, 0), plan, plan.folds[1])
    world, fold = world_of(base, plan, 1), plan.folds[1]
    assert base.features is not None and len(fold.train) == 2
    first = fold.train[0]
    spec = FeatureSpec.fit(base.features, [one.slice(first.first, first.end) for one in world.dataset.bars])
    with pytest.raises(DataError, match=r"fold 2: the features of .* nothing else"):
        check_fitted(spec, world.dataset.bars, plan, fold)


def test_combinatorial_folds_of_a_portfolio_are_refused() -> None:
    weights = {"kind": "weights", "low": -1, "high": 1, "gross": 1.5}
    portfolio = config(data={"parameters": {"length": 1200}}, env={"action": weights})
    with pytest.raises(NotBuiltError, match="use walk-forward folds for a portfolio"):
        tailwise.combinatorial_cv(portfolio, folds=4)
