"""One policy over several symbols: limits and rewards in each symbol's own tail, symbols that only train."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import tailwise
from tailwise.bars.bars import save_bars
from tailwise.bars.data_config import ResampleConfig
from tailwise.bars.synthetic import jump_diffusion, random_walk
from tailwise.core.errors import ConfigError, DataError
from tailwise.core.numerics import known_forward_returns
from tailwise.evaluate.judgement import judge_policy
from tailwise.market.tables import SymbolTable
from tailwise.run.config import Config, parse_config
from tailwise.run.limits import limit_of, rule_returns, units_of
from tailwise.run.worlds import MarketWorld
from tests.support import merged

RATIO = 5.0
GAMMA = 0.9


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calm and a wild symbol, whose volatilities differ by RATIO, a late one, and one that ended."""
    folder = tmp_path_factory.mktemp("pool")
    for name, seed, sigma in (("calm", 1, 0.004), ("wild", 2, 0.004 * RATIO), ("third", 3, 0.01)):
        save_bars(random_walk(seed=seed, length=1500, sigma=sigma, bar="1d"), folder / f"{name}.parquet")
    ended = jump_diffusion(seed=4, length=1500, bar="1d")
    save_bars(ended.slice(0, 700), folder / "ended.parquet")
    save_bars(ended.slice(400, None), folder / "late.parquet")
    return folder


def config(files: Path, names: tuple[str, ...] = ("calm", "wild"), **changes: Any) -> Config:
    tree: dict[str, Any] = {
        "data": {"kind": "files", "paths": [str(files / f"{name}.parquet") for name in names], "pool": {}},
        "features": {"include": ["return_1", "volatility_20"]},
        "env": {
            "kind": "market",
            "base": {"kind": "buy_and_hold"},
            "action": {"kind": "exposure", "low": 0, "high": 2},
            "episode_length": 100,
        },
        "learner": {"gamma": GAMMA},
        "risk": {"mode": "constraint", "limit": {"of": "buy_and_hold", "share": 0.5}},
        "run": {"environments": 8, "rollout_steps": 16, "total_steps": 256, "tensorboard": False},
    }
    return parse_config(merged(tree, changes), source="test")


def tails(world: MarketWorld, tables: list[SymbolTable]) -> dict[str, float]:
    """CVaR of the discounted returns of the base rule, symbol by symbol, by hand."""
    found = {}
    for table in tables:
        ((returns, over),) = rule_returns([table], world.settings, world.costs)
        forward = np.sort(known_forward_returns(returns, GAMMA, over=over))
        found[table.symbol] = float(forward[: round(0.05 * len(forward))].mean())
    return found


def test_every_symbol_has_a_limit_in_proportion_to_its_own_tail(files: Path) -> None:
    """And its base rule has just that tail, where one limit for both lets the calm one risk five times of its own and
    cuts the wild one. Rejects units of the wrong symbol, and a scale for all."""
    own = MarketWorld(config(files))
    units = units_of(own.config)
    assert units["wild"].unit / units["calm"].unit == pytest.approx(RATIO, rel=0.15)
    assert np.mean([one.unit for one in units.values()]) == pytest.approx(1.0)
    held = tails(own, own.dataset.tables("train"))
    unscaled = MarketWorld(config(files, env={"base": {"scale": 1.0}}))
    whole = tails(unscaled, unscaled.dataset.tables("train"))
    for symbol, tail in held.items():
        assert tail == pytest.approx(limit_of(own.config, symbol), rel=0.03)
        assert tail == pytest.approx(0.5 * whole[symbol], rel=0.05)
    one = MarketWorld(config(files, data={"pool": {"tails": "pooled"}}))
    pooled = tails(one, one.dataset.tables("train"))
    limit = one.config.risk.level  # type: ignore[union-attr]
    use = {symbol: tail / limit for symbol, tail in pooled.items()}
    assert use["wild"] / use["calm"] > 4
    assert use["calm"] < 0.35  # the calm symbol hardly uses what the wild one fills
    assert limit_of(one.config, "calm") == limit_of(one.config, "wild") == limit


def test_numbers_that_were_found_stay(files: Path) -> None:
    found = MarketWorld(config(files)).config
    assert MarketWorld(found).config == found
    again = parse_config(found.model_dump(mode="json"), source="config.yaml of the run")
    assert MarketWorld(again).config == found
    with pytest.raises(ConfigError, match="not wild"):
        MarketWorld(config(files, data={"pool": {"units": {"calm": {"unit": 1.0}}}}))


