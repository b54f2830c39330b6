"""Commands on a run with several seeds, which is one run to all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailwise.core.config import dump_yaml
from tailwise.run.config import parse_config
from tests.cli.terminal import Terminal
from tests.run.test_seeds import MARKET
from tests.support import merged

LIMIT: dict[str, Any] = {"run": {"seeds": 3}, "risk": {"mode": "constraint", "limit": -0.05}, "evaluate": {"every": 2}}


def configure(**changes: Any) -> None:
    Path("three.yaml").write_text(dump_yaml(parse_config(merged(merged(MARKET, LIMIT), changes), source="test")))


def test_train_evaluate_report_compare_doctor(tailwise: Terminal) -> None:
    """Side by side in two processes, then every command that accepts a run."""
    configure()
    assert tailwise("train", "three.yaml", "--jobs", "2") == 0
    assert "seeds          0 to 2, 2 at a time; they decide together as one policy" in tailwise.out
    for seed in range(3):
        assert f"seed {seed}: update 3, 192/192 steps" in tailwise.out
        assert f"seed {seed}: all 192 steps are done: 192 steps in 3 updates" in tailwise.out
    assert tailwise.out.splitlines()[-1] == "evaluate it with: tailwise evaluate runs/three-1"

    judged = tailwise.json("evaluate", "runs/three-1", "--no-stress")
    (account,) = judged["symbols"]
    assert judged["members"] == ["average", *(f"runs/three-1/seed_{seed}/update-000003" for seed in range(3))]
    assert Path(judged["folder"]) == Path("runs/three-1/evaluations/ensemble-1")
    assert list(account["members"]) == ["seed 0", "seed 1", "seed 2"]
    for numbers in account["members"].values():
        assert {"sharpe", "cvar_return", "net_exposure", "budget_use", "total_return"} <= numbers.keys()
    exposures = [numbers["net_exposure"] for numbers in account["members"].values()]
    assert account["spread"]["net_exposure"] > 0
    together = account["statistics"]["policy"]["net_exposure"]
    assert min(exposures) - 0.02 <= together <= max(exposures) + 0.02  # the mean of their targets, bar by bar

    assert tailwise("evaluate", "runs/three-1", "--no-stress") == 0
    assert "3 policies together (average): the most likely action" in tailwise.out
    assert "each seed by itself" in tailwise.out and "spread" in tailwise.out
    assert tailwise("evaluate", "runs/three-1/seed_1", "--no-stress") == 0  # a member is a run like any other
    assert "each seed by itself" not in tailwise.out

    assert tailwise("report", "runs/three-1", "--no-stress") == 0
    page = Path("runs/three-1/report.html").read_text()
    assert "The seeds" in page and "all together" in page and "One policy of one seed" not in page

    assert tailwise("compare", "runs/three-1", "runs/three-1/seed_0") == 0
    assert "three-1 minus seed_0" in tailwise.out
    tailwise("doctor", "runs/three-1")
    assert "3 of 3 trained to their end, 0 not begun" in tailwise.out
    listed = tailwise.json("runs", "list")["runs"]
    assert [one["folder"] for one in listed] == ["runs/three-1"] and listed[0]["steps"] == 3 * 192
    assert tailwise("runs", "prune", "--yes") == 0
    assert tailwise.out.count("/checkpoints/update-000002") == 3
    assert tailwise("resume", "runs/three-1") == 0
    assert "finished before: seed 0, seed 1, seed 2 of 3" in tailwise.out


def test_a_run_with_several_seeds_is_repeated(tailwise: Terminal) -> None:
    configure()
    assert tailwise("train", "three.yaml", "--jobs", "1", "--quiet") == 0
    assert tailwise("runs", "reproduce", "runs/three-1") == 0
    assert "the same bit for bit" in tailwise.out and "of 3 seeds" in tailwise.out
    weights = Path("runs/three-1-again-1/seed_2/checkpoints/update-000003/policy/weights.safetensors")
    assert weights.read_bytes() == Path(*["runs", "three-1", *weights.parts[2:]]).read_bytes()


def test_what_cannot_be_trained_leaves_nothing(tailwise: Terminal) -> None:
    assert "run.seeds" in tailwise.refuses("train", "cartpole", "-s", "run.seeds=0")
    sentence = tailwise.refuses("train", "sine", "-s", "run.seeds=2", "-s", "data.parameters.length=-1")
    assert "length" in sentence and not Path("runs/sine-1").exists()


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_any_environment_has_seeds(tailwise: Terminal, jobs: str) -> None:
    """Discrete actions without an order vote."""
    small = ["-s", "run.total_steps=128", "-s", "run.environments=2", "-s", "run.rollout_steps=32"]
    assert tailwise("train", "cartpole", *small, "-s", "run.seeds=2", "--jobs", jobs, "--quiet", "--out", "c") == 0
    played = tailwise.json("evaluate", "c", "--episodes", "3")
    assert played["members"][0] == "vote" and played["episodes"] == 3
