"""Whatever is wrong with the input ends in a sentence and exit code 2, never in a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tailwise.cli.main import main
from tailwise.run.lock import FILE as LOCK

ROOT = Path(__file__).parents[2]
FEW = [
    "-s",
    "run.environments=4",
    "-s",
    "run.rollout_steps=8",
    "-s",
    "run.total_steps=64",
    "-s",
    "run.tensorboard=false",
]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "cartpol"], "'cartpol' is neither a file nor a preset; did you mean 'cartpole'?"),
        (["train", "missing.yaml"], "missing.yaml: there is no such file"),
        (["train", "cartpole", "-s", "learner.clp=1"], "did you mean 'learner.clip'?"),
        (["train", "cartpole", "-s", "learner.clip"], "override 'learner.clip' is not key=value"),
        (["train", "cartpole", "-s", "learner.clip=7"], "key 'learner.clip' is 7; it should be less than 1"),
        (["train", "cartpole", "-s", "learner.minibatches=7"], "learner.minibatches 7 does not divide"),
        (["train", "cartpole", "-s", "env.id=CartPol-v1"], "'CartPol-v1' is not registered; did you mean CartPole"),
        (["train", "cartpole", "-s", "env.id=null"], "env.id is not set"),
        (["train", "cartpole", "-s", "env.hide=[9]"], "hide is [9]; give indices from 0 to 3"),
        (["train", "cartpole", "-s", "env.kwargs={colour: red}"], "cannot be built with env_kwargs {'colour': 'red'}"),
        (["train", "cartpole", "-s", "risk.mode=constraint"], "risk.limit"),
        (
            ["train", "cartpole", "-s", "backend=fused", "-s", "model.norm=layer"],
            "backend fused: model.norm layer is not covered; use none, or backend torch",
        ),
        (["resume", "nowhere"], "nowhere is not the folder of a run: it has no config.yaml"),
        (["evaluate", "nowhere"], "nowhere is not the folder of a run: it has no config.yaml"),
        (["presets", "pendulun"], "there is no preset 'pendulun'; did you mean 'pendulum'?"),
        (["config", "check", "missing.yaml"], "missing.yaml: there is no such file"),
        (["config", "check", "a\0b.yaml"], "'a\\x00b.yaml' contains a NUL character; remove it"),
        (["train", "ar1", "-s", 'data={kind: files, paths: ["a\\0b.csv"]}'], "paths is '"),
        (["train", "ar1", "-s", 'features={modules: ["a\\0b.py"]}'], "which contains a NUL character; remove it"),
        (["train", "cartpole", "-s", "env.id=a:b:c"], "The environment id 'a:b:c' cannot be read; write it as Name-v1"),
        (["train", "ar1", "-s", "data.parameters={length: 1000000000000}"], "it must lie from 2 to 20,000,000 bars"),
        (["train", "ar1", "-s", "data.parameters={sigma: .inf}"], "is inf; it should be a finite number"),
        (["data", "synth", "sine", "--bars", "99999999999999", "--out", "s.csv"], "from 2 to 20,000,000 bars"),
        (
            ["config", "check", "ar1", "-s", "data.split={kind: dates, train: [2020-02-31, 2021-01-01]}"],
            "'2020-02-31' cannot be read (day is out of range for month)",
        ),
        (
            ["config", "check", "ar1", "-s", "data.split={kind: dates, train: [0001-01-01, null]}"],
            "key 'data.split.train[0]' is datetime.date(1, 1, 1); bars can open in the years 1678 to 2261",
        ),
        (
            ["config", "check", "ar1", "-s", "data.split={kind: times, train: ['0001-01-01T00:00+14:00', 2020-01-01]}"],
            "bars can open in the years 1678 to 2261",
        ),
        (["config", "explain", "learner.clp"], "key 'learner.clp' is unknown; did you mean 'learner.clip'?"),
    ],
)
def test_a_sentence_and_exit_code_2(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, error = capsys.readouterr()
    assert error.startswith("error: ")
    assert sentence in error
    assert "Traceback" not in out + error
    assert not list(Path("runs").glob("*")), "a run that could not start leaves no folder behind"


@pytest.mark.parametrize(
    "arguments", [["fly"], ["train"], ["evaluate", "r", "--episodes", "0"], ["train", "x", "--no"]]
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Usage: tailwise" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "problem"),
    [("", "'' is empty"), ("a\0b", "contains a NUL"), ("\udcff", "is not UTF-8 text")],
    ids=["empty", "nul", "bytes"],
)
@pytest.mark.parametrize(
    "command",
    [
        ["train", "cartpole", "--out", "PATH"],
        ["demo", "--out", "PATH"],
        ["frontier", "cartpole", "--limits", "-1", "--out", "PATH"],
        ["walk-forward", "ar1", "--out", "PATH"],
        ["init", "PATH"],
        ["init", "bars.csv", "--out", "PATH"],
        ["data", "check", "PATH"],
        ["data", "synth", "ar1", "--out", "PATH"],
        ["data", "sets", "sp500", "--out", "PATH"],
        ["data", "fetch", "binance", "BTC/USDT", "--since", "2020-01-01", "--out", "PATH"],
        ["resume", "PATH"],
        ["evaluate", "PATH"],
        ["report", "PATH"],
        ["compare", "PATH", "PATH"],
        ["doctor", "PATH"],
        ["doctor", "r", "--html", "PATH"],
        ["watch", "PATH"],
        ["runs", "list", "PATH"],
        ["runs", "reproduce", "PATH"],
    ],
    ids=" ".join,
)
def test_a_path_that_is_none(command: list[str], path: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Rejects an empty --out, for instance of a variable that is not set: the run would fill the current folder."""
    assert main([path if word == "PATH" else word for word in command]) == 2
    assert problem in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not list(Path().iterdir())


