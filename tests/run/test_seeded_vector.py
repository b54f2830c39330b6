"""SeededVectorEnv: an environment without any state interface is restored bit for bit."""

from __future__ import annotations

import importlib.util
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from benchmarks.toy_envs import RECALL_MASKED
from tailwise.core.errors import CheckpointError, EnvironmentContractError
from tailwise.core.streams import Streams
from tailwise.run.checkpoint import join_state, json_bytes, split_state
from tailwise.run.seeded_vector import LONGEST_REPLAY, SeededVectorEnv

MUJOCO = all(importlib.util.find_spec(name) for name in ("mujoco", "imageio"))
needs_mujoco = pytest.mark.skipif(not MUJOCO, reason="gymnasium[mujoco] (mujoco, imageio) is not installed")


def build(name: str, rows: int = 3, seed: int = 4, **kwargs: Any) -> SeededVectorEnv:
    return SeededVectorEnv(lambda: gym.make(name, disable_env_checker=True), rows, Streams(seed), **kwargs)


def run(venv: SeededVectorEnv, steps: int, seed: int) -> list[tuple[Any, ...]]:
    venv.action_space.seed(seed)
    return [venv.step(venv.action_space.sample()) for _ in range(steps)]


def trace(steps: list[tuple[Any, ...]]) -> list[Any]:
    """Everything an environment said, as bytes."""
    rows = []
    for obs, reward, terminated, truncated, infos in steps:
        finals = [None if f is None else np.asarray(f).tobytes() for f in infos.get("final_obs", [])]
        arrays = obs.values() if isinstance(obs, dict) else [obs]
        rows.append(
            ([a.tobytes() for a in arrays], reward.tobytes(), terminated.tobytes(), truncated.tobytes(), finals)
        )
    return rows


@pytest.mark.parametrize(
    "name",
    [
        "CartPole-v1",
        "Pendulum-v1",
        "Acrobot-v1",
        pytest.param("InvertedPendulum-v5", marks=needs_mujoco),
        RECALL_MASKED,
    ],
)
def test_restore_in_the_middle_of_an_episode_continues_bit_for_bit(name: str) -> None:
    """Through the checkpoint's own split into tensors and JSON. Rejects: reset with the first seed, and a replay that
    ignores the episode number (its observation differs, so the report says so)."""
    original = build(name)
    original.reset()
    run(original, 257, 0)
    tensors, data = split_state(original.get_state())
    json_bytes(data, "state.json")  # must be plain JSON
    copy = build(name)
    report = copy.set_state(join_state(tensors, data))
    assert report.exact, report.reason
    left, right = run(original, 300, 1), run(copy, 300, 1)
    assert trace(left) == trace(right)
    assert any((step[2] | step[3]).any() for step in left), "the comparison must span the end of an episode"


def test_the_wrong_episode_number_is_noticed() -> None:
    original = build("CartPole-v1")
    original.reset()
    run(original, 57, 0)
    state = original.get_state()
    state["episodes"] = state["episodes"] + 1
    report = build("CartPole-v1").set_state(state)
    assert not report.exact and "new episodes were begun" in report.reason


def test_episode_seeds_do_not_depend_on_neighbours() -> None:
    """Rejects: one generator shared by all rows. Row 2 of four equals row 0 of an environment that starts at id 2."""
    four = build("CartPole-v1", rows=4)
    one = build("CartPole-v1", rows=1, first_environment=2)
    obs4, _ = four.reset()
    obs1, _ = one.reset()
    np.testing.assert_array_equal(obs4[2], obs1[0])
    for _ in range(60):  # several episodes: always pushing to the right ends after about ten steps
        obs4, *_ = four.step(np.array([0, 1, 1, 0]))
        obs1, *_ = one.step(np.array([1]))
        np.testing.assert_array_equal(obs4[2], obs1[0])


def test_reset_starts_over_and_seed_replaces_the_streams() -> None:
    venv = build("Pendulum-v1", seed=1)
    first, _ = venv.reset()
    run(venv, 5, 0)
    np.testing.assert_array_equal(venv.reset()[0], first)
    other, _ = venv.reset(seed=2)
    assert not np.array_equal(other, first)
    np.testing.assert_array_equal(build("Pendulum-v1", seed=2).reset()[0], other)


