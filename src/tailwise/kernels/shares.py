"""Forward and backward of a share of a minibatch: rows go through in blocks that fit into the cache.

Kernels that call kernels are compiled again inside their callers, so the nesting is kept flat: what is long and called
once per share (the core) is called from here, what is called per block is one kernel.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tailwise.core.compiled import kernel
from tailwise.kernels.dense import backward, forward
from tailwise.kernels.layout import NO_CORE, Network
from tailwise.kernels.losses import losses
from tailwise.kernels.memory import copy
from tailwise.kernels.recurrent import Tape, core_backward, core_forward
from tailwise.kernels.rows import Draws, Rows, Weights

BLOCK = 256  # rows: their activations and gradients fill half a megabyte; 64 to 192 were measured, and no faster


class Scratch(NamedTuple):
    """Memory of one worker; float32 unless said.

    work, back: activations and their gradients of a block; grad: of all parameters, [size of flat]; sums: float64;
    policy: float64 [2, K]; loss: [C*N]; log_std_grad: float64 [A] or [0].
    """

    work: np.ndarray
    back: np.ndarray
    grad: np.ndarray
    sums: np.ndarray
    policy: np.ndarray
    loss: np.ndarray
    log_std_grad: np.ndarray


class Trunk(NamedTuple):
    """Memory of one worker for the trunk over whole sequences: activations and their gradients."""

    work: np.ndarray
    back: np.ndarray


@kernel
def gather(obs: np.ndarray, index: np.ndarray, target: np.ndarray) -> None:
    """Rows `index` [n] of obs [R, D] into target, flat [n * D]."""
    width = obs.shape[1]
    for i in range(index.shape[0]):
        source, row = obs[index[i]], target[i * width : (i + 1) * width]
        for j in range(width):
            row[j] = source[j]


@kernel
def learn_rows(
    network: Network, flat: np.ndarray, rows: Rows, index: np.ndarray, draws: Draws, weights: Weights,
    features: np.ndarray, back_features: np.ndarray, scratch: Scratch,
) -> None:  # fmt: skip
    """Add losses and gradients of the rows `index` [n] to the scratch's sums and grad.

    Without a core the trunk runs here as well. With one, features [n * H] are its results and back_features receives
    the gradient by them; copies in and out of a block are cheap beside its products.
    """
    shape = (network.actor, network.critics, network.quantiles, network.output_width)
    spread = flat[network.log_std : network.log_std + network.actor] if network.log_std >= 0 else flat[:0]
    work, back, width = scratch.work, scratch.back, network.features_width
    for first in range(0, index.shape[0], BLOCK):
        part = index[first : first + BLOCK]
        n = part.shape[0]
        if network.core == NO_CORE:
            gather(rows.obs, part, work)
            forward(network.trunk, flat, work, n)
        else:
            copy(features[first * width : (first + n) * width], work)
        forward(network.heads, flat, work, n)
        at = network.output * n
        losses(
            part, rows, draws, weights, shape, spread, scratch.policy, scratch.loss, work[at:], back[at:],
            scratch.log_std_grad, scratch.sums,
        )  # fmt: skip
        backward(network.heads, flat, work, back, n, scratch.grad)
        if network.core == NO_CORE:
            backward(network.trunk, flat, work, back, n, scratch.grad)
        else:
            copy(back[: n * width], back_features[first * width :])
    # Summed in float64 beside the other gradients, because every row adds to the same few numbers.
    for a in range(scratch.log_std_grad.shape[0]):
        scratch.grad[network.log_std + a] += scratch.log_std_grad[a]
        scratch.log_std_grad[a] = 0.0


def learn_sequences(
    network: Network,
    flat: np.ndarray,
    rows: Rows,
    envs: np.ndarray,
    draws: Draws,
    weights: Weights,
    scratch: Scratch,
    trunk: Trunk,
    tape: Tape,
) -> None:
    """With a core: add losses and gradients of all steps of the environments `envs` [b]."""
    index, steps = sequence_rows(rows, envs), len(rows.valid) // rows.envs
    n = len(index)
    encode(network, flat, rows, index, envs, trunk, tape)
    learn_rows(network, flat, rows, index, draws, weights, tape.features, tape.back_features, scratch)
    encoded, back = trunk.work[network.encoded * n :], trunk.back[network.encoded * n :]
    core_backward(network, flat, encoded, steps, envs, rows.start, rows.envs, tape, back, scratch.grad)
    backward(network.trunk, flat, trunk.work, trunk.back, n, scratch.grad)


def sequence_rows(rows: Rows, envs: np.ndarray) -> np.ndarray:
    """Flat rows of the rollout [T*b] of the sequences `envs` [b], step by step."""
    steps = len(rows.valid) // rows.envs
    return (np.arange(steps)[:, None] * rows.envs + envs[None, :]).reshape(-1)


def encode(
    network: Network, flat: np.ndarray, rows: Rows, index: np.ndarray, envs: np.ndarray, trunk: Trunk, tape: Tape
) -> None:
    """Trunk and core forward over whole sequences; the features are tape.features."""
    n, steps = len(index), len(rows.valid) // rows.envs
    gather(rows.obs, index, trunk.work)
    forward(network.trunk, flat, trunk.work, n)
    encoded = trunk.work[network.encoded * n :]
    core_forward(network, flat, encoded, steps, envs, rows.state, rows.start, rows.envs, tape)
