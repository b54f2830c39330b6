"""Mistakes in what an environment returns or raises end in a sentence that names the environment and the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tailwise.core.errors import ConfigError, DataError, EnvironmentContractError
from tailwise.core.streams import Streams
from tailwise.run.env_results import add_info
from tailwise.run.envs import EnvDriver
from tailwise.run.health.probes import StepFacts
from tailwise.run.make_env import make_driver
from tailwise.run.seeded_vector import SeededVectorEnv

OBS = np.zeros(2, dtype=np.float32)


class Says(gym.Env[Any, Any]):
    """Returns from `reset` and `step` what two functions return."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, step: Callable[[], Any], reset: Callable[[], Any] = lambda: (OBS, {})) -> None:
        self._step, self._reset = step, reset

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._reset()

    def step(self, action: int) -> Any:
        return self._step()


def two_steps(step: Callable[[], Any], reset: Callable[[], Any] = lambda: (OBS, {}), **wrapped: Any) -> EnvDriver:
    """A driver of two environments, the second of which does what the functions say, after two steps."""
    rows = iter([lambda: (OBS, 0.0, False, False, {}), step])
    resets = iter([lambda: (OBS, {}), reset])
    driver = make_driver(lambda: Says(next(rows), next(resets)), num_envs=2, streams=Streams(0), **wrapped)
    driver.reset()
    for _ in range(2):
        driver.step(np.zeros(2, dtype=np.int64))
    return driver


def failing(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize("time_limit", [None, 5])  # Gymnasium's own wrapper unpacks the result before we see it
@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        ((OBS, 0.0, False, {}), "returned four things from step, as Gym before 0.26 did; return .*truncated"),
        (None, "did not return five things from step .*NoneType"),
        ((OBS, 0.0, False, False, {}, 1), "did not return five things from step"),
    ],
)
def test_a_step_that_is_not_five_things(result: Any, sentence: str, time_limit: int | None) -> None:
    with pytest.raises(EnvironmentContractError, match=f"^Environment 1 {sentence}"):
        two_steps(lambda: result, time_limit=time_limit)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ((None, False, False, {}), "None as its reward; return one number, or an array of one number"),
        (("1.5", False, False, {}), "the str '1.5' as its reward"),
        ((1 + 2j, False, False, {}), r"the complex \(1\+2j\) as its reward"),
        ((10**400, False, False, {}), "the int 1000.*000 as its reward"),
        ((np.zeros(2), False, False, {}), r"an array of shape \(2,\) \(float64\) as its reward"),
        ((np.zeros(0), False, False, {}), r"an array of shape \(0,\) \(float64\) as its reward"),
        ((np.array(["1"]), False, False, {}), r"an array of shape \(1,\) \(<U1\) as its reward"),
        ((0.0, "no", False, {}), "the str 'no' as terminated; return True or False"),
        ((0.0, False, None, {}), "None as truncated; return True or False"),
        ((0.0, float("nan"), False, {}), "the float nan as terminated"),
        ((0.0, np.array([True, False]), False, {}), r"an array of shape \(2,\) \(bool\) as terminated"),
        ((0.0, False, False, None), "None as the info of a step; return a dict"),
        ((0.0, False, False, ["a"]), "a list of 1 things as the info of a step"),
    ],
)
def test_a_step_whose_values_are_of_the_wrong_kind(values: tuple[Any, ...], sentence: str) -> None:
    """Rejects `rewards[row] = reward` alone, which turns the text '1.5' into the reward 1.5."""
    with pytest.raises(EnvironmentContractError, match=f"^Environment 1 returned {sentence}"):
        two_steps(lambda: (OBS, *values))


@pytest.mark.parametrize(
    "reward",
    [np.array([0.25]), np.array([[0.25]]), np.float32(0.25), np.array(0.25), torch.tensor([0.25])],
    ids=["vector", "matrix", "scalar", "zero-dimensional", "tensor"],
)
def test_a_reward_may_be_an_array_of_one_number(reward: Any) -> None:
    """So may flags; rejects numpy's own conversion, which refuses arrays that have an axis."""
    driver = two_steps(lambda: (OBS, reward, np.array([False]), np.int64(0), {}))
    result = driver.step(np.zeros(2, dtype=np.int64))
    assert result.reward.tolist() == [0.0, 0.25]
    ended = two_steps(lambda: (OBS, reward, 0, np.array([1]), {})).step(np.zeros(2, dtype=np.int64))
    assert ended.terminated.tolist() == [False, False] and ended.truncated.tolist() == [False, True]


class OldReset(Says):
    """Takes no seed, as environments did before Gym 0.26."""

    def reset(self) -> Any:  # type: ignore[override]
        return OBS


@pytest.mark.parametrize("time_limit", [None, 5])
@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (OBS, r"returned an array of shape \(2,\) \(float32\) from reset; .*return \(observation, info\)"),
        ((OBS, None), "returned a tuple of 2 things from reset"),
        (None, "returned None from reset"),
    ],
)
def test_a_reset_in_the_old_style(result: Any, sentence: str, time_limit: int | None) -> None:
    """Rejects plain unpacking: an observation of two numbers would become (observation, info)."""
    with pytest.raises(EnvironmentContractError, match=f"^Environment 1 {sentence}"):
        two_steps(lambda: (OBS, 0.0, False, False, {}), lambda: result, time_limit=time_limit)


def test_a_reset_without_seed() -> None:
    driver = make_driver(lambda: OldReset(lambda: None), num_envs=1, streams=Streams(0))
    with pytest.raises(EnvironmentContractError, match=r"failed in reset: TypeError: .*'seed'.*take seed and options"):
        driver.reset()


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("nought"), KeyError("price"), NotImplementedError(), AssertionError()]
)
def test_what_an_environment_raises_names_the_line(error: Exception) -> None:
    kind = type(error).__name__
    with pytest.raises(
        EnvironmentContractError, match=rf"^Environment 1 failed in step: {kind}: .*\(test_env_results.py, line \d+\)"
    ) as caught:
        two_steps(lambda: failing(error))
    assert caught.value.__cause__ is error


