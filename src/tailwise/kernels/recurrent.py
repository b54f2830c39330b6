"""LSTM and GRU over whole sequences with resets inside: forward, and back through time.

Rows are time-major, r = t*b + i for b sequences. What does not depend on the hidden state is one product over all rows;
per step remains the product with the hidden state and arithmetic on gates. A reset zeroes the state before a step, and
on the way back it stops the gradient there. The twin is torch's own LSTM and GRU in `model.recurrence`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.kernels.cells import gru_cell, gru_cell_back, lstm_cell, lstm_cell_back
from tailwise.kernels.layout import LSTM, Network
from tailwise.kernels.memory import clear, copy
from tailwise.kernels.products import NOTHING, add_products, multiply


class Tape(NamedTuple):
    """What the way back needs, and its results; all float32, flat, for R = T*b rows and G = 4 (LSTM) or 3 (GRU) gates.

    gates [R, G*H]: after the activations; before_h, before_c [R, H]: the state before each step, resets applied;
    inner [R, H]: tanh(c) of an LSTM, the hidden part of a GRU's new gate; features [R, H]: the results;
    back_features [R, H]: gradient by them; back_gates [R, G*H]: by what enters the gates; back_hidden [R, 3*H]: by the
    hidden part of it (GRU); now [b, G*H], carry_h, carry_c [b, H]: of one step (an LSTM keeps the sum of its two biases
    in `now`).
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


@kernel(reorder=True)
def add_row(total: np.ndarray, row: np.ndarray) -> None:
    """total [width] += row [width]."""
    for j in range(row.shape[0]):
        total[j] += row[j]


@kernel(reorder=True)
def add_columns(z: np.ndarray, rows: int, total: np.ndarray) -> None:
    """total [width] += sums of the columns of z [rows, width], flat."""
    width = total.shape[0]
    for r in range(rows):
        row = z[r * width : (r + 1) * width]
        for j in range(width):
            total[j] += row[j]


@kernel
def core_forward(
    network: Network, flat: np.ndarray, panels: np.ndarray, encoded: np.ndarray, steps: int, envs: np.ndarray,
    state: np.ndarray, start: np.ndarray, stride: int, tape: Tape,
) -> None:  # fmt: skip
    """Fill the tape from encoded [T*b, I], flat.

    envs [b]: whose sequences these are; state [B, S, H] before step 0; start: bool, flat [T, stride] of all
    environments: True where an episode begins.
    """
    size, b, lstm = network.hidden, envs.shape[0], network.core == LSTM
    wide = (4 if lstm else 3) * size
    rows, inputs = steps * b, network.encoded_width
    bias, bias_hidden = flat[network.b_in : network.b_in + wide], flat[network.b_hidden : network.b_hidden + wide]
    if lstm:
        copy(bias, tape.now)
        bias = tape.now[:wide]
        add_row(bias, bias_hidden)
    multiply(rows, wide, inputs, encoded, inputs, 1, panels[network.in_panels :], bias, 0, tape.gates, wide)
    for_hidden = panels[network.hidden_panels :]
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
        target, added, distance = (gates, gates, wide) if lstm else (tape.now[: b * wide], bias_hidden, 0)
        multiply(b, wide, size, tape.before_h[first:], size, 1, for_hidden, added, distance, target, wide)
        for i in range(b):
            at = first + i * size
            h = tape.features[at : at + size]
            row = gates[i * wide : (i + 1) * wide]
            if lstm:
                c = tape.carry_c[i * size : (i + 1) * size]
                lstm_cell(row, tape.before_c[at : at + size], c, tape.inner[at : at + size], h)
            else:
                hidden = target[i * wide : (i + 1) * wide]
                gru_cell(row, hidden, tape.before_h[at : at + size], tape.inner[at : at + size], h)
        if t + 1 < steps:
            after = first + b * size
            copy(tape.features[first:after], tape.before_h[after:])
            if lstm:
                copy(tape.carry_c[: b * size], tape.before_c[after:])


@kernel
def core_backward(
    network: Network, panels: np.ndarray, encoded: np.ndarray, steps: int, envs: np.ndarray, start: np.ndarray,
    stride: int, tape: Tape, back_encoded: np.ndarray, grad: np.ndarray, chunk: np.ndarray,
) -> None:  # fmt: skip
    """From tape.back_features to the gradients of the core's parameters (added to grad) and of what it read.

    chunk: memory as in `add_products`.
    """
    size, b, lstm = network.hidden, envs.shape[0], network.core == LSTM
    wide = (4 if lstm else 3) * size
    rows, inputs = steps * b, network.encoded_width
    carry_h, carry_c = tape.carry_h[: b * size], tape.carry_c[: b * size]
    clear(carry_h)
    clear(carry_c)
    by_hidden = tape.back_gates if lstm else tape.back_hidden
    added = NOTHING if lstm else size  # an LSTM's state is reached through the gates alone, a GRU's also directly
    for t in range(steps - 1, -1, -1):
        for i in range(b):
            at, mine = (t * b + i) * size, slice(i * size, (i + 1) * size)
            here, wide_here = slice(at, at + size), slice((t * b + i) * wide, (t * b + i + 1) * wide)
            above = tape.back_features[here]
            if lstm:
                lstm_cell_back(
                    *(tape.gates[wide_here], tape.before_c[here], tape.inner[here], above),
                    *(carry_h[mine], carry_c[mine], tape.back_gates[wide_here]),
                )
            else:
                gru_cell_back(
                    *(tape.gates[wide_here], tape.before_h[here], tape.inner[here], above),
                    *(carry_h[mine], tape.back_gates[wide_here], tape.back_hidden[wide_here]),
                )
        if t == 0:
            break
        above = by_hidden[t * b * wide :]
        multiply(b, size, wide, above, wide, 1, panels[network.hidden_back :], carry_h, added, carry_h, size)
        for i in range(b):
            if start[t * stride + envs[i]]:
                clear(carry_h[i * size : (i + 1) * size])
                clear(carry_c[i * size : (i + 1) * size])
    add_products(rows, wide, inputs, tape.back_gates, wide, encoded, inputs, grad[network.w_in :], chunk)
    add_products(rows, wide, size, by_hidden, wide, tape.before_h, size, grad[network.w_hidden :], chunk)
    by_bias = tape.now[:wide]
    clear(by_bias)
    add_columns(tape.back_gates, rows, by_bias)
    add_row(grad[network.b_in : network.b_in + wide], by_bias)
    if not lstm:
        clear(by_bias)
        add_columns(by_hidden, rows, by_bias)
    add_row(grad[network.b_hidden : network.b_hidden + wide], by_bias)
    if network.trunk.shape[0]:
        multiply(
            *(rows, inputs, wide, tape.back_gates, wide, 1, panels[network.in_back :]),
            *(back_encoded, NOTHING, back_encoded, inputs),
        )
