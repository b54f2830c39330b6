"""Functions of one number from plain arithmetic, so that a loop over them becomes SIMD without a vector library."""

from __future__ import annotations

import numpy as np

from tailwise.core.compiled import kernel

TANH_LIMIT = np.float32(7.9)  # beyond it tanh is 1 to float32
_ONE, _ZERO = np.float32(1.0), np.float32(0.0)
# A rational function x * p(x^2) / q(x^2), fitted to tanh on [-7.9, 7.9]; its largest error is 3e-7.
TANH_ABOVE = tuple(
    np.float32(c)
    for c in (
        *(4.89352455891786e-03, 6.37261928875436e-04, 1.48572235717979e-05, 5.12229709037114e-08),
        *(-8.60467152213735e-11, 2.00018790482477e-13, -2.76076847742355e-16),
    )
)
TANH_BELOW = tuple(
    np.float32(c) for c in (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06)
)
_P0, _P1, _P2, _P3, _P4, _P5, _P6 = TANH_ABOVE
_Q0, _Q1, _Q2, _Q3 = TANH_BELOW
_LIMIT = TANH_LIMIT

NONE, TANH, RELU = 0, 1, 2  # activations of a dense layer


@kernel(reorder=True)
def tanh(x: float) -> float:
    """tanh(x), float32, to 3e-7; NaN stays NaN."""
    # Not min(max(x, ...)): written so that NaN passes, and still one instruction each.
    x = -_LIMIT if x < -_LIMIT else x
    x = _LIMIT if x > _LIMIT else x
    s = x * x
    p = ((((((_P6 * s + _P5) * s + _P4) * s + _P3) * s + _P2) * s + _P1) * s + _P0) * x
    q = ((_Q3 * s + _Q2) * s + _Q1) * s + _Q0
    return p / q


@kernel(reorder=True)
def activate(z: np.ndarray, lead: int, rows: int, width: int, activation: int) -> None:
    """In place z[r, :width] = f(z[r, :width]); z is flat with `lead` numbers from row to row."""
    if activation == NONE:
        return
    for r in range(rows):
        row = z[r * lead : r * lead + width]
        if activation == TANH:
            for j in range(width):
                row[j] = tanh(row[j])
        else:
            for j in range(width):
                row[j] = _ZERO if row[j] <= _ZERO else row[j]  # written so that NaN passes


@kernel(reorder=True)
def back_through_activation(
    grad: np.ndarray, out: np.ndarray, lead: int, rows: int, bias_grad: np.ndarray, activation: int
) -> None:
    """In place grad *= f'(z), from the outputs f(z); bias_grad [width] grows by the sums of its columns."""
    width = bias_grad.shape[0]
    for r in range(rows):
        g, y = grad[r * lead : r * lead + width], out[r * lead : r * lead + width]
        if activation == TANH:
            for j in range(width):
                g[j] *= _ONE - y[j] * y[j]
        elif activation == RELU:
            for j in range(width):
                g[j] = g[j] if y[j] > _ZERO else _ZERO
        for j in range(width):
            bias_grad[j] += g[j]
