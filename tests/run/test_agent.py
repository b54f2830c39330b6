"""The Python interface: predict, save, load, resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from benchmarks.toy_envs import DICT_REACH, MULTI_BANDIT, RECALL_MASKED
from tailwise.core.errors import CheckpointError, ConfigError, DataError, ShapeError
from tailwise.run.agent import PPO, load
from tests.support import Scripted, same, small_run, snapshot


def agent(env: Any = "CartPole-v1", **changes: Any) -> PPO:
    return PPO(env, small_run(**changes))


def obs(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32)


# ------------------------------------------------------------------ predict: one conversion path


def test_every_form_of_the_same_observation_gives_the_same_action() -> None:
    """004-5, 004-7, 004-12: list, float64, non-contiguous, tensor, one by one. Rejects a second conversion path."""
    policy = agent(model={"actor": {"gain": 1.0}})
    batch = obs(6)
    expected, _ = policy.predict(batch, deterministic=True)
    strided = np.zeros((6, 8), dtype=np.float32)[:, ::2]
    strided[:] = batch
    assert not strided.flags.c_contiguous
    forms: list[Any] = [
        batch.tolist(),
        batch.astype(np.float64),
        strided,
        np.asfortranarray(batch),
        torch.tensor(batch),
    ]
    for form in forms:
        assert np.array_equal(policy.predict(form, deterministic=True)[0], expected)
    one_by_one = [policy.predict(row, deterministic=True)[0] for row in batch]
    assert np.array_equal(one_by_one, expected)
    assert np.ndim(one_by_one[0]) == 0 and expected.shape == (6,)


@pytest.mark.parametrize("wrong", [np.zeros(3), np.zeros((2, 3)), np.zeros((2, 4, 1)), [[0, 0, 0, 0], [0, 0]]])
def test_wrong_shape_is_a_sentence(wrong: Any) -> None:
    with pytest.raises(ShapeError, match="Observation"):
        agent().predict(wrong)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_broken_observation_is_refused(value: float) -> None:
    """Rejects acting on NaN (argmax of NaN is an action like any other). 1e300 is infinite in float32."""
    broken = obs(2).astype(np.float64)
    broken[1, 2] = value
    with pytest.raises(DataError, match="1 NaN or infinite"):
        agent().predict(broken)


def test_deterministic_repeats_and_stochastic_goes_on() -> None:
    policy = agent(model={"actor": {"gain": 1.0}})
    batch = obs(64)
    first, _ = policy.predict(batch, deterministic=True)
    assert np.array_equal(policy.predict(batch, deterministic=True)[0], first)
    a, _ = policy.predict(batch)
    b, _ = policy.predict(batch)
    assert not np.array_equal(a, b)
    again = agent(model={"actor": {"gain": 1.0}})
    assert np.array_equal(again.predict(batch)[0], a)  # the draws belong to seed and call, not to the process
    assert not np.array_equal(agent(seed=1, model={"actor": {"gain": 1.0}}).predict(batch)[0], a)


def test_masks_are_obeyed_and_checked() -> None:
    policy = agent(RECALL_MASKED)
    batch = np.zeros((5, 4), dtype=np.float32)
    mask = np.zeros((5, 4), dtype=bool)
    mask[:, 2] = True
    for _ in range(5):
        assert policy.predict(batch, mask=mask)[0].tolist() == [2] * 5
    with pytest.raises(ShapeError, match="mask has shape"):
        policy.predict(batch, mask=mask[:, :3])


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_state_carried_by_predict_equals_playing_in_the_collector(core: str) -> None:
    """Step by step over episode boundaries. Rejects a state that is not zeroed at episode_start (asserted)."""
    policy = agent(model={"core": {"kind": core}, "actor": {"gain": 1.0}}, run={"rollout_steps": 40})
    trainer = policy.trainer
    trainer.driver.reset()
    rollout, _ = trainer.collector.collect(0)
    assert int(rollout.start[1:].sum()) > 0
    state = wrong = None
    for t in range(40):
        _, state = policy.predict(rollout.obs[t].numpy(), state=state, episode_start=rollout.start[t].numpy())
        _, wrong = policy.predict(rollout.obs[t].numpy(), state=wrong)
    assert state is not None and wrong is not None
    torch.testing.assert_close(state, trainer.collector.state, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(wrong, trainer.collector.state, atol=1e-3)
    # Without episode_start a given state goes on; no state at all is the zero state.
    _, on = policy.predict(rollout.obs[0].numpy(), state=state)
    _, fresh = policy.predict(rollout.obs[0].numpy(), state=state, episode_start=[True] * 4)
    assert not torch.allclose(on, fresh, atol=1e-3)
    assert torch.equal(policy.predict(rollout.obs[0].numpy())[1], fresh)
    with pytest.raises(ShapeError, match="state has shape"):
        policy.predict(rollout.obs[0].numpy(), state=state[:2])
    with pytest.raises(ShapeError, match="episode_start has 3 entries; expected 4"):
        policy.predict(rollout.obs[0].numpy(), state=state, episode_start=[True] * 3)


def test_predict_by_hand_earns_what_evaluate_reports() -> None:
    """The same first evaluation episode played with predict and with evaluate. Rejects a second inference path."""
    policy = agent(model={"core": {"kind": "lstm"}, "actor": {"gain": 1.0}})
    reported = policy.evaluate(episodes=1)
    seed = policy.trainer.streams.integer("environment/test", environment=0, index=0)
    env = gym.make("CartPole-v1")
    seen, _ = env.reset(seed=seed)
    total, state, done = 0.0, None, False
    while not done:
        action, state = policy.predict(seen, state=state, deterministic=True)
        seen, reward, terminated, truncated, _ = env.step(int(action))
        total, done = total + float(reward), terminated or truncated
    assert total == reported.returns[0]


@pytest.mark.parametrize(("env", "shape"), [(MULTI_BANDIT, (2,)), (DICT_REACH, (2,)), ("CartPole-v1", ())])
def test_action_has_the_shape_and_type_of_the_space(env: str, shape: tuple[int, ...]) -> None:
    policy = agent(env)
    space = policy.trainer.driver.venv.single_action_space
    seen = policy.trainer.driver.venv.envs[0].reset(seed=0)[0]
    action, _ = policy.predict(seen)
    assert np.shape(action) == shape and space.contains(np.asarray(action, dtype=space.dtype))


# ------------------------------------------------------------------ learn, save, load, resume


def test_learning_in_two_parts_equals_learning_at_once(tmp_path: Path) -> None:
    """save and restore in the middle, MLP and LSTM, bit for bit; schedules see the same total."""
    for core in ("none", "lstm"):
        config = small_run(model={"core": {"kind": core}}, learner={"schedule": {"kind": "constant"}})
        whole = PPO("CartPole-v1", config)
        whole.learn(96)
        first = PPO("CartPole-v1", config)
        first.learn(32)
        first.save(tmp_path / core)
        second = PPO("CartPole-v1", config)
        assert second.restore(tmp_path / core) is None
        second.learn(64)
        assert same(snapshot(second.trainer.backend), snapshot(whole.trainer.backend))
        assert second.trainer.training_state()[1] == whole.trainer.training_state()[1]


def test_loaded_policy_acts_as_the_saved_one(tmp_path: Path) -> None:
    trained = agent(DICT_REACH, model={"core": {"kind": "gru"}})
    trained.learn()
    trained.save(tmp_path / "policy")
    loaded = load(tmp_path / "policy")
    seen = {"goal": 2, "position": np.array([0.3, -0.2])}
    assert np.array_equal(loaded.predict(seen, deterministic=True)[0], trained.predict(seen, deterministic=True)[0])
    assert loaded.config == trained.config
    assert loaded.evaluate(episodes=2).returns.tolist() == trained.evaluate(episodes=2).returns.tolist()


def test_checkpoint_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    agent_a = agent()
    agent_a.trainer.driver.reset()
    agent_a.save(tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"model\.core\.kind 'none', here 'lstm'"):
        agent(model={"core": {"kind": "lstm"}}).restore(tmp_path / "a")


def test_resume_continues_the_files_of_a_run(tmp_path: Path) -> None:
    config = small_run(run={"total_steps": 192, "checkpoint_every": 2})
    first = PPO("CartPole-v1", config, run_dir=tmp_path / "run")
    first.learn(96)  # 3 updates: the last is checkpointed too
    resumed, notes = PPO.resume(tmp_path / "run")
    assert notes == [] and resumed.trainer.update == 3
    assert resumed.learn() == "all 192 steps are done"
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 6
    with pytest.raises(DataError, match="holds a run already"):
        PPO("CartPole-v1", config, run_dir=tmp_path / "run")


def test_environments_of_every_form_can_be_passed() -> None:
    forms: list[tuple[Any, int]] = [
        (lambda: Scripted(), 4),
        (Scripted(), 1),
        (SyncVectorEnv([Scripted] * 2, autoreset_mode=AutoresetMode.SAME_STEP), 2),
        (SyncVectorEnv([Scripted] * 2, autoreset_mode=AutoresetMode.NEXT_STEP), 2),
    ]
    for env, count in forms:
        learned = agent(env, run={"environments": count, "total_steps": 8 * count})
        assert learned.learn().startswith("all")
        assert learned.history[0]["update/committed"] == 1.0
        if isinstance(env, gym.Env | VectorEnv):
            with pytest.raises(ConfigError, match="nothing tells how to build another one like it"):
                learned.evaluate(episodes=1)
        else:
            assert len(learned.evaluate(episodes=2).returns) == 2
    with pytest.raises(ConfigError, match=r"has 2 copies and run\.environments is 4"):
        agent(SyncVectorEnv([Scripted] * 2, autoreset_mode=AutoresetMode.SAME_STEP))


def test_float64_training_works() -> None:
    """004-T3: one dtype everywhere, so the whole learner runs in float64 when torch is set to it."""
    torch.set_default_dtype(torch.float64)
    try:
        learned = agent(model={"core": {"kind": "lstm"}})
        learned.learn()
        assert all(row["update/committed"] == 1.0 for row in learned.history)
        assert all(row["policy/first_log_ratio"] < 1e-12 for row in learned.history)
        assert next(learned.model.parameters()).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
