"""Environments on several processes: what they show, train and store is that of one process; ends are clean."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from benchmarks.toy_envs import DICT_REACH, RECALL_MASKED
from tailwise.core.errors import ConfigError, DataError, EnvironmentContractError
from tailwise.core.streams import Streams
from tailwise.run import env_processes
from tailwise.run.agent import PPO
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.env_processes import EnvProcesses
from tailwise.run.env_results import add_info, join_infos
from tailwise.run.envs import EnvDriver, StepResult
from tailwise.run.make_env import make_driver
from tailwise.run.metric_store import FILE as METRICS
from tailwise.run.metric_store import differences_without_time
from tailwise.run.processes import sigint_deferred
from tests.run.odd_env import Lasting, Numbering, Odd, OddActions, OddState, Unreadable
from tests.support import bits, merged, small_run


class Once(Callback):
    """Ends a run after its first update."""

    def on_update(self, progress: Progress) -> bool:
        return False


@contextmanager
def driving(env: Any, processes: int, rows: int = 6, **kwargs: Any) -> Iterator[EnvDriver]:
    driver = make_driver(env, num_envs=rows, streams=Streams(0), processes=processes, env_kwargs=kwargs)
    try:
        yield driver
    finally:
        driver.close()


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    """Python's handler of SIGINT, which is ignored where the tests are a job in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def interrupted(seconds: float) -> Iterator[None]:
    """What is done inside is ended by Ctrl-C after so many seconds."""
    timer = threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    timer.join()


def play(driver: EnvDriver, steps: int, seed: int = 0) -> list[StepResult]:
    space = driver.venv.action_space
    space.seed(seed)
    return [driver.step(space.sample()) for _ in range(steps)]


def assert_same(left: list[StepResult], right: list[StepResult]) -> None:
    for step, (one, other) in enumerate(zip(left, right, strict=True)):
        for name, ours, theirs in zip(one._fields, one, other, strict=True):
            where = f"step {step}, {name}"
            if name == "infos":
                assert_same_infos(ours, theirs, where)
            else:
                np.testing.assert_array_equal(ours, theirs, strict=ours is not None, err_msg=where)


def assert_same_infos(left: Any, right: Any, where: str) -> None:
    assert type(left) is type(right), where
    if isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for key in left:
            assert_same_infos(left[key], right[key], f"{where}.{key}")
    elif isinstance(left, np.ndarray):
        assert (left.dtype, left.shape) == (right.dtype, right.shape), where
        for ours, theirs in zip(left.tolist(), right.tolist(), strict=True):
            np.testing.assert_equal(ours, theirs, err_msg=where)
    else:
        assert left == right, where


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", RECALL_MASKED, DICT_REACH])
def test_steps_and_states_are_those_of_one_process(env: str) -> None:
    """Three processes with 3, 2 and 2 environments against one, over ends of episodes; their states are equal too, and
    each goes on from the state of the other. Rejects seeds that count from 0 in every process."""
    with driving(env, 1, rows=7) as one, driving(env, 3, rows=7) as three:
        assert isinstance(three.venv, EnvProcesses)
        np.testing.assert_array_equal(one.reset()[0], three.reset()[0])
        first = play(one, 230)
        assert_same(first, play(three, 230))
        assert any((step.terminated | step.truncated).any() for step in first)
        assert three.venv.process_ids and len(set(three.venv.process_ids)) == 3
        states = [driver.get_state() for driver in (one, three)]
        for name in ("episodes", "lengths", "actions"):
            ours, theirs = (state["vector"][name] for state in states)
            np.testing.assert_array_equal(ours, theirs, strict=True)
        assert all(driver.set_state(state).exact for driver, state in zip((three, one), states, strict=True))
        assert_same(play(one, 30, 1), play(three, 30, 1))


CASES: dict[str, dict[str, Any]] = {
    "CartPole-v1": {},
    "Pendulum-v1": {"model": {"core": {"kind": "lstm", "hidden": 8}}},
    RECALL_MASKED: {"backend": "fused"},
}


