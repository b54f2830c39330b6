"""The arithmetic of a cell of an LSTM or GRU for one row, forward and back, in one pass over its numbers.

Gates lie as torch has them, H numbers each: LSTM input, forget, cell, output; GRU reset, update, new. The twins are
torch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from tailwise.core.compiled import kernel
from tailwise.kernels.vectors import Vectors, generated, number


class _Place:
    """One vector of each part of each array: part k lies k * H numbers behind the array's address."""

    def __init__(self, v: Vectors, size: Any, first: Any, mask: Any) -> None:
        self.v, self.size, self.first, self.mask = v, size, first, mask

    def _address(self, start: Any, part: int) -> Any:
        builder = self.v.builder
        return self.v.at(start, builder.add(self.first, builder.mul(self.size, number(part))))

    def read(self, start: Any, part: int = 0) -> Any:
        return self.v.load(self._address(start, part), self.mask)

    def write(self, value: Any, start: Any, part: int = 0) -> None:
        self.v.store(value, self._address(start, part), self.mask)


def _each(arrays: int, cell: Callable[..., None]) -> Any:
    """Types and generator of a function of so many addresses and H: `cell(vectors, place, *addresses)` for each vector
    of the H numbers."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        *addresses, size = values
        v = Vectors(builder)
        v.over(size, lambda first, mask: cell(v, _Place(v, size, first[0], mask), *addresses))
        return context.get_dummy_value()

    return types.void(*[types.intp] * (arrays + 1)), generate


def _slope(v: Vectors, gate: Any) -> Any:
    """Derivative of the sigmoid from its value."""
    return v.product(gate, v.minus(v.constant(1.0), gate))


@generated
def _lstm(context: Any, gates: Any, before_c: Any, c: Any, inner: Any, h: Any, size: Any) -> Any:
    def cell(v: Vectors, at: _Place, gates: Any, before_c: Any, c: Any, inner: Any, h: Any) -> None:
        entering = [at.read(gates, k) for k in range(4)]
        take, forget, out = (v.sigmoid(entering[k]) for k in (0, 1, 3))
        new = v.tanh(entering[2])
        now = v.multiply_add(forget, at.read(before_c), v.product(take, new))
        bent = v.tanh(now)
        for k, value in enumerate((take, forget, new, out)):
            at.write(value, gates, k)
        for value, start in ((now, c), (bent, inner), (v.product(out, bent), h)):
            at.write(value, start)

    return _each(5, cell)


@generated
def _lstm_back(
    context: Any, gates: Any, before_c: Any, inner: Any, above: Any, carry_h: Any, carry_c: Any, back: Any, size: Any
) -> Any:
    def cell(
        v: Vectors, at: _Place, gates: Any, before_c: Any, inner: Any, above: Any, carry_h: Any, carry_c: Any, back: Any
    ) -> None:
        take, forget, new, out = (at.read(gates, k) for k in range(4))
        bent = at.read(inner)
        by_h = v.sum(at.read(carry_h), at.read(above))
        by_c = v.multiply_add(v.product(by_h, out), v.one_minus_square(bent), at.read(carry_c))
        entering = (
            v.product(by_c, new, _slope(v, take)),
            v.product(by_c, at.read(before_c), _slope(v, forget)),
            v.product(by_c, take, v.one_minus_square(new)),
            v.product(by_h, bent, _slope(v, out)),
        )
        for k, value in enumerate(entering):
            at.write(value, back, k)
        at.write(v.product(by_c, forget), carry_c)

    return _each(7, cell)


@generated
def _gru(context: Any, gates: Any, hidden: Any, before_h: Any, inner: Any, h: Any, size: Any) -> Any:
    def cell(v: Vectors, at: _Place, gates: Any, hidden: Any, before_h: Any, inner: Any, h: Any) -> None:
        reset, update = (v.sigmoid(v.sum(at.read(gates, k), at.read(hidden, k))) for k in range(2))
        last = at.read(hidden, 2)
        new = v.tanh(v.multiply_add(reset, last, at.read(gates, 2)))
        for k, value in enumerate((reset, update, new)):
            at.write(value, gates, k)
        at.write(last, inner)
        at.write(v.multiply_add(update, v.minus(at.read(before_h), new), new), h)

    return _each(5, cell)


@generated
def _gru_back(
    context: Any, gates: Any, before_h: Any, inner: Any, above: Any, carry: Any, back: Any, hidden: Any, size: Any
) -> Any:
    def cell(
        v: Vectors, at: _Place, gates: Any, before_h: Any, inner: Any, above: Any, carry: Any, back: Any, hidden: Any
    ) -> None:
        reset, update, new = (at.read(gates, k) for k in range(3))
        by_h = v.sum(at.read(carry), at.read(above))
        by_update = v.product(by_h, v.minus(at.read(before_h), new), _slope(v, update))
        by_new = v.product(by_h, v.minus(v.constant(1.0), update), v.one_minus_square(new))
        by_reset = v.product(by_new, at.read(inner), _slope(v, reset))
        for k, value in enumerate((by_reset, by_update, by_new)):
            at.write(value, back, k)
        for k, value in enumerate((by_reset, by_update, v.product(by_new, reset))):
            at.write(value, hidden, k)
        at.write(v.product(by_h, update), carry)

    return _each(7, cell)


@kernel
def lstm_cell(gates: np.ndarray, before_c: np.ndarray, c: np.ndarray, inner: np.ndarray, h: np.ndarray) -> None:
    """One row: gates [4H] in place from what enters them to their values; c, inner = tanh(c), h [H] are written."""
    _lstm(gates.ctypes.data, before_c.ctypes.data, c.ctypes.data, inner.ctypes.data, h.ctypes.data, h.shape[0])


@kernel
def lstm_cell_back(
    gates: np.ndarray, before_c: np.ndarray, inner: np.ndarray, above: np.ndarray, carry_h: np.ndarray,
    carry_c: np.ndarray, back: np.ndarray,
) -> None:  # fmt: skip
    """One row: carry_h, carry_c [H] come from the next step; carry_c leaves for the step before; back [4H]."""
    _lstm_back(
        *(gates.ctypes.data, before_c.ctypes.data, inner.ctypes.data, above.ctypes.data, carry_h.ctypes.data),
        *(carry_c.ctypes.data, back.ctypes.data, above.shape[0]),
    )


@kernel
def gru_cell(gates: np.ndarray, hidden: np.ndarray, before_h: np.ndarray, inner: np.ndarray, h: np.ndarray) -> None:
    """One row: gates [3H] hold the input's part and become values; hidden [3H] the state's part; both with biases."""
    _gru(gates.ctypes.data, hidden.ctypes.data, before_h.ctypes.data, inner.ctypes.data, h.ctypes.data, h.shape[0])


@kernel
def gru_cell_back(
    gates: np.ndarray, before_h: np.ndarray, inner: np.ndarray, above: np.ndarray, carry: np.ndarray, back: np.ndarray,
    hidden: np.ndarray,
) -> None:  # fmt: skip
    """One row: carry [H] comes from the next step and leaves with what passes the update gate; back, hidden [3H]."""
    _gru_back(
        *(gates.ctypes.data, before_h.ctypes.data, inner.ctypes.data, above.ctypes.data, carry.ctypes.data),
        *(back.ctypes.data, hidden.ctypes.data, above.shape[0]),
    )
