"""The markets and the planted policy of the benchmark of evidence are what it says they are."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.evidence import AUTOCORRELATION, DAILY_VOLATILITY, PLANTED, knowing_share, market_returns, run
from benchmarks.report import Options


def test_simulated_markets_have_their_law() -> None:
    """Zero mean, 1% a day, autocorrelation 0.1, clustered and fat-tailed. Rejects independent normal returns."""
    returns = market_returns(np.random.default_rng(0), 200_000)
    assert abs(returns.mean()) < 3 * 0.01 / np.sqrt(200_000) / (1 - AUTOCORRELATION)
    assert returns.std() == pytest.approx(DAILY_VOLATILITY, rel=0.15)
    assert np.corrcoef(returns[1:], returns[:-1])[0, 1] == pytest.approx(AUTOCORRELATION, abs=0.03)
    assert np.corrcoef(np.abs(returns[10:]), np.abs(returns[:-10]))[0, 1] > 0.08
    assert ((returns / returns.std()) ** 4).mean() > 5


def test_the_planted_policy_has_its_sharpe_ratio() -> None:
    share, rng = knowing_share(), np.random.default_rng(1)
    moves = np.abs(market_returns(rng, 400_000))
    earned = np.where(rng.random(400_000) < share, moves, np.log(2 - np.exp(moves)))
    assert earned.mean() / earned.std() * np.sqrt(252) == pytest.approx(PLANTED, abs=0.15)


def test_the_quick_parts_pass() -> None:
    checks = run(Options(True, lambda text: None, ("golden", "annualisation", "folds")))
    assert [check.passed for check in checks] == [True] * 3 and all(check.value is not None for check in checks)
