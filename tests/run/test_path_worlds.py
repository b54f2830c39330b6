"""The worst path for a policy: a gradient that is that of the real account, and a search that beats chance."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tailwise.core.errors import CheckpointError, ConfigError, NotBuiltError
from tailwise.core.metrics import compared_part
from tailwise.learner.path_account import HeldPath, slopes
from tailwise.market.records import identity_error
from tailwise.market.shifts import ShiftBudget
from tailwise.run.agent import PPO
from tailwise.run.config import parse_config
from tailwise.run.path_worlds import PathSearch, shifted_world
from tailwise.run.play import ModelPlayer
from tailwise.run.worlds import MarketWorld, make_world, trade_window
from tests.support import SMALL_MODEL, merged

MARKET: dict[str, Any] = {
    "data": {"kind": "synthetic", "market": "jump_diffusion", "seeds": [0, 1], "parameters": {"length": 600}},
    "features": {"include": ["return_1", "volatility_20"]},
    "env": {"kind": "market", "episode_length": 60, "action": {"kind": "exposure", "low": -1, "high": 2}},
    "costs": {"taker_fee_bps": 5, "half_spread_bps": 2, "slippage_bps": 1, "impact_bps": 0},
    "run": {"environments": 8, "rollout_steps": 16, "total_steps": 512, "tensorboard": False},
    "model": merged(SMALL_MODEL, {"actor": {"gain": 1.0}}),
    "learner": {"epochs": 2, "minibatches": 2},
    "risk": {"mode": "report", "alpha": 0.25},
    "evaluate": {"patience": None},
}
ADVERSARY = {"kind": "path", "size": 0.05, "share": 0.5, "every": 2, "steps": 2}
TRAINED = merged(MARKET, {"learner": {"adversary": ADVERSARY}})
BUDGET = ShiftBudget(0.05, 0.2)


def world_of(**changes: Any) -> MarketWorld:
    return make_world(parse_config(merged(MARKET, changes), source="test")).market()


class GivenDecisions:
    """Plays the same exposures whatever it sees, another one in every step."""

    def __init__(self, seed: int = 0) -> None:
        self.exposures = np.random.default_rng(seed).uniform(-0.9, 1.8, 1000)

    def begin(self, rows: int) -> None:
        """Nothing to begin."""

    def act(self, obs: npt.NDArray[Any], episode_start: Any, mask: Any, step: int) -> npt.NDArray[Any]:
        return np.full((len(obs), 1), self.exposures[step], dtype=np.float32)


def untrained(world: MarketWorld, **changes: Any) -> PPO:
    return PPO(config=parse_config(merged(MARKET, changes), source="test"))


@pytest.mark.parametrize("fill", ["next_open", "close"])
@pytest.mark.parametrize("length", [None, 30])
def test_the_gradient_is_that_of_the_real_account(fill: str, length: int | None) -> None:
    """Central differences of the real simulator with the same decisions, per bar. Rejects the position after the order
    in place of that before it (1 bar late), a forgotten cost, and a sign."""
    # At 2% an order is dear enough for its cost to show in the slope.
    world = world_of(env={"fill": fill, "tolerance": 0.0}, costs={"taker_fee_bps": 200})
    search = PathSearch(world, "test", GivenDecisions, ShiftBudget(1.0, 1.0), seed=0, length=length)
    _, held = search.play(search.unshifted())
    step = 1e-3
    for symbol, path in enumerate(held):
        found = slopes(path) * search.units[symbol]
        for bar in (0, 1, 2, 31, 70, len(found) - 1):
            there = []
            for sign in (1, -1):
                shifts = [one.copy() for one in search.unshifted()]
                shifts[symbol][bar] = sign * step
                there.append(search.play(shifts)[0].log_return[symbol])
            measured = (there[0] - there[1]) / (2 * step)
            assert found[bar] == pytest.approx(measured, rel=2e-3, abs=2e-6), (symbol, bar)


def test_unshifted_bars_are_the_evaluation() -> None:
    """To the last bit, and one of several paths that are played side by side is that path alone."""
    world = world_of()
    agent = untrained(world)

    def player() -> ModelPlayer:
        return ModelPlayer(agent.model, deterministic=True, seed=0)

    search = PathSearch(world, "test", player, BUDGET, seed=0)
    real = [float(np.log(path.wealth[-1])) for path in trade_window(player(), world, "test", seed=0)]
    paths = [search.unshifted(), search.random(0), search.random(1)]
    together = search.play_all(paths)
    assert together[0][0].log_return.tolist() == real
    for (one, held), shifts in zip(together, paths, strict=True):
        alone, held_alone = search.play(shifts)
        assert np.array_equal(one.log_return, alone.log_return)
        assert all(np.array_equal(a.held, b.held) for a, b in zip(held, held_alone, strict=True))
    assert not np.array_equal(together[1][0].log_return, together[2][0].log_return)


def turned(path: HeldPath) -> npt.NDArray[np.float64]:
    """The wrong search: it looks for the best path."""
    return -slopes(path)


def test_the_worst_path_is_worse_than_chance() -> None:
    """At least as bad as the worst of 20 random paths of the same budget, on the bars of both symbols, for a policy
    that reacts. A search with the turned sign is not, so the test can fail."""
    world = world_of()
    agent = untrained(world)
    search = PathSearch(world, "test", lambda: ModelPlayer(agent.model, deterministic=True, seed=0), BUDGET, seed=0)
    by_chance = np.min([path.log_return for path, _ in search.play_all([search.random(k) for k in range(20)])], axis=0)
    clean, worst = search.worst(steps=5)
    assert (worst.log_return <= by_chance).all() and (worst.log_return < clean.log_return).all()
    assert all(search.within(own) for own in worst.shifts)
    assert search.play(worst.shifts)[0].log_return == pytest.approx(worst.log_return, rel=1e-12)
    _, wrong = search.worst(steps=5, slope=turned)
    assert (wrong.log_return > by_chance).all()


def test_a_budget_is_asserted() -> None:
    search = PathSearch(world_of(), "test", GivenDecisions, BUDGET, seed=0)
    beyond = [np.full(count, BUDGET.mean * 1.001) for count in search.counts]
    with pytest.raises(AssertionError, match="exceed their budget"):
        search.play(beyond)


# ------------------------------------------------------------------ training


def test_accounts_neither_gain_nor_lose_when_bars_are_replaced() -> None:
    """Equity and exposure stay, the next step satisfies the identity, and accounts on other symbols do not change at
    all. Rejects new prices under the old number of units."""
    world = world_of(learner={"adversary": ADVERSARY})
    driver = world.training()
    driver.reset()
    for _ in range(20):
        driver.step(np.full((8, 1), 1.3, dtype=np.float32))
    simulator: Any = driver.venv.simulator  # type: ignore[attr-defined]
    simulator.config = simulator.config.model_copy(update={"report": True})
    records, table = simulator.state.records, simulator.table
    mine = records["symbol"] >= 2
    assert mine.any() and not mine.all() and table.resampled.tolist() == [False, False, True, True]
    before, obs = records.copy(), driver.obs.copy()
    exposure = records["units"] * table.bars["close"][records["row"]] / records["equity"]
    search = PathSearch(world, "train", GivenDecisions, ShiftBudget(0.5, 2.0), seed=0)
    tables = shifted_world(world, "train", search.random(0)).dataset.tables("train")
    driver.show(*driver.venv.replace_bars(2, tables))  # type: ignore[attr-defined]
    close = table.bars["close"][records["row"]]
    assert np.array_equal(records["equity"], before["equity"]) and np.array_equal(records[~mine], before[~mine])
    np.testing.assert_allclose(records["units"] * close / records["equity"], exposure, rtol=1e-12)
    np.testing.assert_allclose(records["cash"] + records["units"] * close, records["equity"], rtol=1e-12)
    assert np.abs(records["units"][mine] / before["units"][mine] - 1).max() > 0.001
    assert np.array_equal(driver.obs[~mine], obs[~mine]) and not np.array_equal(driver.obs[mine], obs[mine])
    result = simulator.step(np.full(8, 1.3), autoreset=True)
    assert identity_error(result.ledger).max() < 1e-9


def test_training_meets_paths_that_hurt() -> None:
    """Paths are found before every second update, cost something, keep their budget and stand in the environments.
    Rejects a search whose result never reaches the bars that are traded."""
    agent = PPO(config=parse_config(TRAINED, source="test"))
    agent.learn()
    rows = [row for row in agent.history if "adversary/path_cost" in row]
    assert [row["update"] for row in rows] == [1, 3]
    for row in rows:
        assert row["adversary/path_cost"] > 0 and 0 < row["adversary/path_shift"] <= 0.05 * (1 + 1e-9)
    paths = agent.trainer.extra.paths
    assert paths is not None
    table = agent.trainer.driver.venv.simulator.table  # type: ignore[attr-defined]
    wanted = shifted_world(paths.world, "train", paths.shifts).dataset.tables("train")
    rows_of = [slice(int(a), int(b) + 1) for a, b in zip(table.offsets, table.last_rows, strict=True)]
    for place, one in enumerate(wanted):
        assert np.array_equal(table.bars["close"][rows_of[2 + place]], one.close)
        assert np.array_equal(table.features[rows_of[2 + place]], one.features, equal_nan=True)
        assert not np.array_equal(table.bars["close"][rows_of[2 + place]], table.bars["close"][rows_of[place]])


@pytest.mark.parametrize("kept", [1, 2])
def test_a_resumed_run_finds_the_same_paths(tmp_path: Path, kept: int) -> None:
    """Weights, metrics and shifts equal those of a run that was not cut, whether the cut lies before a search (after
    two updates) or between two (after one). Rejects a resume on unshifted bars."""
    config = parse_config(merged(TRAINED, {"run": {"checkpoint_every": 1, "keep": 10}}), source="test")
    whole = PPO(config=config, run_dir=tmp_path / "whole")
    whole.learn()
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for late in range(kept + 1, 5):
        shutil.rmtree(tmp_path / "cut" / "checkpoints" / f"update-{late:06}")
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "best", ignore_errors=True)
    again, notes = PPO.resume(tmp_path / "cut")
    assert notes == [] and again.trainer.update == kept
    stored = again.trainer.extra.tensors()
    assert any(bool(one.any()) for one in stored.values())
    again.learn()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
    for name, tensor in whole.trainer.extra.tensors().items():
        assert torch.equal(tensor, again.trainer.extra.tensors()[name]), name
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "cut")]
    rows = [[compared_part(json.loads(line)) for line in one] for one in lines]
    assert rows[0] == rows[1] and len(rows[0]) == 4
    with pytest.raises(CheckpointError, match=r"exceed learner\.adversary\.size"):
        again.trainer.extra.check({name: 3.0 * one for name, one in stored.items()})
    with pytest.raises(CheckpointError, match="are missing"):
        again.trainer.extra.check({})


def test_where_it_does_not_compose_it_says_so() -> None:
    adversary = {"learner": {"adversary": ADVERSARY}}
    gym = {**{name: MARKET[name] for name in ("model", "run", "risk")}, "env": {"id": "CartPole-v1"}, **adversary}
    with pytest.raises(ConfigError, match="shifts the bars of a market, and CartPole-v1 is not one"):
        PPO("CartPole-v1", parse_config(gym, source="test"))
    weights = {"env": {"action": {"kind": "weights", "low": -1, "high": 1}}}
    times = world_of().dataset.bars[0].time
    ranges = [[str(times[first]), str(times[end])] for first, end in ((0, 200), (300, 500))]
    for changes, words in (
        (weights, "env.action.kind weights"),
        ({"data": {"resample": {"worlds": 2}}}, "data.resample"),
        ({"data": {"split": {"kind": "ranges", "train": ranges}}}, "data.split.kind ranges"),
    ):
        with pytest.raises(NotBuiltError, match=words):
            world_of(**merged(adversary, changes)).training()
