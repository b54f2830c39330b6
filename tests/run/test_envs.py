"""EnvDriver: three autoreset modes, one stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from benchmarks.toy_envs import MASKED_BANDIT, MULTI_BANDIT
from tailwise.core.errors import ConfigError, EnvironmentContractError, NotBuiltError, ShapeError
from tailwise.core.streams import Streams
from tailwise.run.envs import EnvDriver, StepResult, StepRows
from tailwise.run.make_env import make_driver


class Counting(gym.Env[Any, int]):
    """Counts steps and episodes; ends by termination after 3 steps in even episodes, by truncation after 2 in odd ones.

    The observation array is reused on purpose, as careless environments do. The mask allows action (steps mod 2) only.
    """

    def __init__(self, name: int = 0, masked: bool = True) -> None:
        self.observation_space = spaces.Box(-1e6, 1e6, (4,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.name, self.masked = name, masked
        self.episode, self.count = -1, 0

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        self.seen = np.array([self.name, self.episode, self.count, self.draw], dtype=np.float32)
        mask = np.array([self.count % 2 == 0, self.count % 2 == 1], dtype=np.int8)
        return self.seen, ({"action_mask": mask} if self.masked else {})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        self.draw = self.np_random.random()
        return self._observe()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        self.draw = self.np_random.random()
        odd = self.episode % 2
        observation, info = self._observe()
        return (
            observation,
            self.draw + 10 * int(action),
            not odd and self.count == 3,
            bool(odd) and self.count == 2,
            info,
        )


def counting_driver(mode: AutoresetMode, rows: int = 3, masked: bool = True) -> EnvDriver:
    fns: list[Callable[[], Any]] = [lambda i=i: Counting(i, masked) for i in range(rows)]
    return make_driver(SyncVectorEnv(fns, autoreset_mode=mode), streams=Streams(3))


def decisions(driver: EnvDriver, transitions: int) -> list[list[tuple[Any, ...]]]:
    """Per environment the stream of real transitions, as a learner that removes the rows with valid=False sees it.

    The action of an environment depends only on how many decisions it has taken, never on the vector step.
    """
    streams: list[list[tuple[Any, ...]]] = [[] for _ in range(driver.num_envs)]
    obs, mask = driver.reset()
    start = np.ones(driver.num_envs, dtype=bool)
    while min(map(len, streams)) < transitions:
        action = np.array([(len(stream) // 2) % 2 for stream in streams])
        result = driver.step(action)
        done = result.terminated | result.truncated
        for row, stream in enumerate(streams):
            if result.valid[row]:
                final = None
                if done[row]:
                    assert result.final_obs is not None
                    final = result.final_obs[row].tolist()
                seen = None if mask is None else mask[row].tolist()
                flags = (bool(result.terminated[row]), bool(result.truncated[row]))
                stream.append((bool(start[row]), obs[row].tolist(), seen, result.reward[row], flags, final))
            else:
                assert result.reward[row] == 0 and not done[row]
        obs, mask, start = result.obs, result.mask, result.episode_start
    return [stream[:transitions] for stream in streams]


@pytest.mark.parametrize("masked", [True, False])
def test_three_autoreset_modes_give_the_same_stream(masked: bool) -> None:
    """Rejects: training on the ignored action of a NEXT_STEP reset, and bootstrapping with the next episode's first
    observation instead of final_obs."""
    same, following, disabled = (
        decisions(counting_driver(mode, masked=masked), 40)
        for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED)
    )
    assert same == following == disabled
    # By hand: environment 1, episode 0 has 3 steps and terminates, episode 1 has 2 and is truncated.
    stream = same[1]
    assert [entry[1][:3] for entry in stream[:6]] == [[1, 0, 0], [1, 0, 1], [1, 0, 2], [1, 1, 0], [1, 1, 1], [1, 2, 0]]
    assert [entry[0] for entry in stream[:6]] == [True, False, False, True, False, True]
    assert [entry[4] for entry in stream[:5]] == [
        (False, False),
        (False, False),
        (True, False),
        (False, False),
        (False, True),
    ]
    assert stream[2][5][:3] == [1, 0, 3] and stream[4][5][:3] == [1, 1, 2] and stream[1][5] is None
    if masked:
        assert [entry[2] for entry in stream[:3]] == [[True, False], [False, True], [True, False]]
    else:
        assert stream[0][2] is None


def test_reading_next_step_as_same_step_is_caught_by_that_test() -> None:
    """The wrong implementation a NEXT_STEP environment that claims SAME_STEP has no final_obs, and is refused."""
    venv = SyncVectorEnv([Counting], autoreset_mode=AutoresetMode.NEXT_STEP)
    venv.metadata["autoreset_mode"] = AutoresetMode.SAME_STEP
    driver = make_driver(venv, streams=Streams(3))
    with pytest.raises(EnvironmentContractError, match="final_obs"):
        decisions(driver, 10)


def test_next_step_rows_by_hand() -> None:
    driver = counting_driver(AutoresetMode.NEXT_STEP, rows=1)
    driver.reset()
    results = [driver.step(np.array([0])) for _ in range(6)]
    assert [bool(r.valid[0]) for r in results] == [True, True, True, False, True, True]
    assert [bool(r.episode_start[0]) for r in results] == [False, False, False, True, False, False]
    assert [r.obs[0, 2] for r in results] == [1, 2, 3, 0, 1, 2]
    assert results[3].reward[0] == 0.0 and results[3].final_obs is None
    assert driver.pop_episodes() == [
        (sum(float(r.reward[0]) for r in results[:3]), 3),
        (sum(float(r.reward[0]) for r in results[4:]), 2),
    ]
    assert driver.pop_episodes() == []


def test_a_reset_step_pays_nothing_and_cannot_end_an_episode() -> None:
    """Rejects: counting what a NEXT_STEP environment says in the step whose action it ignored."""

    class Paying(SyncVectorEnv):
        ends = False

        def step(self, actions: Any) -> Any:
            resetting = self._autoreset_envs.copy()
            obs, reward, terminated, truncated, infos = super().step(actions)
            return obs, reward + 5 * resetting, terminated | (resetting & self.ends), truncated, infos

    driver = make_driver(Paying([Counting]), streams=Streams(0))
    driver.reset()
    rewards = [float(driver.step(np.array([0])).reward[0]) for _ in range(6)]
    assert rewards[3] == 0.0 and max(rewards) < 1
    assert driver.pop_episodes() == [(sum(rewards[:3]), 3), (sum(rewards[4:]), 2)]
    driver.reset()
    Paying.ends = True
    with pytest.raises(EnvironmentContractError, match="ended in the step that reset it"):
        play(driver, 4, 0)


def test_results_are_fresh_arrays() -> None:
    """Rejects: handing out the environment's own buffer (SyncVectorEnv(copy=False) reuses it)."""
    fns = [lambda i=i: Counting(i) for i in range(2)]
    driver = make_driver(SyncVectorEnv(fns, copy=False, autoreset_mode=AutoresetMode.DISABLED), streams=Streams(0))
    driver.reset()
    results = [driver.step(np.array([0, 0])) for _ in range(3)]
    assert [r.obs[0, 2] for r in results] == [1, 2, 0]
    assert results[2].final_obs is not None and results[2].final_obs[0, 2] == 3


