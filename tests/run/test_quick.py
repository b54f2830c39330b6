"""`tailwise.train` on bars: a DataFrame, a file, a limit; what was chosen lies beside the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tailwise as tw
from tailwise.bars.bars import save_bars
from tailwise.bars.synthetic import random_walk
from tailwise.core.errors import TailwiseError
from tailwise.learner.risk_config import RiskConstraint

SMALL = ["run.total_steps=64", "run.environments=4", "run.rollout_steps=16", "run.seeds=2", "run.tensorboard=false"]


@pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")
def test_a_frame_is_trained_on_under_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejects a frame whose bars are lost with the process, and a limit that is not used."""
    monkeypatch.chdir(tmp_path)
    frame = random_walk(seed=3, length=900, bar="1d").to_frame()
    half = tw.train(frame, symbol="ABC", limit={"of": "buy_and_hold", "share": 0.5}, overrides=SMALL)
    assert half.folder == Path("runs/ABC-1") and half.finished and [one.seed for one in half.seeds] == [0, 1]
    assert Path("runs/ABC-1.yaml").is_file() and Path("runs/ABC-1.bars/ABC.parquet").is_file()
    policy = tw.load(half.folder)
    assert policy.trade("test")[0].symbol == "ABC"
    quarter = tw.train(
        "runs/ABC-1.bars/ABC.parquet", limit={"of": "buy_and_hold", "share": 0.25}, overrides=SMALL, out="q"
    )
    limits = [one.config.risk for one in (policy, tw.load(quarter.folder))]
    assert all(isinstance(one, RiskConstraint) for one in limits)
    assert limits[1].level == pytest.approx(limits[0].level / 2)  # type: ignore[union-attr]
    with pytest.raises(TailwiseError, match="holds a run already"):
        tw.train("runs/ABC-1.bars/ABC.parquet", overrides=SMALL, out="runs/ABC-1")


@pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")
def test_a_drawdown_is_limited_beside_the_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejects a limit that the run knows and its account does not: the same policy loses more without it."""
    monkeypatch.chdir(tmp_path)
    frame = random_walk(seed=3, length=900, bar="1d").to_frame()
    lost = {}
    for name, drawdown in (("free", None), ("held", 0.01)):
        training = tw.train(frame, symbol="ABC", limit=-0.05, drawdown=drawdown, overrides=SMALL, out=name)
        equity = training.policy().trade("test")[0].equity
        lost[name] = float((1 - equity / np.maximum.accumulate(equity)).max())
    worst_bar = float((1 - frame["low"] / frame["close"].shift(1)).max())
    assert 0.01 < lost["held"] < 0.01 + 1.5 * worst_bar < lost["free"]


@pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")
def test_a_call_that_failed_is_corrected_and_called_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejects files of the first attempt that stand in the way of the second."""
    monkeypatch.chdir(tmp_path)
    frame = random_walk(seed=3, length=900, bar="1d").to_frame()
    with pytest.raises(TailwiseError, match=r"run\.seedz"):
        tw.train(frame, symbol="ABC", overrides=["run.seedz=2"])
    assert tw.train(frame, symbol="ABC", overrides=SMALL).finished


@pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")
def test_a_folder_inside_folders_that_do_not_exist(tmp_path: Path) -> None:
    """Rejects a sentence that sends the user away to make them: `out="runs/first"` in an empty folder."""
    frame = random_walk(seed=3, length=900, bar="1d").to_frame()
    folder = tmp_path / "new" / "runs" / "first"
    assert tw.train(frame, symbol="ABC", overrides=[*SMALL, "run.seeds=1"], out=folder).folder == folder
    assert folder.with_suffix(".yaml").is_file()


def test_bars_that_are_too_few_are_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_bars(random_walk(seed=3, length=80, bar="1d"), "few.csv")
    with pytest.raises(TailwiseError, match="at least 500 are needed"):
        tw.train("few.csv")
    with pytest.raises(TailwiseError, match="2 sets of bars"):
        tw.train(["few.csv", "few.csv"], symbol="X")