@pytest.mark.parametrize("env", CASES)
def test_training_is_that_of_one_process(env: str, tmp_path: Path) -> None:
    """Weights, moments, state of the environments and every metric; also where a run on two processes is broken off
    after its first checkpoint and goes on with `resume`."""
    finished = []
    for processes in (1, 2):
        changes = merged(CASES[env], {"env": {"id": env, "processes": processes}, "run": {"checkpoint_every": 1}})
        folder = tmp_path / str(processes)
        agent = PPO(config=small_run(**changes), run_dir=folder, callbacks=[Once()] if processes == 2 else [])
        agent.learn()
        if processes == 2:
            assert agent.trainer.update == 1
            agent.trainer.driver.close()
            agent, notes = PPO.resume(folder)
            assert not notes
            agent.learn()
        assert agent.trainer.update > 2
        finished.append((agent.trainer.training_state(), dict(agent.trainer.model.state_dict())))
        agent.trainer.driver.close()
    ((one, first), weights), ((two, second), others) = finished
    assert one.keys() == two.keys() and all(bits(one[name]) == bits(two[name]) for name in one)
    assert all(bits(weights[name]) == bits(others[name]) for name in weights)
    assert first["environment"] == second["environment"] and first["episodes"] == second["episodes"]
    assert differences_without_time(tmp_path / "1" / METRICS, tmp_path / "2" / METRICS) == []


def test_an_error_names_the_environment_and_its_cause() -> None:
    """As in one process, row 4 being the second of the second process; the run can begin anew after it."""
    sentences = []
    for processes in (1, 2):
        with driving(Odd, processes, wrong="raises") as driver:
            for _ in range(2):
                driver.reset()
                with pytest.raises(EnvironmentContractError) as error:
                    play(driver, 5)
                sentences.append(str(error.value))
            assert "division by zero" in str(error.value.__cause__)
    assert set(sentences) == {sentences[0]}
    assert sentences[0].startswith(
        "Environment 4 failed in step: ZeroDivisionError: division by zero (odd_env.py, line "
    )


def test_what_cannot_be_sent_is_a_sentence() -> None:
    lock = threading.Lock()

    def holding() -> Any:
        return lock and Odd()

    with pytest.raises(ConfigError, match=r"cannot be sent to other processes .*lock.*leave env.processes out"):
        make_driver(holding, num_envs=4, streams=Streams(0), processes=2)
    for built in (Odd(), SyncVectorEnv([Odd, Odd])):
        with pytest.raises(ConfigError, match=r"env.processes is 2 and the environment passed is built already"):
            make_driver(built, streams=Streams(0), processes=2)
    with pytest.raises(ConfigError, match=r"env.processes is 5 and there are 4 environments to share; use at most 4"):
        make_driver(Odd, num_envs=4, streams=Streams(0), processes=5)
    with driving(Odd, 2, wrong="lock") as driver:
        driver.reset()
        with pytest.raises(EnvironmentContractError, match=r"said in step cannot be sent to another process .*lock"):
            play(driver, 5)
        assert driver.reset()[0].shape == (6, 2)


def test_closures_are_sent() -> None:
    """A function that holds what can be pickled, and an id that only this process has registered."""
    at = 2
    gym.register("OnlyHere-v0", entry_point=lambda: Odd("raises", at))
    try:
        for env in (lambda: Odd("raises", at), "OnlyHere-v0"):
            with driving(env, 2) as driver:
                driver.reset()
                with pytest.raises(EnvironmentContractError, match=r"Environment 4 failed in step: ZeroDivisionError"):
                    play(driver, at)
    finally:
        gym.registry.pop("OnlyHere-v0")


def test_a_killed_process_is_a_sentence_and_the_next_reset_starts_others() -> None:
    with driving("CartPole-v1", 2) as driver, driving("CartPole-v1", 1) as plain:
        driver.reset()
        before = driver.venv.process_ids
        os.kill(before[1], signal.SIGKILL)
        with pytest.raises(DataError, match=r"process of environments 3 to 5 ended \(killed by SIGKILL\)"):
            play(driver, 2)
        with pytest.raises(EnvironmentContractError, match="did not come to the end of a step; call reset"):
            play(driver, 1)
        driver.reset()
        assert gone(before) and not set(before) & set(driver.venv.process_ids)
        plain.reset()
        assert_same(play(driver, 40), play(plain, 40))


