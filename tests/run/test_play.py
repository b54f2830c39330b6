"""Playback on fixed, seeded episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.toy_envs import DICT_REACH, MULTI_BANDIT, RECALL_MASKED
from tailwise.core.errors import DataError
from tailwise.core.streams import Streams
from tailwise.run.make_env import make_driver
from tailwise.run.play import Played, play_episodes
from tests.support import Scripted, small_trainer


def played(
    trainer: Any, *, episodes: int, envs: int | None = None, deterministic: bool = True, seed: int = 0
) -> Played:
    driver = make_driver(
        trainer.config.env.id, num_envs=envs or episodes, streams=Streams(seed), purpose="evaluate",
        env_kwargs=trainer.config.env.kwargs,
    )  # fmt: skip
    return play_episodes(trainer.model, driver, episodes=episodes, deterministic=deterministic, seed=seed)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_repeated_evaluation_is_identical(core: str) -> None:
    """Also on a driver that was used before. Rejects an evaluation whose episodes depend on the one before."""
    trainer = small_trainer(model={"core": {"kind": core}, "actor": {"gain": 1.0}})
    driver = trainer.world.eval_env("select", episodes=5, seed=0)
    runs = [play_episodes(trainer.model, driver, episodes=5, deterministic=d, seed=0) for d in (True, False, True)]
    assert np.array_equal(runs[0].returns, runs[2].returns)
    assert not np.array_equal(runs[0].returns, runs[1].returns)


def test_deterministic_result_per_episode_does_not_depend_on_the_number_played() -> None:
    """Episode i is the same whether 3 or 9 are played beside it, bit for bit."""
    trainer = small_trainer(model={"core": {"kind": "lstm"}, "actor": {"gain": 1.0}})
    few, many = played(trainer, episodes=3), played(trainer, episodes=9)
    assert np.array_equal(few.returns, many.returns[:3]) and np.array_equal(few.lengths, many.lengths[:3])


def test_short_episodes_are_not_over_represented() -> None:
    """Rejects counting the first n episodes that end: with 2 environments and 6 episodes each plays 3."""
    trainer = small_trainer(model={"actor": {"gain": 3.0}})
    result = played(trainer, episodes=6, envs=2, deterministic=False)
    assert result.returns.shape == (6,) and np.array_equal(result.returns, result.lengths)  # CartPole pays 1 a step
    assert len(set(result.lengths.tolist())) > 1
    again = played(trainer, episodes=4, envs=2, deterministic=False)
    assert np.array_equal(again.returns, result.returns[:4])


def test_training_selection_and_test_share_no_episode() -> None:
    """Rejects a test on the episodes by which the best checkpoint was chosen."""
    train = make_driver("CartPole-v1", num_envs=4, streams=Streams(0), purpose="train").reset()[0]
    world = small_trainer().world
    select = world.eval_env("select", episodes=4, seed=0).reset()[0]
    test = world.eval_env("test", episodes=4, seed=0).reset()[0]
    for one, other in ((train, select), (train, test), (select, test)):
        assert not np.intersect1d(one, other).size
    another_seed = world.eval_env("test", episodes=4, seed=1).reset()[0]
    assert not np.array_equal(test, another_seed)


def test_statistics() -> None:
    result = Played(np.array([1.0, 3.0]), np.array([1, 1]))
    assert result.mean == 2.0 and result.std == 1.0 and result.standard_error == pytest.approx(1.0)
    assert Played(np.array([1.0]), np.array([1])).standard_error is None


@pytest.mark.parametrize("env", [RECALL_MASKED, MULTI_BANDIT, DICT_REACH])
def test_masks_and_spaces_reach_playback(env: str) -> None:
    trainer = small_trainer(env, model={"actor": {"gain": 1.0}})
    result = played(trainer, episodes=6, deterministic=False)
    assert np.isfinite(result.returns).all()
    if "Masked" in env:
        assert result.returns.min() >= 0  # a forbidden action would pay -1


def test_playback_does_not_change_the_model() -> None:
    trainer = small_trainer()
    before = {name: t.clone() for name, t in trainer.model.state_dict().items()}
    played(trainer, episodes=3)
    assert all(t.equal(before[name]) for name, t in trainer.model.state_dict().items())


def test_broken_observation_in_an_evaluation_is_a_sentence() -> None:
    """Rejects acting on NaN as if it were a state of the world."""

    def broken() -> Scripted:
        env = Scripted(length=4)
        reset = env.reset

        def poisoned(**options: object) -> tuple[object, dict[str, object]]:
            _, info = reset(**options)
            env.seen[0] = np.nan
            return env.seen, info

        env.reset = poisoned
        return env

    trainer = small_trainer(lambda: Scripted(length=4))
    driver = make_driver(broken, num_envs=2, streams=Streams(0), purpose="test")
    with pytest.raises(DataError, match="environment 0 shows NaN"):
        play_episodes(trainer.model, driver, episodes=2, deterministic=True, seed=0)