def test_rewards_of_training_are_in_units_of_the_symbols_tail(files: Path) -> None:
    """The same actions earn the log-return divided by the unit; a new episode in another symbol is divided by its own.
    Rejects a unit of the symbol that comes next, and rewards of playback that are divided too."""
    given = {name: {"unit": unit} for name, unit in (("calm", 0.25), ("wild", 4.0))}
    changes: dict[str, Any] = {"env": {"base": {"scale": 1.0}, "episode_length": 7}}
    plain = MarketWorld(config(files, **merged(changes, {"data": {"pool": {"tails": "pooled"}}}))).training()
    units = MarketWorld(config(files, **merged(changes, {"data": {"pool": {"units": given}}}))).training()
    results = [driver.venv.reset() for driver in (plain, units)]
    assert np.array_equal(results[0][0], results[1][0])
    divisors = {0: 0.25, 1: 4.0}
    for step in range(60):
        symbols = plain.venv.simulator.state.records["symbol"].copy()
        actions = np.full((8, 1), 0.5 + 0.01 * step, dtype=np.float32)
        one, two = plain.venv.step(actions), units.venv.step(actions)
        np.testing.assert_allclose(two[1], one[1] / [divisors[int(s)] for s in symbols], rtol=1e-12)
        assert np.array_equal(one[0], two[0])
    world = MarketWorld(config(files, **merged(changes, {"data": {"pool": {"units": given}}})))
    assert (world.eval_env("select", episodes=2, seed=0).venv.simulator.table.units == 1.0).all()


def test_selection_averages_returns_in_units(files: Path) -> None:
    """Otherwise the wild symbol alone would choose the checkpoint."""
    own, pooled = config(files), config(files, data={"pool": {"tails": "pooled"}})
    agent = tailwise.PPO(config=own)
    units = agent.trainer.world.reward_units()
    assert units is not None and units[1] / units[0] == pytest.approx(RATIO, rel=0.15)
    assert MarketWorld(pooled).reward_units() is None
    selection = agent.trainer.selection
    played = selection.play(agent.trainer.backend, agent.trainer.world.config)
    paths = [path.log_returns.sum() for path in agent.trade("select", deterministic=True, seed=0)]
    np.testing.assert_allclose(played.returns, np.array(paths) / units, rtol=1e-6)


def test_judgement_knows_the_limit_of_each_symbol(files: Path, tmp_path: Path) -> None:
    agent = tailwise.PPO(config=config(files))
    agent.save(tmp_path / "policy")
    judged = judge_policy(tailwise.load(tmp_path / "policy"), deterministic=True)
    verdicts = {one.symbol: one.limits["policy"].limit for one in judged}
    assert verdicts == {symbol: limit_of(agent.market().config, symbol) for symbol in ("calm", "wild")}
    assert verdicts["wild"] / verdicts["calm"] == pytest.approx(RATIO, rel=0.15)


def test_symbols_that_only_train(files: Path) -> None:
    """They are trained on and fitted on, also where they end before the test window, and appear in no account that is
    judged. Without the name the missing window is an error."""
    names = ("calm", "ended", "third")
    with pytest.raises(DataError, match=r"data\.pool\.train_only"):
        MarketWorld(config(files, names))
    world = MarketWorld(config(files, names, data={"pool": {"train_only": ["ended"]}}))
    alone = MarketWorld(config(files, ("calm", "third")))
    assert [bars.symbol for bars in world.dataset.bars] == ["calm", "third"]
    assert world.dataset.windows == alone.dataset.windows  # whoever helps moves no window
    assert set(world.training().venv.simulator.table.symbols) == set(names)
    assert world.eval_env("test", episodes=1, seed=0).venv.simulator.table.symbols == ("calm", "third")
    assert set(world.features.windows) == set(names) and world.features.scales != alone.features.scales
    facts = world.facts()
    assert facts["train_only"] == ["ended"] and "train_only" not in alone.facts()
    assert set(facts["data"]["train"]) == set(names) and set(facts["data"]["test"]) == {"calm", "third"}
    assert any(line.startswith("only trains: ended") for line in world.describe())
    assert set(units_of(world.config)) == set(names)
    with pytest.raises(ConfigError, match="none of the symbols"):
        MarketWorld(config(files, names, data={"pool": {"train_only": ["gone"]}}))
    with pytest.raises(ConfigError, match="every symbol"):
        MarketWorld(config(files, names, data={"pool": {"train_only": list(names)}}))