def test_sentences_of_our_own_environments_and_interrupts_pass_through() -> None:
    with pytest.raises(DataError, match=r"^as it is$"):
        two_steps(lambda: failing(DataError("as it is")))
    with pytest.raises(KeyboardInterrupt):
        two_steps(lambda: failing(KeyboardInterrupt()))


def test_info_keys_need_not_be_strings() -> None:
    infos = two_steps(lambda: (OBS, 0.0, False, False, {7: np.nan, "counts": {0: 1.0, (1, 2): np.inf}}))
    result = infos.step(np.zeros(2, dtype=np.int64))
    assert result.anomalies == 2
    assert result.infos["counts"][0].tolist() == [0.0, 1.0]


def test_infos_on_which_environments_disagree_become_objects() -> None:
    """Rejects Gymnasium's arrangement, which fails on None after a number and cuts 1.5 after 1 down to 1."""
    infos: dict[Any, Any] = {}
    add_info(infos, {"a": 1, "b": 1, "c": np.zeros(2), "d": {"x": 1}, "e": 2, "f": 0.0}, 0, 2)
    add_info(infos, {"a": None, "b": 1.5, "c": np.ones(3), "d": 4, "e": {"y": 1}, "f": "9"}, 1, 2)
    assert [infos[key].tolist() for key in "abf"] == [[1, None], [1, 1.5], [0.0, "9"]]
    assert [len(row) for row in infos["c"]] == [2, 3]
    assert infos["d"].tolist() == [{"x": 1}, 4]
    assert infos["e"].tolist() == [2, {"y": 1}]
    assert all(infos[f"_{key}"].all() for key in "abcdef")
    assert add_info(add_info({}, {"n": np.int8(1)}, 0, 2), {"n": 300}, 1, 2)["n"].tolist() == [1, 300]


def test_infos_on_which_environments_agree_are_those_of_gymnasium() -> None:
    venv = SyncVectorEnv([lambda: Says(lambda: None)] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    given = [
        {"n": 1, "x": 0.5, "b": True, "v": np.arange(2), "t": "text", "d": {"y": np.float32(2), "z": {"w": 1}}},
        {"n": 2, "only": 3, "d": {"y": np.float32(1)}, "final_obs": OBS},
        {"x": 1.5, "t": None, "b": False, "v": np.ones(2, dtype=np.int64)},
    ]
    ours: dict[Any, Any] = {}
    theirs: dict[str, Any] = {}
    for row, info in enumerate(given):
        ours, theirs = add_info(ours, info, row, 3), venv._add_info(theirs, info, row)

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, dict):
            return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
        return a.dtype == b.dtype and (a.dtype == object or a.tobytes() == b.tobytes()) and str(a) == str(b)

    assert same(ours, theirs)


def test_an_info_that_holds_itself() -> None:
    info: dict[str, Any] = {"x": 1.0}
    info["self"] = info
    result = two_steps(lambda: (OBS, 0.0, False, False, info)).step(np.zeros(2, dtype=np.int64))
    assert result.infos["self"]["self"]["x"].tolist() == [0.0, 1.0]


class NoSpaces(gym.Env[Any, Any]):
    """Forgot to say what it observes."""

    action_space = spaces.Discrete(2)


def test_an_environment_without_spaces() -> None:
    with pytest.raises(EnvironmentContractError, match="NoSpaces has None as its observation_space; set it"):
        SeededVectorEnv(NoSpaces, 1, Streams(0))


@pytest.mark.parametrize("identifier", ["a:b:c", "x:CartPole-v1:y", "::", ":CartPole-v1", "", "a b", "a/b/c", "a\0b"])
def test_an_id_that_cannot_be_read(identifier: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read; write it as Name-v1.*module:Name-v1"):
        make_driver(identifier, streams=Streams(0))


def test_what_building_raises_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"'FrozenLake-v1' cannot be built with env_kwargs .*'nowhere'.*KeyError"):
        make_driver("FrozenLake-v1", streams=Streams(0), env_kwargs={"map_name": "nowhere"})


class Foreign(SyncVectorEnv):
    """A vector environment that returns what it is told to."""

    result: Any = None

    def step(self, actions: Any) -> Any:
        return self.result

    def reset(self, **options: Any) -> Any:
        return self.result if self.result is not None and len(self.result) == 3 else super().reset(**options)


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        ((OBS, 0.0, False, {}), "returned a tuple of 4 things from step"),
        (([OBS, OBS], ["a", "b"], [False, False], [False, False], {}), "rewards are no array of numbers"),
        ((OBS, 0.0, 0), "returned a tuple of 3 things from reset"),
    ],
)
def test_a_vector_environment_of_somebody_else(result: Any, sentence: str) -> None:
    venv = Foreign([lambda: Says(lambda: None)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    venv.result = result
    driver = make_driver(venv, streams=Streams(0))
    with pytest.raises(EnvironmentContractError, match=sentence):
        (driver.reset(), driver.step(np.zeros(2, dtype=np.int64)))


@pytest.mark.parametrize("info", [{"equity": "rich"}, {"reward_parts": {"base": "much"}}])
def test_accounts_that_are_no_numbers(info: dict[str, Any]) -> None:
    """Rejects leaving them to numpy, which knows neither the key nor that an environment gave it."""
    with pytest.raises(EnvironmentContractError, match=r"info\['.*'\] that is no number"):
        StepFacts().absorb(add_info({}, info, 0, 1), np.array([False]))
