"""Train, select and test side by side: learning by heart and an unused budget are told, noise is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tailwise
from tailwise.bars.data_config import Purpose
from tailwise.evaluate.opened_run import open_team
from tailwise.evaluate.statistics import PathStatistics, path_statistics
from tailwise.evaluate.windows import MOST_BARS, Windows, play_other_windows

SMALL: dict[str, Any] = {
    "data": {"kind": "synthetic", "market": "random_walk", "parameters": {"length": 1200}},
    "env": {
        "kind": "market",
        "base": {"kind": "volatility_target"},
        "action": {"kind": "exposure", "low": 0, "high": 2},
    },
    "features": {"include": ["return_1", "volatility_20"]},
    "model": {"encoder": {"hidden": [8]}},
    "learner": {"gamma": 0.9, "epochs": 1},
    "risk": {"mode": "constraint", "alpha": 0.1, "limit": {"of": "buy_and_hold", "share": 0.5}},
    "run": {"total_steps": 512, "environments": 4, "rollout_steps": 64, "tensorboard": False},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("windows") / "run"
    tailwise.PPO(config=SMALL, run_dir=folder).learn()
    return folder


def numbers(trained: Any) -> PathStatistics:
    team = open_team([trained])
    return path_statistics(team.trader.trade("test")[0], alpha=0.1, gamma=0.9)


def windows(
    example: PathStatistics, train: dict[str, Any], test: dict[str, Any], limit: float | None = -0.1
) -> Windows:
    statistics: dict[Purpose, PathStatistics] = {"train": replace(example, **train), "test": replace(example, **test)}
    return Windows(statistics, limit)


def test_a_fall_beyond_noise_is_overfit_and_one_within_it_is_not(trained: Any) -> None:
    """Rejects a threshold that ignores how long the windows are, and one that a rise passes."""
    example = numbers(trained)
    long, short = {"years": 10.0}, {"years": 1.0}
    fell = windows(example, long | {"sharpe": 2.0}, long | {"sharpe": 0.1})
    assert fell.overfit and "overfit: its Sharpe ratio is 2.00 on the train bars and 0.10" in fell.sentences()[0]
    assert fell.fall == pytest.approx((1.9, np.sqrt((1 + 2.0) / 10 + (1 + 0.005) / 10)))
    assert not windows(example, short | {"sharpe": 2.0}, short | {"sharpe": 0.1}).overfit
    assert not windows(example, long | {"sharpe": 0.1}, long | {"sharpe": 2.0}).overfit
    assert not windows(example, long | {"sharpe": None}, long | {"sharpe": 2.0}).overfit


def test_the_budget_that_is_used_is_the_tail_over_the_limit(trained: Any) -> None:
    example = numbers(trained)
    little = windows(example, {"cvar_return": -0.02, "sharpe": 0.0}, {"cvar_return": 0.01, "sharpe": 0.0})
    assert little.use("train") == pytest.approx(0.2) and little.use("test") == 0.0
    assert little.sentences()[0].startswith("unused budget: its tail on the train bars is 20% of the limit")
    assert ("budget use", "20%", "0%") in little.rows()
    enough = windows(example, {"cvar_return": -0.09, "sharpe": 0.0}, {"cvar_return": -0.01, "sharpe": 0.0})
    assert enough.sentences() == []
    assert windows(example, {}, {}, limit=None).use("train") is None
    assert windows(example, {"cvar_return": None}, {}).use("train") is None


def test_every_window_is_played_as_trade_plays_it(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trader = open_team([trained]).trader
    world = trader.market()
    (found,) = play_other_windows(trader, world, accounts=1, deterministic=True, seed=0)
    assert list(found) == ["train", "select"]
    for purpose, path in found.items():
        assert np.array_equal(path.equity, trader.trade(purpose, deterministic=True, seed=0)[0].equity)
    assert found["train"].time[-1] < found["select"].time[0]
    monkeypatch.setattr("tailwise.evaluate.windows.MOST_BARS", len(found["select"].time) + 100)
    (shorter,) = play_other_windows(trader, world, accounts=1, deterministic=True, seed=0)
    assert list(shorter) == ["select"] and MOST_BARS == 20_000


def test_the_judgement_of_a_run_holds_all_three_windows(trained: Any) -> None:
    judged = tailwise.judge(trained, stress=False)
    account = judged.accounts[0].to_json()
    assert list(account["windows"]) == ["train", "select", "test"]
    assert account["windows"]["test"]["total_return"] == account["statistics"]["policy"]["total_return"]
    assert account["overfit"] is False
    assert "Train, select and test" in (judged.folder / "report.html").read_text()