def test_final_observation_is_that_of_the_ended_episode() -> None:
    class Reusing(gym.Env[Any, int]):
        """Writes each observation into the same array, reset included."""

        def __init__(self) -> None:
            self.observation_space = spaces.Box(-10, 10, (1,), np.float32)
            self.action_space = spaces.Discrete(2)
            self.array = np.zeros(1, dtype=np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.array[0] = 0
            return self.array, {}

        def step(self, action: int) -> Any:
            self.array[0] += 1
            return self.array, 1.0, False, bool(self.array[0] == 2), {"where": float(self.array[0])}

    venv = SeededVectorEnv(Reusing, 2, Streams(0))
    venv.reset()
    venv.step(np.array([0, 0]))
    obs, _, _, truncated, infos = venv.step(np.array([0, 0]))
    assert truncated.all() and obs.tolist() == [[0], [0]]
    assert [f.tolist() for f in infos["final_obs"]] == [[2], [2]]
    assert infos["final_info"]["where"].tolist() == [2, 2]


class Careless(gym.Env[Any, int]):
    """Draws from a generator that its seed does not control."""

    generator = np.random.default_rng(0)

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 1, (1,), np.float64)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.generator.random(1), {"action_mask": np.array([1, 0])}

    def step(self, action: int) -> Any:
        return self.generator.random(1), 0.0, False, False, {"action_mask": np.array([0, 1])}


def test_an_environment_that_its_seed_does_not_control_is_reported_as_not_exact() -> None:
    original = SeededVectorEnv(Careless, 2, Streams(0))
    original.reset()
    run(original, 3, 0)
    report = SeededVectorEnv(Careless, 2, Streams(0)).set_state(original.get_state())
    assert not report.exact and "differs after the restore" in report.reason
    assert report.observation.shape == (2, 1) and report.infos["action_mask"].tolist() == [[1, 0], [1, 0]]


class Stateful(gym.Env[Any, int]):
    """Counts, can give and take its state, and refuses to be replayed."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(count=spaces.Box(0, 1e9, (1,), np.float64), odd=spaces.Discrete(2))
        self.action_space = spaces.Discrete(2)
        self.count = 0

    def _observe(self) -> Any:
        return {"count": np.array([float(self.count)]), "odd": self.count % 2}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {}

    def step(self, action: int) -> Any:
        self.count += 1
        return self._observe(), float(self.count), False, False, {}

    def get_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def test_own_state_is_used_instead_of_replay_and_time_limits_are_restored() -> None:
    """Rejects: restoring the inner environment but not the elapsed steps of its TimeLimit."""

    def make() -> SeededVectorEnv:
        return SeededVectorEnv(lambda: gym.wrappers.TimeLimit(Stateful(), 7), 2, Streams(0))

    original = make()
    original.reset()
    run(original, 5, 0)
    state = original.get_state()
    assert state["kind"] == "state" and "actions" not in state
    tensors, data = split_state(state)
    copy = make()
    assert copy.set_state(join_state(tensors, data)).exact
    left, right = run(original, 10, 1), run(copy, 10, 1)
    for a, b in zip(left, right, strict=True):
        assert a[0]["count"].tolist() == b[0]["count"].tolist() and a[0]["odd"].tolist() == b[0]["odd"].tolist()
        assert a[1].tolist() == b[1].tolist() and a[3].tolist() == b[3].tolist()
    assert [bool(step[3][0]) for step in left].index(True) == 1


def test_an_unknown_wrapper_is_replayed_because_it_may_hide_state() -> None:
    venv = SeededVectorEnv(lambda: gym.wrappers.TimeAwareObservation(gym.make("CartPole-v1")), 1, Streams(0))
    assert venv.restores_by == "replay"


def test_wrong_use_is_a_sentence() -> None:
    venv = build("CartPole-v1")
    with pytest.raises(EnvironmentContractError, match="before reset"):
        venv.step(np.zeros(3, dtype=np.int64))
    with pytest.raises(EnvironmentContractError, match="no state yet"):
        venv.get_state()
    venv.reset()
    with pytest.raises(EnvironmentContractError, match="2 actions for 3"):
        venv.step(np.zeros(2, dtype=np.int64))
    with pytest.raises(CheckpointError, match="num_envs 3, this run has 2"):
        build("CartPole-v1", rows=2).set_state(venv.get_state())


class Reported(gym.Env[Any, int]):
    """Observes whatever it is told to, from a given step on."""

    def __init__(self, space: spaces.Space[Any], good: Any, bad: Any, bad_from: int) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(2)
        self.good, self.bad, self.bad_from = good, bad, bad_from
        self.steps = 0

    def _observe(self) -> Any:
        return self.bad if self.steps >= self.bad_from else self.good

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: int) -> Any:
        self.steps += 1
        return self._observe(), 0.0, False, False, {}


BOX = spaces.Box(-1, 1, (3,), np.float32)
ROW = np.zeros(3, dtype=np.float32)


@pytest.mark.parametrize("bad_from", [0, 2])
@pytest.mark.parametrize(
    ("space", "good", "bad", "words"),
    [
        (BOX, ROW, np.zeros(4, dtype=np.float32), r"'observation' has shape \(4,\), expected \(3,\)"),
        (
            spaces.Dict(a=BOX, b=BOX),
            {"a": ROW, "b": ROW},
            {"a": ROW, "b": ROW[None]},
            r"'observation.b' has shape \(1, 3\), expected \(3,\)",
        ),
        (spaces.Dict(a=BOX, b=BOX), {"a": ROW, "b": ROW}, {"a": ROW}, r"is \['a'\], expected .*\['a', 'b'\]"),
        (spaces.Discrete(3), 1, 1.5, "has dtype float64, expected int64"),
    ],
)
def test_an_observation_of_another_shape_names_environment_got_and_expected(
    space: spaces.Space[Any], good: Any, bad: Any, words: str, bad_from: int
) -> None:
    """Rejects letting numpy's "Output array is the wrong shape" through: it names neither environment nor shape."""
    when = iter([99, bad_from])
    venv = SeededVectorEnv(lambda: Reported(space, good, bad, next(when)), 2, Streams(0))

    def start_and_run() -> None:
        venv.reset()
        run(venv, 3, 0)

    with pytest.raises(EnvironmentContractError, match=f"Environment 1 returned .*{words}"):
        start_and_run()


