"""Dense layers of an operation table: forward, and backward with the gradients of all weights."""

from __future__ import annotations

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.fused.activations import activate, back_through_activation
from tailwise.fused.layout import (
    ACCUMULATE,
    ACTIVATION,
    BACK_PANELS,
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
    PANELS,
    WEIGHT,
)
from tailwise.fused.products import NOTHING, add_products, multiply


@kernel
def forward(operations: np.ndarray, flat: np.ndarray, panels: np.ndarray, work: np.ndarray, rows: int) -> None:
    """Run the operations [n, 14] in order over `rows` rows of the workspace; its input buffer is filled.

    panels: the weights of `flat`, laid out.
    """
    for k in range(operations.shape[0]):
        o = operations[k]
        source, target = work[o[IN] * rows + o[IN_COLUMN] :], work[o[OUT] * rows + o[OUT_COLUMN] :]
        width, inner = o[OUT_WIDTH], o[IN_WIDTH]
        multiply(
            *(rows, width, inner, source, o[IN_LEAD], 1, panels[o[PANELS] :]),
            *(flat[o[BIAS] :], 0, target, o[OUT_LEAD]),
        )
        activate(target, o[OUT_LEAD], rows, width, o[ACTIVATION])


@kernel
def backward(
    operations: np.ndarray, panels: np.ndarray, work: np.ndarray, back: np.ndarray, rows: int, grad: np.ndarray
) -> None:  # fmt: skip
    """Run the operations last to first; `back` has the workspace's layout and begins with the output's gradient.

    `grad` has the layout of `flat` and grows by the gradients of weights and biases.
    """
    for k in range(operations.shape[0] - 1, -1, -1):
        o = operations[k]
        width, inner, lead = o[OUT_WIDTH], o[IN_WIDTH], o[OUT_LEAD]
        at_source, at_target = o[IN] * rows + o[IN_COLUMN], o[OUT] * rows + o[OUT_COLUMN]
        above = back[at_target:]
        back_through_activation(above, work[at_target:], lead, rows, grad[o[BIAS] : o[BIAS] + width], o[ACTIVATION])
        add_products(rows, width, inner, above, lead, work[at_source:], o[IN_LEAD], grad[o[WEIGHT] :])
        if o[IN_GRADIENT] != NO_GRADIENT:
            target, start_row = back[at_source:], o[IN_LEAD] if o[IN_GRADIENT] == ACCUMULATE else NOTHING
            multiply(
                *(rows, inner, width, above, lead, 1, panels[o[BACK_PANELS] :]),
                *(target, start_row, target, o[IN_LEAD]),
            )
