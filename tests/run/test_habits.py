"""Habits of people who know Stable-Baselines3 or backtesting.py: each works, or a sentence says what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import tailwise as tw
from tailwise.core.errors import ConfigError, TailwiseError
from tailwise.run.callbacks import Progress

SMALL = {
    "model": {"encoder": {"hidden": [8]}},
    "run": {"environments": 4, "rollout_steps": 16, "total_steps": 128, "tensorboard": False},
    "learner": {"epochs": 1},
}
FREE = {"model": {"encoder": {"hidden": [8]}}, "run": {"total_steps": 256, "tensorboard": False}}


def small(**changes: Any) -> dict[str, Any]:
    return SMALL | changes


# ---------------------------------------------------------------- what is answered with a sentence

KEYWORDS = [
    ({"learning_rate": 0.001}, 'write PPO(env, {"learner": {"learning_rate": 0.001}})'),
    ({"learning_rate": lambda left: left * 3e-4}, "falls linearly to 0 by default, see learner.schedule"),
    ({"n_steps": 2048}, '{"run": {"rollout_steps": 2048}}'),
    ({"batch_size": 64}, "learner.minibatches is environments x rollout_steps / batch_size"),
    ({"n_epochs": 10}, '{"learner": {"epochs": 10}}'),
    ({"gae_lambda": 0.9}, '{"learner": {"lambda": 0.9}}'),
    ({"clip_range": 0.1}, '{"learner": {"clip": 0.1}}'),
    ({"ent_coef": 0.01}, '"entropy": {"kind": "constant", "weight": 0.01}'),
    ({"vf_coef": 0.5}, '{"learner": {"value_weight": 0.5}}'),
    ({"policy_kwargs": {"net_arch": [64]}}, '"encoder": {"hidden": [64, 64]}'),
    ({"tensorboard_log": "logs"}, "give run_dir="),
    ({"verbose": 1}, "progress is shown by learn()"),
    ({"device": "cuda"}, "on the CPU, the default"),
    ({"rundir": "runs/a"}, "did you mean run_dir?"),
]


@pytest.mark.parametrize(("given", "sentence"), KEYWORDS, ids=lambda value: next(iter(value), "") if value else "")
def test_keywords_of_stable_baselines_are_answered(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tw.PPO("CartPole-v1", **given)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(("given", "_"), [one for one in KEYWORDS if '{"' in one[1] and "{'" not in one[1]])
def test_what_the_answer_says_can_be_written(given: dict[str, Any], _: str) -> None:
    """Rejects an answer that names a key which does not exist: the suggested configuration is parsed."""
    import json
    import re

    with pytest.raises(ConfigError) as caught:
        tw.PPO("CartPole-v1", **given)
    found = re.search(r"\{.*\}", str(caught.value))
    assert found is not None
    tw.PPO("CartPole-v1", json.loads(found.group()) | {"run": {"total_steps": 10_000_000, "rollout_steps": 2048}})


def test_the_policy_before_the_environment() -> None:
    with pytest.raises(ConfigError, match=r"the environment first.*leave it out.*tailwise\.PPO\('CartPole-v1'\)"):
        tw.PPO("MlpPolicy", "CartPole-v1")
    with pytest.raises(ConfigError, match="'MyPolicy' is the name of a policy"):
        tw.PPO("MyPolicy", gym.make("CartPole-v1"))
    with pytest.raises(ConfigError, match=r'"core": \{"kind": "lstm"'):
        tw.PPO("MlpLstmPolicy", gym.make("CartPole-v1"))


def test_the_environment_twice_and_functions_in_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"the configuration is a .*; give a dictionary such as"):
        tw.PPO("CartPole-v1", gym.make("CartPole-v1"))
    with pytest.raises(ConfigError, match=r"learner\.learning_rate is a function.*learner\.schedule"):
        tw.PPO("CartPole-v1", {"learner": {"learning_rate": lambda left: left}})


def test_set_env_and_foreign_callbacks() -> None:
    agent = tw.PPO("CartPole-v1", SMALL)
    with pytest.raises(ConfigError, match=r"tailwise\.PPO\.load\(path, env=the_other_environment\)"):
        agent.set_env(gym.make("CartPole-v1"))
    with pytest.raises(ConfigError, match=r"the callback is a function; derive from tailwise\.Callback"):
        agent.learn(callback=lambda local, everything: True)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="steps and total_timesteps are the same"):
        agent.learn(64, total_timesteps=64)
    assert agent.trainer.steps == 0


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("RecurrentPPO", '"kind": "lstm"'),
        ("MaskablePPO", "masks are read"),
        ("EvalCallback", '{"evaluate": {"every": 10}}'),
        ("CheckpointCallback", '{"run": {"checkpoint_every": 10}}'),
        ("VecNormalize", "normalised inside the model"),
        ("make_vec_env", "gymnasium.make_vec"),
    ],
)
def test_names_of_other_libraries_are_answered(name: str, sentence: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(tw, name)
    assert sentence in str(caught.value)
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        tw.Nonsense  # noqa: B018


# ---------------------------------------------------------------- what works


class Counter(tw.Callback):
    """Counts updates, and ends the run after `most` of them."""

    def __init__(self, most: int = 1000) -> None:
        self.most, self.updates = most, 0

    def on_update(self, progress: Progress) -> bool | None:
        self.updates += 1
        return self.updates < self.most


def test_learn_with_the_words_of_stable_baselines(capsys: pytest.CaptureFixture[str]) -> None:
    agent, counter = tw.PPO("CartPole-v1", SMALL), Counter()
    agent.learn(total_timesteps=128, callback=counter, progress_bar=True)
    assert agent.trainer.steps == 128 and counter.updates == 2
    shown = capsys.readouterr()
    assert "update 1, 64/128 steps" in shown.err and shown.out == ""
    agent.learn(64)  # callbacks are of one call; without any, progress is shown
    assert counter.updates == 2 and "update 3" in capsys.readouterr().err
    agent.learn(64, progress=False)
    assert capsys.readouterr().err == ""
    stopper = Counter(most=1)
    assert agent.learn(640, callback=[stopper]) == "a callback ended the run" and agent.trainer.steps == 320


def test_environments_that_are_built_already_need_no_number_of_them() -> None:
    single = tw.PPO(gym.make("CartPole-v1"), FREE)
    assert single.config.run.environments == 1
    vector = tw.PPO(gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync"), FREE)
    assert vector.config.run.environments == 3
    for agent in (single, vector):
        agent.learn(total_timesteps=48, progress_bar=False)
        assert agent.trainer.steps >= 48


class Walk(gym.Env[Any, Any]):
    """Ten steps; each pays its action."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 10
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.zeros(1, np.float32), float(action), self.left == 0, False, {}


