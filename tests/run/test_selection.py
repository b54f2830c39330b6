"""The evaluation that chooses a checkpoint: the same numbers in compiled code, step by step and by torch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tailwise
from tailwise.core.errors import DataError
from tailwise.core.metrics import compared_part
from tailwise.learner.backend import Backend
from tailwise.market.env import MarketEnv
from tailwise.run import selection
from tailwise.run.config import parse_config
from tailwise.run.envs import EnvDriver
from tailwise.run.play import ModelPlayer, Played, episodes_played_by, play_episodes
from tailwise.run.selection import episodes_ahead, play_with
from tailwise.run.trainer import Trainer
from tailwise.run.worlds import MarketWorld
from tests.support import merged

RUIN = {"action": {"kind": "positions", "positions": [-20.0, 0.0, 20.0]}, "maintenance_margin": 0.0}
MARKET: dict[str, Any] = {
    "data": {"kind": "synthetic", "market": "ar1", "seeds": [3, 4], "parameters": {"length": 900}},
    "features": {"include": ["return_1", "volatility_20"]},
    "env": {"kind": "market", "episode_length": 64},
    "run": {"environments": 8, "rollout_steps": 16, "total_steps": 512, "tensorboard": False, "checkpoint_every": 1},
    "model": {"encoder": {"hidden": [16]}, "critic": {"quantiles": 32}, "actor": {"gain": 3.0}},
    "backend": "fused",
    "evaluate": {"every": 1},
}


# As `init` writes them: a multiple of a base rule, by a venue that can cut it.
EXPOSURE = {
    "env": {"base": {"kind": "volatility_target"}, "action": {"kind": "exposure", "low": 0, "high": 2}},
    "data": {"pool": {"tails": "symbol"}},
    "risk": {"mode": "constraint", "alpha": 0.05, "limit": {"of": "buy_and_hold", "share": 0.5}},
    "learner": {"gamma": 0.9},
}


class SlowMarket(MarketEnv):
    """Another class, so that it is driven step by step."""


def trainer_of(**changes: Any) -> Trainer:
    config = parse_config(merged(MARKET, changes), source="test")
    return Trainer(config, MarketWorld(config))


def select_env(trainer: Trainer, *, slow: bool = False) -> EnvDriver:
    driver = trainer.world.eval_env("select", episodes=1, seed=0)
    if slow:
        driver.venv.__class__ = SlowMarket
    return driver


def player_of(backend: Backend, *, deterministic: bool = True) -> ModelPlayer:
    return ModelPlayer(backend.model, deterministic=deterministic, seed=5, decide=backend.play)


def content(played: Played) -> list[bytes]:
    assert played.observation is not None
    return [played.returns.tobytes(), played.lengths.tobytes(), played.observation.tobytes()]


@pytest.mark.parametrize("stretch", [1, 50, 1024])  # of 135 bars: one step, across stretches, all at once
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("actions", [{}, EXPOSURE], ids=["positions", "exposure"])
def test_ahead_equals_step_by_step(
    monkeypatch: pytest.MonkeyPatch,
    actions: dict[str, Any],
    deterministic: bool,
    core: str,
    workers: int,
    stretch: int,
) -> None:
    """Rejects a state or a random number that is lost between stretches, steps after the end that are counted, and an
    account that begins where the one before ended. Twice, because a driver is used again."""
    monkeypatch.setattr(selection, "STRETCH", stretch)
    trainer = trainer_of(**merged(actions, {"model": {"core": {"kind": core}}, "run": {"threads": workers}}))
    backend, fast, slow = trainer.backend, select_env(trainer), select_env(trainer, slow=True)
    assert backend.ahead(slow.venv) is None
    player = player_of(backend, deterministic=deterministic)
    plain = [episodes_played_by(player, slow, episodes=2) for _ in range(2)]
    ahead = backend.ahead(fast.venv)
    assert ahead is not None
    for wanted in plain:
        played = episodes_ahead(ahead, player, fast, episodes=2)
        assert played is not None and content(played) == content(wanted)
    assert len(set(plain[0].returns.tolist())) == 2 and plain[0].lengths.tolist() == [135, 135]


def test_more_episodes_than_accounts_and_ruin() -> None:
    """Environment i plays episodes i, i + B, ..., also where accounts are ruined at different times. Rejects the first
    episodes that end."""
    crash = {"parameters": {"sigma": 0.03}}
    trainer = trainer_of(env=RUIN, data=crash)
    player = player_of(trainer.backend, deterministic=False)
    played = [play_with(trainer.backend, player, select_env(trainer, slow=slow), episodes=5) for slow in (False, True)]
    assert content(played[0]) == content(played[1])
    assert len(set(played[0].lengths.tolist())) > 1


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_the_backend_that_trains_plays_as_torch_does(core: str) -> None:
    """To the rounding of float32: the returns are equal where no two actions are equally likely."""
    trainer = trainer_of(model={"core": {"kind": core}})
    player = player_of(trainer.backend)
    ours = play_with(trainer.backend, player, select_env(trainer), episodes=2)
    torchs = play_episodes(trainer.model, select_env(trainer), episodes=2, deterministic=True, seed=5)
    np.testing.assert_allclose(ours.returns, torchs.returns, rtol=0, atol=1e-9)


def test_what_is_reported_of_steps_changes_no_return() -> None:
    """Paths of accounts are made with the report, the selection is played without it."""
    trainer = trainer_of(backend="torch")
    played = [
        play_episodes(
            trainer.model,
            trainer.world.eval_env("select", episodes=1, seed=0, report=report),
            episodes=2,
            deterministic=True,
            seed=0,
        )
        for report in (False, True)
    ]
    assert content(played[0]) == content(played[1])


@pytest.mark.parametrize("actions", [{}, EXPOSURE], ids=["positions", "exposure"])
@pytest.mark.parametrize("what", ["observation", "weights"])
def test_broken_numbers_are_the_sentence_of_the_plain_path(what: str, actions: dict[str, Any]) -> None:
    """Rejects acting on NaN in compiled code, where nobody looks."""
    trainer = trainer_of(**actions)
    messages = []
    for slow in (False, True):
        driver = select_env(trainer, slow=slow)
        if what == "observation":
            table = driver.venv.simulator.table  # type: ignore[attr-defined]
            table.features[table.first_rows[1] + 7, 0] = np.nan
        else:
            with torch.no_grad():
                trainer.model.actor.head.bias.fill_(torch.nan)
        with pytest.raises(DataError) as caught:
            play_with(trainer.backend, player_of(trainer.backend), driver, episodes=2)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert ("environment 1 shows NaN or infinite numbers before step 8" in messages[0]) == (what == "observation")


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a_resumed_run_selects_as_an_uninterrupted_one(tmp_path: Path, core: str) -> None:
    """Also the count of evaluations without gain. Rejects an evaluation that leaves something behind for the next."""
    config = merged(MARKET, {"model": {"core": {"kind": core}}, "run": {"keep": 10}, "evaluate": {"patience": 3}})
    whole = tailwise.PPO(config=config, run_dir=tmp_path / "whole")
    whole.learn()
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for late in ("update-000003", "update-000004", "best"):
        shutil.rmtree(tmp_path / "cut" / "checkpoints" / late, ignore_errors=True)
    again, notes = tailwise.PPO.resume(tmp_path / "cut")
    assert notes == [] and again.trainer.update == 2
    again.learn()
    rows = [load_metrics(tmp_path / name) for name in ("whole", "cut")]
    assert [compared_part(row) for row in rows[0]] == [compared_part(row) for row in rows[1]]
    assert all("evaluate/return" in row and 0.0 < row["time/select_share"] < 1.0 for row in rows[0])
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name


def load_metrics(folder: Path) -> list[dict[str, Any]]:
    import json

    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
