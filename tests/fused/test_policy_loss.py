"""Probabilities of a Discrete policy in kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tailwise.fused.policy_loss import FORBIDDEN, log_softmax

NO_MASK = np.zeros((0, 0), dtype=np.bool_)


def run(logits: np.ndarray, mask: np.ndarray = NO_MASK, index: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    """(log-probabilities, probabilities) [n, K] of logits [n, K] that lie in rows of K + 2 numbers."""
    rows, choices = logits.shape
    wide = np.full((rows, choices + 2), np.nan, np.float32)
    wide[:, :choices] = logits
    work = np.full((3, rows * choices), np.nan, np.float32)
    order = np.arange(rows) if index is None else index
    log_softmax(wide.reshape(-1), choices + 2, order, choices, mask, work)
    return work[0].reshape(logits.shape), work[1].reshape(logits.shape)


@pytest.mark.parametrize("choices", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_probabilities_equal_those_of_float64(choices: int, scale: float) -> None:
    """To float32. Rejects a vector of exponentials that leaves out the last numbers, and a wrong range of exp."""
    logits = (scale * np.random.default_rng(choices).standard_normal((37, choices))).astype(np.float32)
    log_p, p = run(logits)
    exact = torch.log_softmax(torch.from_numpy(logits).double(), -1).numpy()
    assert log_p == pytest.approx(exact, rel=3e-7, abs=3e-7)
    # A difference of logits has 24 bits, so that the error of its exponential grows with its size.
    assert (np.abs(p - np.exp(exact)) <= np.exp(exact) * (4e-7 + 1.2e-7 * np.abs(exact)) + 1e-37).all()


def test_forbidden_choices_have_probability_zero() -> None:
    """Masks are read by the row's number. Rejects the mask of another row."""
    mask = np.array([[True, True, True], [False, True, False], [True, False, True]])
    logits = np.array([[0.5, 30.0, -1.0], [9.0, -2.0, 3.0]], dtype=np.float32)
    log_p, p = run(logits, mask, np.array([2, 1]))
    assert p[0, 1] == 0.0 and p[0, [0, 2]] == pytest.approx(torch.softmax(torch.tensor([0.5, -1.0]), 0).numpy())
    assert np.array_equal(p[1], [0.0, 1.0, 0.0]) and log_p[1, 1] == 0.0 and log_p[1, 0] <= FORBIDDEN


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_logits_break_their_own_row_alone(bad: float) -> None:
    """Rejects an exponential or a maximum that swallows NaN: the loss would look sound."""
    logits = np.zeros((3, 3), dtype=np.float32)
    logits[1, 2] = bad
    log_p, p = run(logits)
    assert np.isnan(log_p[1]).any() and np.isnan(p[1]).all()
    assert p[[0, 2]] == pytest.approx(1 / 3) and log_p[[0, 2]] == pytest.approx(-np.log(3.0))
