"""The compiled loops of a vector step against the same in numpy, and against what is easily got wrong."""

from __future__ import annotations

import numpy as np
import pytest

from tailwise.core.loops import BROKEN_OBSERVATION, BROKEN_REWARD, ENDED, ENDED_IN_RESET
from tailwise.core.loops.arrays import shift_choices, take_step

ROWS = 37


def take(
    reward: np.ndarray, flags: np.ndarray, obs: np.ndarray, next_step: bool, pending: np.ndarray
) -> tuple[int, list[np.ndarray]]:
    """(bits, [pending, returns, lengths, reward, terminated, truncated, valid, start]) after one step."""
    written = [pending.copy(), np.full(ROWS, 0.25), np.arange(ROWS), np.full(ROWS, np.nan)]
    written += [np.ones(ROWS, dtype=np.bool_) for _ in range(4)]
    return take_step(reward, flags[0], flags[1], obs, next_step, *written), written


@pytest.mark.parametrize("next_step", [False, True])
def test_a_step_is_written_down_as_numpy_would(next_step: bool) -> None:
    """Rejects: rewards, lengths or starts of rows that were only reset counted like the others."""
    rng = np.random.default_rng(3)
    for _ in range(50):
        reward, obs = rng.normal(size=ROWS), rng.normal(size=(ROWS, 3)).astype(np.float32)
        pending = (rng.random(ROWS) < 0.3) & next_step
        flags = (rng.random((2, ROWS)) < 0.2) & ~pending
        seen, (after, returns, lengths, paid, terminated, truncated, valid, start) = take(
            reward, flags, obs, next_step, pending
        )
        done = flags[0] | flags[1]
        assert seen == (ENDED if done.any() else 0)
        np.testing.assert_array_equal(paid, np.where(pending, 0.0, reward))
        np.testing.assert_array_equal(returns, 0.25 + paid)
        np.testing.assert_array_equal(lengths, np.arange(ROWS) + ~pending)
        np.testing.assert_array_equal([terminated, truncated, valid], [*flags, ~pending])
        np.testing.assert_array_equal(start, pending if next_step else done)
        np.testing.assert_array_equal(after, done if next_step else pending)


@pytest.mark.parametrize("broken", [np.nan, -np.nan, np.inf, -np.inf])
def test_one_broken_number_anywhere_is_seen_and_large_ones_are_not_broken(broken: float) -> None:
    """Rejects: a look at sums, which overflow, or at the first row alone."""
    largest = np.finfo(np.float32).max
    nobody = np.zeros((2, ROWS), dtype=np.bool_)
    for place in range(0, ROWS * 3, 5):
        reward, obs = np.full(ROWS, 1e308), np.full((ROWS, 3), largest)
        assert take(reward, nobody, obs, False, nobody[0])[0] == 0
        obs.reshape(-1)[place] = broken
        assert take(reward, nobody, obs, False, nobody[0])[0] == BROKEN_OBSERVATION
        reward[place % ROWS] = broken
        assert take(reward, nobody, obs, False, nobody[0])[0] == BROKEN_OBSERVATION | BROKEN_REWARD


def test_what_a_reset_pays_is_not_looked_at_and_its_end_is() -> None:
    nobody = np.zeros((2, ROWS), dtype=np.bool_)
    pending = nobody[0].copy()
    pending[4] = True
    reward, obs = np.zeros(ROWS), np.zeros((ROWS, 3), dtype=np.float32)
    reward[4] = np.nan
    seen, (_, returns, *_) = take(reward, nobody, obs, True, pending)
    assert seen == 0 and np.isfinite(returns).all()
    ends = nobody.copy()
    ends[1, 4] = True
    assert take(reward, ends, obs, True, pending)[0] == ENDED | ENDED_IN_RESET


def test_choices_are_shifted_and_the_first_one_out_of_range_is_named() -> None:
    """Rejects: one range for all components, or the range after the shift."""
    sizes, start = np.array([3, 5]), np.array([-1, 10])
    raw = np.array([[0, 4], [2, 0], [1, 2]])
    values = np.zeros_like(raw)
    assert shift_choices(raw, sizes, start, values) == -1
    np.testing.assert_array_equal(values, raw + start)
    for row, component, bad in ((0, 1, 5), (2, 0, 3), (1, 1, -1)):
        broken = raw.copy()
        broken[row, component] = bad
        assert shift_choices(broken, sizes, start, values) == 2 * row + component