def test_histories_of_different_length_are_pooled(files: Path, tmp_path: Path) -> None:
    """A symbol that began late trains from its own first bar on; save, load and evaluate work with helpers."""
    names = ("calm", "late", "ended")
    tree = config(files, names, data={"pool": {"train_only": ["ended"]}})
    agent = tailwise.PPO(config=tree, run_dir=tmp_path / "run")
    agent.learn()
    first, late = agent.market().dataset.window("train")
    assert late.end - late.first == first.end - first.first - 400
    again = tailwise.load(tmp_path / "run")
    paths = [(path.symbol, path.log_returns) for path in again.trade("test", deterministic=True, seed=0)]
    assert [symbol for symbol, _ in paths] == ["calm", "late"]
    for (_, one), path in zip(paths, agent.trade("test", deterministic=True, seed=0), strict=True):
        assert np.array_equal(one, path.log_returns)
    save_bars(random_walk(seed=9, length=700, bar="1d"), tmp_path / "ended.parquet")
    moved = again.config.model_dump(mode="json")
    moved["data"]["paths"][2] = str(tmp_path / "ended.parquet")
    with pytest.raises(DataError, match="ended: the train window now holds other bars"):
        MarketWorld(parse_config(moved, source="test"), features=again.features)


def test_a_symbol_too_young_for_a_tail_of_its_own_is_refused_by_name(files: Path, tmp_path: Path) -> None:
    """With what can be done about it; under one limit for all it trains. Rejects advice to give more bars."""
    young = jump_diffusion(seed=4, length=1500, bar="1d").slice(900 - 40, None)  # 40 train bars, 20 of them warm up
    save_bars(young, tmp_path / "young.parquet")
    paths = [str(files / "calm.parquet"), str(tmp_path / "young.parquet")]
    with pytest.raises(DataError, match=r"train bars of .* are shorter than the 30 bars .* leave the symbol out"):
        MarketWorld(config(files, data={"paths": paths}))
    one = MarketWorld(config(files, data={"paths": paths, "pool": {"tails": "pooled"}}))
    assert len(one.dataset.tables("train")) == 2


@pytest.mark.parametrize("world", ["resample", "pool"])
def test_a_resumed_run_equals_an_uninterrupted_one(files: Path, tmp_path: Path, world: str) -> None:
    """Worlds and units are found again, bit for bit, from the configuration of the run."""
    changes: dict[str, Any] = {"run": {"keep": 10, "checkpoint_every": 1}}
    if world == "resample":
        changes["data"] = {"resample": {"worlds": 2, "block": 20}}
    tree = config(files, **changes)
    whole = tailwise.PPO(config=tree, run_dir=tmp_path / "whole")
    whole.learn()
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for late in ("update-000002", "best"):  # as if killed after the first update
        shutil.rmtree(tmp_path / "cut" / "checkpoints" / late, ignore_errors=True)
    again, notes = tailwise.PPO.resume(tmp_path / "cut")
    assert notes == [] and again.trainer.update == 1
    again.learn()
    for name, values in whole.model.state_dict().items():
        assert np.array_equal(values.numpy(), again.model.state_dict()[name].numpy()), name


def test_the_settings_on_the_page_are_valid() -> None:
    page = Path(__file__).parents[2].joinpath("docs/pooling.md").read_text(encoding="utf-8")
    pooled, resampled = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL))
    market = {"env": {"kind": "market", "action": {"kind": "exposure", "low": 0, "high": 2}}}
    found = parse_config(merged(pooled, market), source="docs/pooling.md").data
    assert found is not None and found.pool is not None and found.pool.train_only == ("tin",)
    other = parse_config(
        merged({"data": {"kind": "builtin"}}, merged(resampled, market)), source="docs/pooling.md"
    ).data
    assert other is not None and other.resample == ResampleConfig(), "the page shows the defaults"


def test_pooled_units_are_refused_where_nothing_reads_them(files: Path) -> None:
    units = {"calm": {"unit": 1.0}, "wild": {"unit": 1.0}}
    with pytest.raises(ConfigError, match="read with tails symbol alone"):
        config(files, data={"pool": {"tails": "pooled", "units": units}})
    with pytest.raises(ConfigError, match="in one account"):
        config(files, env={"action": {"kind": "weights", "low": 0, "high": 1}})
    free = config(files).model_dump(mode="json") | {"risk": {"mode": "off"}}
    free["data"]["pool"]["units"] = units
    with pytest.raises(ConfigError, match=r"data\.pool\.units are the tails behind"):
        parse_config(free, source="test")
