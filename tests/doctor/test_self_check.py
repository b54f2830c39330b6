"""The self-check passes here, and a machine that computed wrongly would not pass it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tailwise.cli.main import main
from tailwise.doctor import self_check
from tailwise.doctor.check import counts
from tailwise.doctor.formulas import FORMULAS, check_formulas
from tailwise.doctor.self_check import TOLERANCE, relative_gaps, tiny_config
from tailwise.run.agent import PPO


def test_the_formulas_pass_here() -> None:
    checks = check_formulas()
    assert len(checks) >= 11
    assert counts(checks)["ok"] == len(checks)


@pytest.mark.parametrize("index", range(len(FORMULAS)))
def test_every_formula_rejects_numbers_that_are_off(index: int) -> None:
    """A golden number that is off by a hundredth (or ten tolerances) fails: no check is there for show."""
    name, compute, tolerance = FORMULAS[index]
    off = max(0.01, 10 * tolerance)

    def wrong() -> list[tuple[float, float]]:
        return [(found + off, expected) for found, expected in compute()]

    assert check_formulas([(name, wrong, tolerance)])[0].verdict == "fail"
    assert check_formulas([(name, list, tolerance)])[0].verdict == "fail"  # nothing computed is nothing proved


def test_products_pass_here_and_low_precision_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert self_check.check_products().verdict == "ok"
    plain = torch.Tensor.__matmul__

    def bfloat16(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return plain(a.bfloat16(), b.bfloat16()).float()

    monkeypatch.setattr(torch.Tensor, "__matmul__", bfloat16)
    assert self_check.check_products().verdict == "fail"


def test_streams_pass_here_and_another_digest_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert self_check.check_streams().verdict == "ok"
    monkeypatch.setattr(self_check, "STREAM", "00000000")
    assert self_check.check_streams().verdict == "fail"


def test_kernels_pass_here_and_another_discount_does_not() -> None:
    """Gradients and not parameters: one weight of a critic has no gradient but rounding, and Adam moves it by a whole
    step, up with one backend and down with the other. A discount of .98 for .99 is a mistake that must be seen."""
    plain, fused = (PPO(config=tiny_config(backend=backend)) for backend in ("torch", "fused"))
    other = tiny_config(backend="fused")
    wrong = PPO(config=other.model_copy(update={"learner": other.learner.model_copy(update={"gamma": 0.98})}))
    for agent in (plain, fused, wrong):
        agent.learn(progress=False)
    assert self_check._compared("kernels", plain, fused, 0.0).verdict == "ok"
    assert self_check._compared("kernels", plain, wrong, 0.0).verdict == "fail"


@pytest.mark.slow
def test_the_whole_self_check_passes_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--self", "--full", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["passed"] is True
    assert {"determinism", "resume"} <= {check["name"] for check in told["checks"]}
    verdicts = {check["name"]: check["verdict"] for check in told["checks"]}
    assert verdicts["fused kernels, core none"] == verdicts["fused kernels, core lstm"] == "ok"


@pytest.mark.slow
def test_without_compiled_kernels_it_says_what_was_not_checked(tmp_path: Path) -> None:
    """A machine that has compiled nothing: the smallest network is compiled and checked, the other one is told as
    unknown, and the time of compiling stands apart. Rejects an ok for what nobody looked at."""
    command = [sys.executable, "-m", "tailwise", "doctor", "--self", "--json"]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    checks = {check["name"]: check for check in told["checks"]}
    assert told["compile_seconds"] > 1 and told["passed"] is True
    assert checks["fused kernels, core none"]["verdict"] == "ok"
    assert checks["fused kernels, core lstm"]["verdict"] == "unknown"
    assert "not checked" in checks["fused kernels, core lstm"]["evidence"]
    assert "(fused, core none)" in checks["resume"]["evidence"]


def test_gaps_are_relative_to_the_largest_entry_of_each_tensor() -> None:
    """A tensor of small numbers that is off by a thousandth. Rejects one limit for all tensors: 1e-6 would pass it."""
    first, second = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    with torch.no_grad():
        for layer in (first, second):
            layer.weight.fill_(2.0)
            layer.bias.copy_(torch.tensor([1e-3, 0.0]))
        second.bias[1] = 1e-6
    gaps = relative_gaps(*(dict(layer.named_parameters()) for layer in (first, second)))
    assert gaps["weight"] == 0.0 and gaps["bias"] == pytest.approx(1e-3)
    assert max(gaps.values()) > TOLERANCE


def test_full_is_for_the_installation_alone(tmp_path: Path) -> None:
    assert main(["doctor", str(tmp_path), "--full"]) == 2


def test_two_runs_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself: one update more is a difference."""
    assert self_check._equality("x", ["line 3: loss is 1 and 2"], "two runs", "m").verdict == "fail"
    assert self_check._equality("x", [], "two runs", "m").verdict == "ok"
