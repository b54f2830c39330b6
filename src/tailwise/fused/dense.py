"""Dense layers of an operation table: product and activation, forward and back with the gradients of all weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from tailwise.core.compiled import kernel
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
    RELU,
    TANH,
    WEIGHT,
)
from tailwise.fused.products import NOTHING, REPEATED, Matrix, add_products, multiply
from tailwise.fused.vectors import Vectors, address, number

_ZERO = np.float32(0.0)
_TOGETHER = 4  # vectors that take turns, so that none waits for its own last step


@intrinsic
def _tanh(context: Any, z: Any, lead: Any, rows: Any, width: Any) -> Any:
    """In place tanh of [rows, width] at an address, rows `lead` floats apart."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        z, lead, rows, width = values
        v = Vectors(builder)
        row = v.variable(z)
        with v.count(rows):
            here = builder.load(row)

            def each(places: list[Any], mask: Any) -> None:
                addresses = [v.at(here, place) for place in places]
                for place, value in zip(addresses, v.tanh(*(v.load(place, mask) for place in addresses))):
                    v.store(value, place, mask)

            v.over(width, each, _TOGETHER)
            builder.store(v.at(here, lead), row)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4), generate


def _column_sums(tanh: bool) -> Any:
    """Return a function for kernels: add the sums of the columns of `grad` to `bias` [width]; behind a tanh, multiply
    grad with its derivative first, from its results `out`."""

    @intrinsic
    def sums(context: Any, grad: Any, out: Any, lead: Any, rows: Any, bias: Any, width: Any) -> Any:
        return types.void(*[types.intp] * 6), generate

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        grad, out, lead, rows, bias, width = values
        v = Vectors(builder)

        def columns(places: list[Any], mask: Any) -> None:
            totals = [v.variable(v.load(v.at(bias, place), mask)) for place in places]
            row = v.variable(number(0))
            with v.count(rows):
                here = builder.load(row)
                for place, total in zip(places, totals):
                    at_grad = v.at(grad, builder.add(here, place))
                    g = v.load(at_grad, mask)
                    if tanh:
                        y = v.load(v.at(out, builder.add(here, place)), mask)
                        g = v.product(g, v.one_minus_square(y))
                        v.store(g, at_grad, mask)
                    builder.store(builder.fadd(builder.load(total), g), total)
                builder.store(builder.add(here, lead), row)
            for place, total in zip(places, totals):
                v.store(builder.load(total), v.at(bias, place), mask)

        v.over(width, columns, _TOGETHER)
        return context.get_dummy_value()

    return sums


_sum_columns, _sum_tanh_columns = _column_sums(False), _column_sums(True)


@kernel
def activate(z: np.ndarray, lead: int, rows: int, width: int, activation: int) -> None:
    """In place z[r, :width] = f(z[r, :width]); z is flat with `lead` numbers from row to row."""
    if activation == TANH:
        _tanh(address(z), lead, rows, width)
    elif activation == RELU:
        for r in range(rows):
            row = z[r * lead : r * lead + width]
            for j in range(width):
                row[j] = _ZERO if row[j] <= _ZERO else row[j]  # written so that NaN passes


@kernel
def sum_columns(z: np.ndarray, lead: int, rows: int, total: np.ndarray) -> None:
    """total [width] += sums of the columns of z [rows, width], flat with `lead` numbers from row to row."""
    _sum_columns(address(z), address(z), lead, rows, address(total), total.shape[0])


@kernel
def back_through_activation(
    grad: np.ndarray, out: np.ndarray, lead: int, rows: int, bias_grad: np.ndarray, activation: int
) -> None:
    """In place grad *= f'(z), from the outputs f(z); bias_grad [width] grows by the sums of its columns."""
    width = bias_grad.shape[0]
    if activation == TANH:
        _sum_tanh_columns(address(grad), address(out), lead, rows, address(bias_grad), width)
        return
    if activation == RELU:
        for r in range(rows):
            g, y = grad[r * lead : r * lead + width], out[r * lead : r * lead + width]
            for j in range(width):
                g[j] = g[j] if y[j] > _ZERO else _ZERO
    sum_columns(grad, lead, rows, bias_grad)


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
            (rows, width, inner),
            Matrix(source, o[IN_LEAD]),
            panels[o[PANELS] :],
            Matrix(flat[o[BIAS] :], REPEATED),
            Matrix(target, o[OUT_LEAD]),
        )
        activate(target, o[OUT_LEAD], rows, width, o[ACTIVATION])


@kernel
def backward(
    operations: np.ndarray, panels: np.ndarray, work: np.ndarray, back: np.ndarray, rows: int, grad: np.ndarray
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
        outputs = Matrix(above, lead)
        add_products((rows, width, inner), outputs, Matrix(work[at_source:], o[IN_LEAD]), grad[o[WEIGHT] :])
        if o[IN_GRADIENT] != NO_GRADIENT:
            target = back[at_source:]
            start = Matrix(target, o[IN_LEAD] if o[IN_GRADIENT] == ACCUMULATE else NOTHING)
            multiply((rows, inner, width), outputs, panels[o[BACK_PANELS] :], start, Matrix(target, o[IN_LEAD]))
