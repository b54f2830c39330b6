"""LSTM and GRU over whole sequences with resets inside: forward, and back through time.

Rows are time-major, r = t*b + i for b sequences. What does not depend on the hidden state is one product over all rows;
per step remains the product with the hidden state and arithmetic on gates. A reset zeroes the state before a step, and
on the way back it stops the gradient there. The twin is torch's own LSTM and GRU in `model.recurrence`.

Gates lie as torch has them: LSTM input, forget, cell, output; GRU reset, update, new. Loops run over slices of a row
with one operation each: a compiler vectorises those, and not one loop over eight arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.kernels.arithmetic import sigmoid, tanh
from tailwise.kernels.gemm import gemm
from tailwise.kernels.layout import LSTM, Network
from tailwise.kernels.memory import clear, copy

_ONE = np.float32(1.0)


class Tape(NamedTuple):
    """What the way back needs, and its results; all float32, flat, for R = T*b rows and G = 4 (LSTM) or 3 (GRU) gates.

    gates [R, G*H]: after the activations; before_h, before_c [R, H]: the state before each step, resets applied;
    inner [R, H]: tanh(c) of an LSTM, the hidden part of a GRU's new gate; features [R, H]: the results;
    back_features [R, H]: gradient by them; back_gates [R, G*H]: by what enters the gates; back_hidden [R, 3*H]: by the
    hidden part of it (GRU); now [b, G*H], carry_h, carry_c [b, H]: of one step (an LSTM keeps the sum of its two biases
    in `now`); turned [H, G*H]: W_hh transposed.
    """

    gates: np.ndarray
    before_h: np.ndarray
    before_c: np.ndarray
    inner: np.ndarray
    features: np.ndarray
    back_features: np.ndarray
    back_gates: np.ndarray
    back_hidden: np.ndarray
    now: np.ndarray
    carry_h: np.ndarray
    carry_c: np.ndarray
    turned: np.ndarray


@kernel(reorder=True)
def lstm_gates(
    gates: np.ndarray, bias: np.ndarray, before_c: np.ndarray, c: np.ndarray, inner: np.ndarray, h: np.ndarray
) -> None:
    """One row: gates [4H] in place from what enters them, without its bias [4H], to their values; c, inner = tanh(c),
    h [H] are written. The bias is added here because the row lies in the nearest cache already."""
    size = h.shape[0]
    for j in range(2 * size):
        gates[j] = sigmoid(gates[j] + bias[j])
    cell, out = gates[2 * size : 3 * size], gates[3 * size : 4 * size]
    for_cell, for_out = bias[2 * size : 3 * size], bias[3 * size : 4 * size]
    for j in range(size):
        cell[j] = tanh(cell[j] + for_cell[j])
    for j in range(size):
        out[j] = sigmoid(out[j] + for_out[j])
    take, forget = gates[:size], gates[size : 2 * size]
    for j in range(size):
        c[j] = forget[j] * before_c[j] + take[j] * cell[j]
    for j in range(size):
        inner[j] = tanh(c[j])
    for j in range(size):
        h[j] = out[j] * inner[j]


@kernel(reorder=True)
def gru_gates(gates: np.ndarray, hidden: np.ndarray, before_h: np.ndarray, inner: np.ndarray, h: np.ndarray) -> None:
    """One row: gates [3H] hold the input's part and become values; hidden [3H] the state's part with its bias."""
    size = h.shape[0]
    for j in range(2 * size):
        gates[j] = sigmoid(gates[j] + hidden[j])
    reset, update, new = gates[:size], gates[size : 2 * size], gates[2 * size : 3 * size]
    last = hidden[2 * size : 3 * size]
    for j in range(size):
        inner[j] = last[j]
    for j in range(size):
        new[j] = tanh(new[j] + reset[j] * last[j])
    for j in range(size):
        h[j] = new[j] + update[j] * (before_h[j] - new[j])


@kernel(reorder=True)
def _lstm_gates_back(
    gates: np.ndarray, before_c: np.ndarray, inner: np.ndarray, above: np.ndarray, carry_h: np.ndarray,
    carry_c: np.ndarray, back: np.ndarray,
) -> None:  # fmt: skip
    """One row: carry_h, carry_c [H] come from the next step; carry_c leaves for the step before; back [4H]."""
    size = above.shape[0]
    take, forget = gates[:size], gates[size : 2 * size]
    cell, out = gates[2 * size : 3 * size], gates[3 * size : 4 * size]
    b_take, b_forget = back[:size], back[size : 2 * size]
    b_cell, b_out = back[2 * size : 3 * size], back[3 * size : 4 * size]
    for j in range(size):
        carry_h[j] += above[j]
    for j in range(size):
        carry_c[j] += carry_h[j] * out[j] * (_ONE - inner[j] * inner[j])
    for j in range(size):
        b_out[j] = carry_h[j] * inner[j] * out[j] * (_ONE - out[j])
    for j in range(size):
        b_take[j] = carry_c[j] * cell[j] * take[j] * (_ONE - take[j])
    for j in range(size):
        b_forget[j] = carry_c[j] * before_c[j] * forget[j] * (_ONE - forget[j])
    for j in range(size):
        b_cell[j] = carry_c[j] * take[j] * (_ONE - cell[j] * cell[j])
    for j in range(size):
        carry_c[j] *= forget[j]


@kernel(reorder=True)
def _gru_gates_back(
    gates: np.ndarray, before_h: np.ndarray, inner: np.ndarray, above: np.ndarray, carry: np.ndarray, back: np.ndarray,
    hidden: np.ndarray,
) -> None:  # fmt: skip
    """One row: carry [H] comes from the next step and leaves with what passes the update gate; back, hidden [3H]."""
    size = above.shape[0]
    reset, update, new = gates[:size], gates[size : 2 * size], gates[2 * size : 3 * size]
    b_reset, b_update, b_new = back[:size], back[size : 2 * size], back[2 * size : 3 * size]
    h_reset, h_update, h_new = hidden[:size], hidden[size : 2 * size], hidden[2 * size : 3 * size]
    for j in range(size):
        carry[j] += above[j]
    for j in range(size):
        b_update[j] = carry[j] * (before_h[j] - new[j]) * update[j] * (_ONE - update[j])
    for j in range(size):
        b_new[j] = carry[j] * (_ONE - update[j]) * (_ONE - new[j] * new[j])
    for j in range(size):
        b_reset[j] = b_new[j] * inner[j] * reset[j] * (_ONE - reset[j])
    for j in range(size):
        h_new[j] = b_new[j] * reset[j]
    for j in range(size):
        h_reset[j] = b_reset[j]
    for j in range(size):
        h_update[j] = b_update[j]
    for j in range(size):
        carry[j] *= update[j]


@kernel(reorder=True)
def add_bias(z: np.ndarray, rows: int, bias: np.ndarray) -> None:
    """z [rows, width], flat, += bias [width]."""
    width = bias.shape[0]
    for r in range(rows):
        row = z[r * width : (r + 1) * width]
        for j in range(width):
            row[j] += bias[j]


@kernel(reorder=True)
def add_columns(z: np.ndarray, rows: int, total: np.ndarray) -> None:
    """total [width] += sums of the columns of z [rows, width], flat."""
    width = total.shape[0]
    for r in range(rows):
        row = z[r * width : (r + 1) * width]
        for j in range(width):
            total[j] += row[j]


@kernel
def _turn(matrix: np.ndarray, rows: int, columns: int, target: np.ndarray) -> None:
    """target [columns, rows] = matrix [rows, columns] transposed, both flat."""
    for r in range(rows):
        for c in range(columns):
            target[c * rows + r] = matrix[r * columns + c]


@kernel
def core_forward(
    network: Network, flat: np.ndarray, encoded: np.ndarray, steps: int, envs: np.ndarray, state: np.ndarray,
    start: np.ndarray, stride: int, tape: Tape,
) -> None:  # fmt: skip
    """Fill the tape from encoded [T*b, I], flat.

    envs [b]: whose sequences these are; state [B, S, H] before step 0; start: bool, flat [T, stride] of all
    environments: True where an episode begins.
    """
    size, b, lstm = network.hidden, envs.shape[0], network.core == LSTM
    wide = (4 if lstm else 3) * size
    rows, inputs = steps * b, network.encoded_width
    gemm(*(rows, wide, inputs, encoded, inputs, False), *(flat[network.w_in :], inputs, True, 0.0, tape.gates, wide))
    bias_in, bias_hidden = flat[network.b_in : network.b_in + wide], flat[network.b_hidden : network.b_hidden + wide]
    bias = tape.now[:wide]
    if lstm:
        copy(bias_in, bias)
        add_bias(bias, 1, bias_hidden)
    else:
        add_bias(tape.gates, rows, bias_in)
    _turn(flat[network.w_hidden :], wide, size, tape.turned)
    for i in range(b):
        copy(state[envs[i], 0], tape.before_h[i * size :])
        if lstm:
            copy(state[envs[i], 1], tape.before_c[i * size :])
    for t in range(steps):
        first = t * b * size
        for i in range(b):
            if start[t * stride + envs[i]]:
                at = first + i * size
                clear(tape.before_h[at : at + size])
                clear(tape.before_c[at : at + size])
        gates = tape.gates[t * b * wide : (t + 1) * b * wide]
        target, beta = (gates, 1.0) if lstm else (tape.now[: b * wide], 0.0)
        gemm(*(b, wide, size, tape.before_h[first:], size, False), *(tape.turned, wide, False, beta, target, wide))
        if not lstm:
            add_bias(target, b, bias_hidden)
        for i in range(b):
            at = first + i * size
            h = tape.features[at : at + size]
            row = gates[i * wide : (i + 1) * wide]
            if lstm:
                c = tape.carry_c[i * size : (i + 1) * size]
                lstm_gates(row, bias, tape.before_c[at : at + size], c, tape.inner[at : at + size], h)
            else:
                hidden = target[i * wide : (i + 1) * wide]
                gru_gates(row, hidden, tape.before_h[at : at + size], tape.inner[at : at + size], h)
        if t + 1 < steps:
            after = first + b * size
            copy(tape.features[first:after], tape.before_h[after:])
            if lstm:
                copy(tape.carry_c[: b * size], tape.before_c[after:])


@kernel
def core_backward(
    network: Network, flat: np.ndarray, encoded: np.ndarray, steps: int, envs: np.ndarray, start: np.ndarray,
    stride: int, tape: Tape, back_encoded: np.ndarray, grad: np.ndarray,
) -> None:  # fmt: skip
    """From tape.back_features to the gradients of the core's parameters (added to grad) and of what it read."""
    size, b, lstm = network.hidden, envs.shape[0], network.core == LSTM
    wide = (4 if lstm else 3) * size
    rows, inputs = steps * b, network.encoded_width
    carry_h, carry_c = tape.carry_h[: b * size], tape.carry_c[: b * size]
    clear(carry_h)
    clear(carry_c)
    by_hidden = tape.back_gates if lstm else tape.back_hidden
    beta = 0.0 if lstm else 1.0  # an LSTM's hidden state is reached through the gates alone, a GRU's also directly
    for t in range(steps - 1, -1, -1):
        for i in range(b):
            at, mine = (t * b + i) * size, slice(i * size, (i + 1) * size)
            here, wide_here = slice(at, at + size), slice((t * b + i) * wide, (t * b + i + 1) * wide)
            above = tape.back_features[here]
            if lstm:
                _lstm_gates_back(
                    *(tape.gates[wide_here], tape.before_c[here], tape.inner[here], above),
                    *(carry_h[mine], carry_c[mine], tape.back_gates[wide_here]),
                )
            else:
                _gru_gates_back(
                    *(tape.gates[wide_here], tape.before_h[here], tape.inner[here], above),
                    *(carry_h[mine], tape.back_gates[wide_here], tape.back_hidden[wide_here]),
                )
        if t == 0:
            break
        gemm(
            *(b, size, wide, by_hidden[t * b * wide :], wide, False),
            *(flat[network.w_hidden :], size, False, beta, carry_h, size),
        )
        for i in range(b):
            if start[t * stride + envs[i]]:
                clear(carry_h[i * size : (i + 1) * size])
                clear(carry_c[i * size : (i + 1) * size])
    gemm(
        *(wide, inputs, rows, tape.back_gates, wide, True),
        *(encoded, inputs, False, 1.0, grad[network.w_in :], inputs),
    )
    gemm(
        *(wide, size, rows, by_hidden, wide, True),
        *(tape.before_h, size, False, 1.0, grad[network.w_hidden :], size),
    )
    by_bias = tape.now[:wide]
    clear(by_bias)
    add_columns(tape.back_gates, rows, by_bias)
    add_bias(grad[network.b_in : network.b_in + wide], 1, by_bias)
    if not lstm:
        clear(by_bias)
        add_columns(by_hidden, rows, by_bias)
    add_bias(grad[network.b_hidden : network.b_hidden + wide], 1, by_bias)
    if network.trunk.shape[0]:
        gemm(
            *(rows, inputs, wide, tape.back_gates, wide, False),
            *(flat[network.w_in :], inputs, False, 0.0, back_encoded, inputs),
        )
