"""The problems with a known tail optimum: what a vector environment promises, and the laws that their texts state."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from benchmarks.toy_risk import CliffVector, ExposureVector, LotteryVector, ToyVector
from tailwise.core.errors import CheckpointError, ConfigError, EnvironmentContractError, ShapeError
from tailwise.core.streams import Streams
from tailwise.run.checkpoint import join_state, json_bytes, split_state
from tailwise.run.envs import EnvDriver

CLIFF: dict[str, Any] = {"width": 5, "height": 3, "wind": 0.1, "step_cost": 0.5, "loss": 3.0, "prize": 7.0}
LOTTERY = {"safe": 0.2, "risky_win": 1.0, "loss": 3.0, "p": 0.1}

BUILDERS: dict[str, Callable[[int], ToyVector]] = {
    "exposure": lambda n: ExposureVector(n, mu=0.1, sigma=0.2),
    "exposure-student": lambda n: ExposureVector(n, mu=0.1, sigma=0.2, noise="student4"),
    "exposure-continuing": lambda n: ExposureVector(n, mu=0.1, sigma=0.2, time_limit=30),
    "lottery": lambda n: LotteryVector(n, **LOTTERY),
    "cliff": lambda n: CliffVector(n, **CLIFF, time_limit=20),
}
every_problem = pytest.mark.parametrize("name", BUILDERS)


def play(env: ToyVector, steps: int, seed: int) -> list[tuple[Any, ...]]:
    """Steps of random actions from the seed."""
    env.action_space.seed(seed)
    return [env.step(env.action_space.sample()) for _ in range(steps)]


def trace(rows: list[tuple[Any, ...]]) -> list[bytes]:
    finals = [row[4].get("final_obs", np.empty(0)) for row in rows]
    return [b"".join(part.tobytes() for part in (*row[:4], final)) for row, final in zip(rows, finals, strict=True)]


@every_problem
def test_contract_of_a_vector_environment(name: str) -> None:
    """Rejects a final_obs that is missing, or one that is already the first observation of the next episode."""
    env = BUILDERS[name](16)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    obs, infos = env.reset(seed=3)
    assert env.observation_space.contains(obs) and infos == {}
    ended = 0
    for obs, reward, terminated, truncated, infos in play(env, 100, 0):
        done = terminated | truncated
        assert env.observation_space.contains(obs)
        assert reward.dtype == np.float64 and reward.shape == (16,) and np.isfinite(reward).all()
        assert terminated.dtype == truncated.dtype == np.bool_ and not (terminated & truncated).any()
        assert ("final_obs" in infos) == bool(done.any())
        ended += int(done.sum())
        if done.any():
            assert env.observation_space.contains(infos["final_obs"])
        if name == "cliff" and terminated.any():
            finals = infos["final_obs"][terminated]
            assert ((finals > 0) & (finals < CLIFF["width"])).all() and (obs[done] == 0).all()
            assert (infos["final_obs"][~done] == obs[~done]).all()
    assert ended > 16


@every_problem
def test_one_seed_one_sequence(name: str) -> None:
    def run(seed: int) -> list[bytes]:
        env = BUILDERS[name](8)
        env.reset(seed=seed)
        return trace(play(env, 60, 0))

    assert run(5) == run(5)
    assert run(5) != run(6)


@every_problem
def test_a_restored_copy_continues_bit_for_bit(name: str) -> None:
    """Through the driver and the checkpoint's split into tensors and JSON. Rejects a state without the generator."""
    original = EnvDriver(BUILDERS[name](8), Streams(1), name="environment")
    original.reset()
    play(original.venv, 37, 0)  # type: ignore[arg-type]
    tensors, data = split_state(original.get_state())
    state = join_state(tensors, json.loads(json_bytes(data, "state.json")))
    restored = EnvDriver(BUILDERS[name](8), Streams(99), name="environment")
    report = restored.set_state(state)
    assert report.exact and "restores its own state" in report.reason
    forgetful = BUILDERS[name](8)
    forgetful.set_state(state["vector"])
    forgetful._np_random = np.random.default_rng(0)
    left, right, wrong = (trace(play(env, 80, 1)) for env in (original.venv, restored.venv, forgetful))  # type: ignore[arg-type]
    assert left == right
    assert left != wrong


def test_a_state_is_a_copy_and_fits_one_kind_and_number() -> None:
    env = BUILDERS["cliff"](8)
    with pytest.raises(EnvironmentContractError, match="before reset"):
        env.get_state()
    env.reset(seed=0)
    state = env.get_state()
    play(env, 5, 0)
    assert (state["age"] == 0).all() and (state["state"] == 0).all()
    with pytest.raises(CheckpointError, match="8 copies of CliffVector, this is 4 copies of CliffVector"):
        BUILDERS["cliff"](4).set_state(state)
    with pytest.raises(CheckpointError, match="this is 8 copies of LotteryVector"):
        BUILDERS["lottery"](8).set_state(state)


