"""LSTM and GRU: one step of their cells, forward and back, and whole sequences with resets inside.

Gates lie as torch has them, H numbers each: LSTM input, forget, cell, output; GRU reset, update, new. The twins are
torch's own in `model.actor_critic`. Arrays are flat float32; all gates of a row lie side by side, and so do the rows,
but where a `Matrix` says otherwise. A state may be written twice: as the result of a step, and where the next one reads
it.

Rows of sequences are time-major, r = t*b + i for b sequences. An LSTM multiplies what it reads and its state in one
product per step, because its gates are sums of both. A GRU needs the parts of its gates apart: that of what it reads is
one product over the rows of a few steps, as many as stay in the cache until these steps read them. On the way back
gradients of weights and inputs are computed while those of the gates of a few steps are near, and then their memory is
used again. A reset zeroes the state before a step; on the way back it stops the gradient there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic

from tailwise.core.compiled import kernel
from tailwise.fused.dense import sum_columns
from tailwise.fused.layout import LSTM, Parameters
from tailwise.fused.products import CHUNK, NOTHING, REPEATED, Matrix, add_products, multiply
from tailwise.fused.rows import Rows
from tailwise.fused.vectors import Vectors, address, clear, copy, number


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


def _cells(arrays: int, cell: Callable[..., None]) -> Any:
    """Return a function for kernels that runs `cell(vectors, place, *addresses)` for each vector of the H numbers of
    each row. Its arguments: the addresses of so many arrays, their floats between rows, H, and the number of rows."""

    @intrinsic
    def run(context: Any, addresses: Any, leads: Any, size: Any, rows: Any) -> Any:
        several = types.UniTuple(types.intp, arrays)
        return types.void(several, several, types.intp, types.intp), generate

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        addresses, leads, size, rows = values
        v = Vectors(builder)
        begins = [v.variable(builder.extract_value(addresses, k)) for k in range(arrays)]
        with v.count(rows):
            here = [builder.load(begin) for begin in begins]
            v.over(size, lambda first, mask: cell(v, _Place(v, size, first[0], mask), *here))
            for k, begin in enumerate(begins):
                builder.store(v.at(here[k], builder.extract_value(leads, k)), begin)
        return context.get_dummy_value()

    return run


def _sigmoid_slope(v: Vectors, gate: Any) -> Any:
    """Derivative of the sigmoid from its value."""
    return v.product(gate, v.minus(v.constant(1.0), gate))


def _lstm(v: Vectors, at: _Place, gates: Any, before_c: Any, inner: Any, h: Any, c: Any, next_h: Any) -> None:
    entering = [at.read(gates, k) for k in range(4)]
    *half, candidate = v.tanh(*v.halves(*(entering[k] for k in (0, 1, 3))), entering[2])
    input_gate, forget_gate, output_gate = v.from_halves(*half)
    new_c = v.multiply_add(forget_gate, at.read(before_c), v.product(input_gate, candidate))
    tanh_c = v.tanh(new_c)[0]
    for k, value in enumerate((input_gate, forget_gate, candidate, output_gate)):
        at.write(value, gates, k)
    new_h = v.product(output_gate, tanh_c)
    for value, start in ((new_c, c), (tanh_c, inner), (new_h, h), (new_h, next_h)):
        at.write(value, start)


def _lstm_back(
    v: Vectors, at: _Place, gates: Any, before_c: Any, inner: Any, above: Any, carry_h: Any, carry_c: Any, back: Any
) -> None:
    input_gate, forget_gate, candidate, output_gate = (at.read(gates, k) for k in range(4))
    tanh_c = at.read(inner)
    by_h = v.sum(at.read(carry_h), at.read(above))
    by_c = v.multiply_add(v.product(by_h, output_gate), v.one_minus_square(tanh_c), at.read(carry_c))
    entering = (
        v.product(by_c, candidate, _sigmoid_slope(v, input_gate)),
        v.product(by_c, at.read(before_c), _sigmoid_slope(v, forget_gate)),
        v.product(by_c, input_gate, v.one_minus_square(candidate)),
        v.product(by_h, tanh_c, _sigmoid_slope(v, output_gate)),
    )
    for k, value in enumerate(entering):
        at.write(value, back, k)
    at.write(v.product(by_c, forget_gate), carry_c)


def _gru(v: Vectors, at: _Place, gates: Any, hidden: Any, before_h: Any, inner: Any, h: Any, next_h: Any) -> None:
    reset, update = v.sigmoid(*(v.sum(at.read(gates, k), at.read(hidden, k)) for k in range(2)))
    last = at.read(hidden, 2)
    candidate = v.tanh(v.multiply_add(reset, last, at.read(gates, 2)))[0]
    for k, value in enumerate((reset, update, candidate)):
        at.write(value, gates, k)
    at.write(last, inner)
    new_h = v.multiply_add(update, v.minus(at.read(before_h), candidate), candidate)
    at.write(new_h, h)
    at.write(new_h, next_h)


def _gru_back(
    v: Vectors, at: _Place, gates: Any, before_h: Any, inner: Any, above: Any, carry: Any, back: Any, hidden: Any
) -> None:
    reset, update, candidate = (at.read(gates, k) for k in range(3))
    by_h = v.sum(at.read(carry), at.read(above))
    by_update = v.product(by_h, v.minus(at.read(before_h), candidate), _sigmoid_slope(v, update))
    by_candidate = v.product(by_h, v.minus(v.constant(1.0), update), v.one_minus_square(candidate))
    by_reset = v.product(by_candidate, at.read(inner), _sigmoid_slope(v, reset))
    for k, value in enumerate((by_reset, by_update, by_candidate)):
        at.write(value, back, k)
    for k, value in enumerate((by_reset, by_update, v.product(by_candidate, reset))):
        at.write(value, hidden, k)
    at.write(v.product(by_h, update), carry)


_run_lstm, _run_lstm_back = _cells(6, _lstm), _cells(7, _lstm_back)
_run_gru, _run_gru_back = _cells(6, _gru), _cells(7, _gru_back)


@kernel
def lstm_cells(
    shape: tuple[int, int],
    gates: np.ndarray,
    before_c: np.ndarray,
    inner: np.ndarray,
    h: np.ndarray,
    c: Matrix,
    next_h: Matrix,
) -> None:
    """gates [rows, 4H] in place from what enters them to their values; written: inner = tanh(c), h, c and next_h = h,
    all [rows, H]; shape (rows, H)."""
    rows, size = shape
    arrays = (address(gates), address(before_c), address(inner), address(h), address(c.floats), address(next_h.floats))
    _run_lstm(arrays, (4 * size, size, size, size, c.lead, next_h.lead), size, rows)


@kernel
def lstm_cells_back(
    shape: tuple[int, int],
    gates: np.ndarray,
    before_c: np.ndarray,
    inner: np.ndarray,
    above: np.ndarray,
    carry_h: np.ndarray,
    carry_c: np.ndarray,
    back: np.ndarray,
) -> None:
    """carry_h, carry_c [rows, H] come from the next step; carry_c leaves for the step before; back [rows, 4H]."""
    rows, size = shape
    read = (address(gates), address(before_c), address(inner), address(above))
    written = (address(carry_h), address(carry_c), address(back))
    _run_lstm_back(read + written, (4 * size, size, size, size, size, size, 4 * size), size, rows)


@kernel
def gru_cells(
    shape: tuple[int, int],
    gates: np.ndarray,
    hidden: np.ndarray,
    before_h: Matrix,
    inner: np.ndarray,
    h: np.ndarray,
    next_h: Matrix,
) -> None:
    """gates [rows, 3H] hold the input's part and become values; hidden [rows, 3H] the state's part; both with biases.
    Written: inner, h and next_h = h, all [rows, H]; shape (rows, H)."""
    rows, size = shape
    read = (address(gates), address(hidden), address(before_h.floats))
    written = (address(inner), address(h), address(next_h.floats))
    _run_gru(read + written, (3 * size, 3 * size, before_h.lead, size, size, next_h.lead), size, rows)


@kernel
def gru_cells_back(
    shape: tuple[int, int],
    gates: np.ndarray,
    before_h: Matrix,
    inner: np.ndarray,
    above: np.ndarray,
    carry: np.ndarray,
    back: np.ndarray,
    hidden: np.ndarray,
) -> None:
    """carry [rows, H] comes from the next step and leaves with what passes the update gate; back, hidden [rows, 3H]."""
    rows, size = shape
    read = (address(gates), address(before_h.floats), address(inner), address(above))
    written = (address(carry), address(back), address(hidden))
    _run_gru_back(read + written, (3 * size, before_h.lead, size, size, size, 3 * size, 3 * size), size, rows)


class Tape(NamedTuple):
    """Memory of one worker for whole sequences: what the way back needs, and its results.

    All float32 and flat but `places`, for R = T*b rows and G = 4 (LSTM) or 3 (GRU) gates:

    work, back       activations of the trunk and their gradients
    places           int64 [R]: rows of the rollout that the sequences are
    gates            [R, G*H]: after their activations
    before_c         [R, H]: before each step, resets applied (h lies beside what the core reads)
    inner            [R, H]: tanh(c) of an LSTM, the hidden part of a GRU's new gate
    features         [R, H]: the results, with back_features: gradient by them
    back_gates       [together(b) * b, G*H]: gradient by what enters the gates, of a few steps
    back_hidden      as large: gradient by the hidden part of it (GRU)
    now              [b, G*H]: of one step (an LSTM keeps the sum of its two biases here)
    carry_h, carry_c [b, H]: gradients that go on to the step before
    """

    work: np.ndarray
    back: np.ndarray
    places: np.ndarray
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


@kernel(inline=True)
def core_forward(parameters: Parameters, rows: Rows, envs: np.ndarray, read: np.ndarray, tape: Tape) -> None:
    """Fill the tape from read [T*b, I+H], flat: what the trunk encoded, and beside it the state h before each step,
    which is written here. envs [b]: whose sequences these are."""
    network, flat, panels = parameters.network, parameters.flat, parameters.panels
    size, b, lstm = network.hidden, envs.shape[0], network.core == LSTM
    steps = rows.valid.shape[0] // rows.envs
    wide = (4 if lstm else 3) * size
    few, inputs, lead = together(b), network.encoded_width, network.encoded_lead
    bias, bias_hidden = flat[network.b_in : network.b_in + wide], flat[network.b_hidden : network.b_hidden + wide]
    if lstm:
        copy(bias, tape.now)
        bias = tape.now[:wide]
        add_row(bias, bias_hidden)
    for_input, for_hidden = panels[network.in_panels :], panels[network.hidden_panels :]
    for i in range(b):
        copy(rows.state[envs[i], 0], read[i * lead + inputs :])
        if lstm:
            copy(rows.state[envs[i], 1], tape.before_c[i * size :])
    for t in range(steps):
        first, after = t * b * size, (t + 1) * b * size
        here, h = read[t * b * lead :], tape.features[first:after]
        for i in range(b):
            if rows.start[t * rows.envs + envs[i]]:
                clear(here[i * lead + inputs : (i + 1) * lead])
                clear(tape.before_c[first + i * size : first + (i + 1) * size])
        # The state goes where the next step reads it; after the last step nobody does.
        next_h = Matrix(here[b * lead + inputs :], lead) if t + 1 < steps else Matrix(h, size)
        gates, inner = tape.gates[t * b * wide : (t + 1) * b * wide], tape.inner[first:after]
        if lstm:
            multiply((b, wide, lead), Matrix(here, lead), for_input, Matrix(bias, REPEATED), Matrix(gates, wide))
            c = tape.before_c[after:] if t + 1 < steps else tape.carry_c
            lstm_cells((b, size), gates, tape.before_c[first:], inner, h, Matrix(c, size), next_h)
        else:
            if t % few == 0:
                n, entering = min(few, steps - t) * b, Matrix(tape.gates[t * b * wide :], wide)
                multiply((n, wide, inputs), Matrix(here, lead), for_input, Matrix(bias, REPEATED), entering)
            before_h, now = Matrix(here[inputs:], lead), Matrix(tape.now, wide)
            multiply((b, wide, size), before_h, for_hidden, Matrix(bias_hidden, REPEATED), now)
            gru_cells((b, size), gates, tape.now, before_h, inner, h, next_h)


@kernel(inline=True)
def core_backward(
    parameters: Parameters,
    rows: Rows,
    envs: np.ndarray,
    read: np.ndarray,
    tape: Tape,
    back_read: np.ndarray,
    grad: np.ndarray,
) -> None:
    """From tape.back_features to the gradients of the core's parameters (added to grad) and of what it read."""
    network, panels = parameters.network, parameters.panels
    size, b, lstm = network.hidden, envs.shape[0], network.core == LSTM
    steps = rows.valid.shape[0] // rows.envs
    wide = (4 if lstm else 3) * size
    few, inputs, lead = together(b), network.encoded_width, network.encoded_lead
    carry_h, carry_c = tape.carry_h[: b * size], tape.carry_c[: b * size]
    clear(carry_h)
    clear(carry_c)
    by_gates, by_hidden = tape.back_gates, tape.back_gates if lstm else tape.back_hidden
    # An LSTM's state is reached through the gates alone, a GRU's also directly.
    before, start = Matrix(carry_h, size), Matrix(carry_h, NOTHING if lstm else size)
    for end in range(steps, 0, -few):
        first = max(end - few, 0)
        for t in range(end - 1, first - 1, -1):
            now = (t - first) * b * wide
            here, gates, above = t * b * size, tape.gates[t * b * wide :], tape.back_features[t * b * size :]
            inner = tape.inner[here:]
            if lstm:
                before_c = tape.before_c[here:]
                lstm_cells_back((b, size), gates, before_c, inner, above, carry_h, carry_c, by_gates[now:])
            else:
                before_h = Matrix(read[t * b * lead + inputs :], lead)
                gru_cells_back((b, size), gates, before_h, inner, above, carry_h, by_gates[now:], by_hidden[now:])
            if t > 0:
                multiply((b, size, wide), Matrix(by_hidden[now:], wide), panels[network.hidden_back :], start, before)
                for i in range(b):
                    if rows.start[t * rows.envs + envs[i]]:
                        clear(carry_h[i * size : (i + 1) * size])
                        clear(carry_c[i * size : (i + 1) * size])
        n, inputs_read, states_read = (end - first) * b, read[first * b * lead :], read[first * b * lead + inputs :]
        add_products((n, wide, inputs), Matrix(by_gates, wide), Matrix(inputs_read, lead), grad[network.w_in :])
        add_products((n, wide, size), Matrix(by_hidden, wide), Matrix(states_read, lead), grad[network.w_hidden :])
        sum_columns(by_gates, wide, n, grad[network.b_in : network.b_in + wide])
        if not lstm:
            sum_columns(by_hidden, wide, n, grad[network.b_hidden : network.b_hidden + wide])
        if network.trunk.shape[0]:
            target = back_read[first * b * lead :]
            multiply(
                (n, inputs, wide),
                Matrix(by_gates, wide),
                panels[network.in_back :],
                Matrix(target, NOTHING),
                Matrix(target, lead),
            )
    if lstm:  # both biases are added to the same gates, so that their gradients are equal
        copy(grad[network.b_in : network.b_in + wide], grad[network.b_hidden :])
