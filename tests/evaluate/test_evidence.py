"""What one path, and two paths over the same bars, are evidence of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tailwise.core.errors import DataError
from tailwise.evaluate.evidence import compare_paths, path_evidence
from tests.evaluate.paths import bar_times, path_of


def market(seed: int, count: int = 1260) -> np.ndarray:
    return 0.012 * np.random.default_rng(seed).standard_t(5, count)


def test_a_path_with_an_edge_and_one_without() -> None:
    noise = market(0)
    noise = noise - noise.mean()
    without = path_evidence(path_of(noise), alpha=0.05, trials=1, repetitions=400)
    assert without.verdict == "no evidence" and without.mean_return.estimate == pytest.approx(0.0, abs=1e-9)
    edge = path_evidence(path_of(noise + 0.002), alpha=0.05, trials=10, repetitions=400)
    assert edge.verdict == "above zero"
    doubtful = replace(edge, sharpe=replace(edge.sharpe, low=-0.1))  # mean and Sharpe ratio have to agree
    assert doubtful.verdict == "no evidence" and doubtful.mean_return.verdict == "above zero"
    assert edge.deflated is not None and edge.deflated.trials == 10 and edge.deflated.deflated > 0.95
    for interval in (edge.sharpe, edge.volatility, edge.cvar_bar):
        assert interval.low is not None and interval.high is not None
        assert interval.low < interval.estimate < interval.high
    assert edge.cvar_bar.high is not None and edge.cvar_bar.high < 0
    flat = path_evidence(path_of(np.zeros(400)), alpha=0.05, trials=1, repetitions=50)
    assert flat.deflated is None and flat.mean_return.low is None and flat.verdict == "no evidence"


def test_what_two_paths_share_cancels() -> None:
    """A policy that is its market plus 4 bps a bar: the difference is certain although both are noisy. Rejects
    resampling the two apart, which leaves the noise of the market in the difference."""
    shared = market(1)
    own = 0.002 * np.random.default_rng(2).standard_normal(1260)
    policy, hold = path_of(shared + own + 0.0004), path_of(shared)
    found = compare_paths(policy, hold, repetitions=400)
    assert found.verdict == "better" and compare_paths(hold, policy, repetitions=400).verdict == "worse"
    assert found.mean_return.estimate == pytest.approx(252 * (own + 0.0004).mean(), rel=1e-9)
    width = found.mean_return.high - found.mean_return.low  # type: ignore[operator]
    apart = path_evidence(hold, alpha=0.05, trials=1, repetitions=400).mean_return
    assert width < 0.3 * (apart.high - apart.low)  # type: ignore[operator]
    assert found.sharpe.verdict == "above zero"


def test_equal_paths_and_levered_copies() -> None:
    """The same path twice: no difference and no interval. Twice the exposure: no better Sharpe ratio."""
    shared = market(3) + 0.0005
    same = compare_paths(path_of(shared), path_of(shared), repetitions=100)
    assert same.verdict == "no evidence" and same.mean_return.estimate == 0.0 and same.mean_return.low is None
    levered = compare_paths(path_of(2 * shared), path_of(shared), repetitions=100)
    assert levered.sharpe.estimate == pytest.approx(0.0, abs=1e-9) and levered.sharpe.verdict == "no evidence"


def test_other_bars_cannot_be_compared_and_a_ruined_path_can() -> None:
    a, b = path_of(market(4)), path_of(market(5))
    with pytest.raises(DataError, match="not over the same bars"):
        compare_paths(a, path_of(market(5, 1000)))
    with pytest.raises(DataError, match="not over the same bars"):
        compare_paths(a, replace(b, time=bar_times("daily, 24/7", 1260)))
    ruined = replace(path_of(market(5, 1000)), planned=1260)
    found = compare_paths(ruined, a, repetitions=100)
    assert found.mean_return.estimate == pytest.approx(
        252 / 1260 * (ruined.log_returns.sum() - a.log_returns.sum()), rel=1e-9
    )
