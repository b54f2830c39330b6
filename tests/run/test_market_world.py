"""Training and judging on a market through the whole path: configuration, driver, checkpoint, resume, evaluation."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tailwise
from tailwise import backtest
from tailwise.bars.bars import save_bars
from tailwise.bars.synthetic import ar1
from tailwise.core.config import dump_yaml, load_yaml
from tailwise.core.errors import CheckpointError, ConfigError, DataError
from tailwise.core.metrics import compared_part
from tailwise.evaluate.judgement import judge_policy
from tailwise.run.config import parse_config
from tailwise.run.worlds import MarketWorld
from tests.support import merged

MARKET: dict[str, Any] = {
    "data": {"kind": "synthetic", "market": "ar1", "seeds": [3], "parameters": {"length": 900}},
    "features": {"include": ["return_1", "volatility_20"]},
    "env": {"kind": "market", "episode_length": 64},
    "run": {"environments": 8, "rollout_steps": 16, "total_steps": 512, "tensorboard": False, "checkpoint_every": 1},
    "model": {"encoder": {"hidden": [16]}, "critic": {"quantiles": 32}},
    "evaluate": {"every": 2},
}


def market(**changes: Any) -> dict[str, Any]:
    return merged(MARKET, changes)


def test_training_selects_on_its_own_window_and_is_judged_on_another(tmp_path: Path) -> None:
    agent = tailwise.PPO(config=market(), run_dir=tmp_path / "run")
    agent.learn()
    world = agent.world()
    assert isinstance(world, MarketWorld)
    selected = [row for row in load_metrics(tmp_path / "run") if "evaluate/return" in row]
    assert [row["update"] for row in selected] == [2, 4]
    judged = judge_policy(tailwise.load(tmp_path / "run"))[0]
    bars, test = world.dataset.bars[0], world.dataset.window("test")[0]
    assert len(judged.paths["policy"]) == test.end - test.first
    assert judged.paths["policy"].time[0] == bars.time[test.first]
    # The number that selection used is the log-return of the select window, after costs.
    driver = world.eval_env("select", episodes=20, seed=0)
    played = sum(path.log_returns.sum() for path in agent.trade("select"))
    assert driver.num_envs == 1
    assert selected[-1]["evaluate/return"] == pytest.approx(float(played), abs=1e-9)


def load_metrics(folder: Path) -> list[dict[str, Any]]:
    import json

    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_policy_trades_like_its_targets_in_a_backtest(tmp_path: Path) -> None:
    """The same decisions through training's environment and through `tailwise.backtest`: the same equity, bit for bit
    (LEDGER L3)."""
    agent = tailwise.PPO(config=market(model={"actor": {"gain": 1.0}}))
    agent.learn()
    path = agent.trade("test")[0]
    assert len(set(path.target[:, 0].tolist())) > 1  # otherwise the comparison would show little
    world = agent.world()
    assert isinstance(world, MarketWorld)
    bars, table = world.dataset.bars[0], world.dataset.tables("test")[0]
    targets = np.zeros(len(bars))
    targets[table.first_valid : len(table.close) - 1] = path.target[:, 0]
    again = backtest(
        targets, bars, world.costs, config=world.settings, first=table.first_valid, last=len(table.close) - 1
    )
    for name in ("equity", "units", "fee", "impact", "order_price"):
        assert np.array_equal(again.ledger[name], path.ledger[name]), name


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_resumed_market_run_equals_an_uninterrupted_one(tmp_path: Path, core: str) -> None:
    config = market(model={"core": {"kind": core}}, run={"keep": 10})
    whole = tailwise.PPO(config=config, run_dir=tmp_path / "whole")
    whole.learn()
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for late in ("update-000002", "update-000003", "update-000004", "best"):  # as if killed after the first update
        shutil.rmtree(tmp_path / "cut" / "checkpoints" / late)
    again, notes = tailwise.PPO.resume(tmp_path / "cut")
    assert notes == [] and again.trainer.update == 1
    again.learn()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
    compared = [compared_part(row) for row in load_metrics(tmp_path / "whole")]
    assert compared == [compared_part(row) for row in load_metrics(tmp_path / "cut")]


def test_prices_times_1000_change_no_decision(tmp_path: Path) -> None:
    """Neither do volumes times 1000 (LEDGER L4): features, sizes and costs are free of scale."""
    bars = ar1(seed=3, length=900)
    decisions = []
    for factor, volume in ((1.0, 1.0), (1000.0, 1.0), (1.0, 1000.0)):
        frame = bars.to_frame()
        frame[["open", "high", "low", "close"]] *= factor
        frame["volume"] *= volume * 1e6  # impact must not matter here: it depends on real volumes by intent
        path = tmp_path / f"{factor}-{volume}.parquet"
        frame.to_parquet(path)
        data = {"kind": "files", "paths": [str(path)], "symbols": ["ONE"], "periods_per_year": 8766}
        agent = tailwise.PPO(
            config=market(
                data=data,
                features={"include": ["return_1", "volatility_20", "volume_ratio_20"]},
                costs={"impact_bps": 0},
            )
        )
        agent.learn()
        decisions.append(agent.trade("test")[0].target)
    assert len(decisions[0]) > 200
    assert np.array_equal(decisions[0], decisions[1])
    assert np.array_equal(decisions[0], decisions[2])


def test_changed_bars_stop_a_resume(tmp_path: Path) -> None:
    """Rejects going on with features fitted on other bars."""
    bars = ar1(seed=3, length=900)
    path = tmp_path / "bars.parquet"
    save_bars(bars, path)
    config = market(data={"kind": "files", "paths": [str(path)], "symbols": ["ONE"]})
    tailwise.PPO(config=config, run_dir=tmp_path / "run").learn(256)
    save_bars(ar1(seed=4, length=900), path)
    with pytest.raises(CheckpointError, match="bars of the train window are not those"):
        tailwise.PPO.resume(tmp_path / "run")


def test_effective_configuration_reads_back_as_itself(tmp_path: Path) -> None:
    full = parse_config(market(), source="test")
    assert full.costs is not None and full.costs.taker_fee_bps == 2.0
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(full))
    assert parse_config(load_yaml(path), source="file") == full


def test_sections_of_the_market_without_a_market_are_refused() -> None:
    """An unused key cannot exist."""
    with pytest.raises(ConfigError, match="section costs belongs to the market"):
        parse_config({"env": {"id": "CartPole-v1"}, "costs": {"taker_fee_bps": 1}}, source="test")
    with pytest.raises(ConfigError, match="section data, which is missing"):
        parse_config({"env": {"kind": "market"}}, source="test")
    with pytest.raises(ConfigError, match=r"env\.kind is market and an environment was passed"):
        tailwise.PPO("CartPole-v1", market())
    with pytest.raises(ConfigError, match="liquidates from 4"):
        parse_config(market(env={"action": {"positions": [0, 5]}}), source="test")


def test_several_assets_in_one_account_train_resume_and_are_judged(tmp_path: Path) -> None:
    """Action kind weights, one asset with a shorter history: bounds reach the driver, the run goes on bit for bit."""
    for name, seed, length in (("long", 3, 900), ("short", 4, 700)):
        save_bars(ar1(seed=seed, length=length), tmp_path / f"{name}.parquet")
    data = {
        "kind": "files",
        "paths": [str(tmp_path / "long.parquet"), str(tmp_path / "short.parquet")],
        "split": {"kind": "dates", "train": ["2000-01-01", "2000-01-20"], "test": ["2000-01-20", None]},
    }
    action = {"kind": "weights", "low": -1, "high": 1, "gross": 1.5}
    config = market(
        data=data,
        env={"action": action},
        evaluate={"every": None},
        run={"keep": 10},
        model={"actor": {"log_std": -1.0}},
    )
    whole = tailwise.PPO(config=config, run_dir=tmp_path / "whole")
    whole.learn()
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for late in ("update-000002", "update-000003", "update-000004"):
        shutil.rmtree(tmp_path / "cut" / "checkpoints" / late)
    again, notes = tailwise.PPO.resume(tmp_path / "cut")
    again.learn()
    assert notes == []
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
    judged = judge_policy(tailwise.load(tmp_path / "whole"))
    assert len(judged) == 1 and judged[0].symbol == "long + short"
    path = judged[0].paths["policy"]
    assert path.target.shape == (len(path), 2) and (np.abs(path.exposures).sum(axis=1) < 1.7).all()
    # The shorter history ends before the clock does: from then on nothing is held of it.
    over = path.time > np.datetime64("2000-01-30T04", "ns")
    assert over.any() and (path.exposures[over, 1] == 0).all() and (path.exposures[:50, 1] != 0).any()
    equal = judged[0].paths["equal weights"]
    assert np.allclose(equal.exposures[:100], 0.5, atol=0.02)


def test_guards_bind_while_training_with_a_box_action() -> None:
    """Exposure is limited to .3 by a guard: no position exceeds it, in training and in playback."""
    env = {"action": {"kind": "exposure"}, "episode_length": 100}
    guarded = market(env={**env, "guards": {"max_exposure": 0.3}}, evaluate={"every": None})
    agent = tailwise.PPO(config=guarded)
    agent.learn()
    names = agent.trainer.driver.venv.observation_names  # type: ignore[attr-defined]
    held = np.abs(agent.trainer.driver.obs[:, names.index("exposure")])
    assert 0 < held.max() < 0.35
    path = agent.trade("test")[0]
    assert 0 < np.abs(path.exposure).max() < 0.35
    free = tailwise.PPO(config=market(env=env, evaluate={"every": None}))
    free.learn()
    assert np.abs(free.trainer.driver.obs[:, names.index("exposure")]).max() > 0.35


def test_a_test_window_that_moved_into_the_train_bars_is_refused(tmp_path: Path) -> None:
    """The file was shortened after training, so the newest quarter of it is not what it was: rejects judging in-sample
    without a word."""
    path = tmp_path / "bars.parquet"
    save_bars(ar1(seed=3, length=900), path)
    config = market(data={"kind": "files", "paths": [str(path)], "symbols": ["ONE"]})
    tailwise.PPO(config=config, run_dir=tmp_path / "run").learn(256)
    assert len(judge_policy(tailwise.load(tmp_path / "run"))[0].paths["policy"]) == 225
    save_bars(ar1(seed=3, length=600), path)
    with pytest.raises(DataError, match=r"the train window now holds other bars .*540 bars"):
        judge_policy(tailwise.load(tmp_path / "run"))
    with pytest.raises(DataError, match="train window now holds other bars"):
        tailwise.load(tmp_path / "run").evaluate(episodes=1)


def test_evaluations_without_a_select_window_are_refused_before_training() -> None:
    with pytest.raises(ConfigError, match=r"data\.split has none"):
        parse_config(market(data={**MARKET["data"], "split": {"kind": "shares", "select": 0}}), source="test")


def test_every_symbol_is_judged_on_its_own_bars_beside_the_same_rules() -> None:
    """Two symbols of unequal length in accounts of their own. Rejects bars of another symbol, baselines without costs,
    one bar late, or over another window."""
    config = market(data={"kind": "synthetic", "market": "ar1", "seeds": [3, 4], "parameters": {"length": 900}})
    agent = tailwise.PPO(config=config)
    agent.learn(128)
    world = agent.world()
    assert isinstance(world, MarketWorld)
    judged = judge_policy(agent)
    assert [one.symbol for one in judged] == [bars.symbol for bars in world.dataset.bars]
    for bars, table, one in zip(world.dataset.bars, world.dataset.tables("test"), judged, strict=True):
        first, last = table.first_valid, len(table.close) - 1
        for path in one.paths.values():
            assert np.array_equal(path.time, bars.time[first + 1 : last + 1])
            assert np.array_equal(path.close[:, 0], bars.close[first + 1 : last + 1])
        held = backtest(np.ones(len(bars)), bars, world.costs, config=world.settings, first=first, last=last)
        assert np.array_equal(one.paths["buy and hold"].ledger["equity"], held.ledger["equity"])
        assert one.paths["buy and hold"].ledger["fee"].sum() > 0
        targets = np.zeros(len(bars))
        targets[first:last] = one.paths["policy"].target[:, 0]
        again = backtest(targets, bars, world.costs, config=world.settings, first=first, last=last)
        assert np.array_equal(again.ledger["equity"], one.paths["policy"].ledger["equity"])


def test_changed_select_bars_stop_a_resume(tmp_path: Path) -> None:
    """The best checkpoint was chosen on other bars."""
    path = tmp_path / "bars.parquet"
    bars = ar1(seed=3, length=900)
    save_bars(bars, path)
    config = market(data={"kind": "files", "paths": [str(path)], "symbols": ["ONE"]})
    tailwise.PPO(config=config, run_dir=tmp_path / "run").learn(256)
    ramp = np.where(np.arange(900) >= 600, 1.001, 1.0)
    save_bars(replace(bars, **{n: getattr(bars, n) * ramp for n in ("open", "high", "low", "close")}), path)
    with pytest.raises(CheckpointError, match="bars of the select window are not those"):
        tailwise.PPO.resume(tmp_path / "run")


def test_pieces_of_the_test_window_are_accounts_that_begin_anew() -> None:
    """Every bar of the window is lived through once, in order; each account starts flat with the initial cash, so its
    first piece is that of the whole account and its later ones are not."""
    agent = tailwise.PPO(config=market(model={"actor": {"gain": 1.0}}))
    agent.learn()
    world = agent.market()
    whole = agent.trade("test", market=world)[0]
    pieces = agent.trade("test", market=world.in_pieces("test", 64))
    assert len(pieces) == -(-len(whole) // 64)
    assert np.array_equal(np.concatenate([path.time for path in pieces]), whole.time)
    assert {float(path.equity[0]) for path in pieces} == {world.settings.initial_cash}
    assert np.array_equal(pieces[0].log_returns, whole.log_returns[:64])
    assert not np.array_equal(pieces[1].equity[1:], whole.equity[65:129])


def test_training_begins_with_accounts_of_different_ages() -> None:
    """Rejects a training in which all accounts end their episodes at once: its updates would see one age each."""
    agent = tailwise.PPO(config=market(run={"total_steps": 128}))
    agent.learn()
    ages = agent.trainer.driver.venv.simulator.state.records["age"]  # type: ignore[attr-defined]
    assert len(set(ages.tolist())) == len(ages) == 8