def test_bad_use_gets_a_sentence() -> None:
    env = BUILDERS["lottery"](2)
    with pytest.raises(EnvironmentContractError, match="before reset"):
        env.step([0, 1])
    with pytest.raises(ConfigError, match="its seed is one integer"):
        env.reset(seed=[1, 2])
    env.reset(seed=0)
    with pytest.raises(ShapeError, match=r"shape \(3,\), expected one for each of 2"):
        env.step([0, 1, 1])
    with pytest.raises(EnvironmentContractError, match="Action 2 of copy 1 lies outside 0 to 1"):
        env.step([0, 2])
    exposure = BUILDERS["exposure"](2)
    exposure.reset(seed=0)
    with pytest.raises(EnvironmentContractError, match="Action nan of copy 0"):
        exposure.step(np.array([[np.nan], [0.5]]))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: ExposureVector(1, mu=0.1, sigma=0.2, noise="cauchy"), "noise is 'cauchy'"),  # type: ignore[arg-type]
        (lambda: ExposureVector(1, mu=0.1, sigma=-1.0), "sigma is -1.0"),
        (lambda: ExposureVector(1, mu=0.1, sigma=0.2, time_limit=0), "time_limit is 0"),
        (lambda: ExposureVector(0, mu=0.1, sigma=0.2), "num_envs is 0"),
        (lambda: LotteryVector(1, **{**LOTTERY, "p": 1.5}), "p is 1.5"),
        (lambda: LotteryVector(1, **{**LOTTERY, "safe": 2.0}), "safe is 2.0"),
        (lambda: CliffVector(1, **{**CLIFF, "width": 2}), "the grid is 2 x 3"),
        (lambda: CliffVector(1, **{**CLIFF, "wind": 1.0}), "wind is 1.0"),
        (lambda: CliffVector(1, **CLIFF, time_limit=0), "time_limit is 0"),
    ],
)
def test_bad_settings_get_a_sentence(build: Callable[[], ToyVector], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build()


@pytest.mark.parametrize(("noise", "within_one"), [("normal", 0.6827), ("student4", 0.7698)])
def test_exposure_law(noise: Any, within_one: float) -> None:
    """P(|e| < 1), e of unit variance: P(|T| < sqrt 2) = .7698 for Student t(4). Rejects the unscaled t(4): .6261."""
    env = ExposureVector(1000, mu=0.1, sigma=0.2, noise=noise)
    env.reset(seed=0)
    rewards = np.concatenate([env.step(np.full((1000, 1), 0.5, np.float32))[1] for _ in range(200)])
    unit = (rewards / 0.5 - 0.1) / 0.2
    assert unit.mean() == pytest.approx(0.0, abs=0.01)
    assert np.mean(np.abs(unit) < 1.0) == pytest.approx(within_one, abs=0.005)
    env.reset(seed=1)
    assert (env.step(np.zeros(1000))[1] == 0.0).all()


def test_the_continuing_form_truncates_at_spread_ages_and_never_terminates() -> None:
    """Rejects ages that all begin at 0: 300 copies would then be truncated in the same step."""
    env = ExposureVector(300, mu=0.1, sigma=0.2, time_limit=30)
    env.reset(seed=0)
    rows = play(env, 90, 0)
    cuts = np.array([row[3].sum() for row in rows])
    assert not any(row[2].any() for row in rows)
    assert cuts.sum() == 3 * 300 and cuts.max() < 40
    assert (cuts[:30] == cuts[30:60]).all()


def test_lottery_law() -> None:
    env = LotteryVector(1000, **LOTTERY)
    env.reset(seed=0)
    arms = np.arange(1000) % 2
    rewards = np.stack([env.step(arms)[1] for _ in range(40)])
    assert (rewards[:, arms == 0] == 0.2).all()
    assert set(np.unique(rewards[:, arms == 1])) == {-3.0, 1.0}
    assert np.mean(rewards[:, arms == 1] == -3.0) == pytest.approx(0.1, abs=0.01)


def walk(env: CliffVector, actions: str) -> list[tuple[int, float, bool, bool]]:
    """(observation or final observation, reward, terminated, truncated) of copy 0, for a word of U, R, D and L."""
    env.reset(seed=0)
    rows = []
    for letter in actions:
        obs, reward, terminated, truncated, infos = env.step(np.full(env.num_envs, "URDL".index(letter)))
        seen = infos["final_obs"] if terminated[0] or truncated[0] else obs
        rows.append((int(seen[0]), float(reward[0]), bool(terminated[0]), bool(truncated[0])))
    return rows


def test_roads_of_the_calm_cliff() -> None:
    """Width 5, height 3: rows of states 0-4, 5-9, 10-14. The lowest road takes width + 1 steps, the next two more."""
    calm = CliffVector(2, **{**CLIFF, "wind": 0.0}, time_limit=20)
    low, high = walk(calm, "URRRRD"), walk(calm, "UURRRRDD")
    assert [state for state, *_ in low] == [5, 6, 7, 8, 9, 4]
    assert [state for state, *_ in high] == [5, 10, 11, 12, 13, 14, 9, 4]
    for road in (low, high):
        assert all(row[1:] == (-0.5, False, False) for row in road[:-1])
        assert road[-1][1:] == (6.5, True, False)
    assert walk(calm, "R") == [(1, -3.5, True, False)]
    assert walk(calm, "URRD")[-1] == (2, -3.5, True, False)
    assert [state for state, *_ in walk(calm, "LDUUUL")] == [0, 0, 5, 10, 10, 10]
    waiting = walk(calm, "L" * 21)
    assert waiting[19] == (0, -0.5, False, True) and waiting[20] == (0, -0.5, False, False)


def test_wind_blows_down_instead_of_the_move() -> None:
    """From row 2: the next state is the move, or the cell below. Rejects a wind that pushes after the move."""
    env = CliffVector(20_000, **{**CLIFF, "wind": 0.25})
    env.reset(seed=0)
    env._state[:] = 11
    obs, *_ = env.step(np.ones(20_000, dtype=np.int64))
    assert set(np.unique(obs)) == {6, 12}
    assert np.mean(obs == 6) == pytest.approx(0.25, abs=0.015)
    env.reset(seed=0)
    sheltered, *_ = env.step(np.zeros(20_000, dtype=np.int64))
    assert set(np.unique(sheltered)) == {0, 5}


def test_the_module_does_not_import_torch() -> None:
    code = "import sys, benchmarks.toy_risk; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