def test_reset_is_repeatable_and_purposes_do_not_share_seeds() -> None:
    train = make_driver("CartPole-v1", num_envs=2, streams=Streams(5))
    first, _ = train.reset()
    for _ in range(20):
        train.step(np.array([0, 1]))
    again, _ = train.reset()
    np.testing.assert_array_equal(first, again)
    other, _ = make_driver("CartPole-v1", num_envs=2, streams=Streams(5), purpose="select").reset()
    assert not np.array_equal(first, other)


def test_not_finite_rewards_and_info_numbers_are_counted() -> None:
    class Odd(Counting):
        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            observation, _, ended, cut, info = super().step(action)
            return observation, float("nan"), ended, cut, {**info, "equity": float("inf"), "fee": 1.0}

    driver = make_driver(Odd, num_envs=2, streams=Streams(0))
    driver.reset()
    result = driver.step(np.array([0, 0]))
    assert result.anomalies == 4 and np.isnan(result.reward).all()
    assert counting_driver(AutoresetMode.SAME_STEP).reset()[0].shape == (3, 4)


def test_hide_drops_the_named_entries() -> None:
    full = make_driver("CartPole-v1", num_envs=3, streams=Streams(1))
    part = make_driver("CartPole-v1", num_envs=3, streams=Streams(1), hide=[1, 3])
    np.testing.assert_array_equal(part.reset()[0], full.reset()[0][:, [0, 2]])
    action = np.array([1, 0, 1])
    np.testing.assert_array_equal(part.step(action).obs, full.step(action).obs[:, [0, 2]])
    assert part.spaces.observation.size == 2
    for wrong in ([4], [-1], [0, 1, 2, 3]):
        with pytest.raises(ConfigError, match="hide is"):
            make_driver("CartPole-v1", streams=Streams(1), hide=wrong)
    with pytest.raises(ConfigError, match="1-D Box"):
        make_driver(MULTI_BANDIT, streams=Streams(1), hide=[0])


