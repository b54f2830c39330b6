"""LSTM and GRU over whole sequences with resets inside: forward, and back through time.

Rows are time-major, r = t*b + i for b sequences. An LSTM multiplies what it reads and its state in one product per
step, because its gates are sums of both. A GRU needs the parts of its gates apart: that of what it reads is one product
over the rows of a few steps, as many as stay in the cache until these steps read them. On the way back gradients of
weights and inputs are made while those of the gates of a few steps are near, and then their memory is used again. A
reset zeroes the state before a step; on the way back it stops the gradient there. The twin is torch's own LSTM and GRU
in `model.recurrence`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types

from tailwise.core.compiled import kernel
from tailwise.fused.dense import sum_columns
from tailwise.fused.layout import LSTM, Network
from tailwise.fused.products import CHUNK, NOTHING, add_products, multiply
from tailwise.fused.vectors import Vectors, clear, copy, generated, number


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


class Tape(NamedTuple):
    """What the way back needs, and its results; all float32, flat, for R = T*b rows and G = 4 (LSTM) or 3 (GRU) gates.

    gates [R, G*H]: after the activations; before_c [R, H]: before each step, resets applied (h lies beside what the
    core reads);
    inner [R, H]: tanh(c) of an LSTM, the hidden part of a GRU's new gate; features [R, H]: the results;
    back_features [R, H]: gradient by them; back_gates [together(b) * b, G*H]: by what enters the gates, of a few steps;
    back_hidden, as large: by the hidden part of it (GRU); now [b, G*H], carry_h, carry_c [b, H]: of one step (an LSTM
    keeps the sum of its two biases in `now`).
    """

    gates: np.ndarray
    before_c: np.ndarray
    inner: np.ndarray
    features: np.ndarray
    back_features: np.ndarray
    back_gates: np.ndarray
    back_hidden: np.ndarray
    now: np.ndarray
    carry_h: np.ndarray
    carry_c: np.ndarray


@kernel
def together(sequences: int) -> int:
    """How many steps of so many sequences are taken together."""
    return max(1, CHUNK // sequences)


@kernel(reorder=True)
def add_row(total: np.ndarray, row: np.ndarray) -> None:
    """total [width] += row [width]."""
    for j in range(row.shape[0]):
        total[j] += row[j]


@kernel
def core_forward(
    network: Network, flat: np.ndarray, panels: np.ndarray, read: np.ndarray, steps: int, envs: np.ndarray,
    state: np.ndarray, start: np.ndarray, stride: int, tape: Tape,
) -> None:  # fmt: skip
    """Fill the tape from read [T*b, I+H], flat: what the trunk encoded, and beside it the state h before each step,
    which is written here.

    envs [b]: whose sequences these are; state [B, S, H] before step 0; start: bool, flat [T, stride] of all
    environments: True where an episode begins.
    """
    size, b, lstm = network.hidden, envs.shape[0], network.core == LSTM
    wide = (4 if lstm else 3) * size
    few, inputs, lead = together(b), network.encoded_width, network.encoded_lead
    bias, bias_hidden = flat[network.b_in : network.b_in + wide], flat[network.b_hidden : network.b_hidden + wide]
    if lstm:
        copy(bias, tape.now)
        bias = tape.now[:wide]
        add_row(bias, bias_hidden)
    for_input, for_hidden = panels[network.in_panels :], panels[network.hidden_panels :]
    for i in range(b):
        copy(state[envs[i], 0], read[i * lead + inputs :])
        if lstm:
            copy(state[envs[i], 1], tape.before_c[i * size :])
    for t in range(steps):
        first, after = t * b * size, (t + 1) * b * size
        here, h = read[t * b * lead :], tape.features[first:after]
        for i in range(b):
            if start[t * stride + envs[i]]:
                clear(here[i * lead + inputs : (i + 1) * lead])
                clear(tape.before_c[first + i * size : first + (i + 1) * size])
        # The state goes where the next step reads it; after the last step nobody does.
        next_h, next_row = (here[b * lead + inputs :], lead) if t + 1 < steps else (h, size)
        gates, inner = tape.gates[t * b * wide : (t + 1) * b * wide], tape.inner[first:after]
        if lstm:
            multiply(b, wide, lead, here, lead, 1, for_input, bias, 0, gates, wide)
            c = tape.before_c[after:] if t + 1 < steps else tape.carry_c
            lstm_cells(b, size, gates, tape.before_c[first:], inner, h, c, size, next_h, next_row)
        else:
            if t % few == 0:
                rows = min(few, steps - t) * b
                multiply(rows, wide, inputs, here, lead, 1, for_input, bias, 0, tape.gates[t * b * wide :], wide)
            before_h = here[inputs:]
            multiply(b, wide, size, before_h, lead, 1, for_hidden, bias_hidden, 0, tape.now, wide)
            gru_cells(b, size, gates, tape.now, before_h, lead, inner, h, next_h, next_row)


@kernel
def core_backward(
    network: Network, panels: np.ndarray, read: np.ndarray, steps: int, envs: np.ndarray, start: np.ndarray,
    stride: int, tape: Tape, back_read: np.ndarray, grad: np.ndarray,
) -> None:  # fmt: skip
    """From tape.back_features to the gradients of the core's parameters (added to grad) and of what it read."""
    size, b, lstm = network.hidden, envs.shape[0], network.core == LSTM
    wide = (4 if lstm else 3) * size
    few, inputs, lead = together(b), network.encoded_width, network.encoded_lead
    carry_h, carry_c = tape.carry_h[: b * size], tape.carry_c[: b * size]
    clear(carry_h)
    clear(carry_c)
    by_gates, by_hidden = tape.back_gates, tape.back_gates if lstm else tape.back_hidden
    added = NOTHING if lstm else size  # an LSTM's state is reached through the gates alone, a GRU's also directly
    for end in range(steps, 0, -few):
        first = max(end - few, 0)
        for t in range(end - 1, first - 1, -1):
            now = (t - first) * b * wide
            here, gates, above = t * b * size, tape.gates[t * b * wide :], tape.back_features[t * b * size :]
            if lstm:
                lstm_cells_back(
                    *(b, size, gates, tape.before_c[here:], tape.inner[here:], above),
                    *(carry_h, carry_c, by_gates[now:]),
                )
            else:
                gru_cells_back(
                    *(b, size, gates, read[t * b * lead + inputs :], lead, tape.inner[here:], above),
                    *(carry_h, by_gates[now:], by_hidden[now:]),
                )
            if t > 0:
                above = by_hidden[now:]
                multiply(b, size, wide, above, wide, 1, panels[network.hidden_back :], carry_h, added, carry_h, size)
                for i in range(b):
                    if start[t * stride + envs[i]]:
                        clear(carry_h[i * size : (i + 1) * size])
                        clear(carry_c[i * size : (i + 1) * size])
        rows, seen = (end - first) * b, read[first * b * lead :]
        add_products(rows, wide, inputs, by_gates, wide, seen, lead, grad[network.w_in :])
        add_products(rows, wide, size, by_hidden, wide, seen[inputs:], lead, grad[network.w_hidden :])
        sum_columns(by_gates, wide, rows, grad[network.b_in : network.b_in + wide])
        if not lstm:
            sum_columns(by_hidden, wide, rows, grad[network.b_hidden : network.b_hidden + wide])
        if network.trunk.shape[0]:
            target = back_read[first * b * lead :]
            multiply(
                *(rows, inputs, wide, by_gates, wide, 1, panels[network.in_back :]), *(target, NOTHING, target, lead)
            )
    if lstm:  # both biases are added to the same gates, so that their gradients are equal
        copy(grad[network.b_in : network.b_in + wide], grad[network.b_hidden :])
