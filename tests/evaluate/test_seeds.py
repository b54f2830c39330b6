"""Several seeds in one number."""

from __future__ import annotations

import numpy as np
import pytest

from tailwise.core.errors import ConfigError, ShapeError
from tailwise.evaluate.seeds import interquartile_mean, summarise_seeds


def test_interquartile_mean_by_hand() -> None:
    """Of eight scores the two lowest and the two highest go. Rejects the mean and the median."""
    scores = np.array([[-50.0, 1.0, 2.0, 3.0], [4.0, 6.0, 9.0, 700.0]])
    assert interquartile_mean(scores) == pytest.approx((2 + 3 + 4 + 6) / 4)
    assert interquartile_mean(scores) != np.median(scores) and abs(scores.mean() - 3.75) > 50


def test_the_interval_holds_the_truth() -> None:
    """95% intervals of ten seeds on three tasks of different height, 200 times."""
    rng = np.random.default_rng(0)
    truth = np.array([0.0, 0.2, 0.4])
    inside = 0
    for draw in range(200):
        found = summarise_seeds(truth + 0.3 * rng.standard_normal((10, 3)), repetitions=400, seed=draw)
        assert found.low is not None and found.high is not None and found.low <= found.iqm <= found.high
        inside += found.low <= 0.2 <= found.high
    assert inside >= 175


def test_differences_between_tasks_are_not_noise() -> None:
    """Rejects drawing from all scores alike: tasks 10 apart would then give an interval of their distance."""
    scores = np.array([0.0, 10.0, 20.0]) + 0.01 * np.random.default_rng(1).standard_normal((6, 3))
    found = summarise_seeds(scores)
    assert found.low is not None and found.high is not None and found.high - found.low < 0.1
    rows = np.random.default_rng(2).integers(0, scores.size, (2000, scores.size))
    wrong = np.quantile([interquartile_mean(scores.reshape(-1)[r]) for r in rows], [0.025, 0.975])
    assert wrong[1] - wrong[0] > 1.0


def test_seeded_and_hostile() -> None:
    scores = np.random.default_rng(3).standard_normal((5, 2))
    assert summarise_seeds(scores, seed=1) == summarise_seeds(scores, seed=1) != summarise_seeds(scores, seed=2)
    alone = summarise_seeds(scores[:1])
    assert alone.low is None and alone.high is None and alone.iqm == pytest.approx(scores[0].mean())
    with pytest.raises(ShapeError, match="a row per seed"):
        summarise_seeds(scores[0])
    with pytest.raises(ConfigError, match="level"):
        summarise_seeds(scores, level=95)
