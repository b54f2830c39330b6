"""The benchmark of learnability: a smoke run prints one object, and the oracle is one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.oracle import oracle_targets
from tailwise import backtest
from tailwise.bars.synthetic import ar1
from tailwise.market.costs import CostConfig

ROOT = Path(__file__).parents[2]
COSTS = CostConfig(taker_fee_bps=30, impact_bps=0, borrow_rate=0)


@pytest.mark.parametrize("market", ["ar1", "random-walk"])
def test_a_smoke_run_prints_one_object(market: str) -> None:
    command = [sys.executable, "-m", "benchmarks.learnability", "--quick", "--json", "--only", market]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["passed"] is True
    assert all(isinstance(check["value"], float) and "smoke run" in check["detail"] for check in found["checks"])


def test_no_single_change_improves_the_oracle() -> None:
    """Rejects an oracle that forgets costs, or that is one bar late: both earn less than their neighbours."""
    bars = ar1(seed=0, length=160)
    best = oracle_targets(bars, [-1, 0, 1], COSTS)

    def earned(targets: np.ndarray) -> float:
        return float(backtest(targets, bars, COSTS).log_returns.sum())

    top = earned(best)
    rng = np.random.default_rng(0)
    for row in rng.integers(0, 158, 60).tolist():
        for level in (-1.0, 0.0, 1.0):
            changed = best.copy()
            changed[row] = level
            # A short that is rebalanced within the tolerance drifts a little from what the oracle assumes.
            assert earned(changed) <= top + 1e-4
    free = oracle_targets(bars, [-1, 0, 1], CostConfig(taker_fee_bps=0, half_spread_bps=0, slippage_bps=0))
    assert earned(free) < top - 0.01
    assert earned(np.roll(best, 1)) < top - 0.1
