"""LSTM and GRU over whole sequences with resets inside: forward, and back through time.

Rows are time-major, r = t*b + i for b sequences. An LSTM multiplies what it reads and its state in one product per
step, because its gates are sums of both. A GRU needs the parts of its gates apart: that of what it reads is one product
over the rows of a few steps, as many as stay in the cache until these steps read them. On the way back gradients of
weights and inputs are made while those of the gates of a few steps are near, and then their memory is used again. A
reset zeroes the state before a step; on the way back it stops the gradient there. The twin is torch's own LSTM and GRU
in `model.recurrence`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.fused.activations import sum_columns
from tailwise.fused.cells import gru_cells, gru_cells_back, lstm_cells, lstm_cells_back
from tailwise.fused.layout import LSTM, Network
from tailwise.fused.memory import clear, copy
from tailwise.fused.products import CHUNK, NOTHING, add_products, multiply


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
