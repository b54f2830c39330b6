"""Resampled worlds: what blocks are drawn, what bars become of them, and that nothing but train bars is in them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tailwise.bars.bars import Bars
from tailwise.bars.data_config import RangesSplit, ResampleConfig, SyntheticData
from tailwise.bars.synthetic import heston
from tailwise.core.errors import ConfigError, NotBuiltError
from tailwise.features.config import FeaturesConfig
from tailwise.market.costs import NO_COSTS
from tailwise.market.dataset import Dataset, Loaded, build_dataset
from tailwise.market.env import MarketEnv
from tailwise.market.env_config import MarketEnvConfig
from tailwise.market.resample import Resampler, Source, block_rows
from tailwise.market.simulator import _Mixed
from tailwise.market.split import Window
from tailwise.market.tables import MarketTable
from tailwise.run.config import parse_config
from tailwise.run.worlds import MarketWorld
from tests.market.worlds import random_walk

FEATURES = FeaturesConfig(include=("return_1", "volatility_20"))
DATA: dict[str, Any] = {"kind": "synthetic", "market": "jump_diffusion", "seeds": [3, 4], "parameters": {"length": 900}}


def dataset(**changes: Any) -> Dataset:
    return build_dataset(SyntheticData.model_validate({**DATA, **changes}), FEATURES)


def wild_bars(length: int = 400) -> Bars:
    """With gaps, dividends, wicks and volumes, so that a shape is more than a close."""
    bars = heston(seed=2, length=length)
    rng = np.random.default_rng(5)
    gap = np.exp(rng.normal(0, 0.01, length))
    opened = bars.open * gap
    high = np.maximum(opened, bars.close) * (1 + rng.uniform(0, 0.02, length))
    low = np.minimum(opened, bars.close) * (1 - rng.uniform(0, 0.02, length))
    dividends = np.where(rng.uniform(size=length) < 0.05, 0.01 * bars.close, 0.0)
    volume = rng.integers(1, 10_000, length).astype(float)
    return replace(bars, open=opened, high=high, low=low, volume=volume, dividends=dividends)


def lengths(rows: npt.NDArray[np.int64], total: int) -> npt.NDArray[np.int64]:
    """Of the blocks, seen from the rows alone: a new one begins where a row does not follow the one before."""
    new = np.flatnonzero((rows[1:] - rows[:-1]) % total != 1) + 1
    return np.diff(np.concatenate([[0], new, [len(rows)]]))


@pytest.mark.parametrize("block", [1.0, 7.5, 40.0])
def test_blocks_have_the_stated_mean_length_and_every_row_is_as_likely(block: float) -> None:
    """The mean within four standard errors of a geometric law; rejects blocks of fixed length and one longer by 1."""
    total = 3000
    worlds = [block_rows(total, block=block, seed=1, world=w) for w in range(40)]
    seen = np.concatenate([lengths(rows, total)[:-1] for rows in worlds])  # the last one is cut
    assert abs(seen.mean() - block) < 4 * max(block, 1) / np.sqrt(len(seen)) + block / total
    if block > 1:  # geometric: the spread is about the mean, and a third of the blocks is longer than it
        assert seen.std() == pytest.approx(np.sqrt(block * (block - 1)), rel=0.1)
    counts = np.bincount(np.concatenate(worlds), minlength=total)
    thirds = counts.reshape(3, -1).sum(1) / counts.sum()
    # Also the first and the last rows: without going round, the first would be drawn block times more rarely.
    assert np.abs(thirds - 1 / 3).max() < 5 * np.sqrt(2 / 9 * block / len(worlds) / total)
    edge = counts[:20].sum() / counts.sum() * total / 20
    assert edge == pytest.approx(1.0, abs=5 * np.sqrt(2 * block / len(worlds) / 20))


def test_a_bar_keeps_its_shape_its_gap_and_its_volume() -> None:
    """Ratios to the close before are those of the drawn bar to rounding, also at the seams between blocks. Rejects a
    world that cuts levels out of the history, which breaks them at every seam."""
    bars = wild_bars()
    source = Source.of(bars, [Window(0, 300)], remove_drift=False)
    rows = source.rows[block_rows(299, block=5, seed=7, world=0)]
    made = source.rebuild(rows, bars.time[1:300])
    before = np.concatenate([bars.close[:1], made.close[:-1]])
    for name in ("open", "high", "low", "close", "dividends"):
        drawn = getattr(bars, name)[rows] / bars.close[rows - 1]
        np.testing.assert_allclose(getattr(made, name) / before, drawn, rtol=1e-11, atol=1e-14)
    assert np.array_equal(made.volume, bars.volume[rows])
    assert (made.high >= np.maximum(made.open, made.close)).all() and (
        made.low <= np.minimum(made.open, made.close)
    ).all()
    levels = bars.close[rows]
    assert np.abs(np.log(levels[1:] / levels[:-1]) - np.log(bars.close[rows] / bars.close[rows - 1])[1:]).max() > 0.01


def test_the_law_of_returns_is_that_of_the_train_bars() -> None:
    """Mean, deviation and quantiles of many worlds are those of the train bars; with the drift removed the mean is 0,
    and nothing else moves."""
    data = dataset(parameters={"length": 900, "drift": 0.003})
    real = np.diff(np.log(data.bars[0].close[: data.window("train")[0].end]))
    drawn = {}
    for drift in ("keep", "remove"):
        resampler = Resampler(data, ResampleConfig(block=10, drift=drift), seed=0)  # type: ignore[arg-type]
        drawn[drift] = np.concatenate([np.diff(np.log(resampler.world(w)[0].bars.close)) for w in range(60)])
    error = real.std() * np.sqrt(10 / len(drawn["keep"]))  # blocks of 10 at the worst
    assert abs(drawn["keep"].mean() - real.mean()) < 4 * error
    assert abs(real.mean()) > 4 * error  # else a removed drift could not be told from a kept one
    assert abs(drawn["remove"].mean()) < 4 * error
    np.testing.assert_allclose(drawn["remove"], drawn["keep"] - real.mean(), atol=1e-12)
    levels = [0.01, 0.1, 0.5, 0.9, 0.99]
    np.testing.assert_allclose(np.quantile(drawn["keep"], levels), np.quantile(real, levels), atol=0.1 * real.std())
    source = Source.of(data.bars[0], data.all_ranges()["train"][0], remove_drift=True)
    removed = np.log(data.bars[0].close[source.rows] / data.bars[0].close[source.rows - 1]) - source.drift
    assert abs(removed.mean()) < 1e-15


def test_symbols_have_the_same_blocks() -> None:
    """Correlated symbols stay as correlated, also where one has fewer bars. Rejects blocks drawn for each by itself."""
    data = dataset()
    one, two = data.bars
    moved = replace(two, close=one.close**0.5, open=one.open**0.5, high=one.high**0.5, low=one.low**0.5)
    late = replace(moved.slice(200, None), symbol="LATE")
    features = tuple(data.spec.table(bars) for bars in (one, moved))
    end = data.window("train")[0].end
    windows = {"train": (Window(0, end), Window(0, end - 200))}
    three = replace(
        data, loaded=(data.loaded[0], Loaded(late, {})), features=(features[0], features[1]), windows=windows
    )
    world = Resampler(three, ResampleConfig(block=8), seed=3).world(5)
    first, second = (dict(zip(w.bars.time, w.rows, strict=True)) for w in world)
    assert len(second) < len(first) - 100 and set(second) <= set(first)
    assert all(first[moment] == row + 200 for moment, row in second.items())
    alone = Resampler(three, ResampleConfig(block=8), seed=3).world(6)[0]
    assert not np.array_equal(alone.rows, world[0].rows)


def test_no_bar_outside_the_train_window_is_ever_drawn() -> None:
    """Other bars after the train window change no world; with ranges no ratio spans the gap between two of them."""
    data = dataset()
    end = data.window("train")[0].end
    settings = ResampleConfig(worlds=5, block=20)
    for number in range(5):
        for one in Resampler(data, settings, seed=1).world(number):
            assert one.rows.min() >= 1 and one.rows.max() < end
    times = data.bars[0].time
    moments = [[str(times[a]), str(times[b])] for a, b in ((0, 300), (500, 800))]
    ranged = dataset(split=RangesSplit.model_validate({"kind": "ranges", "train": moments}).model_dump())
    resampler = Resampler(ranged, settings, seed=1)
    allowed = {*range(1, 300), *range(501, 800)}
    drawn = set(itertools.chain.from_iterable(resampler.world(w)[0].rows.tolist() for w in range(20)))
    assert drawn <= allowed and len(drawn) > 0.95 * len(allowed)
    tables = resampler.tables(base=None, scales={})
    assert all(table.time is not None and set(table.time) <= set(times[sorted(allowed)]) for table in tables)


def test_features_of_a_world_do_not_look_ahead() -> None:
    """They are those of the bars of the world up to each bar. Rejects features that were drawn along with their bars,
    which at a seam speak of another past."""
    data = dataset()
    resampler = Resampler(data, ResampleConfig(worlds=1, block=10), seed=2)
    table = resampler.tables(base=None, scales={})[0]
    one = resampler.world(0)[0]
    for end in (100, 300, 500):
        until = data.spec.table(one.bars.slice(0, end))
        assert np.array_equal(until.values[until.first_valid :], table.features[until.first_valid : end])
    drawn_along = data.features[0].values[one.rows]
    different = np.abs(drawn_along - table.features)[60:, 1] > 1e-3  # the volatility of 20 bars
    assert different.mean() > 0.5


def world_of(**changes: Any) -> MarketWorld:
    tree = {
        "seed": 11,
        "data": {**DATA, "resample": {"share": 0.5, "worlds": 3, "block": 30}, **changes.pop("data", {})},
        "features": {"include": ["return_1", "volatility_20"]},
        "env": {"kind": "market", "episode_length": 40, **changes.pop("env", {})},
        "run": {"environments": 8, "rollout_steps": 16},
        **changes,
    }
    return MarketWorld(parse_config(tree, source="test"))


def starts(world: MarketWorld, environments: int, episodes: int = 96) -> npt.NDArray[np.int64]:
    """[N, episodes, 2]: row and symbol at which episodes begin."""
    config = world.config.model_copy(update={"run": world.config.run.model_copy(update={"environments": environments})})
    world.config = config
    driver = world.training()
    driver.reset()
    plan = driver.venv.simulator._plan
    found = []
    for episode in range(episodes):
        plan.prepare(np.arange(environments), np.full(environments, episode))
        found.append(np.stack(plan.at(np.arange(environments), np.full(environments, episode)), axis=1))
    return np.stack(found, axis=1)


def test_a_world_and_who_begins_in_it_do_not_depend_on_the_number_of_environments() -> None:
    few, many = starts(world_of(), 3), starts(world_of(), 12)
    assert np.array_equal(few, many[:3])
    data = dataset()
    more = Resampler(data, ResampleConfig(worlds=9, block=30), seed=11).world(2)
    fewer = Resampler(data, ResampleConfig(worlds=3, block=30), seed=11).world(2)
    assert all(np.array_equal(a.bars.close, b.bars.close) for a, b in zip(more, fewer, strict=True))
    assert not np.array_equal(Resampler(data, ResampleConfig(block=30), seed=12).world(2)[0].rows, more[0].rows)


@pytest.mark.parametrize("share", [0.25, 1.0])
@pytest.mark.parametrize("symbol", ["random", "fixed"])
def test_the_share_of_episodes_in_resampled_worlds(share: float, symbol: str) -> None:
    world = world_of(data={"resample": {"share": share, "worlds": 3, "block": 30}}, env={"symbol": symbol})
    drawn = starts(world, 16)[:, :, 1]
    resampled = drawn >= 2  # the two real tables come first
    error = np.sqrt(share * (1 - share) / drawn.size)
    assert abs(resampled.mean() - share) <= 4 * error
    if symbol == "fixed":
        assert all((drawn[i] % 2 == i % 2).all() for i in range(16))
    counts = np.bincount(drawn[resampled], minlength=8)[2:] / resampled.sum()
    assert np.abs(counts - 1 / 6).max() < 4 * np.sqrt(5 / 36 / resampled.sum()) + 0.01


def test_a_symbol_without_other_worlds_begins_in_its_own_bars_alone() -> None:
    """With `env.symbol: fixed`. Rejects a share that is taken from it and given to its last start."""
    walks = [random_walk(60, seed=seed) for seed in (5, 6, 7)]
    tables = [replace(walk, symbol=name) for walk, name in zip(walks, "ABA", strict=True)]
    tables[2] = replace(tables[2], resampled=True)
    table = MarketTable.build(tables, NO_COSTS)
    mixed = _Mixed.of(table, np.array([50, 50, 50]), 0.25, by_symbol=True)
    assert mixed is not None
    levels = ((np.arange(400) + 0.5) / 400)[None]
    symbols, inside = mixed.place(np.concatenate([levels, levels]), np.array([0, 1]))
    assert (symbols[1] == 1).all() and (np.bincount(inside[1], minlength=50) == 8).all()
    assert abs((symbols[0] == 2).mean() - 0.25) < 0.01


def test_resume_in_a_resampled_world_is_exact() -> None:
    """A market that is built again from the configuration goes on bit for bit."""
    whole, again = (world_of().training() for _ in range(2))
    obs, rewards = [], []
    whole.reset()
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 3, (120, 8))
    state = None
    for t in range(120):
        if t == 70:
            state = whole.venv.get_state()
        result = whole.venv.step(actions[t])
        obs.append(result[0])
        rewards.append(result[1])
    again.venv.set_state(state)
    assert (again.venv.simulator.state.records["symbol"] >= 2).any()  # some of them are in resampled worlds
    for t in range(70, 120):
        result = again.venv.step(actions[t])
        assert np.array_equal(result[0], obs[t]) and np.array_equal(result[1], rewards[t])


def test_selection_and_test_play_real_bars_alone() -> None:
    world, plain = world_of(), world_of(data={"resample": None})
    for purpose in ("train", "select", "test"):
        driver, other = (one.eval_env(purpose, episodes=1, seed=0) for one in (world, plain))  # type: ignore[arg-type]
        assert driver.num_envs == other.num_envs == 2
        assert np.array_equal(driver.venv.simulator.table.bars, other.venv.simulator.table.bars)


def test_what_cannot_be_resampled_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.resample is for accounts that trade one symbol"):
        world_of(env={"action": {"kind": "weights"}})
    with pytest.raises(NotBuiltError, match="in one account"):
        Resampler(dataset(), ResampleConfig(), seed=0).tables(base=None, scales={}, together=True)
    tables = Resampler(dataset(), ResampleConfig(worlds=1), seed=0).tables(base=None, scales={})
    with pytest.raises(ConfigError, match="the real symbols too"):
        MarketEnv(tables, MarketEnvConfig(), resampled=0.5)
