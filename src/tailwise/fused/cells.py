"""The arithmetic of the cells of an LSTM or GRU for some rows, forward and back, in one pass over their numbers.

Gates lie as torch has them, H numbers each: LSTM input, forget, cell, output; GRU reset, update, new. The twins are
torch's own. Arrays are flat float32; all gates of a row lie side by side, and so do the rows, but where a distance
between rows is an argument. A state may be written twice: as the result of this step, and where the next one reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from tailwise.core.compiled import kernel
from tailwise.fused.vectors import Vectors, generated, number


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
    """Types and generator of a function of so many pairs (address, floats between rows), of H and the number of rows:
    `cell(vectors, place, *addresses)` for each vector of the H numbers of each row."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        *pairs, size, rows = values
        v = Vectors(builder)
        starts = [v.variable(address) for address in pairs[::2]]
        with v.count(rows):
            addresses = [builder.load(start) for start in starts]
            v.over(size, lambda first, mask: cell(v, _Place(v, size, first[0], mask), *addresses))
            for start, address, distance in zip(starts, addresses, pairs[1::2]):
                builder.store(v.at(address, distance), start)
        return context.get_dummy_value()

    return types.void(*[types.intp] * (2 * arrays + 2)), generate


def _slope(v: Vectors, gate: Any) -> Any:
    """Derivative of the sigmoid from its value."""
    return v.product(gate, v.minus(v.constant(1.0), gate))


@generated
def _lstm(
    context: Any, gates: Any, gates_row: Any, before_c: Any, before_c_row: Any, inner: Any, inner_row: Any, h: Any,
    h_row: Any, c: Any, c_row: Any, next_h: Any, next_h_row: Any, size: Any, rows: Any,
) -> Any:  # fmt: skip
    def cell(v: Vectors, at: _Place, gates: Any, before_c: Any, inner: Any, h: Any, c: Any, next_h: Any) -> None:
        entering = [at.read(gates, k) for k in range(4)]
        *bent, new = v.tanh(*v.halves(*(entering[k] for k in (0, 1, 3))), entering[2])
        take, forget, out = v.from_halves(*bent)
        now = v.multiply_add(forget, at.read(before_c), v.product(take, new))
        bent = v.tanh(now)[0]
        for k, value in enumerate((take, forget, new, out)):
            at.write(value, gates, k)
        result = v.product(out, bent)
        for value, start in ((now, c), (bent, inner), (result, h), (result, next_h)):
            at.write(value, start)

    return _each(6, cell)


@generated
def _lstm_back(
    context: Any, gates: Any, gates_row: Any, before_c: Any, before_c_row: Any, inner: Any, inner_row: Any, above:
    Any, above_row: Any, carry_h: Any, carry_h_row: Any, carry_c: Any, carry_c_row: Any, back: Any, back_row: Any,
    size: Any, rows: Any,
) -> Any:  # fmt: skip
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
def _gru(
    context: Any, gates: Any, gates_row: Any, hidden: Any, hidden_row: Any, before_h: Any, before_h_row: Any, inner:
    Any, inner_row: Any, h: Any, h_row: Any, next_h: Any, next_h_row: Any, size: Any, rows: Any,
) -> Any:  # fmt: skip
    def cell(v: Vectors, at: _Place, gates: Any, hidden: Any, before_h: Any, inner: Any, h: Any, next_h: Any) -> None:
        reset, update = v.sigmoid(*(v.sum(at.read(gates, k), at.read(hidden, k)) for k in range(2)))
        last = at.read(hidden, 2)
        new = v.tanh(v.multiply_add(reset, last, at.read(gates, 2)))[0]
        for k, value in enumerate((reset, update, new)):
            at.write(value, gates, k)
        at.write(last, inner)
        result = v.multiply_add(update, v.minus(at.read(before_h), new), new)
        at.write(result, h)
        at.write(result, next_h)

    return _each(6, cell)


@generated
def _gru_back(
    context: Any, gates: Any, gates_row: Any, before_h: Any, before_h_row: Any, inner: Any, inner_row: Any, above:
    Any, above_row: Any, carry: Any, carry_row: Any, back: Any, back_row: Any, hidden: Any, hidden_row: Any, size:
    Any, rows: Any,
) -> Any:  # fmt: skip
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
def lstm_cells(
    rows: int, size: int, gates: np.ndarray, before_c: np.ndarray, inner: np.ndarray, h: np.ndarray, c: np.ndarray,
    c_row: int, next_h: np.ndarray, next_row: int,
) -> None:  # fmt: skip
    """gates [rows, 4H] in place from what enters them to their values; written: inner = tanh(c) and h [rows, H]; c,
    whose rows are c_row floats apart, and next_h = h, next_row apart."""
    _lstm(
        *(gates.ctypes.data, 4 * size, before_c.ctypes.data, size, inner.ctypes.data, size, h.ctypes.data, size),
        *(c.ctypes.data, c_row, next_h.ctypes.data, next_row, size, rows),
    )


@kernel
def lstm_cells_back(
    rows: int, size: int, gates: np.ndarray, before_c: np.ndarray, inner: np.ndarray, above: np.ndarray,
    carry_h: np.ndarray, carry_c: np.ndarray, back: np.ndarray,
) -> None:  # fmt: skip
    """carry_h, carry_c [rows, H] come from the next step; carry_c leaves for the step before; back [rows, 4H]."""
    _lstm_back(
        *(gates.ctypes.data, 4 * size, before_c.ctypes.data, size, inner.ctypes.data, size, above.ctypes.data, size),
        *(carry_h.ctypes.data, size, carry_c.ctypes.data, size, back.ctypes.data, 4 * size, size, rows),
    )


@kernel
def gru_cells(
    rows: int, size: int, gates: np.ndarray, hidden: np.ndarray, before_h: np.ndarray, before_row: int,
    inner: np.ndarray, h: np.ndarray, next_h: np.ndarray, next_row: int,
) -> None:  # fmt: skip
    """gates [rows, 3H] hold the input's part and become values; hidden [rows, 3H] the state's part; both with biases;
    before_h: rows before_row apart. Written: inner, h [rows, H] and next_h = h, rows next_row apart."""
    _gru(
        *(gates.ctypes.data, 3 * size, hidden.ctypes.data, 3 * size, before_h.ctypes.data, before_row),
        *(inner.ctypes.data, size, h.ctypes.data, size, next_h.ctypes.data, next_row, size, rows),
    )


@kernel
def gru_cells_back(
    rows: int, size: int, gates: np.ndarray, before_h: np.ndarray, before_row: int, inner: np.ndarray,
    above: np.ndarray, carry: np.ndarray, back: np.ndarray, hidden: np.ndarray,
) -> None:  # fmt: skip
    """carry [rows, H] comes from the next step and leaves with what passes the update gate; back, hidden [rows, 3H]."""
    _gru_back(
        *(gates.ctypes.data, 3 * size, before_h.ctypes.data, before_row, inner.ctypes.data, size),
        *(above.ctypes.data, size, carry.ctypes.data, size, back.ctypes.data, 3 * size),
        *(hidden.ctypes.data, 3 * size, size, rows),
    )