def test_an_existing_run_is_never_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "cartpole", *FEW, "--out", "r", "--quiet"]) == 0
    before = {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()}
    assert main(["train", "cartpole", *FEW, "--out", "r"]) == 2
    assert "r holds a run already; continue it with 'tailwise resume r'" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()} == before


def test_only_broken_checkpoints_are_an_error_that_touches_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Rejects a resume that then starts from the beginning and cuts the metrics away."""
    assert main(["train", "cartpole", *FEW, "--out", "r", "--quiet"]) == 0
    for weights in Path("r/checkpoints").glob("*/policy/weights.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-1])

    def contents() -> dict[Path, bytes]:  # but for the lock, which says who looked last
        return {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file() and path.name != LOCK}

    before = contents()
    for arguments in (["resume", "r"], ["evaluate", "r"]):
        capsys.readouterr()
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert "weights.safetensors: has " in error
        assert "Traceback" not in error
    assert contents() == before


def test_an_unknown_checkpoint_is_told_with_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "cartpole", *FEW, "--out", "r", "--quiet"]) == 0
    assert main(["evaluate", "r", "--checkpoint", "update-9"]) == 2
    assert "r has no checkpoint 'update-9'; it has update-000002." in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")
    assert main(["train", "cartpole", *FEW, "--out", "file/run"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "file/run" in error


def test_an_environment_that_fails_while_it_is_trained_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Rejects the traceback of an environment that was built with arguments it can do nothing with."""
    assert main(["train", "pendulum", *FEW, "-s", "env.kwargs={g: red}", "--out", "r", "-q"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: Environment 0 failed in step: ")
    assert "(pendulum.py, line " in error and "Traceback" not in error


def test_without_mujoco_the_preset_says_what_to_install() -> None:
    code = "import sys; sys.modules['mujoco'] = None; from tailwise.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "train", "inverted-pendulum"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "The environment 'InvertedPendulum-v5' needs a package that is not installed" in done.stderr
    assert "mujoco" in done.stderr
    assert "Traceback" not in done.stderr


class BrokenRewards(gym.Env[Any, Any]):
    """Rewards that are not numbers."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, dtype=np.float32), float("nan"), False, False, {}


def test_a_run_whose_updates_are_refused_ends_with_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    gym.register("tests/BrokenRewards-v0", entry_point=BrokenRewards, max_episode_steps=5)
    try:
        arguments = [
            "train",
            "cartpole",
            *FEW,
            "-s",
            "env.id=tests/BrokenRewards-v0",
            "-s",
            "run.max_refused=2",
            "-s",
            "run.total_steps=6400",
        ]
        assert main([*arguments, "--out", "r"]) == 1
    finally:
        del gym.registry["tests/BrokenRewards-v0"]
    out = capsys.readouterr().out
    assert "2 updates in a row were refused or rolled back; see the alerts: 64 steps in 2 updates" in out
    assert "error update_refused" in out
    assert "alerts: update_refused, environment_anomaly" in out
