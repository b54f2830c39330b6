"""`tailwise bench`: its table, and the whole command."""

from __future__ import annotations

import json

import pytest

from tailwise.cli.bench import _print, describe
from tailwise.cli.main import main
from tailwise.run.speed.contenders import FUSED, GEMM, TORCH
from tailwise.run.speed.rounds import Result, Round
from tailwise.run.speed.work import Work, flops_per_sample, our_outputs

WORK = Work()


def _result(entry, cpu: float, **facts: float) -> Result:  # type: ignore[no-untyped-def]
    turns = tuple(Round(cpu * slow, 2 * cpu * slow, 0.5, facts) for slow in (1.0, 3.0, 1.0))
    return Result(entry, WORK, turns, 2.0, 0.75, 1.5, 400 * 2**20)


def test_the_table_has_speeds_ratios_and_the_share(capsys: pytest.CaptureFixture[str]) -> None:
    """8192 samples in 40 ms and in 160 ms; the machine was three times as slow in one round, the limit too."""
    # Products alone would take 10 of the 40 ms.
    limit = flops_per_sample(WORK, our_outputs(WORK)) * WORK.samples / 0.010
    products = Result(GEMM, WORK, tuple(Round(1, 1, 0.0, {"512": limit / s}) for s in (1.0, 3.0, 1.0)), 0, 0, 0, 0)
    described = describe([_result(FUSED, 0.04), _result(TORCH, 0.16)], products)
    assert described["gemm_share"] == pytest.approx(0.25)
    assert [one["fused_is_times_as_fast"] for one in described["contenders"]] == pytest.approx([1.0, 4.0])
    _print(described)
    text = capsys.readouterr().out
    assert "MLP 64x64, 64 environments: 8,192 samples and 16 gradient steps an iteration" in text
    row = next(line for line in text.splitlines() if "tailwise torch" in line)
    assert all(cell in row for cell in ("51,200", "25,600", "4.00", "0.75", "400"))
    assert "reaches 25% of what matrix products alone could" in text


@pytest.mark.slow
def test_the_whole_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--quick", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    speeds = {one["name"]: one["steps_per_cpu_second"] for one in found["works"][0]["contenders"]}
    assert {"tailwise fused", "tailwise torch"} <= speeds.keys()
    assert len(speeds) + len(found["not_installed"]) == 3
    assert all(speed > 100 for speed in speeds.values())
    assert 0 < found["works"][0]["gemm_share"] < 1