@pytest.mark.parametrize("env", ["Pendulum-v1", lambda: gym.make("Pendulum-v1", max_episode_steps=10_000)])
def test_time_limit_truncates(env: Any) -> None:
    driver = make_driver(env, streams=Streams(1), time_limit=4)
    driver.reset()
    flags = [driver.step(np.zeros((1, 1), np.float32)).truncated[0] for _ in range(8)]
    assert flags == [False, False, False, True] * 2
    longer = make_driver("Pendulum-v1", streams=Streams(1), time_limit=210)  # replaces the registered 200
    longer.reset()
    assert not any(longer.step(np.zeros((1, 1), np.float32)).truncated[0] for _ in range(209))


def test_unknown_id_names_the_nearest_and_wrong_arguments_are_sentences() -> None:
    with pytest.raises(ConfigError, match="CartPole-v1"):
        make_driver("CartPol-v1", streams=Streams(0))
    with pytest.raises(ConfigError, match="tailwise/Lottery-v0"):
        make_driver("tailwise/Lotery-v0", streams=Streams(0))
    with pytest.raises(ConfigError, match="env_kwargs"):
        make_driver("CartPole-v1", streams=Streams(0), env_kwargs={"no_such": 1})
    with pytest.raises(ConfigError, match="num_envs to 1"):
        make_driver(gym.make("CartPole-v1"), num_envs=4, streams=Streams(0))
    with pytest.raises(ConfigError, match="num_envs is 0"):
        make_driver("CartPole-v1", num_envs=0, streams=Streams(0))
    with pytest.raises(ConfigError, match="returned a int"):
        make_driver(lambda: 3, streams=Streams(0))
    with pytest.raises(ConfigError, match="is a list"):
        make_driver([], streams=Streams(0))  # type: ignore[arg-type]
    venv = SyncVectorEnv([Counting])
    with pytest.raises(ConfigError, match="vector environment"):
        make_driver(venv, streams=Streams(0), hide=[0])


def test_vector_environment_without_mode_is_refused() -> None:
    venv = SyncVectorEnv([Counting])
    del venv.metadata["autoreset_mode"]
    with pytest.raises(EnvironmentContractError, match="autoreset_mode"):
        make_driver(venv, streams=Streams(0))


def test_single_environment_and_kwargs() -> None:
    driver = make_driver(Counting(7), streams=Streams(0))
    assert driver.num_envs == 1 and driver.reset()[0][0, 0] == 7
    driver = make_driver(Counting, num_envs=2, streams=Streams(0), env_kwargs={"name": 5})
    assert driver.reset()[0][:, 0].tolist() == [5, 5]


class _Mask(gym.Wrapper):  # type: ignore[type-arg]
    """Replaces the masks of Counting, to break the contract in one way at a time."""

    def __init__(self, at_reset: Any, at_step: Any) -> None:
        super().__init__(Counting(masked=False))
        self.at_reset, self.at_step = at_reset, at_step

    def reset(self, **kwargs: Any) -> Any:
        observation, _ = self.env.reset(**kwargs)
        return observation, {} if self.at_reset is None else {"action_mask": self.at_reset}

    def step(self, action: Any) -> Any:
        *rest, _ = self.env.step(action)
        return *rest, {} if self.at_step is None else {"action_mask": self.at_step}


@pytest.mark.parametrize(
    ("at_reset", "at_step", "error", "words"),
    [
        (np.array([1, 1]), None, EnvironmentContractError, "gave no info"),
        (None, np.array([1, 1]), EnvironmentContractError, "none in reset"),
        (np.array([1, 1]), np.array([0, 0]), EnvironmentContractError, "forbids every choice"),
        (np.array([1, 1, 1]), None, ShapeError, r"\(1, 3\)"),
        (np.array([1, 7]), None, EnvironmentContractError, "0 and 1"),
    ],
)
def test_broken_masks_are_sentences(at_reset: Any, at_step: Any, error: type[Exception], words: str) -> None:
    driver = make_driver(lambda: _Mask(at_reset, at_step), streams=Streams(0))

    def play_one() -> None:
        driver.reset()
        driver.step(np.array([0]))

    with pytest.raises(error, match=words):
        play_one()


def test_lists_are_accepted_as_masks() -> None:
    driver = make_driver(lambda: _Mask([True, False], [0, 1]), streams=Streams(0))
    _, mask = driver.reset()
    assert mask is not None and mask.tolist() == [[True, False]]
    after = driver.step(np.array([0])).mask
    assert after is not None and after.tolist() == [[False, True]]


