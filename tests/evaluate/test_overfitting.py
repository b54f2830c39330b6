"""The probability of backtest overfitting: by hand, on noise, with an edge, and against the plain loop."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from tailwise.core.errors import ConfigError, ShapeError
from tailwise.evaluate.overfitting import overfitting


def noise(trials: int, seed: int, bars: int = 800) -> np.ndarray:
    return 0.01 * np.random.default_rng(seed).standard_t(5, (bars, trials))


def test_by_hand() -> None:
    """Two halves, two trials. The first is the best of the first half and the worst of the second, and the other way
    round: whichever half chooses, its choice ends last of two, rank 1/3, log-odds ln(1/2)."""
    first = np.array([0.02, 0.01, 0.02, 0.01, -0.02, -0.01, -0.02, -0.01])
    found = overfitting(np.stack([first, -first], axis=1), blocks=2)
    assert found.probability == 1.0 and found.loss_probability == 1.0
    assert np.allclose(found.logits, np.log(0.5)) and found.chosen.tolist() == [0, 1]
    assert np.allclose(found.in_sample, 0.015 / np.std([0.02, 0.01, 0.02, 0.01], ddof=1))


def test_equals_the_plain_loop() -> None:
    """Rejects sums that forget the n - 1, blocks of unequal length taken as equal, and a rank counted from the top."""
    values = noise(5, seed=1, bars=103)
    found = overfitting(values, blocks=6)
    parts, logits = np.array_split(values, 6), []
    for some in combinations(range(6), 3):
        inside = np.concatenate([parts[i] for i in some])
        outside = np.concatenate([parts[i] for i in range(6) if i not in some])
        best = (inside.mean(0) / inside.std(0, ddof=1)).argmax()
        ratio = outside.mean(0) / outside.std(0, ddof=1)
        rank = (ratio <= ratio[best]).sum() / 6
        logits.append(np.log(rank / (1 - rank)))
    assert np.allclose(found.logits, logits) and found.probability == np.mean(np.array(logits) <= 0)


def test_noise_is_a_coin_and_an_edge_is_found() -> None:
    """On noise the chosen one is as often in the worse half as in the better; with one trial of Sharpe 3 it is not."""
    on_noise = [overfitting(noise(20, seed), blocks=10).probability for seed in range(40)]
    assert 0.4 < np.mean(on_noise) < 0.6
    edge = noise(20, seed=7)
    edge[:, 3] += 3 / np.sqrt(252) * edge[:, 3].std()
    found = overfitting(edge)
    assert found.probability < 0.05 and len(found.logits) == 12_870 and (found.chosen == 3).mean() > 0.9
    # Wrong: judging where it was chosen. The best in sample is then never in the worse half, noise or not.
    assert (found.in_sample > found.out_of_sample).mean() > 0.5
    assert all((overfitting(noise(20, seed), blocks=10).in_sample > 0).all() for seed in range(5))


def test_impossible_input() -> None:
    with pytest.raises(ShapeError, match="at least two trials"):
        overfitting(noise(1, 0))
    with pytest.raises(ConfigError, match="an even number"):
        overfitting(noise(3, 0), blocks=7)
    with pytest.raises(ConfigError, match="too few"):
        overfitting(noise(3, 0, bars=20), blocks=16)
