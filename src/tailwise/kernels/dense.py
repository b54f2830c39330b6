"""Dense layers of an operation table: forward, and backward with the gradients of all weights."""

from __future__ import annotations

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.kernels.arithmetic import back_through_activation, bias_and_activation
from tailwise.kernels.gemm import gemm
from tailwise.kernels.layout import (
    ACCUMULATE,
    ACTIVATION,
    BIAS,
    IN,
    IN_COLUMN,
    IN_GRADIENT,
    IN_LEAD,
    IN_WIDTH,
    NO_GRADIENT,
    OUT,
    OUT_COLUMN,
    OUT_LEAD,
    OUT_WIDTH,
    WEIGHT,
)


@kernel
def forward(operations: np.ndarray, flat: np.ndarray, work: np.ndarray, rows: int) -> None:
    """Run the operations [n, 12] in order over `rows` rows of the workspace; its input buffer is filled."""
    for k in range(operations.shape[0]):
        o = operations[k]
        source, target = work[o[IN] * rows + o[IN_COLUMN] :], work[o[OUT] * rows + o[OUT_COLUMN] :]
        width, inner = o[OUT_WIDTH], o[IN_WIDTH]
        gemm(
            *(rows, width, inner, source, o[IN_LEAD], False),
            *(flat[o[WEIGHT] :], inner, True, 0.0, target, o[OUT_LEAD]),
        )
        bias_and_activation(target, o[OUT_LEAD], rows, flat[o[BIAS] : o[BIAS] + width], o[ACTIVATION])


@kernel
def backward(
    operations: np.ndarray, flat: np.ndarray, work: np.ndarray, back: np.ndarray, rows: int, grad: np.ndarray
) -> None:
    """Run the operations last to first; `back` has the workspace's layout and begins with the output's gradient.

    `grad` has the layout of `flat` and grows by the gradients of weights and biases.
    """
    for k in range(operations.shape[0] - 1, -1, -1):
        o = operations[k]
        width, inner, lead = o[OUT_WIDTH], o[IN_WIDTH], o[OUT_LEAD]
        at_source, at_target = o[IN] * rows + o[IN_COLUMN], o[OUT] * rows + o[OUT_COLUMN]
        above = back[at_target:]
        back_through_activation(above, work[at_target:], lead, rows, grad[o[BIAS] : o[BIAS] + width], o[ACTIVATION])
        gemm(
            *(width, inner, rows, above, lead, True),
            *(work[at_source:], o[IN_LEAD], False, 1.0, grad[o[WEIGHT] :], inner),
        )
        if o[IN_GRADIENT] != NO_GRADIENT:
            beta = 1.0 if o[IN_GRADIENT] == ACCUMULATE else 0.0
            gemm(
                *(rows, inner, width, above, lead, False),
                *(flat[o[WEIGHT] :], inner, False, beta, back[at_source:], o[IN_LEAD]),
            )