class _Bounded(gym.Env[Any, Any]):
    """A Box action in one dimension whose bounds are told in every info."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Box(-1, 1, (1,))

    def __init__(self, bounds: Any) -> None:
        self.bounds = bounds

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, dtype=np.float32), {"action_mask": self.bounds}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, dtype=np.float32), 0.0, False, False, {"action_mask": self.bounds}


def test_bounds_of_a_box_are_checked_and_left_to_the_environment() -> None:
    """No mask reaches the policy, whose law is that of what it asks for; broken bounds are a sentence."""
    driver = make_driver(lambda: _Bounded(np.array([-0.5, 1.0], dtype=np.float32)), streams=Streams(0))
    assert driver.reset()[1] is None
    assert driver.step(np.zeros((1, 1), dtype=np.float32)).mask is None
    with pytest.raises(EnvironmentContractError, match=r"action bounds \[1.0, -0.5\]"):
        make_driver(lambda: _Bounded(np.array([1.0, -0.5], dtype=np.float32)), streams=Streams(0)).reset()
    with pytest.raises(ShapeError, match="low and high"):
        make_driver(lambda: _Bounded(np.ones(3, dtype=np.float32)), streams=Streams(0)).reset()

    class Observed(_Bounded):
        observation_space = spaces.Dict(x=spaces.Box(-1, 1, (1,)), action_mask=spaces.MultiBinary(2))  # type: ignore[assignment]

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            obs, _ = super().reset(seed=seed)
            return {"x": obs, "action_mask": np.ones(2, dtype=np.int8)}, {}

    with pytest.raises(NotBuiltError, match="Box"):
        make_driver(lambda: Observed(None), streams=Streams(0)).reset()


def test_mask_inside_a_dict_observation() -> None:
    class Inside(gym.ObservationWrapper):  # type: ignore[type-arg]
        def __init__(self) -> None:
            super().__init__(Counting(masked=False))
            self.observation_space = spaces.Dict(x=self.env.observation_space, action_mask=spaces.MultiBinary(2))

        def observation(self, observation: Any) -> Any:
            return {"x": observation, "action_mask": np.array([1, int(observation[2]) % 2], dtype=np.int8)}

    for mode in AutoresetMode:
        driver = make_driver(SyncVectorEnv([Inside], autoreset_mode=mode), streams=Streams(0))
        obs, mask = driver.reset()
        assert obs.shape == (1, 4) and mask is not None and mask.tolist() == [[True, False]]
        second = driver.step(np.array([0])).mask
        assert second is not None and second.tolist() == [[True, True]]
        driver.step(np.array([0]))
        last = driver.step(np.array([0]))
        assert last.final_obs is not None and last.final_obs[0, 2] == 3


def play(driver: EnvDriver, steps: int, seed: int) -> list[StepResult]:
    generator = np.random.default_rng(seed)
    return [driver.step(generator.integers(0, 2, driver.num_envs)) for _ in range(steps)]


def assert_same(left: list[StepResult], right: list[StepResult]) -> None:
    for a, b in zip(left, right, strict=True):
        for name in ("obs", "reward", "terminated", "truncated", "mask", "valid", "episode_start", "final_obs"):
            x, y = getattr(a, name), getattr(b, name)
            assert (x is None) == (y is None), name
            if x is not None:
                assert x.tobytes() == y.tobytes(), name


def test_driver_state_restores_stream_and_statistics() -> None:
    original = make_driver(MASKED_BANDIT, num_envs=4, streams=Streams(2))
    assert original.exact_resume
    original.reset()
    play(original, 33, 0)
    state = original.get_state()
    copy = make_driver(MASKED_BANDIT, num_envs=4, streams=Streams(2))
    report = copy.set_state(state)
    assert report.exact, report.reason
    np.testing.assert_array_equal(copy.obs, original.obs)
    np.testing.assert_array_equal(copy.mask, original.mask)
    assert_same(play(original, 50, 1), play(copy, 50, 1))
    episodes = original.pop_episodes()
    assert episodes == copy.pop_episodes() and len(episodes) == 4 * 8


def test_environment_without_state_says_so_and_begins_new_episodes() -> None:
    original = counting_driver(AutoresetMode.NEXT_STEP)
    original.reset()
    play(original, 4, 0)
    state = original.get_state()
    assert state["vector"] is None and not original.exact_resume
    copy = counting_driver(AutoresetMode.NEXT_STEP)
    report = copy.set_state(state)
    assert not report.exact and "SyncVectorEnv has no get_state" in report.reason
    assert copy.episode_start.all() and (copy.obs[:, 2] == 0).all()
    fresh = counting_driver(AutoresetMode.NEXT_STEP)
    assert not np.array_equal(fresh.reset()[0], copy.obs), "a restarted run must not repeat its first episodes"
    assert copy.pop_episodes() == original.pop_episodes()


def test_vector_environment_with_its_own_state_is_exact() -> None:
    class Stateful(SyncVectorEnv):
        def get_state(self) -> dict[str, Any]:
            return {
                str(i): [e.episode, e.count, e.draw, e.np_random.bit_generator.state] for i, e in enumerate(self.envs)
            }

        def set_state(self, state: dict[str, Any]) -> None:
            self.reset()
            for i, e in enumerate(self.envs):
                e.episode, e.count, e.draw, e.np_random.bit_generator.state = state[str(i)]
                self._autoreset_envs[i] = e.count == (2 if e.episode % 2 else 3)

    def build() -> EnvDriver:
        return make_driver(Stateful([lambda i=i: Counting(i) for i in range(3)]), streams=Streams(0))

    for steps in (3, 4, 5):  # 3: a NEXT_STEP reset is pending when the state is taken
        original = build()
        original.reset()
        play(original, steps, 0)
        copy = build()
        assert copy.set_state(original.get_state()).exact
        assert_same(play(original, 20, 1), play(copy, 20, 1))


def test_step_before_reset_and_foreign_state_are_sentences() -> None:
    driver = make_driver("CartPole-v1", streams=Streams(0))
    with pytest.raises(EnvironmentContractError, match="before reset"):
        driver.step(np.array([0]))
    driver.reset()
    other = make_driver("CartPole-v1", num_envs=2, streams=Streams(0))
    with pytest.raises(Exception, match=r"shape \(1, 4\)"):
        other.set_state(driver.get_state())


class Reusing(SyncVectorEnv):
    """Gives the same arrays in every step and writes over them in the next one; some of them cannot be written to."""

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, infos = super().step(actions)
        if not hasattr(self, "kept"):
            self.kept = (obs, reward, terminated, truncated)
        for mine, new in zip(self.kept, (obs, reward, terminated, truncated), strict=True):
            mine.setflags(write=True)
            mine[...] = new
            mine.setflags(write=False)
        return (*self.kept, infos)


@pytest.mark.parametrize("given", [False, True])
def test_arrays_that_an_environment_uses_again_do_not_change_what_was_written(given: bool) -> None:
    """Rejects: a step that refers to the environment's own arrays; with memory that is given, also another result."""
    plain, reusing = (
        make_driver(kind([Counting] * 3, autoreset_mode=AutoresetMode.SAME_STEP), streams=Streams(0))
        for kind in (SyncVectorEnv, Reusing)
    )
    plain.reset()
    expected = [plain.step(np.zeros(3, dtype=np.int64)) for _ in range(9)]
    reusing.reset()
    got = []
    for _ in range(9):
        into = None
        if given:
            flags = [np.empty(3, dtype=np.bool_) for _ in range(4)]
            into = StepRows(np.empty_like(reusing.obs), np.empty(3), *flags)
        got.append(reusing.step(np.zeros(3, dtype=np.int64), into))
        assert into is None or (got[-1].obs is into.obs and got[-1].reward is into.reward)
        assert reusing.obs is got[-1].obs and reusing.episode_start is got[-1].episode_start
    assert_same(expected, got)
    assert plain.pop_episodes() == reusing.pop_episodes() != []


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_broken_observation_is_known_until_the_next_one(mode: AutoresetMode) -> None:
    """Rejects: looking before the reset that follows (DISABLED), or only at the step after a reset."""

    class Breaking(Counting):
        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            return (np.full_like(obs, np.nan) if self.count == 2 else obs, *rest)

    driver = make_driver(SyncVectorEnv([Breaking] * 2, autoreset_mode=mode), streams=Streams(0))
    driver.reset()
    known = [driver.obs_is_finite]
    for _ in range(8):
        driver.step(np.zeros(2, dtype=np.int64))
        assert driver.obs_is_finite == bool(np.isfinite(driver.obs).all())
        known.append(driver.obs_is_finite)
    assert known[0] and set(known) == {True, False}


def test_a_broken_observation_is_known_after_a_restore() -> None:
    driver = make_driver(MASKED_BANDIT, num_envs=2, streams=Streams(2))
    driver.reset()
    assert driver.set_state(driver.get_state()).exact and driver.obs_is_finite
    assert driver.set_state(driver.get_state() | {"obs": np.full_like(driver.obs, np.inf)}).exact
    assert not driver.obs_is_finite