def test_an_interrupted_step_leaves_no_answer_behind() -> None:
    """Ctrl-C while a process is in a long step. Rejects reading the answer to that step as the one to the reset."""
    with driving(Odd, 2, wrong="sleeps") as driver:
        driver.reset()
        play(driver, 2)  # compiles, which must not be what is interrupted
        with interrupted(0.3):
            play(driver, 5)
        with pytest.raises(EnvironmentContractError, match="did not come to the end of a step; call reset"):
            driver.get_state()
        obs, infos = driver.venv.reset()
        assert infos == {} and obs[:, 0].tolist() == [0] * 6
        driver.reset()
        step = play(driver, 1)[0]
        assert step.obs[:, 0].tolist() == step.infos["steps"].tolist() == [1] * 6


def test_each_process_begins_with_the_function_as_it_was_passed() -> None:
    """Rejects sending it after its first call, which would leave call 0 to nobody."""
    with driving(Numbering(), 2) as driver:
        assert driver.venv.reset()[1]["call"].tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("wrong", ["get_state", "set_state"])
def test_an_error_of_a_state_is_that_of_its_environment(wrong: str) -> None:
    """Rejects taking a connection that the environment lost for the pipe to the parent."""
    with driving(OddState, 2) as whole:
        whole.reset()
        state = whole.get_state()
    for processes in (1, 2):
        with driving(OddState, processes, wrong=wrong) as driver:
            driver.reset()
            sentence = rf"Environment 4 failed in {wrong}: ConnectionResetError: {wrong} \(odd_env.py, line"
            with pytest.raises(EnvironmentContractError, match=sentence):
                driver.get_state() if wrong == "get_state" else driver.set_state(state)
            play(driver, 1)


def test_an_error_of_the_function_names_its_environment() -> None:
    for processes in (1, 2):
        with (
            pytest.raises(EnvironmentContractError, match=r"Environment 2 failed in .*: ConnectionResetError: refused"),
            driving(Numbering(at=2), processes) as driver,
        ):
            driver.reset()


def test_an_error_that_is_nobody_s_ends_the_process_with_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    """Rejects ending as if the parent had closed the pipe: silently, with exit code 0."""
    with (
        driving(Unreadable(), 2) as driver,
        pytest.raises(DataError, match=r"environments 0 to 2 ended \(exit code 1\)"),
    ):
        driver.reset()
    assert "ConnectionResetError: not here" in capfd.readouterr().err


def test_an_interrupted_get_state_can_be_repeated() -> None:
    """The environments are where they were: no reset is asked for, and no stale answer is read."""
    with driving(OddState, 2, wrong="slow") as driver, driving(OddState, 1) as plain:
        for one in (driver, plain):
            one.reset()
            play(one, 2)
        before = driver.venv.process_ids
        with interrupted(0.3):
            driver.get_state()
        assert_same(play(driver, 1, 1), play(plain, 1, 1))
        with interrupted(0.3):
            driver.get_state()
        ours, theirs = (one.get_state()["vector"]["environments"] for one in (driver, plain))
        assert ours == theirs and ours["4"]["inner"]["steps"] == 3
        with interrupted(0.3):
            driver.get_state()
        assert driver.venv.process_ids == before
        driver.reset()
        plain.reset()
        assert_same(play(driver, 3, 2), play(plain, 3, 2))


def test_ctrl_c_comes_after_what_must_not_be_cut() -> None:
    handler, done = signal.getsignal(signal.SIGINT), []

    def uncut() -> None:
        with sigint_deferred():
            signal.raise_signal(signal.SIGINT)
            done.append("the rest")

    with pytest.raises(KeyboardInterrupt):
        uncut()
    assert done == ["the rest"] and signal.getsignal(signal.SIGINT) is handler


