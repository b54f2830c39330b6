"""The self-check passes here, and a machine that computed wrongly would not pass it."""

from __future__ import annotations

import pytest
import torch

from tailwise.evaluate.doctor import machine
from tailwise.evaluate.doctor.check import counts
from tailwise.evaluate.doctor.formulas import FORMULAS, check_formulas


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
    assert machine.check_products().verdict == "ok"
    plain = torch.Tensor.__matmul__

    def bfloat16(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return plain(a.bfloat16(), b.bfloat16()).float()

    monkeypatch.setattr(torch.Tensor, "__matmul__", bfloat16)
    assert machine.check_products().verdict == "fail"


def test_streams_pass_here_and_another_digest_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.check_streams().verdict == "ok"
    monkeypatch.setattr(machine, "STREAM", "00000000")
    assert machine.check_streams().verdict == "fail"


@pytest.mark.slow
def test_the_whole_self_check_passes_here(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from tailwise.cli.main import main

    assert main(["doctor", "--self", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["passed"] is True
    assert {"determinism", "resume", "fused kernels, core lstm"} <= {check["name"] for check in told["checks"]}


def test_two_runs_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself: one update more is a difference."""
    assert machine._equality("x", ["line 3: loss is 1 and 2"], "two runs", "m").verdict == "fail"
    assert machine._equality("x", [], "two runs", "m").verdict == "ok"