class Endless(gym.Env[Any, Any]):
    """Adds up its actions, ends only when told to, and has no state interface."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1e9, 1e9, (1,), np.float64)
        self.action_space = spaces.Box(-1, 1, (2,), np.float64)
        self.total = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.total = float(self.np_random.random())
        return np.array([self.total]), {}

    def step(self, action: Any) -> Any:
        assert action.dtype == np.float64 and action.shape == (2,)
        self.total = self.total * 0.9 + float(action[0]) - 0.5 * float(action[1])
        return np.array([self.total]), self.total, bool(action[0] == 1), False, {}


def endless(limit: int) -> SeededVectorEnv:
    return SeededVectorEnv(Endless, 2, Streams(0), longest_replay=limit)


def test_recorded_actions_survive_packing_and_reuse_by_the_caller() -> None:
    """Rejects a record that loses rows when they are packed, and one that keeps references to the caller's array."""
    venv = endless(5000)
    venv.reset()
    actions = np.zeros((2, 2))
    generator = np.random.default_rng(0)
    given = []
    for _ in range(2100):
        actions[:] = generator.uniform(-0.9, 0.9, (2, 2))
        given.append(actions.copy())
        venv.step(actions)
    state = venv.get_state()
    np.testing.assert_array_equal(state["actions"], np.concatenate([np.stack(given)[:, 0], np.stack(given)[:, 1]]))
    assert endless(5000).set_state(state).exact


def test_an_episode_too_long_to_replay_is_not_recorded_further_and_says_so() -> None:
    """Rejects: keeping every action of an episode without end, and replaying the first ones as if they were all."""
    venv = endless(50)
    venv.reset()
    step = np.full((2, 2), 0.25)
    for _ in range(50):
        venv.step(step)
    assert venv.not_exact == "" and endless(50).set_state(venv.get_state()).exact
    venv.step(step)
    tensors, data = split_state(venv.get_state())
    json_bytes(data, "state.json")
    assert tensors["actions"].numel() == 0 and data["not_exact"] == venv.not_exact
    report = endless(50).set_state(join_state(tensors, data))
    assert not report.exact
    assert "an episode ran longer than 50 steps and can no longer be replayed; set env.time_limit" in report.reason
    venv.step(np.ones((2, 2)))  # ends both episodes: the new ones are recorded again
    venv.step(step)
    assert venv.not_exact == "" and endless(50).set_state(venv.get_state()).exact


def test_the_limit_holds_after_packing_and_after_states_were_taken() -> None:
    """Rejects a limit that is noticed only when the next pack is full."""
    venv = endless(2500)
    venv.reset()
    step = np.full((2, 2), 0.25)
    for count in range(1, 2502):
        assert venv.not_exact == ""
        venv.step(step)
        if count % 700 == 0:
            assert venv.get_state()["lengths"].tolist() == [count, count]
    assert "longer than 2,500 steps" in venv.not_exact


def test_the_limit_of_a_replay_is_a_million_steps() -> None:
    assert LONGEST_REPLAY == 1_000_000