def test_environments_from_python_are_evaluated() -> None:
    """By what builds them: a function, or what gymnasium.make knows. One that only exists says what to do."""
    agent = tw.PPO(Walk, small(evaluate={"every": 1, "episodes": 2}))
    agent.learn(128, progress=False)
    assert "evaluate/return" in agent.history[-1]
    played = agent.evaluate(episodes=3)
    assert played.lengths.tolist() == [10, 10, 10]
    made = tw.PPO(gym.make("CartPole-v1"), FREE)
    assert len(made.evaluate(episodes=2).returns) == 2
    alone = tw.PPO(Walk(), FREE)
    with pytest.raises(ConfigError, match="pass a function that builds it"):
        alone.evaluate(episodes=1)
    with pytest.raises(ConfigError, match=r"evaluate\.every needs environments of its own"):
        tw.PPO(Walk(), FREE | {"evaluate": {"every": 1}})


def test_evaluate_policy() -> None:
    agent = tw.PPO("CartPole-v1", SMALL)
    known = agent.evaluate(episodes=4, deterministic=True, seed=7)
    again = tw.evaluate_policy(agent, "CartPole-v1", n_eval_episodes=4, deterministic=True, seed=7)
    assert again.returns.tolist() == known.returns.tolist()
    env = gym.make("CartPole-v1")
    alone = tw.evaluate_policy(agent, env, 2, seed=7)
    assert len(alone.returns) == 2
    env.reset()  # it was not closed
    assert len(tw.evaluate_policy(agent, gym.make_vec("CartPole-v1", num_envs=2), 3).returns) == 3
    walk = tw.PPO(Walk, SMALL)
    assert tw.evaluate_policy(walk, Walk(), 2).lengths.tolist() == [10, 10]
    with pytest.raises(TailwiseError, match="the policy is a str"):
        tw.evaluate_policy("CartPole-v1", agent)  # type: ignore[arg-type]
    with pytest.raises(TailwiseError, match="nowhere is no folder"):
        tw.load("nowhere")
    with pytest.raises(TailwiseError, match="episodes is 0"):
        tw.evaluate_policy(agent, "CartPole-v1", 0)


def test_load_learns_on(tmp_path: Path) -> None:
    """Rejects a loaded agent whose optimiser starts afresh: it goes on exactly as the saved one does."""
    agent = tw.PPO("CartPole-v1", SMALL)
    agent.learn(128, progress=False)
    agent.save(tmp_path / "saved")
    agent.learn(64, progress=False)
    loaded = tw.PPO.load(tmp_path / "saved")
    assert loaded.trainer.steps == 128
    loaded.learn(64, progress=False)
    for (name, ours), theirs in zip(agent.model.named_parameters(), loaded.model.parameters(), strict=True):
        assert (ours == theirs).all(), name
    elsewhere = tw.PPO.load(tmp_path / "saved", env=gym.make("CartPole-v1"))
    saved = dict(tw.load(tmp_path / "saved").model.named_parameters())
    for name, weight in elsewhere.model.named_parameters():
        assert (weight == saved[name]).all(), name
    elsewhere.learn(64, progress=False)  # in its own geometry: one environment
    assert elsewhere.config.run.environments == 1 and elsewhere.trainer.steps >= 64
    with pytest.raises(TailwiseError, match="other actions"):
        tw.PPO.load(tmp_path / "saved", env="Acrobot-v1")


def test_a_preset_and_a_file_are_configurations(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("env: {id: CartPole-v1}\nrun: {total_steps: 64, environments: 2}\n")
    assert tw.PPO(config=str(tmp_path / "own.yaml")).config.run.environments == 2
    assert tw.PPO(config="cartpole").config.env.gym_id == "CartPole-v1"
