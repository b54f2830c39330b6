"""Clipping and Adam in one kernel; that they equal torch's is shown by whole updates in test_update.py."""

from __future__ import annotations

import numpy as np
import pytest

from tailwise.fused.adam import AdamSettings, Decay, adam_step


def step(grad: np.ndarray, clip: float) -> tuple[tuple[float, float], list[np.ndarray], np.ndarray]:
    """(norms, parameters and both moments after the first step from 1, 0 and 0, squares) of two parameters."""
    arrays = [np.full(5, start, dtype=np.float32) for start in (1.0, 0.0, 0.0)]
    segments, squares = np.array([[0, 2, 0], [2, 3, 1]]), np.zeros(2)
    settings = AdamSettings(learning_rate=0.1, clip=clip, epsilon=1e-8, critic_epsilon=1e-8, beta1=0.9, beta2=0.999)
    decay = Decay(np.zeros(2, dtype=np.float32), np.zeros(5, dtype=np.float32))
    norms = adam_step(arrays[0], grad, (arrays[1], arrays[2]), segments, settings, decay, 1, squares)
    return norms, arrays, squares


def test_norms_before_and_after_clipping() -> None:
    """|(3, 0, 0, 4, 0)| = 5, clipped to 1; a first step of Adam moves by the learning rate, whatever the scale."""
    grad = np.array([3.0, 0.0, 0.0, 4.0, 0.0], dtype=np.float32)
    norms, (parameters, average, _), squares = step(grad, 1.0)
    assert norms == pytest.approx((5.0, 1.0)) and squares == pytest.approx([9.0, 16.0])
    assert parameters == pytest.approx([0.9, 1.0, 1.0, 0.9, 1.0]) and average == pytest.approx([0.06, 0, 0, 0.08, 0])
    assert step(grad, np.inf)[0] == pytest.approx((5.0, 5.0))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_moves_nothing(bad: float) -> None:
    """Rejects a step that is taken first and looked at later."""
    norms, arrays, _ = step(np.array([1.0, 1.0, bad, 1.0, 1.0], dtype=np.float32), 0.5)
    assert not np.isfinite(norms).any()
    assert [array.tolist() for array in arrays] == [[1.0] * 5, [0.0] * 5, [0.0] * 5]
