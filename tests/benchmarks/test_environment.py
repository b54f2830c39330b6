"""The environment benchmark runs, says what it measured and judges by its goals."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import environment, environment_peers
from benchmarks.report import Options

ROOT = Path(__file__).parent.parent.parent
FULL = Options(quick=False, say=lambda text: None, only=())


def test_a_smoke_run_prints_one_object_with_every_row() -> None:
    """Rejects a benchmark that measures with costs off: the rows name the components that were really charged."""
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.environment", "--quick", "--json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert result["passed"] is True
    checks = {check["name"]: check for check in result["checks"]}
    for size in environment.SIZES:
        assert checks[f"steps per CPU-second, {size} accounts"]["value"] > 0
    assert checks["costs and exits that happen in the measured steps"]["value"] == len(environment.CHARGED) + 2
    for peer in environment_peers.MODULES:
        row = checks[f"times as fast as {peer}"]
        if environment_peers.installed(peer):
            assert math.isfinite(row["value"]) and row["value"] > 0
        else:
            assert row["value"] is None and row["detail"].startswith("not installed")


def test_goals_are_judged_outside_a_smoke_run() -> None:
    fast, slow = [256 / 5.1e6] * 3, [256 / 4.9e6] * 3
    assert environment._speed(256, fast, FULL).passed is True
    assert environment._speed(256, slow, FULL).passed is False
    # One disturbed round of three decides nothing: the median counts, not the mean or the best.
    assert environment._speed(256, [*fast[:2], 1.0], FULL).passed is True
    assert environment._speed(256, [*slow[:2], 256 / 9e6], FULL).passed is False


@pytest.mark.parametrize(("power", "linear"), [(1.0, True), (1.2, True), (1.4, False), (2.0, False)])
def test_linear_means_that_one_account_more_costs_the_same(power: float, linear: bool) -> None:
    """Twenty microseconds per call besides are allowed. Rejects time per account, which such a constant makes fall with
    the number of accounts and so hides a growing cost."""
    times = {size: [2e-5 + 1e-7 * 256 * (size / 256) ** power] for size in environment.SIZES}
    assert environment._linear(times, FULL).passed is linear


def test_a_missing_peer_is_named_and_has_no_value() -> None:
    row = environment._against("gym-anytrading", [1.0], [1.0], None, FULL)
    assert row.value is None
    assert "not installed" in row.detail and "pip install" in row.detail
    slower = environment._against("gym-anytrading", [1.0], [1.0], [2.0], FULL)
    assert slower.value == 0.5 and slower.passed is False
