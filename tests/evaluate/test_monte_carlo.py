"""Odds of ruin and drawdowns: closed forms, dependence, and what cannot be asked."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import norm

from tailwise.core.errors import ConfigError
from tailwise.evaluate.monte_carlo import account_odds


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
    monkeypatch.setattr("tailwise.evaluate.monte_carlo._LARGEST_PART", 20 * 400)
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
