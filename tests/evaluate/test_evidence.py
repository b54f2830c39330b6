"""What one path, and two paths over the same bars, are evidence of; odds of other futures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import norm

from tailwise.core.errors import ConfigError, DataError
from tailwise.evaluate.evidence import account_odds, compare_paths, path_evidence
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


def normal(count: int, seed: int, sigma: float = 0.02) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(count)
    return sigma * (values - values.mean()) / values.std()


def test_odds_of_ruin_of_a_random_walk() -> None:
    """P(a walk without drift ever falls by b) = 2 Phi(-(b + 0.583 s) / (s sqrt(n))) with s per bar, the 0.583 for
    looking at closes only. Rejects looking at the end alone, which is half of it."""
    found = account_odds(normal(1000, 0), 252.0, bars=500, ruin_level=0.5, block=1, repetitions=4000)
    expected = 2 * norm.cdf(-(np.log(2) + 0.583 * 0.02) / (0.02 * np.sqrt(500)))
    assert found.ruin == pytest.approx(expected, abs=4 * found.error)
    assert found.ruin > 1.6 * norm.cdf(-np.log(2) / (0.02 * np.sqrt(500)))
    assert found.loss == pytest.approx(0.5, abs=4 * found.error)
    assert found.years == pytest.approx(500 / 252) and found.error < 0.01
    median = dict(found.wealth)[0.5]
    assert median == pytest.approx(1.0, abs=0.05)


def test_ruin_is_for_ever() -> None:
    """Falls of 5% a bar: everybody is ruined at a fifth of the start and stays there. Rejects counting on."""
    falling = account_odds(np.full(50, -0.05) + 0.001 * normal(50, 1), 252.0, bars=100, ruin_level=0.2, repetitions=50)
    assert falling.ruin == 1.0 and falling.loss == 1.0
    assert all(0.15 < value <= 0.2 for _, value in falling.wealth)  # stays where it was ruined


def test_blocks_keep_spells_together() -> None:
    """Returns that follow one another: blocks know the long falls, single bars do not. Rejects an iid shuffle."""
    shocks = normal(3000, 2, sigma=0.01)
    returns = np.asarray(lfilter([1.0], [1.0, -0.7], shocks))
    blocks = account_odds(returns, 252.0, bars=500, repetitions=600)
    shuffled = account_odds(returns, 252.0, bars=500, block=1, repetitions=600)
    assert blocks.block >= 15
    assert dict(blocks.drawdowns)[0.5] > dict(shuffled.drawdowns)[0.5] + 0.2


def test_odds_fall_with_the_size_and_are_seeded() -> None:
    returns = normal(400, 3)
    found = account_odds(returns, 252.0, repetitions=300, seed=1)
    odds = [p for _, p in found.drawdowns]
    assert odds == sorted(odds, reverse=True) and found.bars == 400
    assert found == account_odds(returns, 252.0, repetitions=300, seed=1)
    assert found != account_odds(returns, 252.0, repetitions=300, seed=2)
    long = account_odds(returns, 252.0, bars=1000, repetitions=100)  # beyond the data
    assert long.bars == 1000 and dict(long.drawdowns)[0.3] > dict(found.drawdowns)[0.3]


def test_parts_do_not_repeat_their_futures(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 futures in ten parts. Rejects the same resamples in every part, by which all odds are multiples of 1/20."""
    monkeypatch.setattr("tailwise.evaluate.evidence._LARGEST_PART", 20 * 400)
    sizes = [0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45]
    found = account_odds(normal(400, 3), 252.0, sizes=sizes, repetitions=200)
    assert [p for _, p in found.drawdowns if round(200 * p) % 10 != 0]
    assert found.repetitions == 200 and 0 < dict(found.drawdowns)[0.3] < 1


def test_impossible_questions() -> None:
    with pytest.raises(ConfigError, match="at least 2, 1 and 1"):
        account_odds(np.zeros(1), 252.0)
    with pytest.raises(ConfigError, match="fractions between 0 and 1"):
        account_odds(normal(50, 0), 252.0, sizes=[20])
    with pytest.raises(ConfigError, match="at least one"):
        account_odds(normal(50, 0), 252.0, block=0)
