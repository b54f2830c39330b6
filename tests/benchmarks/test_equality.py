"""Two trees that differ in one constant are told apart, by update and name; equal ones are not."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks import equality
from benchmarks.equality import (
    ROOT,
    Difference,
    compare,
    compare_results,
    metric_difference,
    prediction_difference,
    renamed,
    run_side,
    tensor_difference,
    tree_of,
)
from benchmarks.equality_cases import CASES, CHOICES, TORCH, Case, Doors
from tailwise.run.agent import PPO

TINY = Case(
    "tiny",
    {
        "env": {"id": "Pendulum-v1"},
        "model": {"encoder": {"hidden": [8]}, "critic": {"kind": "quantile", "quantiles": 8, "minibatch_particles": 4}},
        "learner": {"epochs": 2, "minibatches": 2},
        "risk": {"mode": "report", "alpha": 0.25},
        "run": {"environments": 4, "rollout_steps": 8, "tensorboard": False, "checkpoint_every": 1},
    },
    backends=TORCH,
    observed=3,
)
CONSTANT = ("learner/config.py", "value_weight: float = Field(0.5,", "value_weight: float = Field(0.5001,")


def test_a_changed_constant_is_found_and_equal_trees_are_equal(tmp_path: Path) -> None:
    """A copy of the tree, first as it is, then with another weight of the critics' losses."""
    copy, before = tmp_path / "copy", tmp_path / "before"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    assert run_side(ROOT, TINY, "torch", 2, before) is None
    assert run_side(copy, TINY, "torch", 2, tmp_path / "same", earlier=before) is None
    same = compare_results(before, tmp_path / "same", 2, name="tiny")
    assert [(check.name, check.value, check.passed) for check in same] == [
        ("tiny: metrics", 0.0, True),
        ("tiny: weights", 0.0, True),
        ("tiny: predictions of the earlier policy", 0.0, True),
        ("tiny: end of the earlier run", 0.0, True),
    ]

    file, old, new = CONSTANT
    text = (copy / "src/tailwise" / file).read_text(encoding="utf-8")
    assert text.count(old) == 1
    (copy / "src/tailwise" / file).write_text(text.replace(old, new), encoding="utf-8")
    assert run_side(copy, TINY, "torch", 2, tmp_path / "other", earlier=before) is None
    metrics, weights, predictions, end = compare_results(before, tmp_path / "other", 2, name="tiny")
    assert not metrics.passed and re.match(r"update 1: \w+/\w+ was .+ and is ", metrics.detail)
    assert not weights.passed and re.match(r"update 1: policy/.+ entries differ", weights.detail)
    # What the earlier side wrote holds its own constant, so it is continued with that one.
    assert predictions.passed and end.passed


def test_a_side_that_breaks_off_is_told(tmp_path: Path) -> None:
    (tmp_path / "src/tailwise").mkdir(parents=True)
    (tmp_path / "src/tailwise/__init__.py").write_text("raise ImportError('half a tree')\n")
    told: list[str] = []
    (check,) = compare(tmp_path, ROOT, [TINY], updates=2, say=told.append)
    assert not check.passed and check.detail.startswith("before: exit code 1") and "half a tree" in check.detail
    assert told == [f"tiny, torch: {check.detail}"]


def test_the_configurations_cover_what_they_must() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 10
    settings = [case.config for case in CASES]
    cores = {config.get("model", {}).get("core", {}).get("kind", "none") for config in settings}
    critics = {config.get("model", {}).get("critic", {}).get("kind", "quantile") for config in settings}
    assert cores == {"none", "lstm", "gru"} and critics == {"quantile", "categorical", "scalar"}
    actions = {config["env"].get("action", {}).get("kind", "positions") for config in settings if "data" in config}
    assert actions == {"positions", "exposure", "weights"}
    assert {config.get("risk", {}).get("mode", "report") for config in settings} == {
        "report", "off", "penalty", "constraint",
    }  # fmt: skip
    assert any(case.doors for case in CASES) and sum("fused" in case.backends for case in CASES) == 9
    stops = [config for config in settings if config.get("env", {}).get("stop_loss")]
    assert len(stops) == 1 and stops[0]["costs"]["latency"] == 2 and len(stops[0]["data"]["seeds"]) == 2