def test_processes_that_do_not_close_are_ended_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejects waiting for one after the other, which takes 4 s."""
    monkeypatch.setattr(env_processes, "END_SECONDS", 1.0)
    with driving(Lasting, 4, rows=4, wrong="close") as driver:
        driver.reset()
        play(driver, 1)
        workers, started = driver.venv.process_ids, time.monotonic()
        driver.close()
        assert 1.0 <= time.monotonic() - started < 3.0
        assert gone(workers)


def test_a_process_that_does_not_end_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_processes, "END_SECONDS", 0.5)
    with driving(Lasting, 2, wrong="exit") as driver:
        driver.reset()
        with pytest.raises(
            DataError, match=r"environments 0 to 2 ended \(it closed its pipe but still ran 0.5 s later\)"
        ):
            play(driver, 1)


def test_nothing_starts_after_close() -> None:
    with driving(Odd, 2) as driver:
        driver.reset()
        state = driver.get_state()
        driver.close()
        for call in (driver.reset, lambda: play(driver, 1), driver.get_state, lambda: driver.set_state(state)):
            with pytest.raises(EnvironmentContractError, match="environments are closed; build new ones"):
                call()
        assert driver.venv.process_ids == []


@pytest.mark.parametrize(
    "space",
    [
        spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (2,)))),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Text(4),
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0, 1, (2,))}),
        spaces.Graph(spaces.Box(0, 1, (2,)), None),
    ],
    ids=lambda space: type(space).__name__,
)
def test_an_action_space_that_is_not_supported_is_the_usual_sentence(space: gym.Space[Any]) -> None:
    for processes in (1, 2):
        with pytest.raises(EnvironmentContractError, match=f"action space is a {type(space).__name__}, which Tailwise"):
            make_driver(lambda: OddActions(space), num_envs=2, streams=Streams(0), processes=processes)


def test_a_restore_that_is_not_exact_begins_new_episodes_everywhere() -> None:
    """Only the second process has environments that come out elsewhere; those of the first begin anew as well."""

    def build() -> Any:
        return Odd()

    with driving(build, 2) as driver:
        driver.reset()
        play(driver, 3)
        state = driver.get_state()
        state["vector"]["observation"]["observation"][4, 0] += 1
        report = driver.set_state(state)
        assert not report.exact and "of environment 4 differs after the restore" in report.reason
        assert driver.obs[:, 0].tolist() == [0] * 6
        numbers = [Streams(0).integer("environment/train", environment=row, index=1) % 97 for row in range(6)]
        assert driver.obs[:, 1].tolist() == numbers


VALUES: tuple[Callable[[np.random.Generator], Any], ...] = (
    lambda g: float(g.random()),
    lambda g: int(g.integers(9)),
    lambda g: bool(g.integers(2)),
    lambda g: "text",
    lambda g: None,
    lambda g: g.random(3),
    lambda g: g.random(int(g.integers(1, 3))),
    lambda g: {"inside": float(g.random())},
    lambda g: np.float32(g.random()),
)


@pytest.mark.parametrize("seed", range(200))
def test_infos_join_as_if_rows_had_been_added_one_by_one(seed: int) -> None:
    """Of environments that agree (even seeds) and that do not. Rejects putting arrays of different kinds together."""
    g = np.random.default_rng(seed)
    kinds = {key: g.integers(len(VALUES), size=2) for key in ("a", "b")}
    sizes = [3, 2, 2]
    rows = [
        {key: VALUES[kind[int(g.integers(1 + seed % 2))]](g) for key, kind in kinds.items() if g.random() < 0.7}
        for _ in range(sum(sizes))
    ]
    whole: dict[str, Any] = {}
    for row, info in enumerate(rows):
        whole = add_info(whole, info, row, len(rows))
    parts, first = [], 0
    for size in sizes:
        part: dict[str, Any] = {}
        for row in range(size):
            part = add_info(part, rows[first + row], row, size)
        parts.append(part)
        first += size
    assert_same_infos(join_infos(parts, sizes), whole, f"seed {seed}")


TRAIN = """
import sys
from tailwise.run.agent import PPO
if __name__ == "__main__":
    agent = PPO("CartPole-v1", {"backend": "torch", "env": {"processes": 2}, "run": {"environments": 4}})
    agent.trainer.begin()
    print(*agent.trainer.driver.venv.process_ids, flush=True)
    agent.learn(10**9, progress=False)
"""


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda stop: stop.name)
def test_no_process_outlives_its_parent(stop: signal.Signals, tmp_path: Path) -> None:
    """SIGINT goes to the whole group, as Ctrl-C does; only the parent shows it, and no process prints a traceback."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(["src", *sys.path])}
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        workers = [int(number) for number in process.stdout.readline().split()]
        assert len(workers) == 2
        if stop is signal.SIGINT:
            os.killpg(process.pid, stop)
        else:
            process.send_signal(stop)
        _, errors = process.communicate(timeout=60)
        assert process.returncode != 0
        chained = errors.count("During handling of the above exception")  # Ctrl-C may come inside an except
        assert errors.count("Traceback") - chained == (1 if stop is signal.SIGINT else 0), errors
        assert gone(workers)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it would train for ever


def gone(processes: list[int], seconds: float = 10.0) -> bool:
    """Whether these processes end within so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{process}").exists() for process in processes):
            return True
        time.sleep(0.05)
    return False