def test_tensors_are_compared_to_the_last_bit() -> None:
    old = {"w": np.array([1.0, 2.0], dtype=np.float32), "n": np.array([np.nan], dtype=np.float32)}
    assert tensor_difference(old, {name: value.copy() for name, value in old.items()}, where="x") == Difference(0, None)
    moved = {**old, "w": np.nextafter(old["w"], np.float32(9), dtype=np.float32)}
    found = tensor_difference(old, moved, where="update 3")
    assert found.count == 1 and found.first is not None
    assert found.first.startswith("update 3: w[0] was np.float32(1.0) and is np.float32(1.0000001)")
    assert "2 of 2 entries differ" in found.first
    zero = tensor_difference({"z": np.array([0.0])}, {"z": np.array([-0.0])}, where="u")
    assert zero.count == 1
    assert tensor_difference({"z": np.zeros(2)}, {"z": np.zeros((2, 1))}, where="u").first == (
        "u: z was float64 [2] and is float64 [2, 1]"
    )
    assert tensor_difference({"a": np.zeros(1)}, {"b": np.zeros(1)}, where="u") == Difference(2, "u: a is gone")


def test_metrics_are_compared_without_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"loss/policy": 0.5, "time/update": 1.0, "machine/memory": 7.0}, {"loss/policy": float("nan")}]
    other = [{"loss/policy": 0.5, "time/update": 2.0}, {"loss/policy": float("nan")}]
    assert metric_difference(rows, other) == Difference(0, None)
    other[1] = {"loss/policy": 0.25}
    assert metric_difference(rows, other) == Difference(1, "update 2: loss/policy was nan and is 0.25")
    assert metric_difference(rows, rows[:1]).first == "2 updates became 1"
    after = [{"loss/actor": 0.5}, {"loss/actor": float("nan")}]
    assert metric_difference(rows, after).first == "update 1: loss/policy is gone"
    monkeypatch.setattr(equality, "RENAMED_METRICS", {"loss/policy": "loss/actor"})
    assert metric_difference(rows, after) == Difference(0, None)


def test_names_are_renamed_one_by_one_or_by_their_beginning() -> None:
    table = {"a/": "b/", "a/one": "c", "gone.": None}
    assert [renamed(name, table) for name in ("a/one", "a/two", "gone.x", "else")] == ["c", "b/two", None, "else"]


def test_predictions_differ_by_their_first_decision() -> None:
    assert prediction_difference([[0.1], [0.2]], [[0.1], [0.2]]) == Difference(0, None)
    assert prediction_difference([[0.1], [0.2]], [[0.1], [0.3]]).first == "decision 1 was [0.2] and is [0.3]"


def test_a_folder_is_taken_as_it_is_and_an_unknown_revision_refused(tmp_path: Path) -> None:
    (tmp_path / "src/tailwise").mkdir(parents=True)
    with tree_of(str(tmp_path)) as tree:
        assert tree == tmp_path.resolve()
    with pytest.raises(SystemExit, match="neither a revision"), tree_of("no-such-revision"):
        pass


def test_doors_keep_their_locks_and_continue_where_they_were() -> None:
    first, second = Doors(5), Doors(5)
    _, infos = first.reset(seed=3)
    ended = 0
    for _ in range(60):
        mask = infos["action_mask"]
        assert mask[:, 0].all() and mask.shape == (5, CHOICES)
        doors = CHOICES - 1 - mask[:, ::-1].argmax(axis=1)  # the last one that is open
        second.set_state(first.get_state())
        obs, reward, terminated, truncated, infos = first.step(doors)
        again = second.step(doors)
        assert (obs == again[0]).all() and (reward == again[1]).all() and (np.abs(obs) <= 1).all()
        ended += int((terminated | truncated).sum())
    assert ended > 10
    locked = infos["action_mask"].argmin(axis=1)
    with pytest.raises(ValueError, match="locked door"):
        first.step(locked)


def test_one_market_runs_ahead() -> None:
    """Rejects a matrix in which the kernel of whole rollouts is never taken: a lot size alone brings a mask, and with
    it the ordinary steps. "limit" has exposures, the other one choices."""
    ahead = {}
    for case in CASES:
        if case.config.get("env", {}).get("kind") == "market" and "fused" in case.backends:
            trainer = PPO(config={**case.config, "backend": "fused"}).trainer
            ahead[case.name] = trainer.backend.ahead(trainer.driver.venv) is not None
    assert [name for name, taken in ahead.items() if taken] == ["market ahead", "limit"]
